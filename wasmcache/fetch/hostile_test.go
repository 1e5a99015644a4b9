package fetch

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/gateway-agent/gateway-agent/internal/oci"
	"github.com/gateway-agent/gateway-agent/internal/registrytest"
)

// zeros compresses n zero bytes behind head: a bomb.
func zeros(t *testing.T, head []byte, n int64) []byte {
	t.Helper()
	var buf bytes.Buffer
	w, err := gzip.NewWriterLevel(&buf, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(w, io.MultiReader(bytes.NewReader(head), io.LimitReader(zero{}, n)))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

type zero struct{}

func (zero) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestHostileLayers(t *testing.T) {
	const limit = 1 << 20
	module := core("good", 1000)
	file := func(name string, body []byte) registrytest.File { return registrytest.File{Name: name, Body: body} }
	link := func(name string, kind byte, to string) registrytest.File {
		return registrytest.File{Name: name, Type: kind, Link: to}
	}
	archive := func(files ...registrytest.File) []byte { return registrytest.Tar(t, files...) }
	gz := func(b []byte) []byte { return registrytest.Gzip(t, b) }
	var bigTarHead bytes.Buffer
	if err := tar.NewWriter(&bigTarHead).WriteHeader(&tar.Header{Name: "plugin.wasm", Size: 8 << 40, Typeflag: tar.TypeReg, Format: tar.FormatGNU}); err != nil {
		t.Fatal(err)
	}
	var many []registrytest.File
	for range 300 {
		many = append(many, file("f", nil))
	}
	tests := []struct {
		name string
		body []byte
		text string
	}{
		{"component", component, "WebAssembly component, not a core module"},
		{"component in an archive", gz(archive(file("plugin.wasm", component))), "build for wasip1, not wasip2"},
		{"empty", []byte{}, "it is empty"},
		{"html", []byte("<!DOCTYPE html><title>Login</title>"), `not a Wasm module: it begins with "<!DOCTYPE html><title>Lo"`},
		{"seven bytes", []byte("\x00asm\x01\x00\x00"), "only 7 bytes long"},
		{"module too big", core("big", limit+1), "more than the limit of 1048576"},
		{"module bomb", zeros(t, module, 8<<20), "larger than the limit of 1048576 bytes: raise --wasm-max-size"},
		{"archive bomb", zeros(t, archive(file("x", nil))[:512], 8<<20), "no .wasm file in the archive"},
		{"bomb before the module", gz(archive(file("x", make([]byte, 3<<20)), file("plugin.wasm", module))), "unpacks to more than 2097152 bytes"},
		{"lying tar header", gz(bigTarHead.Bytes()), `"plugin.wasm" is 8796093022208 bytes`},
		{"big in an archive", gz(archive(file("plugin.wasm", core("big", limit+1)))), "is 1048577 bytes, more than the limit"},
		{"too many entries", gz(archive(many...)), "more than 200 entries"},
		{"traversal", gz(archive(file("../../etc/plugin.wasm", module))), `entry outside of itself: "../../etc/plugin.wasm"`},
		{"symlink", gz(archive(link("plugin.wasm", tar.TypeSymlink, "/etc/passwd"))), `"plugin.wasm" in the archive is a link or special file`},
		{"hard link", gz(archive(file("a", module), link("plugin.wasm", tar.TypeLink, "a"))), "is a link or special file"},
		{"device", gz(archive(link("plugin.wasm", tar.TypeChar, ""))), "is a link or special file"},
		{"no module", gz(archive(file("a.txt", []byte("a")), file("b.txt", nil))), "no .wasm file in the archive (it has a.txt, b.txt …)"},
		{"no files", gz(archive()), "the archive has no files"},
		{"two modules", gz(archive(file("a.wasm", module), file("b.wasm", module))), "several modules in the archive (a.wasm, b.wasm): name one plugin.wasm"},
		{"twice the same", gz(archive(file("plugin.wasm", module), file("plugin.wasm", core("evil", 99)))), "several modules in the archive"},
		{"not wasm inside", gz(archive(file("plugin.wasm", []byte("#!/bin/sh\nexit")))), `it begins with "#!/bin/s"`},
		{"truncated gzip", gz(module)[:100], "it is truncated: push it again"},
		{"truncated tar", gz(archive(file("plugin.wasm", module))[:900]), "it is truncated: push it again"},
		{"damaged gzip", append(gz(module)[:30], []byte("garbage garbage garbage")...), "it cannot be unpacked"},
		{"gzip twice", gz(gz(module)), "compressed twice"},
		{"zstd window", longWindow(module), "zstd window is larger than 16 MiB"},
	}
	r := registrytest.New(t)
	c := New(Config{MaxSize: limit, MaxEntries: 200})
	defer c.Close()
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			repo := "hostile/" + strings.Repeat("x", i+1)
			r.Push(t, repo, "v1", registrytest.Image{Layers: []registrytest.Layer{{MediaType: types.OCILayer, Body: tt.body}}})
			_, _, _, err := pull(t.Context(), t, c, Request{URL: r.Ref(repo + ":v1")})
			wantError(t, err, oci.Broken, tt.text, "pull "+r.Ref(repo+":v1"))
		})
	}
}

