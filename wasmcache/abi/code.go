package abi

// What follows an opcode.
const (
	immNone = iota
	immIllegal
	immBlock
	immU32
	immU32U32
	immMemory
	immTargets
	immTypes
	immI32
	immI64
	immF32
	immF64
	immHeap
	immTry
	immPrefix
)

// Opcodes that the reader treats by name.
const (
	opBlock              = 0x02
	opLoop               = 0x03
	opIf                 = 0x04
	opTry                = 0x06
	opEnd                = 0x0b
	opBr                 = 0x0c
	opBrIf               = 0x0d
	opBrTable            = 0x0e
	opReturn             = 0x0f
	opCall               = 0x10
	opCallIndirect       = 0x11
	opReturnCall         = 0x12
	opReturnCallIndirect = 0x13
	opCallRef            = 0x14
	opReturnCallRef      = 0x15
	opDelegate           = 0x18
	opTryTable           = 0x1f
	opGlobalGet          = 0x23
	opBrOnNull           = 0xd5
	opBrOnNonNull        = 0xd6
	opPrefixGC           = 0xfb
)

var immediates = func() (t [256]byte) {
	set := func(kind byte, from, to int) {
		for op := from; op <= to; op++ {
			t[op] = kind
		}
	}
	set(immIllegal, 0, 255)
	set(immNone, 0x00, 0x01)
	set(immBlock, 0x02, 0x04)
	t[0x05], t[0x06], t[0x07], t[0x08], t[0x09], t[0x0a], t[0x0b] = immNone, immBlock, immU32, immU32, immU32, immNone, immNone
	t[0x0c], t[0x0d], t[0x0e], t[0x0f] = immU32, immU32, immTargets, immNone
	t[0x10], t[0x11], t[0x12], t[0x13], t[0x14], t[0x15] = immU32, immU32U32, immU32, immU32U32, immU32, immU32
	t[0x18], t[0x19], t[0x1a], t[0x1b], t[0x1c], t[0x1f] = immU32, immNone, immNone, immNone, immTypes, immTry
	set(immU32, 0x20, 0x26)
	set(immMemory, 0x28, 0x3e)
	t[0x3f], t[0x40], t[0x41], t[0x42], t[0x43], t[0x44] = immU32, immU32, immI32, immI64, immF32, immF64
	set(immNone, 0x45, 0xc4)
	t[0xd0], t[0xd1], t[0xd2], t[0xd3], t[0xd4], t[0xd5], t[0xd6] = immHeap, immNone, immU32, immNone, immNone, immU32, immU32
	set(immPrefix, 0xfb, 0xfe)
	return t
}()

// immediate reads what follows the opcode op and notes the features used.
func (m *module) immediate(c *cursor, op byte) {
	m.noteOpcode(op)
	switch immediates[op] {
	case immNone:
	case immBlock:
		m.blockType(c)
	case immU32:
		c.u32()
	case immU32U32:
		c.u32()
		c.u32()
	case immMemory:
		m.memoryArgument(c)
	case immTargets:
		m.targets(c, func(uint32) {})
	case immTypes:
		for range c.u32() {
			if c.err != nil {
				return
			}
			m.valueType(c)
		}
	case immI32:
		c.sleb(32)
	case immI64:
		c.sleb(64)
	case immF32:
		c.skip(4)
	case immF64:
		c.skip(8)
	case immHeap:
		m.heapType(c)
	case immTry:
		m.blockType(c)
		m.catches(c)
	case immPrefix:
		m.prefixed(c, op)
	default:
		if c.err == nil {
			m.badOpcode(c, uint32(op))
		}
	}
}

func (m *module) noteOpcode(op byte) {
	switch op {
	case 0x06, 0x07, 0x09, 0x18, 0x19:
		m.features |= legacyExceptions
	case 0x08, 0x0a, 0x1f:
		m.features |= exceptions
	case 0x12, 0x13:
		m.features |= tailCall
	case 0x14, 0xd4, 0xd5, 0xd6:
		m.features |= functionReferences
	case 0x15:
		m.features |= functionReferences | tailCall
	case 0xd3:
		m.features |= gc
	}
}

// badOpcode fails for an instruction that no V8 we know has.
func (m *module) badOpcode(c *cursor, op uint32) {
	c.unknown("has an instruction 0x%02x", op)
}

