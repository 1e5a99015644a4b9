package wasmtest

import "strings"

// plugin starts a module with what every Proxy-Wasm module needs but its marker and its memory. before adds what must come first: imports.
func plugin(before func(*Encoder)) *Encoder {
	e := &Encoder{}
	if before != nil {
		before(e)
	}
	e.ExportFunc("proxy_on_memory_allocate", "i>i", I32Const(1024))
	return e
}

// complete adds the marker and the memory.
func complete(e *Encoder) *Encoder {
	e.ExportFunc("proxy_abi_version_0_2_1", ">")
	e.Export("memory", KindMemory, e.Memory(1))
	return e
}

// New returns an encoder with a module that Envoy accepts, for tests to add to; before adds imports and may be nil.
func New(before func(*Encoder)) *Encoder { return complete(plugin(before)) }

// Minimal is the smallest module that Envoy accepts; it does nothing.
func Minimal() []byte { return New(nil).Bytes() }

// NoMarker is a module without an ABI version.
func NoMarker() []byte {
	e := plugin(nil)
	e.Export("memory", KindMemory, e.Memory(1))
	return e.Bytes()
}

// NoMalloc is a module in which Envoy cannot allocate.
func NoMalloc() []byte { return complete(&Encoder{}).Bytes() }

// MissingImport is a module that needs a function ()->() that Envoy may not have.
func MissingImport(module, field string) []byte {
	return New(func(e *Encoder) { e.Import(module, field, ">") }).Bytes()
}

// Importing is a module that imports one function with the given signature.
func Importing(module, field, sig string) []byte {
	return New(func(e *Encoder) { e.Import(module, field, sig) }).Bytes()
}

// HostCallInStart is a module whose start section calls the host: Envoy dies of it.
func HostCallInStart() []byte { return CallInStart("env", "proxy_log", "iii>i") }

// CallInStart is a module whose start section calls an import with zeros.
func CallInStart(module, field, sig string) []byte {
	var function uint32
	e := New(func(e *Encoder) { function = e.Import(module, field, sig) })
	e.Start(e.Func(">", CallZeros(function, sig)))
	return e.Bytes()
}

// CallZeros is code that calls a function with zeros and drops what it returns.
func CallZeros(function uint32, sig string) []byte {
	params, results, _ := strings.Cut(sig, ">")
	var code []byte
	for _, p := range params {
		if p == 'I' {
			code = append(code, I64Const(0)...)
		} else {
			code = append(code, I32Const(0)...)
		}
	}
	code = append(code, Call(function)...)
	for range results {
		code = append(code, Drop...)
	}
	return code
}

// NoMemory is a module that has no memory and calls a host function that needs one when it is configured: Envoy dies of it.
func NoMemory() []byte {
	var log uint32
	e := plugin(func(e *Encoder) { log = e.Import("env", "proxy_log", "iii>i") })
	e.ExportFunc("proxy_abi_version_0_2_1", ">")
	e.ExportFunc("proxy_on_configure", "ii>i", I32Const(2), I32Const(0), I32Const(4), Call(log), Drop, I32Const(1))
	return e.Bytes()
}

// TagImport is a module that imports an exception tag: Envoy dies of it.
func TagImport() []byte {
	return New(func(e *Encoder) { e.ImportOther("env", "tag", KindTag, 0, byte(e.Type("i>"))) }).Bytes()
}

// GlobalImport is a module that imports a global.
func GlobalImport() []byte {
	return New(func(e *Encoder) { e.ImportOther("env", "__memory_base", KindGlobal, 0x7f, 0) }).Bytes()
}

// HugeMemory is a module that needs more memory than Envoy allows.
func HugeMemory() []byte {
	e := plugin(nil)
	e.ExportFunc("proxy_abi_version_0_2_1", ">")
	e.Export("memory", KindMemory, e.Memory(16385))
	return e.Bytes()
}

// WrongCallback is a module that exports proxy_on_configure with another signature than Envoy calls.
func WrongCallback() []byte {
	e := New(nil)
	e.ExportFunc("proxy_on_configure", "i>i", I32Const(1))
	return e.Bytes()
}

// FailConfigure is a module that Envoy rejects although nothing static is wrong with it: its proxy_on_configure returns 0.
func FailConfigure() []byte {
	e := New(nil)
	e.ExportFunc("proxy_on_configure", "ii>i", I32Const(0))
	return e.Bytes()
}

// TrapInStart is a module that Envoy rejects although nothing static is wrong with it: its _initialize traps.
func TrapInStart() []byte {
	e := New(nil)
	e.ExportFunc("_initialize", ">", Unreachable)
	return e.Bytes()
}

// InvalidCode is a module whose sections are in order and whose code does not type-check.
func InvalidCode() []byte {
	e := New(nil)
	e.ExportFunc("proxy_on_tick", "i>", I64Const(1))
	return e.Bytes()
}

// Truncated is a module cut in the middle of its code.
func Truncated() []byte {
	b := Minimal()
	return b[:len(b)-4]
}
