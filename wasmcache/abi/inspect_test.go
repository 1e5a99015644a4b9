package abi

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gateway-agent/gateway-agent/internal/wasmtest"
)

func inspect(t testing.TB, b []byte) Description {
	t.Helper()
	d, err := Inspect(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestInspect(t *testing.T) {
	e := wasmtest.New(func(e *wasmtest.Encoder) {
		e.Import("env", "proxy_log", "iii>i")
		e.ImportOther("env", "__memory_base", wasmtest.KindGlobal, 0x7f, 0)
		e.ImportOther("env", "table", wasmtest.KindTable, 0x70, 0, 1)
	})
	e.Custom("producers", slices.Concat(wasmtest.U32(1), text("language"), wasmtest.U32(1), text("Rust"), text("2021")))
	e.Custom("name", slices.Concat([]byte{0}, wasmtest.U32(5), text("edge")))
	e.Custom(".debug_info", make([]byte, 1000))
	got := inspect(t, e.Bytes())
	want := Description{
		Size: int64(len(e.Bytes())), ABI: "0.2.1", Name: "edge", Functions: 2,
		Memories: []MemoryInfo{{Min: 1}},
		Imports: []ImportInfo{
			{Module: "env", Name: "proxy_log", Kind: "function", Type: "(i32,i32,i32)->(i32)"},
			{Module: "env", Name: "__memory_base", Kind: "global"},
			{Module: "env", Name: "table", Kind: "table"},
		},
		Exports: []ExportInfo{
			{Name: "proxy_on_memory_allocate", Kind: "function", Type: "(i32)->(i32)"},
			{Name: "proxy_abi_version_0_2_1", Kind: "function", Type: "()->()"},
			{Name: "memory", Kind: "memory"},
		},
		Producers: []ProducerInfo{{Field: "language", Name: "Rust", Version: "2021"}},
	}
	sections := got.Sections
	got.Sections = nil
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Inspect (-want +got):\n%s", diff)
	}
	var names []string
	for _, s := range sections {
		names = append(names, s.Name)
	}
	if want := []string{"type", "import", "function", "memory", "export", "code", "producers", "name", ".debug_info"}; !slices.Equal(names, want) {
		t.Errorf("sections = %q, want %q", names, want)
	}
	if last := sections[len(sections)-1]; !last.Custom || last.Size != 1000+12 {
		t.Errorf("the last section = %+v, want 1012 bytes of a custom one", last)
	}
	if s := sections[1]; s.Count != 3 {
		t.Errorf("the import section = %+v, want 3 entries", s)
	}
}

func text(s string) []byte { return append(wasmtest.U32(uint32(len(s))), s...) }

// The sections of a real plugin, as its compiler wrote it, add up to the file.
func TestInspectARealPlugin(t *testing.T) {
	path := wasmtest.Plugin(t, "hello")
	d, err := InspectFile(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	total := int64(8)
	for _, s := range d.Sections {
		total += s.Size
	}
	if total > info.Size() || total < info.Size()*9/10 {
		t.Errorf("the sections have %d bytes, the file %d", total, info.Size())
	}
	language := func(p ProducerInfo) bool { return p.Field == "language" && p.Name == "Go" }
	if d.ABI == "" || d.Fault != "" || d.Cut || d.Functions < 100 || !slices.ContainsFunc(d.Producers, language) {
		t.Errorf("ABI %q, fault %q, cut %v, %d functions, producers %v", d.ABI, d.Fault, d.Cut, d.Functions, d.Producers)
	}
}

func TestInspectOfWhatIsNoModule(t *testing.T) {
	for name, test := range map[string]struct {
		content []byte
		want    string
	}{
		"empty":     {nil, "empty"},
		"gzip":      {[]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0}, "gzip"},
		"text":      {[]byte("#!/bin/sh\n"), "not a WebAssembly module"},
		"component": {[]byte("\x00asm\x0d\x00\x01\x00"), "component"},
	} {
		if d, err := Inspect(bytes.NewReader(test.content), int64(len(test.content))); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: Inspect = %+v, %v, want %q", name, d, err, test.want)
		}
	}
	if _, err := InspectFile(t.TempDir()); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("InspectFile of a directory = %v", err)
	}
	if _, err := InspectFile(filepath.Join(t.TempDir(), "gone.wasm")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("InspectFile of no file = %v", err)
	}
}

