package registrytest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/gateway-agent/gateway-agent/internal/wasmtest"
)

// refName is the annotation by which a layout's index names an image.
const refName = "org.opencontainers.image.ref.name"

// Fixtures returns the directories of testdata/images, by name: OCI layouts of images that real tools made.
func Fixtures(t testing.TB) map[string]string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(wasmtest.Root(t), "testdata", "images", "*", "oci-layout"))
	if err != nil || len(found) == 0 {
		t.Fatalf("no images in testdata/images: %v", err)
	}
	dirs := map[string]string{}
	for _, path := range found {
		dirs[filepath.Base(filepath.Dir(path))] = filepath.Dir(path)
	}
	return dirs
}

// FixtureModule returns the module that every image of Fixtures holds.
func FixtureModule(t testing.TB) []byte {
	t.Helper()
	return readFile(t, filepath.Join(wasmtest.Root(t), "policywasm", "deny.wasm"))
}

// FixtureName returns the reference that an image of Fixtures has in its layout.
func FixtureName(fixture string) string { return "registry.test/" + fixture + ":v1" }

// PushLayout pushes the image called name in the layout at dir as repository:tag, byte for byte. It returns the digest of its manifest
// or index.
func (r *Registry) PushLayout(t testing.TB, repository, tag, dir, name string) string {
	t.Helper()
	var index v1.IndexManifest
	decode(t, readFile(t, filepath.Join(dir, "index.json")), &index)
	for _, desc := range index.Manifests {
		if desc.Annotations[refName] == name {
			r.pushStored(t, repository, ":"+tag, dir, desc)
			return desc.Digest.String()
		}
	}
	t.Fatalf("no %s in the index of %s", name, dir)
	return ""
}

// pushStored pushes a manifest or index of a layout with all it names.
func (r *Registry) pushStored(t testing.TB, repository, as, dir string, desc v1.Descriptor) {
	t.Helper()
	body := readBlob(t, dir, desc.Digest)
	var doc struct {
		v1.Manifest
		Manifests []v1.Descriptor `json:"manifests"`
	}
	decode(t, body, &doc)
	for _, child := range doc.Manifests {
		r.pushStored(t, repository, "@"+child.Digest.String(), dir, child)
	}
	if doc.Manifest.Layers != nil {
		for _, blob := range append([]v1.Descriptor{doc.Config}, doc.Layers...) {
			r.pushBlob(t, repository, blob.MediaType, readBlob(t, dir, blob.Digest))
		}
	}
	mediaType := doc.MediaType
	if mediaType == "" {
		mediaType = desc.MediaType
	}
	if mediaType == "" {
		mediaType = types.OCIManifestSchema1
	}
	r.put(t, repository+as, raw{body, mediaType})
}

func readBlob(t testing.TB, dir string, digest v1.Hash) []byte {
	t.Helper()
	body := readFile(t, filepath.Join(dir, "blobs", digest.Algorithm, digest.Hex))
	if got := Digest(body); got != digest.String() && strings.HasPrefix(digest.String(), "sha256:") {
		t.Fatalf("%s in %s has the digest %s: run testdata/images/make again", digest, dir, got)
	}
	return body
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	body, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func decode(t testing.TB, body []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(body, into); err != nil {
		t.Fatal(err)
	}
}
