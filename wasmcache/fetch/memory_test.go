package fetch

import (
	"io"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/gateway-agent/gateway-agent/internal/registrytest"
)

// A module of 100 MiB costs no more memory than a small one, however it is wrapped.
func TestMemoryDoesNotGrowWithTheModule(t *testing.T) {
	const size = 100 << 20
	const bound = 24 << 20
	layers := map[string]registrytest.Layer{}
	func() {
		module := make([]byte, size)
		copy(module, core("large", 1<<20))
		box := registrytest.Tar(t, registrytest.File{Name: "plugin.wasm", Body: module})
		layers["raw"] = registrytest.Layer{MediaType: "application/wasm", Body: module}
		layers["gzip"] = registrytest.Layer{MediaType: types.OCILayer, Body: registrytest.Gzip(t, box)}
		layers["zstd"] = registrytest.Layer{MediaType: types.OCILayerZStd, Body: registrytest.Zstd(t, box)}
	}()
	r := registrytest.New(t)
	for name, layer := range layers {
		r.Push(t, "large/"+name, "v1", registrytest.Image{Layers: []registrytest.Layer{layer}})
	}
	for name := range layers {
		layers[name] = registrytest.Layer{}
		c := New(Config{})
		dst, err := os.Create(filepath.Join(t.TempDir(), "module"))
		if err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		resolved, err := c.Resolve(t.Context(), Request{URL: r.Ref("large/" + name + ":v1")})
		if err != nil {
			t.Fatal(err)
		}
		result, err := c.Fetch(t.Context(), resolved, dst, nil)
		runtime.ReadMemStats(&after)
		if err != nil || result.Size != size {
			t.Errorf("%s: Fetch = %+v, %v, want %d bytes", name, result, err, size)
		}
		// Everything ever allocated, so that the collector's timing does not matter.
		if got := after.TotalAlloc - before.TotalAlloc; got > bound {
			t.Errorf("%s: fetching %d bytes allocated %d, want at most %d", name, size, got, bound)
		} else {
			t.Logf("%s: %d KiB allocated", name, got>>10)
		}
		dst.Close()
		c.Close()
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
