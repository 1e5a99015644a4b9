package registrytest

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"os"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Image is what gets pushed: a manifest with its blobs.
type Image struct {
	// MediaType of the manifest; default: OCI image manifest.
	MediaType types.MediaType
	// ArtifactType of the manifest; default: none.
	ArtifactType string
	// ConfigType and Config; default: an OCI image config for linux/amd64.
	ConfigType types.MediaType
	Config     []byte
	Layers     []Layer
	// Annotations of the manifest.
	Annotations map[string]string
}

// Layer is one blob of an Image.
type Layer struct {
	MediaType   types.MediaType
	Body        []byte
	Annotations map[string]string
	// Size is what the manifest says; default: the truth.
	Size int64
}

// Entry is a child of an index.
type Entry struct {
	Image       Image
	Platform    *v1.Platform
	Annotations map[string]string
}

// Push pushes img as repository:tag and returns the digest of its manifest, "sha256:…".
func (r *Registry) Push(t testing.TB, repository, tag string, img Image) string {
	t.Helper()
	body := r.pushBlobs(t, repository, img)
	r.put(t, repository+":"+tag, raw{body, mediaType(img)})
	return Digest(body)
}

// PushIndex pushes the entries and an index over them as repository:tag. It returns the digest of the index.
func (r *Registry) PushIndex(t testing.TB, repository, tag string, entries ...Entry) string {
	t.Helper()
	index := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex}
	for _, e := range entries {
		body := r.pushBlobs(t, repository, e.Image)
		r.put(t, repository+"@"+Digest(body), raw{body, mediaType(e.Image)})
		desc := descriptor(mediaType(e.Image), body)
		desc.Platform, desc.Annotations = e.Platform, e.Annotations
		index.Manifests = append(index.Manifests, desc)
	}
	body := encode(t, index)
	r.put(t, repository+":"+tag, raw{body, types.OCIImageIndex})
	return Digest(body)
}

// Ref returns the agent's URL for repository:tag or repository@digest here.
func (r *Registry) Ref(repository string) string { return "oci://" + r.Addr + "/" + repository }

// Digest returns "sha256:…" of b.
func Digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func (r *Registry) pushBlobs(t testing.TB, repository string, img Image) []byte {
	t.Helper()
	config, configType := img.Config, img.ConfigType
	if configType == "" {
		config, configType = []byte(`{"architecture":"amd64","os":"linux","config":{},"rootfs":{"type":"layers","diff_ids":[]}}`), types.OCIConfigJSON
	}
	manifest := v1.Manifest{SchemaVersion: 2, MediaType: mediaType(img), ArtifactType: img.ArtifactType, Annotations: img.Annotations}
	manifest.Config = r.pushBlob(t, repository, configType, config)
	manifest.Layers = []v1.Descriptor{}
	for _, l := range img.Layers {
		desc := r.pushBlob(t, repository, l.MediaType, l.Body)
		desc.Annotations = l.Annotations
		if l.Size != 0 {
			desc.Size = l.Size
		}
		manifest.Layers = append(manifest.Layers, desc)
	}
	return encode(t, manifest)
}

func (r *Registry) pushBlob(t testing.TB, repository string, mediaType types.MediaType, body []byte) v1.Descriptor {
	t.Helper()
	repo, err := name.NewRepository(r.Addr + "/" + repository)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteLayer(repo, static.NewLayer(body, mediaType), r.options(t)...); err != nil {
		t.Fatalf("push blob to %s: %v", repo, err)
	}
	return descriptor(mediaType, body)
}

func (r *Registry) put(t testing.TB, ref string, manifest raw) {
	t.Helper()
	parsed, err := name.ParseReference(r.Addr + "/" + ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Put(parsed, manifest, r.options(t)...); err != nil {
		t.Fatalf("push manifest %s: %v", parsed, err)
	}
}

func (r *Registry) options(t testing.TB) []remote.Option {
	t.Helper()
	transport := remote.DefaultTransport.(*http.Transport).Clone()
	if r.roots != nil {
		transport.TLSClientConfig = &tls.Config{RootCAs: r.roots, MinVersion: tls.VersionTLS12}
	}
	t.Cleanup(transport.CloseIdleConnections)
	return []remote.Option{remote.WithAuth(r.auth), remote.WithTransport(transport), remote.WithNondistributable}
}

func readRoots(t testing.TB, cert string) *x509.CertPool {
	t.Helper()
	pem, err := os.ReadFile(cert)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		t.Fatalf("no certificate in %s", cert)
	}
	return roots
}

func mediaType(img Image) types.MediaType {
	if img.MediaType == "" {
		return types.OCIManifestSchema1
	}
	return img.MediaType
}

func descriptor(mediaType types.MediaType, body []byte) v1.Descriptor {
	hash, _ := v1.NewHash(Digest(body))
	return v1.Descriptor{MediaType: mediaType, Size: int64(len(body)), Digest: hash}
}

func encode(t testing.TB, v any) []byte {
	t.Helper()
	body, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// raw is a manifest ready to push.
type raw struct {
	body      []byte
	mediaType types.MediaType
}

func (r raw) RawManifest() ([]byte, error)        { return r.body, nil }
func (r raw) MediaType() (types.MediaType, error) { return r.mediaType, nil }
