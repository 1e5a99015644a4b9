package fetch

import (
	"archive/tar"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/gateway-agent/gateway-agent/internal/oci"
	"github.com/gateway-agent/gateway-agent/internal/registrytest"
)

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"oci://registry.test/team/app:v1", "oci://app", "oci://127.0.0.1:5000/x@sha256:" + strings.Repeat("a", 64), "oci://[::1]:5000/x:v1@sha512:00",
		"https://user:pw@host.test/a.wasm?sig=x#y", "http://host", "file:///a/../b.wasm", "ftp://x", "", "://", "oci://x/y:z:w@@",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ref, err := Parse(s)
		if err != nil {
			if len(err.Error()) > 1000 || strings.ContainsAny(err.Error(), "\n\x00") {
				t.Errorf("Parse(%q): the error is not fit for a log: %q", s, err)
			}
			return
		}
		again, err := Parse(ref.Key())
		if err != nil || again.Key() != ref.Key() || again.Fixed() != ref.Fixed() {
			t.Errorf("Parse(%q).Key() = %q, which parses to %q, %v", s, ref.Key(), again.Key(), err)
		}
		if strings.Contains(ref.String(), "\n") {
			t.Errorf("Parse(%q).String() = %q", s, ref.String())
		}
	})
}

// realBlobs are the blobs of the images that real tools made: manifests, indexes, configurations and layers.
func realBlobs(f *testing.F, want func(body []byte) bool) [][]byte {
	f.Helper()
	var found [][]byte
	seen := map[string]bool{}
	for _, dir := range registrytest.Fixtures(f) {
		names, err := filepath.Glob(filepath.Join(dir, "blobs", "sha256", "*"))
		if err != nil || len(names) == 0 {
			f.Fatalf("no blobs in %s: %v", dir, err)
		}
		for _, name := range names {
			body, err := os.ReadFile(name)
			if err != nil {
				f.Fatal(err)
			}
			if base := filepath.Base(name); want(body) && !seen[base] {
				seen[base] = true
				found = append(found, body)
			}
		}
	}
	if len(found) == 0 {
		f.Fatal("no seeds")
	}
	return found
}

func FuzzUnbox(f *testing.F) {
	module := core("fuzz", 200)
	box := registrytest.Tar(f, registrytest.File{Name: "a/other.wasm", Body: core("other", 100)}, registrytest.File{Name: "plugin.wasm", Body: module},
		registrytest.File{Name: "x", Type: tar.TypeSymlink, Link: "/etc"})
	for _, seed := range [][]byte{
		module, component, box, registrytest.Gzip(f, module), registrytest.Gzip(f, box), registrytest.Zstd(f, box), registrytest.Zstd(f, module),
		registrytest.Gzip(f, registrytest.Gzip(f, module)), box[:700], longWindow(module), make([]byte, 1024),
	} {
		f.Add(seed)
	}
	for _, seed := range realBlobs(f, func(body []byte) bool { return !json.Valid(body) }) {
		f.Add(seed)
	}
	l := limits{download: 1 << 20, unpacked: 1 << 20, module: 64 << 10, entries: 50}
	f.Fuzz(func(t *testing.T, b []byte) {
		dst := &memorySink{}
		src := &source{inner: strings.NewReader(string(b)), limit: l.download, total: int64(len(b))}
		digest, size, err := unbox(src, dst, l, "")
		if err = src.finish(err); err != nil {
			if len(err.Error()) > 2000 || strings.ContainsAny(err.Error(), "\n\x00") {
				t.Errorf("the error is not fit for a log: %q", err)
			}
			return
		}
		got := dst.body
		if int64(len(got)) != size || size > l.module || hexOf(got) != digest || !strings.HasPrefix(string(got), wasmMagic) {
			t.Errorf("unbox = %s, %d, but the sink has %d bytes with digest %s", digest, size, len(got), hexOf(got))
		}
	})
}

