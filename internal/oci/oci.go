// Package oci reads manifests and blobs from OCI registries: resolve a reference, stream a blob, with digest and size checked in
// the reader. It knows nothing of what the blobs hold. Nothing is retried here; errors say whether a retry can help.
package oci

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/gateway-agent/gateway-agent/internal/oci/registries"
	"github.com/gateway-agent/gateway-agent/internal/oci/safehttp"
)

// Config says how to reach registries. The zero value is usable.
type Config struct {
	// HTTP makes the connections. Default: safehttp.New with its defaults.
	HTTP *safehttp.Client
	// Credentials has the credentials of this machine. Default: none.
	Credentials Credentials
	// Registries says where each registry is really asked. Default: each registry is itself, over https with the system's roots; on
	// loopback it may be plain.
	Registries Registries
	// Keychain serves where Credentials is nil; it goes away once nobody sets it.
	Keychain authn.Keychain
	// MaxManifest bounds a manifest, in bytes. Default 4 MiB.
	MaxManifest int64
}

// Credentials are who this machine is to a registry. A zero AuthConfig: none known.
type Credentials interface {
	Resolve(ctx context.Context, host, repository string) (authn.AuthConfig, error)
}

// Registries knows where to ask for a repository: mirrors and the registry itself, best first. Its error means that the operator
// blocked it.
type Registries interface {
	Endpoints(host, repository string, byDigest bool) ([]registries.Endpoint, error)
}

// Client opens repositories. It is safe for concurrent use.
type Client struct{ cfg Config }

// New returns a client; it connects to nothing yet.
func New(cfg Config) *Client {
	if cfg.HTTP == nil {
		cfg.HTTP = safehttp.New(safehttp.Config{})
	}
	if cfg.Keychain == nil {
		cfg.Keychain = authn.NewMultiKeychain()
	}
	cfg.MaxManifest = cmp.Or(cfg.MaxManifest, 4<<20)
	return &Client{cfg: cfg}
}

// ParseReference parses host/repository[:tag][@digest], without a scheme. A reference with both is the digest's.
func ParseReference(s string) (name.Reference, error) {
	ref, err := name.ParseReference(s)
	if err != nil {
		return nil, &Error{
			Kind: Broken, Op: "parse reference " + safehttp.OneLine(s, 200),
			Err: errors.New("not an image reference"), Hint: "write it as host/repository:tag or host/repository@sha256:…",
		}
	}
	return ref, nil
}

// Repository is one repository, with the access that the registry gave.
type Repository struct {
	client    *Client
	repo      name.Repository
	transport http.RoundTripper
	anonymous bool
}

// Open asks the registry for access to repo. pullSecret is a docker configuration (JSON) whose credentials come before this
// machine's; nil: none.
func (c *Client) Open(ctx context.Context, repo name.Repository, pullSecret []byte) (*Repository, error) {
	op := "connect to registry " + repo.RegistryStr()
	auth, err := c.credentials(ctx, repo, pullSecret)
	if err != nil {
		return nil, wrap(op, false, err)
	}
	base := c.cfg.HTTP.Transport(repo.RegistryStr(), false)
	anonymous := auth == authn.Anonymous
	rt, err := transport.NewWithContext(ctx, repo.Registry, auth, base, []string{repo.Scope(transport.PullScope)})
	if err != nil {
		return nil, wrap(op, anonymous, handshake(repo.Registry, err))
	}
	return &Repository{client: c, repo: repo, transport: rt, anonymous: anonymous}, nil
}

// Manifest is a manifest or an index as the registry sent it.
type Manifest struct {
	Digest    v1.Hash
	MediaType types.MediaType
	Body      []byte
}

var accepted = strings.Join([]string{
	string(types.OCIManifestSchema1), string(types.DockerManifestSchema2), string(types.OCIImageIndex), string(types.DockerManifestList), "*/*;q=0.1",
}, ", ")

