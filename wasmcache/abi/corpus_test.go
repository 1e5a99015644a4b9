package abi

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/gateway-agent/gateway-agent/internal/wasmtest"
	"github.com/gateway-agent/gateway-agent/policywasm"
)

// sample is one module of the corpus.
type sample struct {
	name   string
	module []byte
	// runtime: if Envoy rejects it, then for what it does, which a check without running it cannot see.
	runtime bool
}

// with is a module that Envoy accepts, changed.
func with(name string, change func(e *wasmtest.Encoder)) sample {
	e := wasmtest.New(nil)
	change(e)
	return sample{name: name, module: e.Bytes()}
}

// importing is a module that Envoy accepts if it accepts the imports that before adds.
func importing(name string, before func(e *wasmtest.Encoder)) sample {
	return sample{name: name, module: wasmtest.New(before).Bytes()}
}

// bare is a module of which only the allocator is given.
func bare(name string, build func(e *wasmtest.Encoder)) sample {
	e := &wasmtest.Encoder{}
	build(e)
	e.ExportFunc("proxy_on_memory_allocate", "i>i", wasmtest.I32Const(1024))
	return sample{name: name, module: e.Bytes()}
}

func raw(name string, module []byte) sample { return sample{name: name, module: module} }

// body adds a function ()->() with the given code.
func body(name string, code ...byte) sample {
	return with(name, func(e *wasmtest.Encoder) { e.Func(">", code) })
}

const exported = wasmtest.KindFunction

func corpus(t testing.TB) []sample {
	return slices.Concat(realModules(t), importSamples(), exportSamples(), memorySamples(), featureSamples(), limitSamples(), formatSamples(), startSamples())
}

func realModules(t testing.TB) []sample {
	return []sample{
		raw("hello", wasmtest.PluginBytes(t, "hello")),
		raw("netcount", wasmtest.PluginBytes(t, "netcount")),
		raw("readfile", wasmtest.PluginBytes(t, "readfile")),
		raw("policy allow", policywasm.Allow()),
		raw("policy deny", policywasm.Deny()),
		raw("minimal", wasmtest.Minimal()),
		{"configure returns 0", wasmtest.FailConfigure(), true},
		{"initialize traps", wasmtest.TrapInStart(), true},
	}
}

// hostFunctions are all functions of all sets for a module with the marker of ABI 0.2.1.
func hostFunctions() map[[2]string]string {
	all := map[[2]string]string{}
	for _, set := range []map[string]string{envFunctions, env02x, env021} {
		for name, sig := range set {
			all[[2]string{"env", name}] = sig
		}
	}
	for _, set := range []map[string]string{wasi15, wasi18, wasi45} {
		for name, sig := range set {
			all[[2]string{"wasi_snapshot_preview1", name}] = sig
			all[[2]string{"wasi_unstable", name}] = sig
		}
	}
	return all
}

func importAll(e *wasmtest.Encoder, functions map[[2]string]string) {
	for key, sig := range functions {
		e.Import(key[0], key[1], sig)
	}
}

