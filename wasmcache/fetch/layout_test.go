package fetch

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/gateway-agent/gateway-agent/internal/oci"
	"github.com/gateway-agent/gateway-agent/internal/registrytest"
)

// bring fetches a module from a layout into memory.
func bring(ctx context.Context, t *testing.T, l *Layout, req Request) ([]byte, *Resolved, Result, error) {
	t.Helper()
	r, err := l.Resolve(ctx, req)
	if err != nil {
		return nil, nil, Result{}, err
	}
	dst := &memorySink{}
	result, err := l.Fetch(ctx, r, dst, nil)
	return dst.body, r, result, err
}

func open(t *testing.T, path string) *Layout {
	t.Helper()
	l, err := OpenLayout(path, Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func writeFile(t *testing.T, path string, body []byte) string {
	t.Helper()
	if err := os.WriteFile(path, body, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// both runs a test for both forms of a layout.
func both(t *testing.T, test func(t *testing.T, path string)) {
	t.Helper()
	for _, name := range []string{"layout", "layout.tar"} {
		t.Run(name, func(t *testing.T) { test(t, filepath.Join(t.TempDir(), name)) })
	}
}

func TestExportAndImport(t *testing.T) {
	r := registrytest.New(t)
	c := New(Config{})
	defer c.Close()
	single, left, right, web := core("single", 3000), core("left", 3000), core("right", 3000), core("web", 3000)
	manifest := r.Push(t, "team/single", "v1", registrytest.Compat(t, single))
	index := r.PushIndex(t, "team/multi", "v1",
		registrytest.Entry{Image: registrytest.Docker(t, left), Platform: &v1.Platform{OS: "linux", Architecture: "s390x"}},
		registrytest.Entry{Image: registrytest.CNCF(right), Platform: &v1.Platform{OS: "wasip1", Architecture: "wasm"}})
	webURL := "https://plugins.test/Some%20dir/auth.wasm"
	both(t, func(t *testing.T, path string) {
		w, err := CreateLayout(path)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		var done, total int64
		copied, result, err := c.Copy(t.Context(), Request{URL: r.Ref("team/single:v1")}, w, func(d, t int64) { done, total = d, t })
		if err != nil || copied.Manifest != manifest || result.Digest != hexOf(single) || done != total || total == 0 {
			t.Fatalf("Copy = %+v, %+v, %v after %d of %d bytes, want manifest %s and module %s", copied, result, err, done, total, manifest, hexOf(single))
		}
		if copied, result, err = c.Copy(t.Context(), Request{URL: r.Ref("team/multi:v1")}, w, nil); err != nil || copied.Index != index || result.Digest != hexOf(right) {
			t.Fatalf("Copy = %+v, %+v, %v, want index %s and module %s", copied, result, err, index, hexOf(right))
		}
		if _, _, err := c.Copy(t.Context(), Request{URL: r.Ref("team/single@" + manifest)}, w, nil); err != nil {
			t.Fatal(err)
		}
		if err := w.Pack(t.Context(), webURL, writeFile(t, filepath.Join(t.TempDir(), "m"), web), nil); err != nil {
			t.Fatal(err)
		}
		if err := w.Commit(); err != nil {
			t.Fatal(err)
		}
		l := open(t, path)
		want := []string{webURL, r.Ref("team/multi:v1"), r.Ref("team/single:v1"), r.Ref("team/single@" + manifest)}
		slices.Sort(want)
		if got := l.References(); !slices.Equal(got, want) {
			t.Errorf("References = %q, want %q", got, want)
		}
		for _, tt := range []struct {
			req             Request
			module          []byte
			index, manifest string
		}{
			{Request{URL: r.Ref("team/single:v1")}, single, "", manifest},
			{Request{URL: r.Ref("team/single:v1"), SHA256: manifest}, single, "", manifest},
			{Request{URL: r.Ref("team/single@" + manifest)}, single, "", manifest},
			{Request{URL: r.Ref("other/name@" + manifest)}, single, "", manifest},
			{Request{URL: r.Ref("team/multi:v1")}, right, index, ""},
			{Request{URL: r.Ref("team/multi@" + index), SHA256: hexOf(right)}, right, index, ""},
			{Request{URL: webURL, SHA256: hexOf(web)}, web, "", ""},
		} {
			got, resolved, _, err := bring(t.Context(), t, l, tt.req)
			if err != nil || string(got) != string(tt.module) || resolved.Index != tt.index || tt.manifest != "" && resolved.Manifest != tt.manifest {
				t.Errorf("import %+v = %d bytes, %+v, %v, want %d bytes, index %q, manifest %q", tt.req, len(got), resolved, err, len(tt.module), tt.index, tt.manifest)
			}
		}
		_, _, _, err = bring(t.Context(), t, l, Request{URL: r.Ref("team/none:v1")})
		wantError(t, err, oci.NotFound, "it is not in the layout, which has "+want[0])
	})
}
