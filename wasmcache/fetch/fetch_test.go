package fetch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/gateway-agent/gateway-agent/internal/oci"
	"github.com/gateway-agent/gateway-agent/internal/registrytest"
)

// core returns a module of n bytes that differs by name.
func core(name string, n int) []byte {
	b := make([]byte, max(n, 16))
	copy(b, "\x00asm\x01\x00\x00\x00"+name)
	for i := 64; i < len(b); i++ {
		b[i] = byte(i * i >> 5)
	}
	return b
}

var component = append([]byte("\x00asm\x0d\x00\x01\x00"), make([]byte, 64)...)

// pull fetches into a file and returns what is in it.
func pull(ctx context.Context, t *testing.T, c *Client, req Request) ([]byte, *Resolved, Result, error) {
	t.Helper()
	dst, err := os.Create(filepath.Join(t.TempDir(), "module"))
	if err != nil {
		t.Fatal(err)
	}
	defer dst.Close()
	resolved, err := c.Resolve(ctx, req)
	if err != nil {
		return nil, nil, Result{}, err
	}
	result, err := c.Fetch(ctx, resolved, dst, nil)
	if err != nil {
		return nil, resolved, Result{}, err
	}
	got, err := os.ReadFile(dst.Name())
	if err != nil {
		t.Fatal(err)
	}
	return got, resolved, result, nil
}

func hexOf(b []byte) string { return strings.TrimPrefix(registrytest.Digest(b), "sha256:") }

func TestLayouts(t *testing.T) {
	r := registrytest.New(t)
	module := core("layout", 5000)
	tarOf := func(files ...registrytest.File) []byte { return registrytest.Tar(t, files...) }
	plugin := registrytest.File{Name: "plugin.wasm", Body: module}
	other := registrytest.File{Name: "README.md", Body: []byte("hello")}
	layer := func(mediaType string, body []byte) registrytest.Image {
		return registrytest.Image{Layers: []registrytest.Layer{{MediaType: types.MediaType(mediaType), Body: body}}}
	}
	images := map[string]registrytest.Image{
		"compat":             registrytest.Compat(t, module),
		"docker":             registrytest.Docker(t, module),
		"solo":               registrytest.Solo(module),
		"wasm-to-oci":        registrytest.WasmToOCI(module),
		"cncf":               registrytest.CNCF(module),
		"oras-typed":         registrytest.ORAS("application/vnd.example.filter", module),
		"oras-with-readme":   registrytest.ORAS("application/vnd.example.filter", module, other),
		"solo-single-layer":  {ConfigType: registrytest.SoloConfig, Config: []byte("{}"), Layers: []registrytest.Layer{{MediaType: registrytest.SoloContent, Body: module}}},
		"unknown-wasm":       layer("application/vnd.unknown.layer.v1+wasm", module),
		"octet-stream":       layer("application/octet-stream", module),
		"tar":                layer(string(types.OCIUncompressedLayer), tarOf(plugin)),
		"tar-zstd":           layer(string(types.OCILayerZStd), registrytest.Zstd(t, tarOf(plugin))),
		"docker-tar":         layer(string(types.DockerUncompressedLayer), tarOf(plugin)),
		"nondistributable":   layer(string(types.OCIRestrictedLayer), registrytest.Gzip(t, tarOf(plugin))),
		"lying-gzip-is-zstd": layer(string(types.OCILayer), registrytest.Zstd(t, tarOf(plugin))),
		"lying-tar-is-wasm":  layer(string(types.OCILayer), module),
		"wasm-type-is-gzip":  layer("application/wasm", registrytest.Gzip(t, module)),
		"in-a-directory":     layer(string(types.OCILayer), registrytest.Gzip(t, tarOf(other, registrytest.File{Name: "a/b/plugin.wasm", Body: module}))),
		"only-wasm":          layer(string(types.OCILayer), registrytest.Gzip(t, tarOf(other, registrytest.File{Name: "./filter.wasm", Body: module}))),
		"no-wasm-name":       layer(string(types.OCILayer), registrytest.Gzip(t, tarOf(other, registrytest.File{Name: "plugin", Body: module}))),
		"plugin-comes-last":  layer(string(types.OCILayer), registrytest.Gzip(t, tarOf(registrytest.File{Name: "other.wasm", Body: core("other", 9000)}, plugin))),
		"plugin-comes-first": layer(string(types.OCILayer), registrytest.Gzip(t, tarOf(plugin, registrytest.File{Name: "x/plugin.wasm", Body: core("other", 9000)}))),
		"whiteouts":          layer(string(types.OCILayer), registrytest.Gzip(t, tarOf(registrytest.File{Name: ".wh.plugin.wasm"}, registrytest.File{Name: "._plugin.wasm", Body: []byte("x")}, plugin))),
		"two-gzip-members":   layer(string(types.OCILayer), append(registrytest.Gzip(t, tarOf(plugin)[:1000]), registrytest.Gzip(t, tarOf(plugin)[1000:])...)),
	}
	c := New(Config{})
	defer c.Close()
	for name, img := range images {
		t.Run(name, func(t *testing.T) {
			digest := r.Push(t, "layout/"+name, "v1", img)
			got, resolved, result, err := pull(t.Context(), t, c, Request{URL: r.Ref("layout/" + name + ":v1")})
			if err != nil {
				t.Fatalf("pull = %v", err)
			}
			if string(got) != string(module) || result.Digest != hexOf(module) || result.Size != int64(len(module)) {
				t.Errorf("pull = %d bytes %+v, want the module %s", len(got), result, hexOf(module))
			}
			if resolved.Manifest != digest || resolved.Index != "" {
				t.Errorf("resolved manifest %s index %s, want %s and none", resolved.Manifest, resolved.Index, digest)
			}
		})
	}
}