func (m *module) blockType(c *cursor) {
	b := c.sleb(33)
	if b >= 0 || b == -64 {
		return
	}
	switch t := byte(b & 0x7f); t {
	case 0x7f, 0x7e, 0x7d, 0x7c, 0x7b:
	default:
		m.refType(c, t)
	}
}

func (m *module) memoryArgument(c *cursor) {
	if align := c.u32(); align&0x40 != 0 {
		m.features |= multiMemory
		c.u32()
	}
	c.uleb(64)
}

// targets reads the labels of br_table.
func (m *module) targets(c *cursor, each func(label uint32)) {
	n := c.u32()
	if n > maxTargets {
		c.failf("has a br_table of %d targets; the limit is %d", n, maxTargets)
	}
	for i := uint32(0); i <= n && c.err == nil; i++ {
		each(c.u32())
	}
}

func (m *module) catches(c *cursor) {
	for range c.u32() {
		kind := c.byte()
		if kind > 3 {
			c.unknown("has a catch clause of the kind %d", kind)
		}
		if kind < 2 {
			c.u32()
		}
		c.u32()
		if c.err != nil {
			return
		}
	}
}

func (m *module) prefixed(c *cursor, prefix byte) {
	op := c.u32()
	if c.err != nil {
		return
	}
	switch prefix {
	case 0xfb:
		m.features |= gc
		m.gcImmediate(c, op)
	case 0xfc:
		m.bulkImmediate(c, op)
	case 0xfd:
		m.simdImmediate(c, op)
	case 0xfe:
		m.features |= threads
		switch {
		case op == 3:
			c.byte()
		case op <= 2 || op >= 0x10 && op <= 0x4e:
			m.memoryArgument(c)
		default:
			m.badOpcode(c, 0xfe00+op)
		}
	}
}

func (m *module) gcImmediate(c *cursor, op uint32) {
	switch {
	case op <= 1 || op == 6 || op == 7 || op >= 11 && op <= 14 || op == 16:
		c.u32()
	case op >= 2 && op <= 5 || op >= 8 && op <= 10 || op >= 17 && op <= 19:
		c.u32()
		c.u32()
	case op == 15 || op >= 26 && op <= 30:
	case op >= 20 && op <= 23:
		m.heapType(c)
	case op == 24 || op == 25:
		c.byte()
		c.u32()
		m.heapType(c)
		m.heapType(c)
	default:
		m.badOpcode(c, 0xfb00+op)
	}
}

func (m *module) bulkImmediate(c *cursor, op uint32) {
	switch {
	case op <= 7:
	case op == 9 || op == 11 || op == 13 || op >= 15 && op <= 17:
		c.u32()
	case op == 8 || op == 10 || op == 12 || op == 14:
		c.u32()
		c.u32()
	default:
		m.badOpcode(c, 0xfc00+op)
	}
}

func (m *module) simdImmediate(c *cursor, op uint32) {
	switch {
	case op <= 11 || op == 92 || op == 93:
		m.memoryArgument(c)
	case op == 12 || op == 13:
		c.skip(16)
	case op >= 21 && op <= 34:
		c.byte()
	case op >= 84 && op <= 91:
		m.memoryArgument(c)
		c.byte()
	case op <= 0xff:
	case op <= 0x12f:
		m.features |= relaxedSIMD
	default:
		m.badOpcode(c, 0xfd0000+op)
	}
}

// eachBody calls one for every function's code, with the cursor behind its locals, until one fails.
func (m *module) eachBody(c *cursor, one func(function uint32)) error {
	c.seek(m.code.from)
	c.setLimit(m.code.to)
	for i := range m.codeCount {
		outer := c.frame(int64(c.u32()))
		m.readLocals(c)
		one(uint32(m.importedFunctions) + i)
		if c.err != nil {
			return inSection(c.err, "code")
		}
		c.seek(c.limit)
		c.setLimit(outer)
	}
	return nil
}

// scanCode decodes every instruction, so that the compiler gets no lying count, and completes features.
func (m *module) scanCode(c *cursor) error {
	return m.eachBody(c, func(uint32) {
		for c.more() {
			m.immediate(c, c.byte())
		}
	})
}
