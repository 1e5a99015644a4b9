package abi

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Limits of V8 (maxEntries, maxArity, maxLocals, maxTable, maxBody, maxTargets), and our own for what is kept while reading.
const (
	maxEntries    = 1_000_000
	maxArity      = 1000
	maxLocals     = 50_000
	maxTable      = 10_000_000
	maxTargets    = 65_520
	maxBody       = 7_654_321
	maxSignature  = 64
	maxSignatures = 1 << 14
	maxImports    = 1 << 12
)

const pageSize = 64 << 10

// Kinds of imports and exports.
const (
	kindFunction = iota
	kindTable
	kindMemory
	kindGlobal
	kindTag
)

type importFunc struct{ module, name, sig string }

// memory is what a module says of one memory or table.
type limits struct {
	min      uint64
	shared   bool
	wide     bool
	imported bool
}

// module is what the section reader keeps. Its size does not depend on the code, and is bounded for any file.
type module struct {
	size     int64
	features features

	types       []uint32 // type index → signature
	sigs        []string // signatures, the first one stands for "none we know"
	sigIDs      map[string]uint32
	mostResults int

	functions         []uint32 // function index → type index, imported ones first
	importedFunctions int
	imports           []importFunc // different ones, the first maxImports
	importIDs         map[importFunc]int
	importAt          []int // function index of an import → imports, the first maxImports
	importsCut        bool
	otherImports      []string // what Envoy cannot satisfy: globals and tags, a few
	tagImports        []string

	memories []limits
	tables   []limits

	exports        map[string]uint32 // functions that Envoy may look up
	marker         string
	exportedMemory []uint32 // different indices of exported memories, a few

	hasStart      bool
	start         uint32
	code          span // content of the code section behind the count
	codeCount     uint32
	locals        uint64
	localsPast    string // the first function with too many locals
	segmentPast   string // the first active segment that does not fit
	entries       uint64 // table, global, export, segment and tag entries
	nonCustom     []span // whole sections but custom ones, for the compiler
	nonCustomSize int64
	hidden        bool // a custom section with precompiled code was read: Envoy hides it and those behind it

	scratch, scratch2 []byte
}

type span struct{ from, to int64 }

var sectionNames = []string{
	"custom", "type", "import", "function", "table", "memory", "global", "export", "start", "element", "code", "data", "data count", "tag",
}

// sectionRank is the order in which sections must come.
var sectionRank = []int{0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 12, 13, 11, 6}

// readModule reads all sections of a module. The error is a *fault if the content is at fault; what was read so far is returned with it.
func readModule(r io.ReaderAt, size int64) (*module, error) {
	m := &module{
		size: size, sigs: []string{""}, sigIDs: map[string]uint32{"": 0},
		importIDs: map[importFunc]int{}, exports: map[string]uint32{},
	}
	c := newCursor(r, size, 64<<10)
	if err := readHeader(c); err != nil {
		return m, err
	}
	rank := 0
	for c.more() {
		if err := m.section(c, &rank); err != nil {
			return m, err
		}
	}
	if c.err == nil && int(m.codeCount) != len(m.functions)-m.importedFunctions {
		c.failf("declares %d functions and has the code of %d", len(m.functions)-m.importedFunctions, m.codeCount)
	}
	return m, c.err
}

func readHeader(c *cursor) error {
	var head [8]byte
	n := int(min(c.left(), int64(len(head))))
	for i := range n {
		head[i] = c.byte()
	}
	switch {
	case c.err != nil:
		return c.err
	case n == 0:
		return &fault{text: "the file is empty"}
	case n >= 2 && head[0] == 0x1f && head[1] == 0x8b:
		return &fault{text: "the file is gzip data, not a WebAssembly module"}
	case !bytes.Equal(head[:min(n, 4)], []byte("\x00asm")[:min(n, 4)]):
		return &fault{text: fmt.Sprintf("the file is not a WebAssembly module: it starts with %q", head[:n])}
	case n < len(head):
		return &fault{text: fmt.Sprintf("the file ends after %d bytes", n)}
	case head[4] == 0x0d && head[6] == 1:
		return &fault{text: "the file is a WebAssembly component; Proxy-Wasm needs a core module"}
	case !bytes.Equal(head[4:], []byte{1, 0, 0, 0}):
		return &fault{text: fmt.Sprintf("the module has the binary version % x; Envoy reads version 1", head[4:])}
	}
	return nil
}

