package fetch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	orasoci "oras.land/oras-go/v2/content/oci"

	"github.com/gateway-agent/gateway-agent/internal/oci"
	"github.com/gateway-agent/gateway-agent/internal/registrytest"
)

func wantOnly(t *testing.T, dir string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	slices.Sort(names)
	if !slices.Equal(got, names) {
		t.Errorf("%s holds %q, want %q", dir, got, names)
	}
}

func TestExportReplacesOnlyLayouts(t *testing.T) {
	dir := t.TempDir()
	module := writeFile(t, filepath.Join(dir, "m.wasm"), core("m", 100))
	sub := func(name string, files ...string) string {
		path := filepath.Join(dir, name)
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			writeFile(t, filepath.Join(path, f), []byte("precious"))
		}
		return path
	}
	for path, text := range map[string]string{
		module:                     "exists and is not an OCI layout",
		sub("home", "letters.txt"): "has letters.txt in it, which is not of an OCI layout: choose another path",
		sub("mixed", "oci-layout", "letters.txt"): "has letters.txt in it",
		sub("half", "index.json"):                 "is not an OCI layout: remove it first",
		filepath.Join(dir, "no", "such", "x"):     "create it first",
	} {
		if _, err := CreateLayout(path); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("CreateLayout(%s) = %v, want %q", path, err, text)
		}
	}
	if got, err := os.ReadFile(filepath.Join(dir, "home", "letters.txt")); string(got) != "precious" {
		t.Errorf("the letters are %q, %v", got, err)
	}
	empty := sub("empty")
	link := filepath.Join(dir, "link")
	if err := os.Symlink(empty, link); err != nil {
		t.Fatal(err)
	}
	for n, path := range []string{empty, empty, link} {
		if err := export(path, n%2, module); err != nil {
			t.Errorf("export to %s: %v", path, err)
		}
	}
	if info, err := os.Lstat(link); err != nil || info.Mode().Type() != os.ModeSymlink {
		t.Errorf("the link is now %v, %v", info, err)
	}
	if got := open(t, empty).References(); !slices.Contains(got, generation(0)[2]) {
		t.Errorf("the last export has %q", got)
	}
	wantOnly(t, dir, "m.wasm", "home", "mixed", "half", "empty", "link")
}

func TestReplaceInTwoSteps(t *testing.T) {
	dir := t.TempDir()
	module := writeFile(t, filepath.Join(dir, "m"), core("m", 100))
	target, temp := filepath.Join(dir, "l"), filepath.Join(dir, ".l"+partial+"x")
	for n, path := range []string{target, temp} {
		if err := export(path, n, module); err != nil {
			t.Fatal(err)
		}
	}
	if err := replace(temp, target); err != nil {
		t.Fatal(err)
	}
	if got := open(t, target).References(); !slices.Contains(got, generation(1)[2]) {
		t.Errorf("after the exchange there is %q", got)
	}
	if err := export(target, 0, module); err != nil {
		t.Fatal(err)
	}
	wantOnly(t, dir, "m", "l")
}