func importSamples() []sample {
	bad := func(module, name, sig string) sample {
		return importing("import "+module+"."+name+" "+sig, func(e *wasmtest.Encoder) { e.Import(module, name, sig) })
	}
	samples := []sample{
		importing("all imports", func(e *wasmtest.Encoder) { importAll(e, hostFunctions()) }),
		importing("an import twice", func(e *wasmtest.Encoder) {
			e.Import("env", "proxy_log", "iii>i")
			e.Import("env", "proxy_log", "iii>i")
		}),
		bad("env", "abort", "iiii>"),
		bad("env", "proxy_log", "ii>i"),
		bad("env", "proxy_log", "iii>"),
		bad("env", "fd_write", "iiii>i"),
		bad("", "", ">"),
		bad("other", "proxy_log", "iii>i"),
		bad("wasi_snapshot_preview1", "path_link", "iiiiiii>i"),
		bad("wasi_snapshot_preview1", "path_symlink", "iiiii>i"),
		bad("wasi_snapshot_preview1", "proc_raise", "i>i"),
		bad("wasi_snapshot_preview1", "proxy_log", "iii>i"),
		bad("wasi_snapshot_preview2", "fd_write", "iiii>i"),
		bad("env", "proxy_get_configuration", "ii>i"),
		bad("env", "proxy_log", "ffv>r"),
		bad("env", "two\nlines \x7f", ">"),
		raw("global import", wasmtest.GlobalImport()),
		raw("tag import", wasmtest.TagImport()),
		importing("table import", func(e *wasmtest.Encoder) { e.ImportOther("any", "table", wasmtest.KindTable, 0x70, 0, 10) }),
		importing("memory import beside an own one", func(e *wasmtest.Encoder) { e.ImportOther("any", "memory", wasmtest.KindMemory, 0, 1) }),
	}
	return append(samples, abiSamples()...)
}

// abiSamples are modules of the older ABI versions.
func abiSamples() []sample {
	of := func(name, marker string, build func(e *wasmtest.Encoder)) sample {
		return bare(name, func(e *wasmtest.Encoder) {
			build(e)
			e.ExportFunc(marker, ">")
			e.Export("memory", wasmtest.KindMemory, e.Memory(1))
		})
	}
	callbackSet := func(marker string) func(e *wasmtest.Encoder) {
		return func(e *wasmtest.Encoder) {
			for name := range callbacks {
				if sig, ok := callbackSignature(name, marker); ok {
					e.ExportFunc(name, sig, answer(sig))
				} else {
					e.ExportFunc(name, "I>I", wasmtest.I64Const(0))
				}
			}
		}
	}
	own := func(set map[string]string) func(e *wasmtest.Encoder) {
		return func(e *wasmtest.Encoder) {
			for name, sig := range set {
				e.Import("env", name, sig)
			}
		}
	}
	return []sample{
		of("0.1.0 imports", abi010, own(env010)), of("0.2.0 imports", abi020, own(env02x)),
		of("0.1.0 with 0.2.x imports", abi010, own(env02x)), of("0.2.0 with 0.2.1 imports", abi020, own(env021)),
		of("0.2.0 with 0.1.0 imports", abi020, own(env010)),
		of("0.1.0 callbacks", abi010, callbackSet(abi010)), of("0.2.0 callbacks", abi020, callbackSet(abi020)),
		of("0.2.1 callbacks", abi021, callbackSet(abi021)), of("0.1.0 with 0.2.x callbacks", abi010, callbackSet(abi020)),
		of("two markers, the older one first", abi010, func(e *wasmtest.Encoder) {
			e.Import("env", "proxy_get_configuration", "ii>i")
			e.ExportFunc(abi010, ">")
			e.Export(abi021, exported, 1)
		}),
		of("an unknown marker", "proxy_abi_version_0_3_0", func(*wasmtest.Encoder) {}),
		of("a marker with parameters", "x", func(e *wasmtest.Encoder) { e.ExportFunc(abi021, "iI>I", wasmtest.I64Const(0)) }),
		of("an import as marker", "x", func(e *wasmtest.Encoder) { e.Export(abi021, exported, e.Import("env", "proxy_log", "iii>i")) }),
	}
}

// answer is code that returns what sig says: 1 for OK where there is a result.
func answer(sig string) []byte {
	_, results, _ := strings.Cut(sig, ">")
	switch results {
	case "i":
		return wasmtest.I32Const(1)
	case "I":
		return wasmtest.I64Const(1)
	}
	return nil
}

