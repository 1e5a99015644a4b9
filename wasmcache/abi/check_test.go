package abi

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/wasmtest"
)

func TestCheckOfAFileThatCannotBeRead(t *testing.T) {
	for _, path := range []string{filepath.Join(t.TempDir(), "none.wasm"), t.TempDir()} {
		if got := Check(t.Context(), envoy(t), path); got.Outcome != CannotSay || got.Reason == "" {
			t.Errorf("Check(%s): %s %q, want cannot say", path, got.Outcome, got.Reason)
		}
	}
}

// failingReader breaks off in the middle, as a bad disk does.
type failingReader struct {
	io.ReaderAt
	after int64
}

func (r failingReader) ReadAt(b []byte, off int64) (int, error) {
	if off+int64(len(b)) > r.after {
		return 0, errors.New("input/output error")
	}
	return r.ReaderAt.ReadAt(b, off)
}

func TestReadErrorsProveNothing(t *testing.T) {
	module := wasmtest.PluginBytes(t, "hello")
	for _, after := range []int64{0, 100_000, int64(len(module)) / 2} {
		r := failingReader{bytes.NewReader(module), after}
		got := checkReader(t.Context(), envoy(t), r, int64(len(module)))
		if got.Outcome != CannotSay || !strings.Contains(got.Reason, "input/output error") {
			t.Errorf("check with a disk that fails at %d: %s %q, want cannot say", after, got.Outcome, got.Reason)
		}
	}
}

func TestEveryTruncationIsBroken(t *testing.T) {
	module := wasmtest.Minimal()
	for n := range module {
		r := bytes.NewReader(module[:n])
		if got := checkReader(t.Context(), envoy(t), r, int64(n)); got.Outcome != Broken {
			t.Errorf("the first %d of %d bytes: %s %q, want broken", n, len(module), got.Outcome, got.Reason)
		}
	}
}

func TestOneCompilationAtATime(t *testing.T) {
	module := wasmtest.Minimal()
	compiling <- struct{}{}
	ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, errors.New("asked to stop"))
	defer cancel()
	got := checkReader(ctx, envoy(t), bytes.NewReader(module), int64(len(module)))
	<-compiling
	if got.Outcome != CannotSay || !strings.Contains(got.Reason, "asked to stop") {
		t.Errorf("check while another one compiles: %s %q, want cannot say", got.Outcome, got.Reason)
	}
	if got := checkReader(t.Context(), envoy(t), bytes.NewReader(module), int64(len(module))); got.Outcome != Good {
		t.Errorf("check afterwards: %s %q, want good", got.Outcome, got.Reason)
	}
}

// TestBombs are small files that claim much.
func TestBombs(t *testing.T) {
	custom := func(content ...byte) []byte {
		return with("", func(e *wasmtest.Encoder) { e.Custom("name", content) }).module
	}
	many := func(n int, one func(e *wasmtest.Encoder)) []byte {
		return with("", func(e *wasmtest.Encoder) {
			for range n {
				one(e)
			}
		}).module
	}
	header := []byte("\x00asm\x01\x00\x00\x00")
	for name, module := range map[string][]byte{
		"types":       slices.Concat(header, []byte{1, 5, 0xff, 0xff, 0xff, 0xff, 0x0f}),
		"imports":     slices.Concat(header, []byte{2, 5, 0xff, 0xff, 0xff, 0xff, 0x0f}),
		"section":     slices.Concat(header, []byte{1, 0xff, 0xff, 0xff, 0xff, 0x0f}),
		"names":       custom(1, 7, 0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0),
		"local names": custom(2, 5, 0xff, 0xff, 0xff, 0xff, 0x0f),
		"br_table":    body("", 0x41, 0, 0x0e, 0xff, 0xff, 0xff, 0xff, 0x0f).module,
		"one local":   with("", func(e *wasmtest.Encoder) { e.FuncLocals(">", []byte{1, 0xff, 0xff, 0xff, 0xff, 0x0f, 0x7f}) }).module,
		"locals": many(1000, func(e *wasmtest.Encoder) {
			e.FuncLocals(">", slices.Concat([]byte{1}, wasmtest.U32(maxLocals), []byte{0x7f}))
		}),
		"different types": with("", func(e *wasmtest.Encoder) {
			for i := range 40_000 {
				e.Add(1, []byte{0x60, 16}, typeBits(i), []byte{0})
			}
		}).module,
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			got := checkReader(t.Context(), envoy(t), bytes.NewReader(module), int64(len(module)))
			runtime.ReadMemStats(&after)
			if used := after.TotalAlloc - before.TotalAlloc; used > 96<<20 {
				t.Errorf("checking %d bytes took %d MiB", len(module), used>>20)
			}
			if got.Outcome == Good && name != "different types" && name != "local names" {
				t.Errorf("Check: good")
			}
		})
	}
}

// typeBits writes 16 value types from the bits of n.
func typeBits(n int) []byte {
	types := make([]byte, 16)
	for i := range types {
		types[i] = 0x7f - byte(n>>i&1)
	}
	return types
}

func FuzzReadModule(f *testing.F) {
	for _, s := range corpus(f) {
		if len(s.module) < 64<<10 {
			f.Add(s.module)
		}
	}
	hello := wasmtest.PluginBytes(f, "hello")
	f.Add(hello[:64<<10])
	host, _ := HostForVersion("1.40.0")
	f.Fuzz(func(t *testing.T, module []byte) {
		r, size := bytes.NewReader(module), int64(len(module))
		m, err := readModule(r, size)
		if err != nil {
			if err.Error() == "" {
				t.Error("an error without text")
			}
			return
		}
		checkSections(host, m)
		if m.hasStart {
			checkStart(m, newCursor(r, size, 16)) //nolint:errcheck // any answer will do
		}
		first := m.scanCode(newCursor(r, size, 16))
		// What is read must not depend on the buffer.
		second := m.scanCode(newCursor(r, size, 4096))
		if (first == nil) != (second == nil) || first != nil && first.Error() != second.Error() {
			t.Errorf("scanCode: %v with a small buffer, %v with a large one", first, second)
		}
	})
}

func BenchmarkSections(b *testing.B) {
	module := wasmtest.PluginBytes(b, "hello")
	b.SetBytes(int64(len(module)))
	b.ReportAllocs()
	host, _ := HostForVersion("1.40.0")
	for b.Loop() {
		m, err := readModule(bytes.NewReader(module), int64(len(module)))
		if err != nil || len(checkSections(host, m).proofs) > 0 {
			b.Fatal(err)
		}
	}
}

func BenchmarkScanCode(b *testing.B) {
	module := wasmtest.PluginBytes(b, "hello")
	m, err := readModule(bytes.NewReader(module), int64(len(module)))
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(module)))
	b.ReportAllocs()
	for b.Loop() {
		if err := m.scanCode(newCursor(bytes.NewReader(module), m.size, codeBuffer)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCheck(b *testing.B) {
	path := wasmtest.Plugin(b, "hello")
	host, _ := HostForVersion("1.40.0")
	b.ReportAllocs()
	for b.Loop() {
		if v := Check(b.Context(), host, path); v.Outcome != Good {
			b.Fatal(v.Reason)
		}
	}
}