// longWindow returns a frame that asks for a window of 64 MiB: frame header, then head as one raw block.
func longWindow(head []byte) []byte {
	size := uint32(len(head))<<3 | 1
	return append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0, 16 << 3, byte(size), byte(size >> 8), byte(size >> 16)}, head...)
}

func TestHostileManifests(t *testing.T) {
	r := registrytest.New(t)
	r.Push(t, "m", "v1", registrytest.Compat(t, core("m", 100)))
	tests := []struct {
		name string
		body string
		text string
	}{
		{"html", "<html>login", `not a manifest (text/html): it begins with "<html>login"`},
		{"schema 1", `{"schemaVersion":1,"fsLayers":[]}`, "Docker schema 1 image"},
		{"nothing", `{}`, "neither layers nor manifests"},
		{"no layers", `{"schemaVersion":2,"layers":[]}`, "it has no layers"},
		{"huge", `{"schemaVersion":2,"layers":[],"x":"` + strings.Repeat("x", 5<<20) + `"}`, "larger than 4194304 bytes: check that the URL names an image"},
		{"negative size", manifestOf(-5), "the manifest gives it a size of -5"},
		{"huge size", manifestOf(1 << 50), "its layer is 1125899906842624 bytes, more than the limit"},
		{"bad digest", strings.Replace(manifestOf(5), "sha256:", "md5:", 1), "not a manifest"},
		{"index in index", `{"schemaVersion":2,"manifests":[]}`, "no image among its 0 manifests"},
		{"two modules", `{"schemaVersion":2,"layers":[` + layerOf("application/wasm", 5) + "," + layerOf("application/wasm", 5) + `]}`, "2 layers are Wasm modules"},
		{"two unknown", `{"schemaVersion":2,"layers":[` + layerOf("text/plain", 5) + "," + layerOf("image/png", 5) + `]}`, "cannot tell which layer is the module (layers: text/plain, image/png)"},
	}
	c := New(Config{})
	defer c.Close()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := registrytest.NewProxy(t, r.Addr)
			p.Fail("/manifests/", registrytest.Fault{Body: []byte(tt.body)})
			_, _, _, err := pull(t.Context(), t, c, Request{URL: p.Ref("m:v1")})
			wantError(t, err, oci.Broken, tt.text)
		})
	}
}

func layerOf(mediaType string, size int64) string {
	b, _ := marshal(v1.Descriptor{MediaType: types.MediaType(mediaType), Size: size, Digest: v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("1", 64)}})
	return string(b)
}

func manifestOf(size int64) string {
	return `{"schemaVersion":2,"layers":[` + layerOf("application/wasm", size) + `]}`
}