func exportSamples() []sample {
	export := func(name string, pairs ...string) sample {
		return with(name, func(e *wasmtest.Encoder) {
			for i := 0; i < len(pairs); i += 2 {
				e.ExportFunc(pairs[i], pairs[i+1], answer(pairs[i+1]))
			}
		})
	}
	samples := []sample{
		raw("no marker", wasmtest.NoMarker()),
		raw("no malloc", wasmtest.NoMalloc()),
		export("malloc beside allocate", "malloc", "i>i"),
		export("wrong malloc beside allocate", "malloc", "I>i"),
		export("initialize, main", "_initialize", ">", "main", "ii>i"),
		export("wrong initialize", "_initialize", ">i"),
		export("initialize, wrong main", "_initialize", ">", "main", ">i"),
		export("initialize, wrong main void", "_initialize", ">", "__main_void", ">"),
		export("wrong main without initialize", "main", ">i"),
		export("start", "_start", ">"),
		export("wrong start", "_start", "i>"),
		export("wrong start beside initialize", "_initialize", ">", "_start", "i>"),
		export("unknown exports", "proxy_on_nothing", "I>I", "run", "fF>v"[:2]+">"),
		with("wrong allocate beside malloc", func(e *wasmtest.Encoder) {
			*e = wasmtest.Encoder{}
			e.ExportFunc(abi021, ">")
			e.ExportFunc("proxy_on_memory_allocate", "I>i", wasmtest.I32Const(0))
			e.ExportFunc("malloc", "i>i", wasmtest.I32Const(0))
			e.Export("m", wasmtest.KindMemory, e.Memory(1))
		}),
		bare("marker as global", func(e *wasmtest.Encoder) {
			e.Add(6, []byte{0x7f, 0}, wasmtest.I32Const(0), wasmtest.End)
			e.Export(abi021, wasmtest.KindGlobal, 0)
			e.Export("memory", wasmtest.KindMemory, e.Memory(1))
		}),
		with("callback name as global", func(e *wasmtest.Encoder) {
			e.Add(6, []byte{0x7f, 0}, wasmtest.I32Const(0), wasmtest.End)
			e.Export("proxy_on_configure", wasmtest.KindGlobal, 0)
		}),
		with("an export twice", func(e *wasmtest.Encoder) {
			e.Export("x", exported, 0)
			e.Export("x", exported, 1)
		}),
		with("export of nothing", func(e *wasmtest.Encoder) { e.Export("x", exported, 99) }),
		with("callback of nothing", func(e *wasmtest.Encoder) { e.Export("proxy_on_tick", exported, 99) }),
	}
	for _, name := range slices.Sorted(maps.Keys(callbacks)) {
		samples = append(samples, export("wrong "+name, name, "iiiiii>I"))
	}
	return samples
}