// A damaged module is described as far as it goes.
func TestInspectADamagedModule(t *testing.T) {
	d := inspect(t, wasmtest.Truncated())
	if !strings.Contains(d.Fault, "code section") || d.ABI != "0.2.1" || len(d.Exports) != 3 {
		t.Errorf("Inspect of a truncated module: fault %q, ABI %q, %d exports", d.Fault, d.ABI, len(d.Exports))
	}
	for i := range len(wasmtest.Minimal()) - 8 {
		inspect(t, wasmtest.Minimal()[:8+i])
	}
}

// What a module holds cannot write to a terminal, fill memory or take long.
func TestInspectAHostileModule(t *testing.T) {
	names := wasmtest.New(func(e *wasmtest.Encoder) { e.Import("\x1b[2Jenv", "a\nb", ">") })
	names.Custom(strings.Repeat("x", 5000), nil)
	names.Custom("producers", slices.Concat(wasmtest.U32(1<<31), text("\xff\xfe"), wasmtest.U32(1<<31)))
	d := inspect(t, names.Bytes())
	if i := d.Imports[0]; i.Module != `"\x1b[2Jenv"` || i.Name != `"a\nb"` {
		t.Errorf("import = %+v, want it escaped", i)
	}
	if s := d.Sections[len(d.Sections)-2]; len(s.Name) > maxText+8 {
		t.Errorf("a section's name has %d bytes", len(s.Name))
	}

	start := time.Now()
	many := append([]byte("\x00asm\x01\x00\x00\x00"), bytes.Repeat([]byte{0, 1, 0}, 1<<20)...)
	d = inspect(t, many)
	if !d.Cut || len(d.Sections) > maxListed {
		t.Errorf("%d sections, cut %v", len(d.Sections), d.Cut)
	}
	crowd := wasmtest.New(nil)
	for range 3 * maxListed {
		crowd.Export("", wasmtest.KindFunction, 0)
	}
	if d = inspect(t, crowd.Bytes()); !d.Cut || len(d.Exports) != maxListed {
		t.Errorf("%d exports, cut %v", len(d.Exports), d.Cut)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
}

type brokenDisk struct{ *bytes.Reader }

func (b brokenDisk) ReadAt(p []byte, off int64) (int, error) {
	if off > 0 {
		return 0, errors.New("input/output error")
	}
	return b.Reader.ReadAt(p[:min(len(p), 16)], off)
}

func TestInspectSaysWhenTheDiskFails(t *testing.T) {
	b := wasmtest.Minimal()
	if d, err := Inspect(brokenDisk{bytes.NewReader(b)}, int64(len(b))); err == nil || !strings.Contains(err.Error(), "input/output error") {
		t.Errorf("Inspect = %+v, %v", d, err)
	}
}

func FuzzInspect(f *testing.F) {
	for _, s := range corpus(f) {
		if len(s.module) < 64<<10 {
			f.Add(s.module)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := Inspect(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return
		}
		if _, err := readModule(bytes.NewReader(b), int64(len(b))); (err == nil) != (d.Fault == "") {
			t.Fatalf("fault %q, but reading it says %v", d.Fault, err)
		}
		text, err := json.Marshal(d)
		if err != nil || bytes.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			t.Fatalf("unprintable: %q, %v", text, err)
		}
		for _, s := range d.Sections {
			if s.Size < 0 || s.Size > int64(len(b)) {
				t.Fatalf("a section of %d bytes in a file of %d", s.Size, len(b))
			}
		}
	})
}