// Manifest reads the manifest or index named by a tag or a digest. A digest is checked against the bytes received.
func (r *Repository) Manifest(ctx context.Context, identifier string) (Manifest, error) {
	op := "read manifest " + r.repo.Name() + separator(identifier) + identifier
	resp, err := r.get(ctx, "manifests", identifier, accepted)
	if err != nil {
		return Manifest{}, wrap(op, r.anonymous, err)
	}
	defer resp.Body.Close()
	body, err := readAll(resp.Body, r.client.cfg.MaxManifest)
	if err != nil {
		return Manifest{}, wrap(op, r.anonymous, err)
	}
	digest, err := check(body, identifier)
	if err != nil {
		return Manifest{}, wrap(op, r.anonymous, err)
	}
	mediaType, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	return Manifest{Digest: digest, MediaType: types.MediaType(strings.TrimSpace(mediaType)), Body: body}, nil
}

// Digest asks what a tag names now, without reading it.
func (r *Repository) Digest(ctx context.Context, tag string) (v1.Hash, error) {
	m, err := r.Manifest(ctx, tag)
	return m.Digest, err
}

// Blob streams the blob that desc names. The reader ends with io.EOF only after exactly desc.Size bytes with desc.Digest.
func (r *Repository) Blob(ctx context.Context, desc v1.Descriptor) (io.ReadCloser, error) {
	op := fmt.Sprintf("read blob %s@%s", r.repo.Name(), desc.Digest)
	if desc.Size < 0 {
		return nil, wrap(op, r.anonymous, broken("the manifest gives it a size of %d", desc.Size))
	}
	hasher, err := v1.Hasher(desc.Digest.Algorithm)
	if err != nil {
		return nil, wrap(op, r.anonymous, broken("unusable digest: %v", err))
	}
	resp, err := r.get(ctx, "blobs", desc.Digest.String(), "")
	if err != nil {
		return nil, wrap(op, r.anonymous, err)
	}
	if resp.ContentLength >= 0 && resp.ContentLength != desc.Size {
		resp.Body.Close()
		return nil, wrap(op, r.anonymous, broken("the registry sends %d bytes, the manifest says %d: push the image again", resp.ContentLength, desc.Size))
	}
	return &verified{op: op, inner: resp.Body, hasher: hasher, want: desc}, nil
}

func (r *Repository) get(ctx context.Context, kind, identifier, accept string) (*http.Response, error) {
	// The transport changes the scheme to the one of the handshake.
	url := fmt.Sprintf("https://%s/v2/%s/%s/%s", r.repo.RegistryStr(), r.repo.RepositoryStr(), kind, identifier)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, broken("%v", err)
	}
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	resp, err := r.client.cfg.HTTP.Do(ctx, r.transport, req)
	if err != nil {
		return nil, err
	}
	if err := transport.CheckError(resp, http.StatusOK); err != nil {
		resp.Body.Close()
		return nil, err
	}
	return resp, nil
}

func separator(identifier string) string {
	if strings.Contains(identifier, ":") {
		return "@"
	}
	return ":"
}

func readAll(r io.Reader, limit int64) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(body)) > limit {
		return nil, broken("it is larger than %d bytes: check that the URL names an image", limit)
	}
	return body, nil
}

// check hashes a manifest and compares with the digest that was asked for, if it was one.
func check(body []byte, identifier string) (v1.Hash, error) {
	want, err := v1.NewHash(identifier)
	if err != nil {
		sum := sha256.Sum256(body)
		return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}, nil
	}
	hasher, err := v1.Hasher(want.Algorithm)
	if err != nil {
		return v1.Hash{}, broken("unusable digest: %v", err)
	}
	hasher.Write(body)
	if got := hex.EncodeToString(hasher.Sum(nil)); got != want.Hex {
		return v1.Hash{}, broken("the registry sent other bytes, with digest %s:%s", want.Algorithm, got)
	}
	return want, nil
}