func memorySamples() []sample {
	memory := func(name string, build func(e *wasmtest.Encoder)) sample {
		return bare(name, func(e *wasmtest.Encoder) {
			build(e)
			e.ExportFunc(abi021, ">")
		})
	}
	return []sample{
		raw("no memory, host call", wasmtest.NoMemory()),
		raw("16385 pages", wasmtest.HugeMemory()),
		memory("no memory, no imports", func(*wasmtest.Encoder) {}),
		memory("16384 pages", func(e *wasmtest.Encoder) { e.Export("memory", wasmtest.KindMemory, e.Memory(16384)) }),
		memory("a memory with another name, twice", func(e *wasmtest.Encoder) {
			e.Export("a", wasmtest.KindMemory, e.Memory(1))
			e.Export("b", wasmtest.KindMemory, 0)
		}),
		memory("imported memory", func(e *wasmtest.Encoder) { e.ImportOther("x", "y", wasmtest.KindMemory, 0, 1) }),
		memory("imported shared memory", func(e *wasmtest.Encoder) { e.ImportOther("x", "y", wasmtest.KindMemory, 3, 1, 2) }),
		memory("exported shared memory", func(e *wasmtest.Encoder) {
			e.Add(5, []byte{3, 1, 2})
			e.Export("memory", wasmtest.KindMemory, 0)
		}),
		memory("shared memory without maximum", func(e *wasmtest.Encoder) {
			e.Add(5, []byte{2, 1})
			e.Export("memory", wasmtest.KindMemory, 0)
		}),
		memory("maximum 65536", func(e *wasmtest.Encoder) {
			e.Add(5, []byte{1, 1}, wasmtest.U32(65536))
			e.Export("memory", wasmtest.KindMemory, 0)
		}),
		memory("maximum 65537", func(e *wasmtest.Encoder) {
			e.Add(5, []byte{1, 1}, wasmtest.U32(65537))
			e.Export("memory", wasmtest.KindMemory, 0)
		}),
		memory("maximum below minimum", func(e *wasmtest.Encoder) {
			e.Add(5, []byte{1, 2, 1})
			e.Export("memory", wasmtest.KindMemory, 0)
		}),
		memory("own page size", func(e *wasmtest.Encoder) {
			e.Add(5, []byte{8, 1, 0})
			e.Export("memory", wasmtest.KindMemory, 0)
		}),
		memory("64-bit memory", func(e *wasmtest.Encoder) {
			e.Add(5, []byte{4, 1})
			e.Export("memory", wasmtest.KindMemory, 0)
		}),
		memory("64-bit memory of 16385 pages", func(e *wasmtest.Encoder) {
			e.Add(5, []byte{4}, wasmtest.U32(16385))
			e.Export("memory", wasmtest.KindMemory, 0)
		}),
		memory("two memories, one exported", func(e *wasmtest.Encoder) {
			e.Memory(1)
			e.Export("memory", wasmtest.KindMemory, e.Memory(1))
		}),
		memory("two memories exported", func(e *wasmtest.Encoder) {
			e.Export("a", wasmtest.KindMemory, e.Memory(1))
			e.Export("b", wasmtest.KindMemory, e.Memory(1))
		}),
		with("data to the end", func(e *wasmtest.Encoder) { e.Data(65535, "x") }),
		with("data past the end", func(e *wasmtest.Encoder) { e.Data(65535, "xy") }),
		with("no data at the end", func(e *wasmtest.Encoder) { e.Data(65536, "") }),
		with("no data past the end", func(e *wasmtest.Encoder) { e.Data(65537, "") }),
		with("data at a negative offset", func(e *wasmtest.Encoder) { e.Data(-1, "") }),
		with("data at a global", func(e *wasmtest.Encoder) {
			e.Add(6, []byte{0x7f, 0}, wasmtest.I32Const(8), wasmtest.End)
			e.Add(11, []byte{0, 0x23, 0, 0x0b, 1, 'x'})
		}),
	}
}

