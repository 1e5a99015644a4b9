package abi

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"unicode"
)

// Bounds of a Description, whatever the file holds.
const (
	maxListed    = 4096 // imports, exports, sections, producers: of each
	maxSections  = 100_000
	maxText      = 200 // bytes of a name
	noteSections = 64  // custom sections whose content is looked at
)

// Description is what a module says of itself.
type Description struct {
	// Size is in bytes.
	Size int64 `json:"size"`
	// ABI is the Proxy-Wasm version that the module names, like "0.2.1"; "" none.
	ABI string `json:"abi,omitempty"`
	// Name is the module's own, if its name section has one.
	Name string `json:"name,omitempty"`
	// Functions is how many are defined, imports not counted.
	Functions int `json:"functions"`
	// Start tells that a function runs before Envoy calls the module.
	Start bool `json:"start,omitempty"`
	// Features are what it uses beyond WebAssembly 2.0, as far as sections show them.
	Features string `json:"features,omitempty"`

	Memories  []MemoryInfo   `json:"memories,omitempty"`
	Imports   []ImportInfo   `json:"imports,omitempty"`
	Exports   []ExportInfo   `json:"exports,omitempty"`
	Sections  []SectionInfo  `json:"sections"`
	Producers []ProducerInfo `json:"producers,omitempty"`

	// Cut tells that a list above is not complete.
	Cut bool `json:"cut,omitempty"`
	// Fault is why the module cannot be read to its end; "": it can.
	Fault string `json:"fault,omitempty"`
}

// MemoryInfo is one memory. Pages are 64 KiB.
type MemoryInfo struct {
	Min      uint64 `json:"min_pages"`
	Max      uint64 `json:"max_pages,omitempty"` // 0: none given
	Imported bool   `json:"imported,omitempty"`
	Shared   bool   `json:"shared,omitempty"`
	Wide     bool   `json:"memory64,omitempty"`
}

// ImportInfo is one import.
type ImportInfo struct {
	Module string `json:"module"`
	Name   string `json:"name"`
	Kind   string `json:"kind"`           // function, table, memory, global, tag
	Type   string `json:"type,omitempty"` // of a function: (i32,i32)->(i32)
}

// ExportInfo is one export.
type ExportInfo struct {
	Name string `json:"name"`
	Kind string `json:"kind"`
	Type string `json:"type,omitempty"`
}

// SectionInfo is one section in the order of the file.
type SectionInfo struct {
	Name string `json:"name"` // of a custom section: its own
	// Custom sections are not part of the code; Envoy needs none of them.
	Custom bool  `json:"custom,omitempty"`
	Size   int64 `json:"size"`            // content, in bytes
	Count  int64 `json:"count,omitempty"` // entries
}

// ProducerInfo is one entry of the producers section.
type ProducerInfo struct {
	Field   string `json:"field"` // language, processed-by, sdk
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
}

// InspectFile describes the module in the file at path.
func InspectFile(path string) (Description, error) {
	file, err := os.Open(path)
	if err != nil {
		return Description{}, fmt.Errorf("inspect: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil:
		return Description{}, fmt.Errorf("inspect: %w", err)
	case !info.Mode().IsRegular():
		return Description{}, fmt.Errorf("inspect %s: not a regular file", path)
	}
	d, err := Inspect(file, info.Size())
	if err != nil {
		return d, fmt.Errorf("inspect %s: %w", path, err)
	}
	return d, nil
}

// Inspect describes the module that r holds in its first size bytes. It is an error only when that is no WebAssembly module or cannot be read;
// a damaged one is described as far as it goes. Memory and time are bounded for any content, and names are printable.
func Inspect(r io.ReaderAt, size int64) (d Description, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the reader failed: %v at %s", p, firstLines(debug.Stack()))
		}
	}()
	if err := readHeader(newCursor(r, size, 64)); err != nil {
		return d, err
	}
	m, err := readModule(r, size)
	if f, ok := errors.AsType[*fault](err); ok {
		d.Fault = f.text
	} else if err != nil {
		return d, err
	}
	d.Size, d.Start, d.Features = size, m.hasStart, m.features.String()
	d.Functions = max(0, len(m.functions)-m.importedFunctions)
	d.ABI = strings.ReplaceAll(strings.TrimPrefix(m.marker, "proxy_abi_version_"), "_", ".")
	i := inspector{module: m, d: &d, in: newCursor(r, size, 16<<10)}
	i.sections(newCursor(r, size, 4<<10))
	if i.failed != nil {
		return d, i.failed
	}
	return d, nil
}

// inspector walks over the sections a second time, for people.
type inspector struct {
	module *module
	d      *Description
	in     *cursor // reads one section's content; its faults end that section only
	custom int
	failed error // the file cannot be read
}

func (i *inspector) sections(c *cursor) {
	c.seek(8)
	for n := 0; c.more() && i.failed == nil; n++ {
		if n >= maxSections {
			i.d.Cut = true
			return
		}
		id, size := c.byte(), int64(c.u32())
		outer := c.frame(size)
		if c.err != nil {
			return // readModule said so
		}
		i.section(id, c.pos(), c.limit)
		c.seek(c.limit)
		c.setLimit(outer)
	}
}

