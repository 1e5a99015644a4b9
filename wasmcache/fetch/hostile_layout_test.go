package fetch

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/gateway-agent/gateway-agent/internal/oci"
	"github.com/gateway-agent/gateway-agent/internal/registrytest"
)

const hostileURL = "oci://registry.test/team/app:v1"

// files are a layout as a map; its blobs are named by their true digests.
type files map[string][]byte

func (f files) blob(body []byte) v1.Descriptor {
	digest, _ := v1.NewHash(registrytest.Digest(body))
	f[blobName(digest)] = body
	return v1.Descriptor{MediaType: types.OCIManifestSchema1, Digest: digest, Size: int64(len(body))}
}

func (f files) json(v any) v1.Descriptor {
	body, _ := json.Marshal(v)
	return f.blob(body)
}

func (f files) index(roots ...v1.Descriptor) files {
	for i := range roots {
		if roots[i].Annotations == nil {
			roots[i].Annotations = map[string]string{refNameKey: strings.TrimPrefix(hostileURL, "oci://")}
		}
	}
	f[indexFile], _ = json.Marshal(v1.IndexManifest{SchemaVersion: 2, Manifests: roots})
	f[layoutFile] = []byte(`{"imageLayoutVersion":"1.0.0"}`)
	return f
}

// image adds a manifest with one layer.
func (f files) image(module []byte) v1.Descriptor {
	layer := f.blob(module)
	layer.MediaType = "application/wasm"
	return f.json(v1.Manifest{SchemaVersion: 2, Config: f.blob([]byte("{}")), Layers: []v1.Descriptor{layer}})
}

func (f files) with(change func(files)) files {
	f = maps.Clone(f)
	change(f)
	return f
}

func (f files) write(t testing.TB, dir string) {
	t.Helper()
	for name, body := range f {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, body, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func (f files) tar(t testing.TB, more ...registrytest.File) []byte {
	t.Helper()
	var members []registrytest.File
	for name, body := range f {
		members = append(members, registrytest.File{Name: "./" + name, Body: body})
	}
	return registrytest.Tar(t, append(members, more...)...)
}

// use opens a layout and brings the module of hostileURL.
func use(t *testing.T, path string) ([]byte, error) {
	t.Helper()
	l, err := OpenLayout(path, Config{MaxSize: 1 << 20, MaxEntries: 100})
	if err != nil {
		return nil, err
	}
	defer l.Close()
	l.References()
	l.Unnamed()
	got, _, _, err := bring(t.Context(), t, l, Request{URL: hostileURL})
	return got, err
}

func TestHostileLayouts(t *testing.T) {
	module := core("layout", 1000)
	good := files{}
	root := good.image(module)
	good = good.index(root)
	layer := "blobs/sha256/" + hexOf(module)
	manifest := blobName(root.Digest)
	circle := files{}
	circle[blobName(v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("a", 64)})] = []byte(`{"manifests":[{"digest":"sha256:` + strings.Repeat("a", 64) + `"}]}`)
	deep := files{}
	nested := deep.image(module)
	for range 6 {
		nested = deep.json(v1.IndexManifest{SchemaVersion: 2, Manifests: []v1.Descriptor{nested}})
	}
	other := good.with(func(files) {})
	second := other.image(core("other", 500))
	tests := []struct {
		name  string
		files files
		kind  oci.Kind
		text  string
	}{
		{"empty", files{"x": nil}, oci.NotFound, "it has no oci-layout, so it is not an OCI layout"},
		{"no index", files{layoutFile: good[layoutFile]}, oci.NotFound, "it has no index.json"},
		{"version", good.with(func(f files) { f[layoutFile] = []byte(`{"imageLayoutVersion":"2.0"}`) }), oci.Broken, `its layout version is "2.0"`},
		{"index not json", good.with(func(f files) { f[indexFile] = []byte("<html>") }), oci.Broken, "index.json is damaged"},
		{"huge index", good.with(func(f files) { f[indexFile] = bytes.Repeat([]byte(" "), maxIndex+1) }), oci.Broken, "index.json is larger than"},
		{"bad digest", good.with(func(f files) { f[indexFile] = bytes.ReplaceAll(f[indexFile], []byte("sha256:"), []byte("../../")) }), oci.Broken, "index.json is damaged"},
		{"not there", files{}.index(), oci.NotFound, "it is not in the layout, which has nothing"},
		{"manifest gone", good.with(func(f files) { delete(f, manifest) }), oci.NotFound, "it is not in the layout: export it again"},
		{"manifest changed", good.with(func(f files) { f[manifest] = append(f[manifest], ' ') }), oci.Broken, "its bytes have the digest"},
		{"manifest empty", good.with(func(f files) { f[manifest] = nil }), oci.Broken, "its bytes have the digest"},
		{"layer gone", good.with(func(f files) { delete(f, layer) }), oci.NotFound, "it is not in the layout"},
		{"layer changed", good.with(func(f files) { f[layer] = core("lay0ut", 1000) }), oci.Broken, "its bytes have the digest sha256:"},
		{"layer shorter", good.with(func(f files) { f[layer] = f[layer][:999] }), oci.Broken, "the layout has 999 bytes, the manifest says 1000"},
		{"layer longer", good.with(func(f files) { f[layer] = core("layout", 1001) }), oci.Broken, "the layout has 1001 bytes"},
		{"circle", circle.index(v1.Descriptor{Digest: v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("a", 64)}}), oci.Broken, "its bytes have the digest"},
		{"deep", deep.index(nested), oci.Broken, "more than 3 indexes inside each other"},
		{"two with one name", other.index(root, second), oci.Broken, "2 different images have this name"},
		{"big", func() files { f := files{}; return f.index(f.image(core("big", 2<<20))) }(), oci.Broken, "more than the limit of 1048576"},
		{"component", func() files { f := files{}; return f.index(f.image(component)) }(), oci.Broken, "WebAssembly component"},
	}
	dir := t.TempDir()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			sub := filepath.Join(dir, tt.name)
			if err := os.Mkdir(sub, 0o755); err != nil {
				t.Fatal(err)
			}
			tt.files.write(t, sub)
			_, err := use(t, sub)
			wantError(t, err, tt.kind, tt.text, sub)
			_, err = use(t, writeFile(t, sub+".tar", tt.files.tar(t)))
			wantError(t, err, tt.kind, tt.text, sub+".tar")
		})
	}
	good.write(t, filepath.Join(dir, "good"))
	for _, path := range []string{filepath.Join(dir, "good"), writeFile(t, filepath.Join(dir, "good.tar"), good.tar(t))} {
		if got, err := use(t, path); err != nil || string(got) != string(module) {
			t.Errorf("the good layout: %d bytes, %v", len(got), err)
		}
	}
}

