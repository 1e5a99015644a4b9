package abi

import (
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
		custom("precompiled code, name not UTF-8", "a precompiled_\xff"),
		with("a name not UTF-8 behind precompiled code", func(e *wasmtest.Encoder) {
			e.Custom("precompiled_v8", nil)
			e.Custom("\xff", nil)
		}),
		with("a name not UTF-8 before precompiled code", func(e *wasmtest.Encoder) {
			e.Custom("\xff", nil)
			e.Custom("precompiled_v8", nil)
		}),
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
