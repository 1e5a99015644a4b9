package pack

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

const magic = "\x00asm\x01\x00\x00\x00"

func write(t *testing.T, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "any name.wasm")
	if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func pack(t *testing.T, path string, variant Variant, annotations map[string]string) (v1.Image, *v1.Manifest) {
	t.Helper()
	img, err := Image(path, variant, annotations)
	if err != nil {
		t.Fatal(err)
	}
	m, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	return img, m
}

func read(t *testing.T, img v1.Image, n int, open func(v1.Layer) (io.ReadCloser, error)) []byte {
	t.Helper()
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	r, err := open(layers[n])
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	body, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func TestCompat(t *testing.T) {
	for _, size := range []int{8, 504, 505, 512, 100_000} {
		module := magic + strings.Repeat("x", size-8)
		img, m := pack(t, write(t, module), Compat, map[string]string{"org.opencontainers.image.source": "here"})
		if err := validate.Image(img); err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
		want := map[string]string{"module.wasm.image/variant": "compat", "org.opencontainers.image.source": "here"}
		if diff := cmp.Diff(want, m.Annotations); diff != "" {
			t.Errorf("annotations (-want +got):\n%s", diff)
		}
		if len(m.Layers) != 1 || m.Layers[0].MediaType != "application/vnd.oci.image.layer.v1.tar+gzip" || m.Config.MediaType != "application/vnd.oci.image.config.v1+json" {
			t.Errorf("manifest = %+v", m)
		}
		archive := tar.NewReader(bytes.NewReader(read(t, img, 0, v1.Layer.Uncompressed)))
		h, err := archive.Next()
		if err != nil || h.Name != "plugin.wasm" || h.Typeflag != tar.TypeReg || h.Mode != 0o644 || h.ModTime.Unix() != 0 || h.Uid != 0 {
			t.Fatalf("first entry = %+v, %v", h, err)
		}
		if body, err := io.ReadAll(archive); err != nil || string(body) != module {
			t.Errorf("plugin.wasm has %d bytes, %v, want %d", len(body), err, size)
		}
		if _, err := archive.Next(); !errors.Is(err, io.EOF) {
			t.Errorf("after plugin.wasm: %v, want the end", err)
		}
	}
}

func TestArtifact(t *testing.T) {
	module := magic + "artifact"
	img, m := pack(t, write(t, module), Artifact, nil)
	var types []string
	for _, l := range m.Layers {
		types = append(types, string(l.MediaType))
	}
	if diff := cmp.Diff([]string{string(ConfigType), string(ContentType)}, types); diff != "" {
		t.Errorf("layers (-want +got):\n%s", diff)
	}
	if m.ArtifactType != string(ConfigType) || m.Config.MediaType != "application/vnd.oci.empty.v1+json" || m.Layers[1].Annotations[titleKey] != "plugin.wasm" {
		t.Errorf("manifest = %+v", m)
	}
	if got := read(t, img, 1, v1.Layer.Compressed); string(got) != module {
		t.Errorf("the content layer is %q, want the module", got)
	}
	if got := read(t, img, 0, v1.Layer.Compressed); !json.Valid(got) || !bytes.Contains(got, []byte("envoy_proxy")) {
		t.Errorf("the configuration layer is %q", got)
	}
	if raw, err := img.RawConfigFile(); string(raw) != "{}" {
		t.Errorf("the configuration is %q, %v", raw, err)
	}
	for i, l := range m.Layers {
		body := read(t, img, i, v1.Layer.Compressed)
		if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != l.Digest.Hex || int64(len(body)) != l.Size {
			t.Errorf("layer %d is not what its descriptor says", i)
		}
	}
}

func TestSameBytesEveryTime(t *testing.T) {
	module := magic + strings.Repeat("reproducible", 10_000)
	annotations := map[string]string{"a": "1", "b": "2", "c": "3"}
	for _, v := range Variants() {
		first, _ := pack(t, write(t, module), v, annotations)
		path := write(t, module)
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
		second, _ := pack(t, path, v, annotations)
		a, errA := first.Digest()
		b, errB := second.Digest()
		if a != b || errA != nil || errB != nil {
			t.Errorf("%s: digests %s and %s, %v, %v: want the same", v, a, b, errA, errB)
		}
	}
	def, _ := pack(t, write(t, module), "", nil)
	compat, _ := pack(t, write(t, module), Compat, nil)
	if a, _ := def.Digest(); !strings.HasPrefix(a.String(), "sha256:") {
		t.Errorf("digest = %s", a)
	} else if b, _ := compat.Digest(); a != b {
		t.Errorf("the default variant has the digest %s, compat %s", a, b)
	}
}

func TestRefused(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		path    string
		variant Variant
		text    string
	}{
		{filepath.Join(t.TempDir(), "none"), Compat, "no such file"},
		{t.TempDir(), Compat, "not a regular file"},
		{pipe, Compat, "not a regular file"},
		{write(t, ""), Compat, "not a Wasm module"},
		{write(t, "\x1f\x8b\x08"), Artifact, "not an archive of it"},
		{write(t, "\x00asm\x0d\x00\x01\x00"), Artifact, "WebAssembly component, not a core module"},
		{write(t, magic), "solo", `unknown variant "solo": use compat or artifact`},
	} {
		_, err := Image(tt.path, tt.variant, nil)
		if err == nil || !strings.Contains(err.Error(), tt.text) || !strings.Contains(err.Error(), tt.path) {
			t.Errorf("Image(%s, %s) = %v, want %q", tt.path, tt.variant, err, tt.text)
		}
	}
}

// What is pushed is what was measured, or an error.
func TestFileChangesBetween(t *testing.T) {
	for _, v := range Variants() {
		for name, body := range map[string]string{"shorter": magic, "longer": magic + "12345678901", "other": magic + "evil"} {
			path := write(t, magic+"good")
			img, m := pack(t, path, v, nil)
			if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
				t.Fatal(err)
			}
			layer, err := img.LayerByDigest(m.Layers[len(m.Layers)-1].Digest)
			if err != nil {
				t.Fatal(err)
			}
			r, err := layer.Compressed()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, r); err == nil || !strings.Contains(err.Error(), "while it was read: try again") {
				t.Errorf("%s, %s: %v, want an error", v, name, err)
			}
			r.Close()
		}
	}
}

// A module of any size costs some buffers.
func TestStreams(t *testing.T) {
	path := write(t, magic)
	if err := os.Truncate(path, 8<<20); err != nil {
		t.Fatal(err)
	}
	for _, v := range Variants() {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		img, m := pack(t, path, v, nil)
		layer, err := img.LayerByDigest(m.Layers[len(m.Layers)-1].Digest)
		if err != nil {
			t.Fatal(err)
		}
		r, err := layer.Compressed()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, r, make([]byte, 32<<10)); err != nil {
			t.Error(err)
		}
		r.Close()
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; got > 2<<20 {
			t.Errorf("%s: %d bytes allocated for a module of %d", v, got, 8<<20)
		}
	}
}