func TestHostileArchives(t *testing.T) {
	module := core("archive", 1000)
	f := files{}
	good := f.index(f.image(module))
	layer := "blobs/sha256/" + hexOf(module)
	link := func(kind byte, to string) []byte {
		return good.with(func(f files) { delete(f, layer) }).tar(t, registrytest.File{Name: layer, Type: kind, Link: to})
	}
	var many []registrytest.File
	for i := range 200 {
		many = append(many, registrytest.File{Name: fmt.Sprint(i)})
	}
	var huge bytes.Buffer
	if err := tar.NewWriter(&huge).WriteHeader(&tar.Header{Name: indexFile, Size: 8 << 40, Typeflag: tar.TypeReg, Format: tar.FormatGNU}); err != nil {
		t.Fatal(err)
	}
	whole := good.tar(t)
	dir := t.TempDir()
	for name, tt := range map[string]struct {
		body []byte
		text string
	}{
		"empty file":          {nil, "it has no oci-layout"},
		"text":                {bytes.Repeat([]byte("text "), 400), "not a readable tar archive"},
		"gzip":                {registrytest.Gzip(t, whole), "compressed: unpack it first, with gunzip or unzstd"},
		"zstd":                {registrytest.Zstd(t, whole), "compressed: unpack it first"},
		"truncated":           {whole[:len(whole)-1024-700], "truncated"},
		"traversal":           {good.tar(t, registrytest.File{Name: "../../etc/x"}), `entry outside of itself: "../../etc/x"`},
		"absolute traversal":  {good.tar(t, registrytest.File{Name: "/../x"}), "entry outside of itself"},
		"symlink":             {link(tar.TypeSymlink, "/etc/passwd"), "is a link, a sparse or a special file"},
		"hard link":           {link(tar.TypeLink, "/etc/passwd"), "is a link, a sparse or a special file"},
		"device":              {link(tar.TypeChar, ""), "is a link, a sparse or a special file"},
		"index twice":         {good.tar(t, registrytest.File{Name: indexFile, Body: []byte("{}")}), `"index.json" is in the archive twice`},
		"too many":            {good.tar(t, many...), "more than 100 entries"},
		"lying size":          {huge.Bytes(), "truncated"},
		"docker save":         {registrytest.Tar(t, registrytest.File{Name: "manifest.json", Body: []byte("[]")}), "skopeo copy docker-archive:"},
		"sparse index":        {sparseTar(t, dir), "is a link, a sparse or a special file"},
		"blob is a directory": {good.with(func(f files) { delete(f, layer) }).tar(t, registrytest.File{Name: layer + "/x", Body: module}), "it is not in the layout"},
	} {
		path := writeFile(t, filepath.Join(dir, name+".tar"), tt.body)
		if _, err := use(t, path); err == nil || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %v, want %q", name, err, tt.text)
		}
	}
}