func featureSamples() []sample {
	return []sample{
		with("tail call", func(e *wasmtest.Encoder) { e.Func(">", []byte{0x12, 1}) }),
		body("simd", 0xfd, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x1a),
		with("relaxed simd", func(e *wasmtest.Encoder) {
			v := append([]byte{0xfd, 12}, make([]byte, 16)...)
			e.Func(">", v, v, []byte{0xfd, 0x80, 0x02, 0x1a})
		}),
		body("saturating", 0x43, 0, 0, 0, 0, 0xfc, 0, 0x1a),
		body("sign extension", 0x41, 0, 0xc0, 0x1a),
		body("bulk memory", 0x41, 0, 0x41, 0, 0x41, 0, 0xfc, 10, 0, 0),
		with("multi-value", func(e *wasmtest.Encoder) { e.Func(">ii", wasmtest.I32Const(1), wasmtest.I32Const(1)) }),
		body("reference types", 0xd0, 0x70, 0xd1, 0x1a, 0xd0, 0x6f, 0x1a),
		body("select with a type", 0xd0, 0x70, 0xd0, 0x70, 0x41, 0, 0x1c, 1, 0x70, 0x1a),
		body("legacy exceptions", 0x06, 0x40, 0x19, 0x0b),
		with("legacy exceptions, delegate", func(e *wasmtest.Encoder) { e.Func(">", []byte{0x06, 0x40, 0x06, 0x40, 0x18, 0, 0x19, 0x0b}) }),
		body("exceptions", 0x02, 0x40, 0x1f, 0x40, 1, 2, 0, 0x0b, 0x0b),
		with("tags", func(e *wasmtest.Encoder) {
			e.Add(13, []byte{0}, wasmtest.U32(e.Type(">")))
			e.Func(">", []byte{0x08, 0})
		}),
		with("struct type", func(e *wasmtest.Encoder) {
			e.Add(1, []byte{0x5f, 1, 0x78, 1})
			e.Func(">", []byte{0xfb, 1}, wasmtest.U32(2), wasmtest.Drop)
		}),
		with("array type", func(e *wasmtest.Encoder) { e.Add(1, []byte{0x5e, 0x7f, 1}) }),
		with("recursion group", func(e *wasmtest.Encoder) { e.Add(1, []byte{0x4e, 2, 0x50, 0, 0x60, 0, 0, 0x5f, 1, 0x63, 2, 0}) }),
		body("i31", 0x41, 0, 0xfb, 28, 0x1a),
		with("call_ref", func(e *wasmtest.Encoder) {
			f := e.ExportFunc("f", ">")
			e.Func(">", []byte{0xd2}, wasmtest.U32(f), []byte{0x14}, wasmtest.U32(e.Type(">")))
		}),
		with("extended constants", func(e *wasmtest.Encoder) {
			e.Add(6, []byte{0x7f, 0}, wasmtest.I32Const(1), wasmtest.I32Const(2), []byte{0x6a}, wasmtest.End)
		}),
		with("data at an extended constant past the end", func(e *wasmtest.Encoder) {
			e.Add(11, []byte{0}, wasmtest.I32Const(-9), wasmtest.I32Const(9), []byte{0x6a}, wasmtest.End, []byte{1, 'x'})
		}),
		body("atomics", 0x41, 0, 0xfe, 0x10, 2, 0, 0x1a, 0xfe, 3, 0),
		with("64-bit table", func(e *wasmtest.Encoder) { e.Add(4, []byte{0x70, 4, 1}) }),
		with("two tables", func(e *wasmtest.Encoder) { e.Add(4, []byte{0x70, 0, 1}); e.Add(4, []byte{0x6f, 1, 1, 2}) }),
		with("table with a value", func(e *wasmtest.Encoder) { e.Add(4, []byte{0x40, 0, 0x70, 0, 1, 0xd0, 0x70, 0x0b}) }),
		with("element segments", func(e *wasmtest.Encoder) {
			e.Add(4, []byte{0x70, 0, 4})
			for _, s := range [][]byte{
				{0, 0x41, 0, 0x0b, 1, 0}, {1, 0, 1, 0}, {2, 0, 0x41, 0, 0x0b, 0, 1, 0}, {3, 0, 1, 0},
				{4, 0x41, 0, 0x0b, 1, 0xd2, 0, 0x0b}, {5, 0x70, 1, 0xd0, 0x70, 0x0b}, {6, 0, 0x41, 0, 0x0b, 0x70, 0}, {7, 0x70, 0},
			} {
				e.Add(9, s)
			}
		}),
		with("passive data and its count", func(e *wasmtest.Encoder) {
			e.Add(11, []byte{1, 1, 'x'})
			e.Raw(12, 1)
		}),
		with("a wrong data count", func(e *wasmtest.Encoder) {
			e.Add(11, []byte{1, 1, 'x'})
			e.Raw(12, 2)
		}),
		body("wide arithmetic", 0x42, 0, 0x42, 0, 0x42, 0, 0x42, 0, 0xfc, 19, 0x1a, 0x1a),
		body("an unknown instruction", 0x27),
		body("an unknown prefixed instruction", 0xfe, 0x7f, 0, 0),
		body("stack switching", 0xe0, 0),
		body("a number of 6 bytes", 0x41, 0x80, 0x80, 0x80, 0x80, 0x80, 0, 0x1a),
		body("a number of 33 bits", 0x41, 0x80, 0x80, 0x80, 0x80, 0x10, 0x1a),
		body("an over-long number", 0x41, 0x81, 0x80, 0x80, 0x80, 0x00, 0x1a),
		body("an over-long negative number", 0x41, 0xff, 0xff, 0xff, 0xff, 0x7f, 0x1a),
		body("a long number of 64 bits", 0x42, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0x1a),
		body("a number of 65 bits", 0x42, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0x1a),
	}
}