// section reads one section and checks that it is where it may be and as long as it says.
func (m *module) section(c *cursor, rank *int) error {
	from := c.pos()
	id := c.byte()
	size := int64(c.u32())
	if int(id) >= len(sectionNames) {
		c.unknown("the module has a section with the number %d", id)
		return c.err
	}
	outer := c.frame(size)
	if id == 0 {
		m.customSection(c)
	} else {
		if sectionRank[id] <= *rank {
			c.failf("is out of order or comes twice")
		}
		*rank = sectionRank[id]
		m.nonCustom = append(m.nonCustom, span{from, c.limit})
		m.nonCustomSize += c.limit - from
		m.content(c, id)
		if c.err == nil && c.left() > 0 {
			c.failf("is %d bytes longer than its content", c.left())
		}
	}
	if c.err != nil {
		return inSection(c.err, sectionNames[id])
	}
	c.setLimit(outer)
	return nil
}

// inSection names the section in the reason.
func inSection(err error, section string) error {
	var f *fault
	switch {
	case errors.Is(err, errCut):
		return &fault{text: fmt.Sprintf("the %s section ends too early: the module is truncated or corrupt", section)}
	case errors.As(err, &f):
		return &fault{text: fmt.Sprintf("the %s section %s", section, f.text), future: f.future}
	default:
		return err
	}
}

func (m *module) content(c *cursor, id byte) {
	switch id {
	case 1:
		m.typeSection(c)
	case 2:
		m.importSection(c)
	case 3:
		m.functionSection(c)
	case 4:
		m.tableSection(c)
	case 5:
		m.each(c, func() { m.addMemory(c, false) })
	case 6:
		m.each(c, func() { m.valueType(c); c.byte(); m.constExpr(c) })
	case 7:
		m.exportSection(c)
	case 8:
		m.hasStart, m.start = true, c.u32()
	case 9:
		m.each(c, func() { m.elementSegment(c) })
	case 10:
		m.codeSection(c)
	case 11:
		m.each(c, func() { m.dataSegment(c) })
	case 12:
		c.u32()
	case 13:
		m.features |= exceptions
		m.each(c, func() { c.byte(); c.u32() })
	}
}

// each reads a vector whose entries one reads.
func (m *module) each(c *cursor, one func()) {
	for range c.u32() {
		one()
		if c.err != nil {
			return
		}
		m.entries++
	}
}

func (m *module) functionSection(c *cursor) {
	for range c.u32() {
		t := c.u32()
		if c.err != nil {
			return
		}
		m.addFunction(c, t)
	}
}

func (m *module) addFunction(c *cursor, typeIndex uint32) {
	if len(m.functions) >= 2*maxEntries {
		c.failf("has too many functions")
		return
	}
	m.functions = append(m.functions, typeIndex)
}

func (m *module) exportSection(c *cursor) {
	m.each(c, func() {
		m.scratch = c.name(m.scratch)
		kind, index := c.byte(), c.u32()
		if c.err != nil {
			return
		}
		name := string(m.scratch[:min(len(m.scratch), 64)])
		switch {
		case kind > kindTag:
			c.unknown("has an export of the kind %d", kind)
		case kind == kindFunction && isMarker(name) && m.marker == "":
			m.marker = name
		case kind == kindFunction && isLookedUp(name):
			m.exports[name] = index
		case kind == kindMemory && len(m.exportedMemory) < 2 && !slices.Contains(m.exportedMemory, index):
			m.exportedMemory = append(m.exportedMemory, index)
		}
	})
}

// codeSection walks over the bodies, reading only how many locals each has.
func (m *module) codeSection(c *cursor) {
	m.codeCount = c.u32()
	m.code = span{c.pos(), c.limit}
	for i := range m.codeCount {
		size := int64(c.u32())
		if size > maxBody {
			c.failf("has a function of %d bytes; the limit is %d", size, maxBody)
		}
		outer := c.frame(size)
		locals := m.readLocals(c)
		if c.err != nil {
			return
		}
		m.locals += locals
		if locals > maxLocals && m.localsPast == "" {
			m.localsPast = fmt.Sprintf("function %d has %d locals; the limit is %d", m.importedFunctions+int(i), locals, maxLocals)
		}
		c.seek(c.limit)
		c.setLimit(outer)
	}
}

func (m *module) readLocals(c *cursor) (sum uint64) {
	for range c.u32() {
		sum += c.uleb(32)
		m.valueType(c)
		if c.err != nil {
			break
		}
	}
	return sum
}
