// Package pack makes an OCI image of a module, in either variant of the Wasm image specification, ready to push to a registry or to
// put into a layout. The module is read from its file as often as needed and is never wholly in memory; the same module, variant and
// annotations give the same bytes.
package pack

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Variant is a way to put a module into an image.
type Variant string

const (
	// Compat is an ordinary image whose only layer, tar+gzip, holds plugin.wasm: every registry and container tool takes it.
	Compat Variant = "compat"
	// Artifact is an OCI artifact of two layers, a configuration and the bare module: smaller, but some registries refuse it.
	Artifact Variant = "artifact"
)

// Variants are all of them, for help texts and completion.
func Variants() []Variant { return []Variant{Compat, Artifact} }

// The media types of the artifact variant.
const (
	ConfigType  types.MediaType = "application/vnd.module.wasm.config.v1+json"
	ContentType types.MediaType = "application/vnd.module.wasm.content.layer.v1+wasm"
)

const (
	variantKey = "module.wasm.image/variant"
	titleKey   = "org.opencontainers.image.title"
	fileName   = "plugin.wasm"
	// runtimeConfig says for whom the module is.
	runtimeConfig = `{"type":"envoy_proxy"}`
)

// Image reads the module at path and returns it as an image with the annotations given, "" meaning Compat. Later reads of the image read
// path again; they fail when the file has changed meanwhile.
func Image(path string, variant Variant, annotations map[string]string) (v1.Image, error) {
	if err := check(path); err != nil {
		return nil, fmt.Errorf("pack %s: %w", path, err)
	}
	var (
		img *image
		err error
	)
	switch variant := cmp.Or(variant, Compat); variant {
	case Compat:
		img, err = compat(path)
	case Artifact:
		img, err = artifact(path)
	default:
		err = fmt.Errorf("unknown variant %q: use %s or %s", variant, Compat, Artifact)
	}
	if err != nil {
		return nil, fmt.Errorf("pack %s: %w", path, err)
	}
	if img.doc.Annotations == nil {
		img.doc.Annotations = map[string]string{}
	}
	maps.Copy(img.doc.Annotations, annotations)
	if img.manifest, err = json.Marshal(img.doc); err != nil {
		return nil, fmt.Errorf("pack %s: write the manifest: %w", path, err)
	}
	return partial.CompressedToImage(img)
}

// compat makes the image that "FROM scratch, COPY plugin.wasm" makes. Its platform is linux/amd64, because that is what tools that must
// choose take when in doubt; the module does not depend on it.
func compat(path string) (*image, error) {
	l := &layer{path: path, mediaType: types.OCILayer, open: openBox}
	diff, err := l.measure()
	if err != nil {
		return nil, err
	}
	config, err := json.Marshal(&v1.ConfigFile{
		Architecture: "amd64", OS: "linux",
		RootFS: v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{diff}},
	})
	if err != nil {
		return nil, err
	}
	img := newImage(types.OCIConfigJSON, config, l)
	img.doc.Annotations = map[string]string{variantKey: string(Compat)}
	return img, nil
}

func artifact(path string) (*image, error) {
	l := &layer{path: path, mediaType: ContentType, open: openPlain}
	if _, err := l.measure(); err != nil {
		return nil, err
	}
	img := newImage("application/vnd.oci.empty.v1+json", []byte("{}"), literal(ConfigType, []byte(runtimeConfig)), l)
	img.doc.ArtifactType = string(ConfigType)
	img.doc.Layers[1].Annotations = map[string]string{titleKey: fileName}
	return img, nil
}

// image implements partial.CompressedImageCore.
type image struct {
	doc      v1.Manifest
	manifest []byte
	config   []byte
	layers   []*layer
}

func newImage(configType types.MediaType, config []byte, layers ...*layer) *image {
	img := &image{config: config, layers: layers}
	img.doc = v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: literal(configType, config).descriptor()}
	for _, l := range layers {
		img.doc.Layers = append(img.doc.Layers, l.descriptor())
	}
	return img
}

func (i *image) RawManifest() ([]byte, error)        { return i.manifest, nil }
func (i *image) RawConfigFile() ([]byte, error)      { return i.config, nil }
func (i *image) MediaType() (types.MediaType, error) { return i.doc.MediaType, nil }

func (i *image) LayerByDigest(h v1.Hash) (partial.CompressedLayer, error) {
	for _, l := range i.layers {
		if l.digest == h {
			return l, nil
		}
	}
	if c := literal(i.doc.Config.MediaType, i.config); c.digest == h {
		return c, nil
	}
	return nil, fmt.Errorf("no layer %s in the image", h)
}
