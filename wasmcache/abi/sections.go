package abi

import (
	"bytes"
	"fmt"
	"strings"
)

func (m *module) importSection(c *cursor) {
	m.each(c, func() {
		m.scratch = c.name(m.scratch)
		m.scratch2 = c.name(m.scratch2)
		kind := c.byte()
		if c.err != nil {
			return
		}
		switch kind {
		case kindFunction:
			m.importFunction(c, c.u32())
		case kindTable:
			m.readTable(c, true)
		case kindMemory:
			m.addMemory(c, true)
		case kindGlobal:
			m.valueType(c)
			c.byte()
			m.otherImports = appendFew(m.otherImports, m.importLabel())
		case kindTag:
			c.byte()
			c.u32()
			m.features |= exceptions
			m.tagImports = appendFew(m.tagImports, m.importLabel())
		default:
			c.unknown("has an import of the kind %d", kind)
		}
	})
}

// few is how many objects of one kind a reason names.
const few = 5

func appendFew(list []string, s string) []string {
	if len(list) >= few {
		return list
	}
	return append(list, s)
}

// importLabel names the import just read.
func (m *module) importLabel() string { return label(string(m.scratch), string(m.scratch2)) }

// label writes module.name as a reason shows it: on one line and short, whatever the module holds.
func label(module, name string) string {
	s := cut(module) + "." + cut(name)
	if strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return fmt.Sprintf("%q", s)
	}
	return s
}

func (m *module) importFunction(c *cursor, typeIndex uint32) {
	if c.err != nil {
		return
	}
	index := m.importedFunctions
	m.importedFunctions++
	m.addFunction(c, typeIndex)
	sig, _ := m.signature(uint32(index))
	f := importFunc{cut(string(m.scratch)), cut(string(m.scratch2)), sig}
	at, ok := m.importIDs[f]
	if !ok {
		if len(m.imports) >= maxImports {
			m.importsCut = true
			return
		}
		at = len(m.imports)
		m.importIDs[f] = at
		m.imports = append(m.imports, f)
	}
	if len(m.importAt) < maxImports {
		m.importAt = append(m.importAt, at)
	}
}

func (m *module) tableSection(c *cursor) {
	m.each(c, func() { m.readTable(c, false) })
}

func (m *module) readTable(c *cursor, imported bool) {
	b := c.byte()
	withInit := b == 0x40 && !imported
	if withInit { // a table with an initial value
		m.features |= functionReferences
		c.byte()
		b = c.byte()
	}
	m.refType(c, b)
	l := m.readLimits(c, table64)
	l.imported = imported
	if c.err == nil && l.min > maxTable {
		c.failf("has a table of at least %d entries; the limit is %d", l.min, maxTable)
	}
	m.tables = append(m.tables, l)
	if withInit {
		m.constExpr(c)
	}
}

func (m *module) addMemory(c *cursor, imported bool) {
	l := m.readLimits(c, memory64)
	l.imported = imported
	m.memories = append(m.memories, l)
	if len(m.memories) > 1 {
		m.features |= multiMemory
	}
}

func (m *module) readLimits(c *cursor, wide features) (l limits) {
	flags := c.byte()
	switch {
	case c.err != nil:
		return l
	case flags&^0x0f == 0 && flags&0x08 != 0:
		c.failf("has a memory with its own page size, which Envoy does not know")
	case flags > 7:
		c.unknown("has limits with the flags 0x%02x", flags)
	case flags&3 == 2:
		c.failf("has a shared memory without a maximum")
	}
	bits := uint(32)
	if flags&4 != 0 {
		bits, l.wide = 64, true
		m.features |= wide
	}
	if flags&2 != 0 {
		l.shared = true
		m.features |= threads
	}
	l.min = c.uleb(bits)
	if flags&1 != 0 {
		c.uleb(bits)
	}
	return l
}

// constant is the value of a constant expression, if it is one plain number.
type constant struct {
	value uint64
	known bool
}