func FuzzManifest(f *testing.F) {
	for _, seed := range []string{
		manifestOf(5), `{"schemaVersion":1}`, `{"manifests":[` + layerOf("application/vnd.oci.image.manifest.v1+json", 5) + `]}`,
		`{"manifests":[{"platform":{"os":"wasip1","architecture":"wasm"}}]}`, `{"layers":[{"annotations":{"org.opencontainers.image.title":"a.wasm"}}]}`, `{`, `[]`,
	} {
		f.Add([]byte(seed))
	}
	for _, seed := range realBlobs(f, json.Valid) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		doc, err := parseManifest(oci.Manifest{Body: b})
		if err != nil {
			return
		}
		if doc.isIndex() {
			child, err := pickChild(doc.Manifests)
			if err == nil && !contains(doc.Manifests, child) {
				t.Errorf("pickChild = %+v, which is not in the index", child)
			}
			return
		}
		layer, err := pickLayer(&doc.Manifest)
		if err == nil && !contains(doc.Manifest.Layers, layer) {
			t.Errorf("pickLayer = %+v, which is not in the manifest", layer)
		}
	})
}

// realLayout is one that a real tool made.
func realLayout(f *testing.F, name string) files {
	f.Helper()
	dir, real := registrytest.Fixtures(f)[name], files{}
	if err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			real[path], err = os.ReadFile(filepath.Join(dir, path))
		}
		return err
	}); err != nil || real[indexFile] == nil {
		f.Fatalf("%s: %d files, %v", name, len(real), err)
	}
	return real
}

func FuzzLayoutArchive(f *testing.F) {
	for _, name := range []string{"buildah-index", "oras-artifact", "wasm-to-oci", "skopeo-zstd"} {
		f.Add(realLayout(f, name).tar(f))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, archive []byte) {
		path := filepath.Join(dir, "l.tar")
		if err := os.WriteFile(path, archive, 0o600); err != nil {
			t.Fatal(err)
		}
		useAll(t, path)
	})
}

// The index is the input; the blobs are those of all images that real tools made.
func FuzzLayoutIndex(f *testing.F) {
	dir := f.TempDir()
	for name := range registrytest.Fixtures(f) {
		real := realLayout(f, name)
		f.Add(real[indexFile])
		real.write(f, dir)
	}
	f.Fuzz(func(t *testing.T, index []byte) {
		if err := os.WriteFile(filepath.Join(dir, indexFile), index, 0o600); err != nil {
			t.Fatal(err)
		}
		useAll(t, dir)
	})
}

// useAll brings everything that a layout offers. What comes is a module with the digest that was said.
func useAll(t *testing.T, path string) {
	t.Helper()
	l, err := OpenLayout(path, Config{MaxSize: 1 << 20, MaxEntries: 200})
	if err != nil {
		fit(t, err)
		return
	}
	defer l.Close()
	urls := l.References()
	for _, digest := range l.Unnamed() {
		urls = append(urls, "oci://registry.test/unnamed@"+digest)
	}
	for _, url := range urls[:min(len(urls), 20)] {
		got, r, result, err := bring(t.Context(), t, l, Request{URL: url})
		if err != nil {
			fit(t, err)
			continue
		}
		if hexOf(got) != result.Digest || !strings.HasPrefix(string(got), wasmMagic) || r.Manifest != "" && !strings.HasPrefix(r.Manifest, "sha") {
			t.Errorf("%s gives %+v, %+v with %d bytes", url, r, result, len(got))
		}
	}
}

// fit checks that an error may go into a log.
func fit(t *testing.T, err error) {
	t.Helper()
	if len(err.Error()) > 2500 || strings.ContainsAny(err.Error(), "\n\x00\x1b") {
		t.Errorf("the error is not fit for a log: %q", err)
	}
}

// memorySink is a Sink that needs no file.
type memorySink struct{ body []byte }

func (s *memorySink) Write(p []byte) (int, error)    { s.body = append(s.body, p...); return len(p), nil }
func (s *memorySink) Seek(int64, int) (int64, error) { return 0, nil }
func (s *memorySink) Truncate(int64) error           { s.body = nil; return nil }

func contains(all []v1.Descriptor, one v1.Descriptor) bool {
	want, _ := json.Marshal(one)
	for _, d := range all {
		if got, _ := json.Marshal(d); string(got) == string(want) {
			return true
		}
	}
	return false
}