func TestIndexes(t *testing.T) {
	r := registrytest.New(t)
	right, wrong := core("right", 100), core("wrong", 100)
	attestation := registrytest.Entry{
		Image:       registrytest.Image{Layers: []registrytest.Layer{{MediaType: "application/vnd.in-toto+json", Body: []byte("{}")}}},
		Platform:    &v1.Platform{OS: "unknown", Architecture: "unknown"},
		Annotations: map[string]string{"vnd.docker.reference.type": "attestation-manifest"},
	}
	on := func(os, arch string, module []byte) registrytest.Entry {
		return registrytest.Entry{Image: registrytest.Compat(t, module), Platform: &v1.Platform{OS: os, Architecture: arch}}
	}
	indexes := map[string][]registrytest.Entry{
		"buildx":          {on("linux", "riscv64", right), attestation},
		"wasm-platform":   {on("linux", "amd64", wrong), on("wasip1", "wasm", right), attestation},
		"linux-preferred": {on("windows", "amd64", wrong), on("linux", "amd64", right)},
		"no-platform":     {attestation, {Image: registrytest.WasmToOCI(right)}},
	}
	c := New(Config{})
	defer c.Close()
	for name, entries := range indexes {
		t.Run(name, func(t *testing.T) {
			digest := r.PushIndex(t, "index/"+name, "v1", entries...)
			got, resolved, _, err := pull(t.Context(), t, c, Request{URL: r.Ref("index/" + name + ":v1")})
			if err != nil || string(got) != string(right) {
				t.Fatalf("pull = %q, %v, want the right module", got, err)
			}
			if resolved.Index != digest || resolved.Manifest == digest {
				t.Errorf("resolved index %s manifest %s, want index %s", resolved.Index, resolved.Manifest, digest)
			}
		})
	}
	r.PushIndex(t, "index/empty", "v1", attestation)
	_, _, _, err := pull(t.Context(), t, c, Request{URL: r.Ref("index/empty:v1")})
	wantError(t, err, oci.Broken, "no image among its 1 manifests")
}

func wantError(t *testing.T, err error, kind oci.Kind, texts ...string) {
	t.Helper()
	e, ok := errors.AsType[*oci.Error](err)
	if !ok || e.Kind != kind {
		t.Errorf("error = %v, want one of kind %s", err, kind)
		return
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("error = %v, want it to say %q", err, text)
		}
	}
}

func TestDigests(t *testing.T) {
	r := registrytest.New(t)
	module := core("digest", 100)
	img := registrytest.Compat(t, module)
	manifest := r.Push(t, "digest", "v1", img)
	index := r.PushIndex(t, "digest", "multi", registrytest.Entry{Image: img, Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}})
	web := serve(t, map[string][]byte{"/m.wasm": module, "/m.wasm.gz": registrytest.Gzip(t, module)})
	wrong := strings.Repeat("ab", 32)
	bare := func(digest string) string { return strings.TrimPrefix(digest, "sha256:") }
	tests := []struct{ name, url, sha256, matched, err string }{
		{"module", r.Ref("digest:multi"), hexOf(module), "module", ""},
		{"manifest", r.Ref("digest:multi"), bare(manifest), "manifest", ""},
		{"index", r.Ref("digest:multi"), bare(index), "index", ""},
		{"upper case with prefix", r.Ref("digest:multi"), "SHA256:" + strings.ToUpper(bare(index)), "index", ""},
		{"nil", r.Ref("digest:v1"), "nil", "", ""},
		{"url", r.Ref("digest@" + manifest), "", "", ""},
		{"url and field agree", r.Ref("digest@" + manifest), bare(manifest), "manifest", ""},
		{"url of the index, field of the module", r.Ref("digest@" + index), hexOf(module), "module", ""},
		{"tag and digest", r.Ref("digest:nonexistent@" + manifest), "", "", ""},
		{"url and field disagree", r.Ref("digest@" + manifest), wrong, "", "wrong digest: sha256 " + wrong},
		{"wrong", r.Ref("digest:multi"), wrong, "", "but this is module " + hexOf(module) + ", manifest " + manifest + ", index " + index},
		{"not hex", r.Ref("digest:v1"), "abc", "", `"abc" is not a SHA-256 in hex`},
		{"http", web + "/m.wasm", hexOf(module), "module", ""},
		{"http unboxed", web + "/m.wasm.gz", hexOf(module), "module", ""},
		{"http of the box", web + "/m.wasm.gz", hexOf(registrytest.Gzip(t, module)), "", "wrong digest"},
	}
	c := New(Config{})
	defer c.Close()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, _, result, err := pull(t.Context(), t, c, Request{URL: tt.url, SHA256: tt.sha256})
			if tt.err != "" {
				wantError(t, err, oci.Broken, tt.err)
				return
			}
			if err != nil || string(got) != string(module) || result.Matched != tt.matched {
				t.Errorf("pull = %d bytes, matched %q, %v, want the module, matched %q", len(got), result.Matched, err, tt.matched)
			}
		})
	}
}
