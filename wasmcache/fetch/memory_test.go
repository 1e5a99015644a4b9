package fetch

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/gateway-agent/gateway-agent/internal/registrytest"
)

// A module of 200 MiB costs no more memory than a small one, however it is wrapped. Compressed ones are made of equal parts, since both formats
// allow several in a row, and are smaller to save time.
func TestMemoryDoesNotGrowWithTheModule(t *testing.T) {
	const bound = 24 << 20
	part := make([]byte, 4<<20)
	var head bytes.Buffer
	if err := tar.NewWriter(&head).WriteHeader(&tar.Header{Name: "plugin.wasm", Size: 40 << 20, Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	boxed := func(compress func(testing.TB, []byte) []byte) []byte {
		zeros := compress(t, part)
		box := compress(t, append(head.Bytes(), core("boxed", 4<<20)...))
		return append(append(box, bytes.Repeat(zeros, 9)...), compress(t, part[:2*blockSize])...)
	}
	for name, tt := range map[string]struct {
		layer registrytest.Layer
		size  int64
	}{
		"raw":  {registrytest.Layer{MediaType: "application/wasm", Body: append(core("raw", 1<<20), make([]byte, 199<<20)...)}, 200 << 20},
		"gzip": {registrytest.Layer{MediaType: types.OCILayer, Body: boxed(registrytest.Gzip)}, 40 << 20},
		"zstd": {registrytest.Layer{MediaType: types.OCILayerZStd, Body: boxed(registrytest.Zstd)}, 40 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			r := registrytest.New(t)
			r.Push(t, "large", "v1", registrytest.Image{Layers: []registrytest.Layer{tt.layer}})
			got := allocated(t, func(t *testing.T) { pullLarge(t, r.Ref("large:v1"), tt.size) })
			if got > bound {
				t.Errorf("fetching %d bytes allocated %d, want at most %d", tt.size, got, bound)
			}
			t.Logf("%d KiB allocated", got>>10)
			if name == "raw" {
				return
			}
			if got = allocated(t, func(t *testing.T) { carryLarge(t, r.Ref("large:v1"), tt.size) }); got > bound {
				t.Errorf("export and import of %d bytes allocated %d, want at most %d", tt.size, got, bound)
			}
		})
	}
}

// allocated returns everything that was ever allocated while fn ran, so that the collector's timing does not matter.
func allocated(t *testing.T, fn func(t *testing.T)) uint64 {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fn(t)
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func pullLarge(t *testing.T, url string, size int64) {
	t.Helper()
	c := New(Config{})
	defer c.Close()
	resolved, err := c.Resolve(t.Context(), Request{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	dst, err := os.Create(filepath.Join(t.TempDir(), "module"))
	if err != nil {
		t.Fatal(err)
	}
	defer dst.Close()
	result, err := c.Fetch(t.Context(), resolved, dst, nil)
	if err != nil || result.Size != size {
		t.Errorf("Fetch = %+v, %v, want %d bytes", result, err, size)
	}
}

// carryLarge exports and imports.
func carryLarge(t *testing.T, url string, size int64) {
	t.Helper()
	c := New(Config{})
	defer c.Close()
	path := filepath.Join(t.TempDir(), "l.tar")
	w := create(t, path)
	if _, _, err := c.Copy(t.Context(), Request{URL: url}, w, nil); err != nil {
		t.Fatal(err)
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	l := open(t, path)
	resolved, err := l.Resolve(t.Context(), Request{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	if result, err := l.Fetch(t.Context(), resolved, discard{}, nil); err != nil || result.Size != size {
		t.Errorf("Fetch = %+v, %v, want %d bytes", result, err, size)
	}
}

// fullSink fails like a full disk after some bytes.
type fullSink struct{ left int }

func (s *fullSink) Write(p []byte) (int, error) {
	if s.left -= len(p); s.left < 0 {
		return 0, syscall.ENOSPC
	}
	return len(p), nil
}

func (s *fullSink) Seek(int64, int) (int64, error) { return 0, nil }
func (s *fullSink) Truncate(int64) error           { return nil }

func TestFullDiskEndsTheDownloadAndIsNotTheModulesFault(t *testing.T) {
	module := core("full", 8<<20)
	r := registrytest.New(t)
	r.Push(t, "full", "v1", registrytest.WasmToOCI(module))
	c := New(Config{})
	defer c.Close()
	resolved, err := c.Resolve(t.Context(), Request{URL: r.Ref("full:v1")})
	if err != nil {
		t.Fatal(err)
	}
	var last int64
	_, err = c.Fetch(t.Context(), resolved, &fullSink{left: 1 << 20}, func(done, _ int64) { last = done })
	if !isENOSPC(err) || last > 4<<20 {
		t.Errorf("Fetch = %v after %d bytes, want ENOSPC soon after 1 MiB", err, last)
	}
	if _, err := io.WriteString(&fullSink{}, "x"); err == nil {
		t.Error("the sink of this test takes anything")
	}
}
