package abi

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/gateway-agent/gateway-agent/internal/wasmtest"
)

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
				{0, 0x41, 0, 0x0b, 1, 0},
				{1, 0, 1, 0},
				{2, 0, 0x41, 0, 0x0b, 0, 1, 0},
				{3, 0, 1, 0},
				{4, 0x41, 0, 0x0b, 1, 0xd2, 0, 0x0b},
				{5, 0x70, 1, 0xd0, 0x70, 0x0b},
				{6, 0, 0x41, 0, 0x0b, 0x70, 0},
				{7, 0x70, 0},
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