// sparseTar is made by GNU tar: a few bytes that say they are a gigabyte.
func sparseTar(t *testing.T, dir string) []byte {
	t.Helper()
	sub := filepath.Join(dir, "sparse")
	if err := os.Mkdir(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	path := writeFile(t, filepath.Join(sub, indexFile), nil)
	if err := os.Truncate(path, 1<<30); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "tar", "--sparse", "--format=pax", "-C", sub, "-c", indexFile).Output()
	if err != nil || len(out) > 1<<20 {
		t.Fatalf("tar: %d bytes, %v", len(out), err)
	}
	return out
}

func TestHostileDirectories(t *testing.T) {
	module := core("directory", 1000)
	f := files{}
	good := f.index(f.image(module))
	layer := "blobs/sha256/" + hexOf(module)
	outside := filepath.Join(t.TempDir(), "outside")
	writeFile(t, outside, module)
	for name, tt := range map[string]struct {
		replace func(path string) error
		text    string
	}{
		"link out":  {func(path string) error { return os.Symlink(outside, path) }, "cannot be read: path escapes from parent"},
		"link up":   {func(path string) error { return os.Symlink("../../../../../../../../etc/passwd", path) }, "path escapes"},
		"pipe":      {func(path string) error { return syscall.Mkfifo(path, 0o600) }, "is not a regular file"},
		"directory": {func(path string) error { return os.Mkdir(path, 0o755) }, "is not a regular file"},
		"socket":    {func(path string) error { return syscall.Mknod(path, syscall.S_IFSOCK|0o600, 0) }, "cannot be read"},
	} {
		dir := t.TempDir()
		good.write(t, dir)
		path := filepath.Join(dir, layer)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := tt.replace(path); err != nil {
			t.Fatal(err)
		}
		if _, err := use(t, dir); err == nil || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %v, want %q", name, err, tt.text)
		}
	}
	_, err := use(t, filepath.Join(t.TempDir(), "none"))
	wantError(t, err, oci.NotFound, "no such file or directory")
	_, err = use(t, "/dev/null")
	wantError(t, err, oci.Broken, "neither a directory nor a regular file")
}

// A packed module never passes for the image that a registry has, and a hostile layout that says nothing of it gains no digest.
func TestImportClaimsNoDigest(t *testing.T) {
	module := core("packed", 1000)
	path := filepath.Join(t.TempDir(), "l")
	w := create(t, path)
	if err := w.Pack(t.Context(), hostileURL, writeFile(t, filepath.Join(t.TempDir(), "m"), module), map[string]string{"k": "v"}); err != nil {
		t.Fatal(err)
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	l := open(t, path)
	got, r, result, err := bring(t.Context(), t, l, Request{URL: hostileURL, SHA256: hexOf(module)})
	if err != nil || string(got) != string(module) || r.Manifest != "" || r.Index != "" || r.Annotations["k"] != "v" || result.Matched != "module" {
		t.Errorf("import = %d bytes, %+v, %+v, %v, want the module and no digest of a manifest", len(got), r, result, err)
	}
	packed := l.roots[0].Digest
	_, _, _, err = bring(t.Context(), t, l, Request{URL: hostileURL, SHA256: packed.Hex})
	wantError(t, err, oci.Broken, "wrong digest")
	_, _, _, err = bring(t.Context(), t, l, Request{URL: "oci://registry.test/team/app@sha256:" + strings.Repeat("a", 64)})
	wantError(t, err, oci.NotFound, "it is not in the layout")
	if _, err := l.Head(t.Context(), Request{URL: hostileURL}); err == nil {
		t.Error("Head gives a packed module the digest of an image")
	}
}

// An index of maximal size costs some times its bytes, not more.
func TestHugeIndexIsBounded(t *testing.T) {
	f := files{}.index()
	desc := `{"digest":"sha256:` + strings.Repeat("a", 64) + `"},`
	body := []byte(`{"manifests":[` + strings.Repeat(desc, (maxIndex-100)/len(desc)))
	f[indexFile] = append(body[:len(body)-1], "]}"...)
	dir := t.TempDir()
	f.write(t, dir)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	l := open(t, dir)
	l.References()
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 40<<20 {
		t.Errorf("an index of %d bytes cost %d", len(f[indexFile]), got)
	} else {
		t.Logf("%d roots, %d KiB allocated", len(l.roots), got>>10)
	}
}
