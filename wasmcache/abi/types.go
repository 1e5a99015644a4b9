package abi

import "strings"

// features are what a module uses beyond WebAssembly 2.0.
type features uint32

const (
	tailCall features = 1 << iota
	threads
	exceptions
	extendedConst
	functionReferences
	// What follows Envoy's V8 knows and wazero does not.
	relaxedSIMD
	legacyExceptions
	gc
	memory64
	table64
	multiMemory
	unknownForm
)

const beyondWazero = relaxedSIMD | legacyExceptions | gc | memory64 | table64 | multiMemory | unknownForm

var featureNames = []string{
	"tail calls", "threads", "exceptions", "extended constant expressions", "typed function references",
	"relaxed SIMD", "legacy exceptions", "GC", "64-bit memory", "64-bit tables", "several memories", "a form we do not know",
}

func (f features) String() string {
	var names []string
	for i, name := range featureNames {
		if f&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// Value types as they appear in signatures: i32 is i, i64 is I, f32 is f, f64 is F, v128 is v, any reference is r.
var valueNames = map[byte]string{'i': "i32", 'I': "i64", 'f': "f32", 'F': "f64", 'v': "v128", 'r': "ref"}

// sigText writes a signature like "iI>i" as (i32,i64)->(i32).
func sigText(sig string) string {
	params, results, ok := strings.Cut(sig, ">")
	if !ok {
		return "something else"
	}
	return typeList(params) + "->" + typeList(results)
}

func typeList(letters string) string {
	names := make([]string, len(letters))
	for i := range letters {
		names[i] = valueNames[letters[i]]
	}
	return "(" + strings.Join(names, ",") + ")"
}

// valueType reads one value type.
func (m *module) valueType(c *cursor) byte {
	b := c.byte()
	switch b {
	case 0x7f:
		return 'i'
	case 0x7e:
		return 'I'
	case 0x7d:
		return 'f'
	case 0x7c:
		return 'F'
	case 0x7b:
		return 'v'
	}
	m.refType(c, b)
	return 'r'
}

// refType reads the rest of a reference type that begins with b.
func (m *module) refType(c *cursor, b byte) {
	switch {
	case b == 0x70 || b == 0x6f: // funcref, externref
	case b == 0x69: // exnref
		m.features |= exceptions
	case b == 0x63 || b == 0x64: // (ref null ht), (ref ht)
		m.features |= functionReferences
		m.heapType(c)
	case b >= 0x6a && b <= 0x6e || b >= 0x71 && b <= 0x74:
		m.features |= gc
	default:
		c.unknown("has a type 0x%02x", b)
	}
}

func (m *module) heapType(c *cursor) {
	ht := c.sleb(33)
	if ht >= 0 {
		m.features |= functionReferences
		return
	}
	if b := byte(ht & 0x7f); b != 0x70 && b != 0x6f {
		m.refType(c, b)
	}
}

// resultTypes reads a vector of value types into buf.
func (m *module) resultTypes(c *cursor, buf []byte) []byte {
	n := c.u32()
	if n > maxArity {
		c.failf("has a function type with %d parameters or results; the limit is %d", n, maxArity)
	}
	for range n {
		if c.err != nil {
			return buf
		}
		buf = append(buf, m.valueType(c))
	}
	return buf
}

func (m *module) typeSection(c *cursor) {
	for range c.u32() {
		if c.err != nil {
			return
		}
		if b := c.byte(); b == 0x4e { // a recursion group
			m.features |= gc
			for range c.u32() {
				if c.err != nil {
					return
				}
				m.subType(c, c.byte())
			}
		} else {
			m.subType(c, b)
		}
	}
}

func (m *module) subType(c *cursor, form byte) {
	if form == 0x50 || form == 0x4f { // sub, sub final
		m.features |= gc
		for range c.u32() {
			if c.err != nil {
				return
			}
			c.u32()
		}
		form = c.byte()
	}
	switch form {
	case 0x60:
		m.functionType(c)
	case 0x5f: // struct
		m.features |= gc
		for range c.u32() {
			if c.err != nil {
				return
			}
			m.fieldType(c)
		}
		m.addType("")
	case 0x5e: // array
		m.features |= gc
		m.fieldType(c)
		m.addType("")
	default:
		if c.err == nil {
			c.unknown("has a type of the form 0x%02x", form)
		}
	}
	if len(m.types) > maxEntries {
		c.failf("has more than %d types", maxEntries)
	}
}

func (m *module) fieldType(c *cursor) {
	switch b := c.byte(); b {
	case 0x78, 0x77: // i8, i16
	case 0x7f, 0x7e, 0x7d, 0x7c, 0x7b:
	default:
		m.refType(c, b)
	}
	c.byte() // mutability
}

func (m *module) functionType(c *cursor) {
	sig := append(m.resultTypes(c, m.scratch[:0]), '>')
	params := len(sig) - 1
	sig = m.resultTypes(c, sig)
	m.scratch = sig
	if c.err == nil {
		m.mostResults = max(m.mostResults, len(sig)-params-1)
		m.addType(string(sig))
	}
}

// addType keeps the signature of the next type. The number of different ones is bounded; those beyond are never equal to a host function's.
func (m *module) addType(sig string) {
	if len(sig) > maxSignature {
		sig = ""
	}
	id, ok := m.sigIDs[sig]
	if !ok && len(m.sigs) < maxSignatures {
		id = uint32(len(m.sigs))
		m.sigIDs[sig] = id
		m.sigs = append(m.sigs, sig)
	}
	m.types = append(m.types, id)
}

// signature returns what the function with the given index takes and returns; "" if it is too long to be a host function's.
func (m *module) signature(function uint32) (string, bool) {
	if int64(function) >= int64(len(m.functions)) {
		return "", false
	}
	t := m.functions[function]
	if int64(t) >= int64(len(m.types)) {
		return "", false
	}
	return m.sigs[m.types[t]], true
}
