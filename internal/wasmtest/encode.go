// Package wasmtest makes Wasm modules for tests: real plugins built from testdata/plugins, and small ones written byte by byte, most of which are
// broken in one way each. It also runs them in a real Envoy.
package wasmtest

import (
	"encoding/binary"
	"slices"
	"strings"
)

// Kinds of imports and exports.
const (
	KindFunction = iota
	KindTable
	KindMemory
	KindGlobal
	KindTag
)

// Encoder writes a module. Sections come out in the right order whatever the order of the calls, except that imported functions must be
// added before defined ones. Signatures are parameter letters, ">" and result letters: i for i32, I for i64, f for f32, F for f64, v for v128.
type Encoder struct {
	counts   [14]uint32
	sections [14][]byte
	types    []string
	imported uint32
	defined  uint32
	// Custom sections come first or last.
	first, last []byte
}

var sectionOrder = []int{1, 2, 3, 4, 5, 13, 6, 7, 8, 9, 12, 10, 11}

var typeBytes = map[rune]byte{'i': 0x7f, 'I': 0x7e, 'f': 0x7d, 'F': 0x7c, 'v': 0x7b, 'r': 0x70}

// U32 encodes an unsigned number.
func U32(n uint32) []byte { return binary.AppendUvarint(nil, uint64(n)) }

// I32Const is an instruction that pushes n.
func I32Const(n int32) []byte { return append([]byte{0x41}, sleb(int64(n))...) }

// I64Const is an instruction that pushes n.
func I64Const(n int64) []byte { return append([]byte{0x42}, sleb(n)...) }

// Call is an instruction that calls a function.
func Call(function uint32) []byte { return append([]byte{0x10}, U32(function)...) }

// Code joins instructions. Drop, End and others without operands are given as single bytes.
func Code(instructions ...[]byte) []byte { return slices.Concat(instructions...) }

// Instructions without operands.
var (
	Unreachable = []byte{0x00}
	Drop        = []byte{0x1a}
	End         = []byte{0x0b}
)

func sleb(n int64) (out []byte) {
	for {
		b := byte(n & 0x7f)
		n >>= 7
		if n == 0 && b&0x40 == 0 || n == -1 && b&0x40 != 0 {
			return append(out, b)
		}
		out = append(out, b|0x80)
	}
}

func name(s string) []byte { return append(U32(uint32(len(s))), s...) }

// Add appends one entry to a section by its number.
func (e *Encoder) Add(section int, entry ...[]byte) {
	e.counts[section]++
	e.sections[section] = append(e.sections[section], slices.Concat(entry...)...)
}

// Type returns the index of a signature.
func (e *Encoder) Type(sig string) uint32 {
	if at := slices.Index(e.types, sig); at >= 0 {
		return uint32(at)
	}
	e.types = append(e.types, sig)
	params, results, _ := strings.Cut(sig, ">")
	e.Add(1, []byte{0x60}, valueTypes(params), valueTypes(results))
	return uint32(len(e.types) - 1)
}

func valueTypes(letters string) []byte {
	out := U32(uint32(len(letters)))
	for _, l := range letters {
		out = append(out, typeBytes[l])
	}
	return out
}

// Import adds an imported function and returns its index.
func (e *Encoder) Import(module, field, sig string) uint32 {
	e.Add(2, name(module), name(field), []byte{KindFunction}, U32(e.Type(sig)))
	e.imported++
	return e.imported - 1
}

// ImportOther adds an import of another kind with its encoded description.
func (e *Encoder) ImportOther(module, field string, kind byte, description ...byte) {
	e.Add(2, name(module), name(field), []byte{kind}, description)
}

// Func adds a function without locals and returns its index. End is added to the code.
func (e *Encoder) Func(sig string, code ...[]byte) uint32 {
	return e.FuncLocals(sig, []byte{0}, code...)
}

// FuncLocals adds a function with encoded locals.
func (e *Encoder) FuncLocals(sig string, locals []byte, code ...[]byte) uint32 {
	body := slices.Concat(locals, Code(code...), End)
	e.Add(3, U32(e.Type(sig)))
	e.Add(10, U32(uint32(len(body))), body)
	e.defined++
	return e.imported + e.defined - 1
}

// Memory adds a memory of at least min pages and returns its index.
func (e *Encoder) Memory(min uint32) uint32 {
	e.Add(5, []byte{0}, U32(min))
	return e.counts[5] - 1
}

// Export adds an export.
func (e *Encoder) Export(field string, kind byte, index uint32) {
	e.Add(7, name(field), []byte{kind}, U32(index))
}

// ExportFunc adds a function and exports it.
func (e *Encoder) ExportFunc(field, sig string, code ...[]byte) uint32 {
	index := e.Func(sig, code...)
	e.Export(field, KindFunction, index)
	return index
}

// Start names the function that runs at instantiation.
func (e *Encoder) Start(function uint32) { e.sections[8] = U32(function) }

// Data adds an active segment to memory 0.
func (e *Encoder) Data(offset int32, data string) {
	e.Add(11, []byte{0}, I32Const(offset), End, name(data))
}

// Custom adds a custom section at the end of the module.
func (e *Encoder) Custom(field string, content []byte) {
	e.last = append(e.last, section(0, append(name(field), content...))...)
}

// CustomFirst adds a custom section at the start of the module.
func (e *Encoder) CustomFirst(field string, content []byte) {
	e.first = append(e.first, section(0, append(name(field), content...))...)
}

// Bytes returns the module.
func (e *Encoder) Bytes() []byte {
	out := append([]byte("\x00asm\x01\x00\x00\x00"), e.first...)
	for _, id := range sectionOrder {
		switch {
		case id == 8 || id == 12:
			if e.sections[id] != nil {
				out = append(out, section(byte(id), e.sections[id])...)
			}
		case e.counts[id] > 0:
			out = append(out, section(byte(id), append(U32(e.counts[id]), e.sections[id]...))...)
		}
	}
	return append(out, e.last...)
}

func section(id byte, content []byte) []byte {
	return slices.Concat([]byte{id}, U32(uint32(len(content))), content)
}

// Raw sets the content of a section that is not a vector: the start section and the data count.
func (e *Encoder) Raw(section int, content ...byte) { e.sections[section] = content }
