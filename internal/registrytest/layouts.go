package registrytest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
)

// Media types of the layouts, as their tools write them.
const (
	SoloConfig       types.MediaType = "application/vnd.module.wasm.config.v1+json"
	SoloContent      types.MediaType = "application/vnd.module.wasm.content.layer.v1+wasm"
	WasmToOCIConfig  types.MediaType = "application/vnd.wasm.config.v1+json"
	WasmToOCIContent types.MediaType = "application/vnd.wasm.content.layer.v1+wasm"
	CNCFConfig       types.MediaType = "application/vnd.wasm.config.v0+json"
	Wasm             types.MediaType = "application/wasm"
)

// Title is the annotation in which ORAS puts a file's name.
const Title = "org.opencontainers.image.title"

// File is one member of a tar layer.
type File struct {
	Name string
	Body []byte
	// Type is a tar type flag; default: a regular file.
	Type byte
	// Link is a link's target.
	Link string
}

// Tar packs files into a tar archive.
func Tar(t testing.TB, files ...File) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range files {
		if f.Type == 0 {
			f.Type = tar.TypeReg
		}
		h := &tar.Header{Name: f.Name, Typeflag: f.Type, Linkname: f.Link, Size: int64(len(f.Body)), Mode: 0o644}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(f.Body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// Gzip compresses b.
func Gzip(t testing.TB, b []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// Zstd compresses b.
func Zstd(t testing.TB, b []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	out := w.EncodeAll(b, nil)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out
}

// Compat is the "compat" variant: an OCI image whose last layer holds plugin.wasm.
func Compat(t testing.TB, module []byte) Image {
	t.Helper()
	return Image{
		Annotations: map[string]string{"module.wasm.image/variant": "compat"},
		Layers:      []Layer{{MediaType: types.OCILayer, Body: Gzip(t, Tar(t, File{Name: "plugin.wasm", Body: module}))}},
	}
}

// Docker is the same as a Docker image, on top of a base layer.
func Docker(t testing.TB, module []byte) Image {
	t.Helper()
	base := Gzip(t, Tar(t, File{Name: "bin", Type: tar.TypeSymlink, Link: "usr/bin"}, File{Name: "etc/os-release", Body: []byte("ID=test\n")}))
	return Image{
		MediaType:  types.DockerManifestSchema2,
		ConfigType: types.DockerConfigJSON,
		Config:     []byte(`{"architecture":"amd64","os":"linux","config":{},"rootfs":{"type":"layers","diff_ids":[]}}`),
		Layers: []Layer{
			{MediaType: types.DockerLayer, Body: base},
			{MediaType: types.DockerLayer, Body: Gzip(t, Tar(t, File{Name: "plugin.wasm", Body: module}))},
		},
	}
}

// Solo is the "oci" variant: a configuration and the module, both as layers.
func Solo(module []byte) Image {
	return Image{
		ConfigType: "application/vnd.oci.image.config.v1+json", Config: []byte(`{}`),
		Layers: []Layer{{MediaType: SoloConfig, Body: []byte(`{"type":"envoy_proxy"}`)}, {MediaType: SoloContent, Body: module}},
	}
}

// WasmToOCI is what wasm-to-oci and "cosign upload wasm" push.
func WasmToOCI(module []byte) Image {
	return Image{ConfigType: WasmToOCIConfig, Config: []byte(`{}`), Layers: []Layer{{MediaType: WasmToOCIContent, Body: module}}}
}

// CNCF is the layout of the CNCF's Wasm working group.
func CNCF(module []byte) Image {
	return Image{
		ConfigType: CNCFConfig, Config: []byte(`{"architecture":"wasm","os":"wasip1","layerDigests":["` + Digest(module) + `"]}`),
		Layers: []Layer{{MediaType: Wasm, Body: module}},
	}
}

// ORAS is what "oras push" makes of files: untyped layers with a title.
func ORAS(artifactType string, module []byte, others ...File) Image {
	img := Image{ArtifactType: artifactType, ConfigType: types.OCIEmptyJSON, Config: []byte(`{}`)}
	for _, f := range others {
		img.Layers = append(img.Layers, Layer{MediaType: types.OCIUncompressedLayer, Body: f.Body, Annotations: map[string]string{Title: f.Name}})
	}
	img.Layers = append(img.Layers, Layer{MediaType: "application/octet-stream", Body: module, Annotations: map[string]string{Title: "filter.wasm"}})
	return img
}