// A failure in the middle of one image leaves the others; closing without Commit leaves what was there.
func TestExportFailsInTheMiddle(t *testing.T) {
	r := registrytest.New(t)
	module := core("middle", 3000)
	r.Push(t, "good", "v1", registrytest.Compat(t, module))
	bad := registrytest.Docker(t, core("bad", 3000))
	r.Push(t, "bad", "v1", bad)
	r.Push(t, "text", "v1", registrytest.Image{Layers: []registrytest.Layer{{MediaType: types.OCILayer, Body: []byte("no module")}}})
	p := registrytest.NewProxy(t, r.Addr)
	last := registrytest.Digest(bad.Layers[1].Body)
	p.Fail("/blobs/"+last, registrytest.Fault{Status: 404})
	c := New(Config{})
	defer c.Close()
	both(t, func(t *testing.T, path string) {
		w := create(t, path)
		copies := func(ref string, kind oci.Kind, text string) {
			t.Helper()
			_, _, err := c.Copy(t.Context(), Request{URL: p.Ref(ref)}, w, nil)
			wantError(t, err, kind, text, "export "+p.Ref(ref))
		}
		copies("bad:v1", oci.NotFound, "404")
		if _, _, err := c.Copy(t.Context(), Request{URL: p.Ref("good:v1")}, w, nil); err != nil {
			t.Fatal(err)
		}
		copies("bad:v1", oci.NotFound, "404")
		copies("text:v1", oci.Broken, "not a Wasm module")
		copies("none:v1", oci.NotFound, "check the repository")
		_, _, err := c.Copy(t.Context(), Request{URL: p.Ref("good:v1"), SHA256: strings.Repeat("ab", 32)}, w, nil)
		wantError(t, err, oci.Broken, "wrong digest")
		if err := w.Pack(t.Context(), "oci://registry.test/x:v1", writeFile(t, filepath.Join(t.TempDir(), "x"), []byte("text")), nil); err == nil {
			t.Error("Pack took a text")
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := w.Pack(ctx, "oci://registry.test/x:v1", writeFile(t, filepath.Join(t.TempDir(), "x"), module), nil); !errors.Is(err, context.Canceled) {
			t.Errorf("Pack with a context that is done = %v", err)
		}
		if w.Len() != 1 {
			t.Errorf("Len = %d, want 1", w.Len())
		}
		if err := w.Commit(); err != nil {
			t.Fatal(err)
		}
		got, _, _, err := bring(t.Context(), t, open(t, path), Request{URL: p.Ref("good:v1")})
		if err != nil || string(got) != string(module) {
			t.Errorf("import = %d bytes, %v", len(got), err)
		}
		wantBlobs(t, path, 3)
		second := create(t, path)
		if err := second.Close(); err != nil {
			t.Error(err)
		}
		open(t, path)
		wantOnly(t, filepath.Dir(path), filepath.Base(path))
	})
}

// wantBlobs checks that failures left no rubbish in the layout.
func wantBlobs(t *testing.T, path string, n int) {
	t.Helper()
	l := open(t, path)
	switch files := l.files.(type) {
	case *tarFiles:
		if got := len(files.files) - 2; got != n {
			t.Errorf("%s has %d blobs, want %d", path, got, n)
		}
	default:
		got, err := filepath.Glob(filepath.Join(path, "blobs", "*", "*"))
		if err != nil || len(got) != n {
			t.Errorf("%s has %d blobs, %v, want %d", path, len(got), err, n)
		}
	}
}

// An index may name platforms that are not in the registry, as long as the module's is.
func TestExportOfASparseIndex(t *testing.T) {
	r := registrytest.New(t)
	module := core("sparse", 1000)
	other := registrytest.Compat(t, core("other", 1000))
	gone := r.Push(t, "sparse", "other", other)
	r.PushIndex(t, "sparse", "v1",
		registrytest.Entry{Image: registrytest.CNCF(module), Platform: &v1.Platform{OS: "wasip1", Architecture: "wasm"}},
		registrytest.Entry{Image: other, Platform: &v1.Platform{OS: "linux", Architecture: "s390x"}})
	p := registrytest.NewProxy(t, r.Addr)
	p.Fail("/manifests/"+gone, registrytest.Fault{Status: 404})
	c := New(Config{})
	defer c.Close()
	path := filepath.Join(t.TempDir(), "l.tar")
	w := create(t, path)
	if _, _, err := c.Copy(t.Context(), Request{URL: p.Ref("sparse:v1")}, w, nil); err != nil {
		t.Fatal(err)
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	if got, _, _, err := bring(t.Context(), t, open(t, path), Request{URL: p.Ref("sparse:v1")}); err != nil || string(got) != string(module) {
		t.Errorf("import = %d bytes, %v", len(got), err)
	}
	if _, _, err := c.Copy(t.Context(), Request{URL: p.Ref("sparse:v1")}, w, nil); err == nil || !strings.Contains(err.Error(), "it is finished already") {
		t.Errorf("Copy after Commit = %v", err)
	}
	if err := w.Commit(); err == nil {
		t.Error("Commit can be called twice")
	}
}

func TestPackRefuses(t *testing.T) {
	module := writeFile(t, filepath.Join(t.TempDir(), "m"), core("m", 100))
	w := create(t, filepath.Join(t.TempDir(), "l"))
	for url, text := range map[string]string{
		"oci://registry.test/x@sha256:" + strings.Repeat("a", 64): "its registry is needed",
		"https://user:hunter2@plugins.test/x.wasm":                "a password or a query",
		"https://plugins.test/x.wasm?sig=hunter2":                 "a password or a query",
		"x.wasm": "no scheme",
	} {
		err := w.Pack(t.Context(), url, module, nil)
		wantError(t, err, oci.Broken, text)
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("error %v has the secret in it", err)
		}
	}
}

// Other libraries, of which crane and oras are made, read what is written.
func TestOthersReadLayouts(t *testing.T) {
	r := registrytest.New(t)
	c := New(Config{})
	defer c.Close()
	fixtures := registrytest.Fixtures(t)
	path := filepath.Join(t.TempDir(), "layout")
	w := create(t, path)
	for _, name := range []string{"buildah-oci", "buildah-index", "buildkit-docker", "buildkit-zstd", "oras-solo", "cncf"} {
		r.PushLayout(t, name, "v1", fixtures[name], registrytest.FixtureName(name))
		if _, _, err := c.Copy(t.Context(), Request{URL: r.Ref(name + ":v1")}, w, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Pack(t.Context(), "https://plugins.test/a.wasm", writeFile(t, filepath.Join(t.TempDir(), "m"), core("m", 100)), nil); err != nil {
		t.Fatal(err)
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	index, err := layout.ImageIndexFromPath(path)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) != 7 {
		t.Fatalf("go-containerregistry sees %+v, %v, want 7 images", manifest, err)
	}
	store, err := orasoci.New(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, desc := range manifest.Manifests {
		name := desc.Annotations[refNameKey]
		if got, err := store.Resolve(t.Context(), name); err != nil || got.Digest.String() != desc.Digest.String() {
			t.Errorf("oras-go resolves %s to %v, %v, want %s", name, got.Digest, err, desc.Digest)
		}
		if desc.MediaType.IsIndex() {
			child, err := index.ImageIndex(desc.Digest)
			if err == nil {
				err = validate.Index(child, validate.Fast)
			}
			if err != nil {
				t.Errorf("go-containerregistry says of %s: %v", name, err)
			}
			continue
		}
		img, err := index.Image(desc.Digest)
		if err == nil {
			err = readLayers(img)
		}
		if err != nil {
			t.Errorf("go-containerregistry says of %s: %v", name, err)
		}
	}
}

func readLayers(img v1.Image) error {
	layers, err := img.Layers()
	for _, l := range layers {
		want, errWant := l.Digest()
		r, errOpen := l.Compressed()
		if err = errors.Join(err, errWant, errOpen); err != nil {
			return err
		}
		got, _, errRead := v1.SHA256(r)
		if err = errors.Join(errRead, r.Close()); err != nil || got != want {
			return fmt.Errorf("layer %s has the digest %s: %w", want, got, err)
		}
	}
	return err
}
