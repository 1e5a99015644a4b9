package oci

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/gateway-agent/gateway-agent/internal/oci/credential"
)

const pullActions = "pull"

// Repository is one repository for one caller. It is safe for concurrent use.
type Repository struct {
	client *Client
	repo   name.Repository
	secret []byte

	mu      sync.Mutex
	targets map[string]*target // by actions and id
	failed  map[string]bool    // targets that lacked something; asked last
}

// Open prepares to read from repo; it connects to nothing yet. pullSecret is a docker configuration (JSON) whose credentials, where it
// has some for the host that is asked, come before this machine's; nil: none.
func (c *Client) Open(_ context.Context, repo name.Repository, pullSecret []byte) (*Repository, error) {
	r := &Repository{client: c, repo: repo, secret: pullSecret, targets: map[string]*target{}, failed: map[string]bool{}}
	if len(pullSecret) > 0 {
		if _, _, err := credential.FromSecret(pullSecret, repo.RegistryStr(), repo.RepositoryStr()); err != nil {
			return nil, &Error{Kind: Broken, Op: "open repository " + repo.Name(), Err: err}
		}
	}
	return r, nil
}

// places returns the targets in the operator's order.
func (r *Repository) places(actions string, byDigest bool) ([]*target, error) {
	endpoints, err := r.client.cfg.Registries.Endpoints(r.repo.RegistryStr(), r.repo.RepositoryStr(), byDigest)
	if err != nil {
		return nil, &Error{Kind: Broken, Err: err}
	}
	if len(endpoints) == 0 {
		return nil, &Error{Kind: Broken, Err: errors.New("the registry configuration leaves no place to ask"), Hint: "check the files given with --registry-config"}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	targets := make([]*target, 0, len(endpoints))
	for _, e := range endpoints {
		key := actions + "|" + targetID(e)
		if r.targets[key] == nil {
			r.targets[key] = r.client.target(e, actions, r.secret)
		}
		targets = append(targets, r.targets[key])
	}
	return targets, nil
}

// Manifest is a manifest or an index as the registry sent it.
type Manifest struct {
	// Digest is that of Body.
	Digest    v1.Hash
	MediaType types.MediaType
	Body      []byte
	// Source is the host[:port] that sent it.
	Source string
}

var accepted = strings.Join([]string{
	string(types.OCIManifestSchema1), string(types.DockerManifestSchema2), string(types.OCIImageIndex), string(types.DockerManifestList), "*/*;q=0.1",
}, ", ")

// Manifest reads the manifest or index named by a tag or a digest from the first place that has it. A digest is checked against the
// bytes received.
func (r *Repository) Manifest(ctx context.Context, identifier string) (Manifest, error) {
	var m Manifest
	err := r.each(ctx, r.manifestOp("read", identifier), identifier, func(t *target) error {
		var err error
		m, err = t.manifest(ctx, identifier, r.client.cfg.MaxManifest)
		return err
	})
	return m, err
}

// Digest asks what a tag names now, without reading it. A registry that does not say it is asked for the manifest.
func (r *Repository) Digest(ctx context.Context, tag string) (v1.Hash, error) {
	var digest v1.Hash
	err := r.each(ctx, r.manifestOp("ask for the digest of", tag), tag, func(t *target) error {
		var err error
		if digest, err = t.head(ctx, tag); !errors.Is(err, errNoDigest) {
			return err
		}
		m, err := t.manifest(ctx, tag, r.client.cfg.MaxManifest)
		digest = m.Digest
		return err
	})
	return digest, err
}

func (r *Repository) manifestOp(verb, identifier string) string {
	return verb + " manifest " + r.repo.Name() + separator(identifier) + identifier
}

func (t *target) manifest(ctx context.Context, identifier string, limit int64) (Manifest, error) {
	resp, err := t.do(ctx, http.MethodGet, "manifests/"+identifier, http.Header{"Accept": {accepted}}, http.StatusOK)
	if err != nil {
		return Manifest{}, err
	}
	defer resp.Body.Close()
	body, err := readAll(resp.Body, limit)
	if err != nil {
		return Manifest{}, err
	}
	digest, err := check(body, identifier)
	if err != nil {
		return Manifest{}, err
	}
	mediaType, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	if t.endpoint.Mirror && !json.Valid(body) {
		return Manifest{}, broken("it sent something that is not a manifest (%.80q)", mediaType)
	}
	return Manifest{Digest: digest, MediaType: types.MediaType(strings.TrimSpace(mediaType)), Body: body, Source: t.endpoint.Host}, nil
}

var errNoDigest = errors.New("the registry does not say the digest")

func (t *target) head(ctx context.Context, tag string) (v1.Hash, error) {
	resp, err := t.do(ctx, http.MethodHead, "manifests/"+tag, http.Header{"Accept": {accepted}}, http.StatusOK, http.StatusMethodNotAllowed)
	if err != nil {
		return v1.Hash{}, err
	}
	resp.Body.Close()
	digest, err := v1.NewHash(resp.Header.Get("Docker-Content-Digest"))
	if err != nil || resp.StatusCode != http.StatusOK {
		return v1.Hash{}, errNoDigest
	}
	if want, err := v1.NewHash(tag); err == nil && want != digest {
		if want.Algorithm != digest.Algorithm {
			return v1.Hash{}, errNoDigest
		}
		return v1.Hash{}, broken("it has another digest there, %s", digest)
	}
	return digest, nil
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