// open makes in read from from to limit.
func (i *inspector) open(from, limit int64) *cursor {
	*i.in = cursor{r: i.in.r, buf: i.in.buf, base: from, limit: limit}
	return i.in
}

func (i *inspector) section(id byte, from, limit int64) {
	c := i.open(from, limit)
	s := SectionInfo{Size: limit - from}
	switch {
	case id == 0:
		s.Custom = true
		i.customSection(c, &s)
	case int(id) < len(sectionNames):
		s.Name = sectionNames[id]
		if id != 8 && id != 12 { // these are one number
			s.Count = int64(c.u32())
		}
		i.content(c, id, s.Count)
	default:
		s.Name = "section " + strconv.Itoa(int(id))
	}
	if _, ok := errors.AsType[*fault](c.err); c.err != nil && !ok && !errors.Is(c.err, errCut) {
		i.failed = c.err
	}
	i.d.Sections = listed(i.d, i.d.Sections, s)
}

// listed appends to a list of d, up to the bound.
func listed[T any](d *Description, list []T, item T) []T {
	if len(list) >= maxListed {
		d.Cut = true
		return list
	}
	return append(list, item)
}

func (i *inspector) content(c *cursor, id byte, count int64) {
	var one func(*cursor)
	switch id {
	case 2:
		function := uint32(0)
		one = func(c *cursor) { i.importEntry(c, &function) }
	case 5:
		one = func(c *cursor) { i.memory(c, false) }
	case 7:
		one = i.export
	default:
		return
	}
	for n := int64(0); n < count && c.err == nil; n++ {
		if n >= maxListed {
			i.d.Cut = true
			return
		}
		one(c)
	}
}

var kindNames = []string{"function", "table", "memory", "global", "tag"}

func (i *inspector) importEntry(c *cursor, function *uint32) {
	from, name, kind := i.text(c), i.text(c), c.byte()
	if c.err != nil || int(kind) >= len(kindNames) {
		c.failf("has an import of an unknown kind")
		return
	}
	entry := ImportInfo{Module: from, Name: name, Kind: kindNames[kind]}
	var scratch module // its notes are not needed
	switch kind {
	case kindFunction:
		c.u32()
		entry.Type = i.signature(*function)
		*function++
	case kindTable:
		scratch.readTable(c, true)
	case kindMemory:
		i.memory(c, true)
	case kindGlobal:
		scratch.valueType(c)
		c.byte()
	case kindTag:
		c.byte()
		c.u32()
	}
	if c.err == nil {
		i.d.Imports = listed(i.d, i.d.Imports, entry)
	}
}

func (i *inspector) memory(c *cursor, imported bool) {
	flags := c.byte()
	m := MemoryInfo{Imported: imported, Shared: flags&2 != 0, Wide: flags&4 != 0}
	bits := uint(32)
	if m.Wide {
		bits = 64
	}
	m.Min = c.uleb(bits)
	if flags&1 != 0 {
		m.Max = c.uleb(bits)
	}
	if c.err == nil {
		i.d.Memories = listed(i.d, i.d.Memories, m)
	}
}

func (i *inspector) export(c *cursor) {
	name, kind, index := i.text(c), c.byte(), c.u32()
	if c.err != nil || int(kind) >= len(kindNames) {
		c.failf("has an export of an unknown kind")
		return
	}
	entry := ExportInfo{Name: name, Kind: kindNames[kind]}
	if kind == kindFunction {
		entry.Type = i.signature(index)
	}
	i.d.Exports = listed(i.d, i.d.Exports, entry)
}

func (i *inspector) signature(function uint32) string {
	sig, ok := i.module.signature(function)
	if !ok || sig == "" {
		return ""
	}
	return sigText(sig)
}

func (i *inspector) customSection(c *cursor, s *SectionInfo) {
	s.Name = i.text(c)
	if i.custom++; i.custom > noteSections || c.err != nil {
		return
	}
	switch s.Name {
	case "name":
		if c.more() && c.byte() == 0 { // the module's name comes first
			c.u32()
			i.d.Name = i.text(c)
		}
	case "producers":
		i.producers(c)
	}
}

func (i *inspector) producers(c *cursor) {
	for range c.u32() {
		field := i.text(c)
		for range c.u32() {
			p := ProducerInfo{Field: field, Name: i.text(c), Version: i.text(c)}
			if c.err != nil || i.d.Cut {
				return
			}
			i.d.Producers = listed(i.d, i.d.Producers, p)
		}
		if c.err != nil {
			return
		}
	}
}

// text reads a name and makes it printable and short.
func (i *inspector) text(c *cursor) string {
	i.module.scratch, _ = c.anyName(i.module.scratch)
	if c.err != nil {
		return ""
	}
	return printable(i.module.scratch)
}

func printable(b []byte) string {
	s := string(b[:min(len(b), maxText)])
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) {
		s = strconv.QuoteToASCII(s)
	}
	if len(b) > maxText {
		s += "…"
	}
	return s
}