// constExpr reads a constant expression.
func (m *module) constExpr(c *cursor) (v constant) {
	for n := 0; c.err == nil; n++ {
		op := c.byte()
		v.known = false
		switch {
		case op == 0x0b:
			return constant{v.value, n == 1 && v.value != notPlain}
		case op == 0x41:
			v.value = uint64(uint32(c.sleb(32)))
		case op == 0x42:
			v.value = uint64(c.sleb(64))
		case isConstArithmetic(op) || op == opGlobalGet: // there are no imported globals, so this is a defined one
			m.features |= extendedConst
			v.value = notPlain
			m.immediate(c, op)
		default:
			v.value = notPlain
			m.immediate(c, op)
		}
	}
	return constant{}
}

// notPlain marks a value that is not written in the module; as an offset it would be out of any range.
const notPlain = ^uint64(0)

func isConstArithmetic(op byte) bool { return op >= 0x6a && op <= 0x6c || op >= 0x7c && op <= 0x7e }

func (m *module) elementSegment(c *cursor) {
	flags := c.u32()
	if flags > 7 {
		c.unknown("has a segment with the flags %d", flags)
		return
	}
	table, active := uint32(0), flags&1 == 0
	var offset constant
	if active {
		if flags&2 != 0 {
			table = c.u32()
		}
		offset = m.constExpr(c)
	}
	if flags&3 != 0 { // an element kind or type
		if b := c.byte(); flags&4 != 0 {
			m.refType(c, b)
		}
	}
	count := c.u32()
	for range count {
		if c.err != nil {
			return
		}
		m.entries++
		if flags&4 != 0 {
			m.constExpr(c)
		} else {
			c.u32()
		}
	}
	if active && c.err == nil && int64(table) < int64(len(m.tables)) {
		m.fit("element", "table", table, offset, uint64(count), m.tables[table].min, m.tables[table].wide)
	}
}

func (m *module) dataSegment(c *cursor) {
	flags := c.u32()
	if flags > 2 {
		c.unknown("has a segment with the flags %d", flags)
		return
	}
	memory := uint32(0)
	if flags == 2 {
		memory = c.u32()
	}
	var offset constant
	if flags != 1 {
		offset = m.constExpr(c)
	}
	size := c.u32()
	c.skip(int64(size))
	if flags != 1 && c.err == nil && int64(memory) < int64(len(m.memories)) && m.memories[memory].min <= 1<<32 {
		m.fit("data", "memory", memory, offset, uint64(size), m.memories[memory].min*pageSize, m.memories[memory].wide)
	}
}

// fit notes an active segment that does not fit into what the module starts with: instantiation traps.
func (m *module) fit(kind, where string, index uint32, offset constant, size, room uint64, wide bool) {
	if !offset.known || m.segmentPast != "" {
		return
	}
	at := offset.value
	if !wide {
		at = uint64(uint32(at))
	}
	if at > room || size > room-at {
		m.segmentPast = fmt.Sprintf("an active %s segment ends at %d, but %s %d starts with %d", kind, at+size, where, index, room)
	}
}

// customSection checks what Envoy itself reads of custom sections: the name of every one, and the function names in the one called "name".
// Envoy hides one with precompiled code, and every custom section behind it, from the engine that wants the names to be UTF-8.
func (m *module) customSection(c *cursor) {
	var whole bool
	m.scratch, whole = c.anyName(m.scratch)
	m.hidden = m.hidden || bytes.Contains(m.scratch, []byte("precompiled_"))
	if whole && !m.hidden {
		c.wantUTF8(m.scratch)
	}
	if c.err == nil && string(m.scratch) == "name" {
		m.nameSection(c)
	}
	if c.err == nil {
		c.seek(c.limit)
	}
}

// nameSection reads as Envoy does: only subsection 1, whose map must fill it exactly. The names may be any bytes.
func (m *module) nameSection(c *cursor) {
	for c.more() {
		id, size := c.byte(), int64(c.u32())
		outer := c.frame(size)
		if id == 1 {
			for range c.u32() {
				if c.err != nil {
					break
				}
				c.u32()
				c.skip(int64(c.u32()))
			}
			if c.err == nil && c.left() > 0 {
				c.failf("has function names that do not fill their subsection")
			}
		}
		if c.err != nil {
			return
		}
		c.seek(c.limit)
		c.setLimit(outer)
	}
}