func TestHostileRegistry(t *testing.T) {
	r := registrytest.New(t)
	module := core("lies", 100_000)
	manifest := r.Push(t, "lies", "v1", registrytest.WasmToOCI(module))
	short := registrytest.WasmToOCI(module)
	short.Layers[0].Size = 1000
	r.Push(t, "lies", "short", short)
	long := registrytest.WasmToOCI(module)
	long.Layers[0].Size = 200_000
	r.Push(t, "lies", "long", long)
	tests := []struct {
		name, ref string
		part      string
		fault     registrytest.Fault
		kind      oci.Kind
		text      string
	}{
		{"flipped bit", "lies:v1", "/blobs/", registrytest.Fault{Flip: 50_000}, oci.Broken, "its bytes have the digest sha256:"},
		{"other bytes", "lies:v1", "/blobs/", registrytest.Fault{Body: core("evil", 100_000)}, oci.Broken, "its bytes have the digest"},
		{"fewer bytes", "lies:v1", "/blobs/", registrytest.Fault{Body: core("evil", 10)}, oci.Broken, "the registry sends 16 bytes, the manifest says 100000: push the image again"},
		{"manifest says less", "lies:short", "", registrytest.Fault{}, oci.Broken, "the registry sends 100000 bytes, the manifest says 1000"},
		{"manifest says more", "lies:long", "", registrytest.Fault{}, oci.Broken, "the registry sends 100000 bytes, the manifest says 200000"},
		{"other manifest for a digest", "lies@" + manifest, "/manifests/", registrytest.Fault{Body: []byte(`{"layers":[]}`)}, oci.Broken, "the registry sent other bytes, with digest sha256:"},
		{"no such tag", "lies:v9", "", registrytest.Fault{}, oci.NotFound, "MANIFEST_UNKNOWN: manifest unknown (check the repository and the tag)"},
		{"blob gone", "lies:v1", "/blobs/", registrytest.Fault{Status: 404}, oci.NotFound, "404 Not Found"},
		{
			"led away", "lies:v1", "/blobs/",
			registrytest.Fault{Status: 307, Header: map[string][]string{"Location": {"http://169.254.169.254/latest/"}}},
			oci.Broken,
			"connection to 169.254.169.254, a link-local address (cloud metadata lives there) (check the URL, its DNS name and where the server redirects)",
		},
		{"rate limit", "lies:v1", "/manifests/", registrytest.Fault{Status: 429, Header: map[string][]string{"Retry-After": {"13"}}}, oci.RateLimited, "retry after 13s"},
		{"503", "lies:v1", "/v2/", registrytest.Fault{Status: 503}, oci.Temporary, "503 Service Unavailable"},
		{"503 for the blob", "lies:v1", "/blobs/", registrytest.Fault{Status: 503}, oci.Temporary, "503 Service Unavailable"},
		{"403", "lies:v1", "/manifests/", registrytest.Fault{Status: 403}, oci.Unauthorized, "without asking for credentials"},
		{"not a registry", "lies:v1", "/v2/", registrytest.Fault{Body: []byte("welcome")}, oci.Broken, "not a manifest"},
	}
	c := New(Config{})
	defer c.Close()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := registrytest.NewProxy(t, r.Addr)
			if tt.part != "" {
				p.Fail(tt.part, tt.fault)
			}
			_, _, _, err := pull(t.Context(), t, c, Request{URL: p.Ref(tt.ref)})
			wantError(t, err, tt.kind, tt.text)
			p.Repair()
			if !strings.HasPrefix(tt.ref, "lies:v1") {
				return
			}
			if got, _, _, err := pull(t.Context(), t, c, Request{URL: p.Ref(tt.ref)}); err != nil || !bytes.Equal(got, module) {
				t.Errorf("after the repair: %d bytes, %v, want the module", len(got), err)
			}
		})
	}
}

func TestRegistryDownIsTemporary(t *testing.T) {
	r := registrytest.New(t)
	r.Stop()
	_, _, _, err := pull(t.Context(), t, New(Config{}), Request{URL: r.Ref("m:v1")})
	wantError(t, err, oci.Temporary, "connection refused")
	_, _, _, err = pull(t.Context(), t, New(Config{}), Request{URL: "http://" + r.Addr + "/m.wasm"})
	wantError(t, err, oci.Temporary, "connection refused")
}