func limitSamples() []sample {
	params := func(n int) sample {
		return with(fmt.Sprint(n, " parameters"), func(e *wasmtest.Encoder) { e.Type(strings.Repeat("i", n) + ">") })
	}
	locals := func(n uint32) sample {
		return with(fmt.Sprint(n, " locals"), func(e *wasmtest.Encoder) {
			e.FuncLocals(">", slices.Concat([]byte{1}, wasmtest.U32(n), []byte{0x7f}))
		})
	}
	table := func(n uint32) sample {
		return with(fmt.Sprint("table of ", n), func(e *wasmtest.Encoder) { e.Add(4, []byte{0x70, 0}, wasmtest.U32(n)) })
	}
	targets := func(n uint32) sample {
		return with(fmt.Sprint(n, " targets"), func(e *wasmtest.Encoder) {
			e.Func(">", []byte{0x41, 0, 0x0e}, wasmtest.U32(n), make([]byte, n+1))
		})
	}
	size := func(n int) sample {
		return with(fmt.Sprint("function of ", n, " bytes"), func(e *wasmtest.Encoder) { e.Func(">", bytes.Repeat([]byte{1}, n-2)) })
	}
	name := func(n int) sample {
		return with(fmt.Sprint("name of ", n), func(e *wasmtest.Encoder) { e.Export(strings.Repeat("x", n), exported, 0) })
	}
	return []sample{
		params(maxArity), params(maxArity + 1), locals(maxLocals), locals(maxLocals + 1), table(maxTable), table(maxTable + 1),
		targets(maxTargets), targets(maxTargets + 1), size(maxBody), size(maxBody + 1), name(maxName), name(100_000), name(1_000_000),
		with("elements past the table", func(e *wasmtest.Encoder) {
			e.Add(4, []byte{0x70, 0, 1})
			e.Add(9, []byte{0, 0x41, 1, 0x0b, 1, 0})
		}),
	}
}

func formatSamples() []sample {
	minimal := wasmtest.Minimal()
	custom := func(name, section string, content ...byte) sample {
		return with(name, func(e *wasmtest.Encoder) { e.Custom(section, content) })
	}
	return []sample{
		raw("empty", nil),
		raw("4 bytes", minimal[:4]),
		raw("8 bytes", minimal[:8]),
		raw("version 2", append([]byte("\x00asm\x02\x00\x00\x00"), minimal[8:]...)),
		raw("component", []byte("\x00asm\x0d\x00\x01\x00")),
		raw("gzip", []byte("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03")),
		raw("text", []byte("<html>not found</html>")),
		raw("truncated", wasmtest.Truncated()),
		raw("garbage behind the end", append(slices.Clone(minimal), "garbage"...)),
		raw("one byte behind the end", append(slices.Clone(minimal), 0)),
		raw("a section twice", append(slices.Clone(minimal), 1, 1, 0)),
		raw("a section out of order", append(slices.Clone(minimal), 2, 1, 0)),
		raw("an unknown section", append(slices.Clone(minimal), 77, 1, 0)),
		raw("invalid code", wasmtest.InvalidCode()),
		with("a function of no type", func(e *wasmtest.Encoder) { e.Add(3, []byte{99}) }),
		with("a function without code", func(e *wasmtest.Encoder) { e.Add(3, []byte{0}) }),
		with("a start function with a parameter", func(e *wasmtest.Encoder) { e.Start(0) }),
		with("a start function that is not there", func(e *wasmtest.Encoder) { e.Start(99) }),
		with("a section longer than its content", func(e *wasmtest.Encoder) { e.Start(1); e.Raw(8, 1, 0) }),
		custom("precompiled junk", "precompiled_v8", 1, 2, 3),
		custom("custom name not UTF-8", "\xff\xfe"),
		custom("function names", "name", 1, 4, 1, 0, 1, 'f'),
		custom("function name not UTF-8", "name", 1, 4, 1, 0, 1, 0xff),
		custom("function names out of order", "name", 1, 7, 2, 1, 1, 'f', 0, 1, 'g'),
		custom("name subsections out of order", "name", 2, 1, 0, 0, 2, 1, 'm'),
		custom("a name count beyond the file", "name", 1, 6, 0xff, 0xff, 0xff, 0x7f, 0, 0),
		custom("a name size beyond the file", "name", 1, 0x80, 0x7f),
		custom("a subsection beyond the file", "name", 0, 0x80, 0x7f),
		custom("function names shorter than their subsection", "name", 1, 5, 1, 0, 1, 'f', 0),
		custom("an empty name section", "name"),
		with("two name sections", func(e *wasmtest.Encoder) {
			e.CustomFirst("name", []byte{1, 4, 1, 0, 1, 'f'})
			e.Custom("name", []byte{1, 4, 1, 0, 1, 'g'})
		}),
		with("export name not UTF-8", func(e *wasmtest.Encoder) { e.Export("\xff", exported, 0) }),
		importing("import name not UTF-8", func(e *wasmtest.Encoder) { e.Import("env", "\xff", ">") }),
	}
}

func startSamples() []sample {
	// start is a module with the given code as its start function; 0 is proxy_log, 1 is sched_yield, 2 a function that logs.
	start := func(name string, code ...byte) sample {
		var log uint32
		e := wasmtest.New(func(e *wasmtest.Encoder) {
			log = e.Import("env", "proxy_log", "iii>i")
			e.Import("wasi_snapshot_preview1", "sched_yield", ">i")
			e.Func(">", wasmtest.CallZeros(log, "iii>i"))
		})
		e.Start(e.Func(">", code))
		return sample{name: "start: " + name, module: e.Bytes()}
	}
	return []sample{
		raw("start: direct call", wasmtest.HostCallInStart()),
		start("nothing"),
		start("a harmless call", 0x10, 1, 0x1a),
		start("a call in a function", 0x10, 2),
		start("a call in a block and a loop", 0x02, 0x40, 0x03, 0x40, 0x10, 2, 0x0b, 0x0b),
		start("a call behind a condition that fails", 0x41, 0, 0x04, 0x40, 0x10, 2, 0x0b),
		start("a call that is branched over", 0x02, 0x40, 0x41, 1, 0x0d, 0, 0x10, 2, 0x0b),
		start("a call behind a block that may be left", 0x02, 0x40, 0x41, 1, 0x0d, 0, 0x0b, 0x10, 2),
		start("a call that is branched over from inside a condition", 0x02, 0x40, 0x41, 1, 0x04, 0x40, 0x0c, 1, 0x0b, 0x10, 2, 0x0b),
		start("a call behind a return", 0x0f, 0x10, 2),
		start("a call behind a condition that returns", 0x41, 1, 0x04, 0x40, 0x0f, 0x0b, 0x10, 2),
		start("a call behind a table of branches", 0x02, 0x40, 0x02, 0x40, 0x41, 1, 0x0e, 1, 0, 1, 0x0b, 0x10, 2, 0x0b),
		start("a call behind a loop that branches back", 0x03, 0x40, 0x41, 0, 0x0d, 0, 0x0b, 0x10, 2),
		start("a call in a handler", 0x02, 0x40, 0x1f, 0x40, 1, 2, 0, 0x0b, 0x0f, 0x0b, 0x10, 2),
		start("a tail call", 0x12, 2),
	}
}
