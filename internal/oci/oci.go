// Package oci reads manifests and blobs from OCI registries, and pushes images: it resolves a reference at each place that may have it,
// mirrors first, streams blobs with digest and size checked in the reader, and goes on where a download broke. It knows nothing of
// what the blobs hold. Whole requests are not repeated here; errors say whether that can help.
package oci

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/gateway-agent/gateway-agent/internal/oci/registries"
	"github.com/gateway-agent/gateway-agent/internal/oci/safehttp"
)

// What is remembered between requests, at most.
const (
	maxSessions = 4096
	maxAvoided  = 4096
	maxPlain    = 64
)

// Config says how to reach registries. The zero value is usable.
type Config struct {
	// HTTP makes the connections. Default: safehttp.New with its defaults.
	HTTP *safehttp.Client
	// Credentials has the credentials of this machine. Default: none.
	Credentials Credentials
	// Registries says where each registry is really asked. Default: each registry is itself, over https with the roots of HTTP; on
	// loopback it may be plain.
	Registries Registries
	// MaxManifest bounds a manifest, in bytes. Default 4 MiB.
	MaxManifest int64
}

// Credentials are who this machine is to a registry. A zero AuthConfig: none known. After an error the registry is asked without; if that
// is not enough, the error is told. Some have more to say, as credential.Store: see finder and forgetter.
type Credentials interface {
	Resolve(ctx context.Context, host, repository string) (authn.AuthConfig, error)
}

// finder is Credentials that know where they have them from.
type finder interface {
	Find(ctx context.Context, host, repository string) (auth authn.AuthConfig, source string, err error)
}

// forgetter is Credentials that keep what they found, and can find it anew.
type forgetter interface {
	Forget(host, repository string)
}

// Registries knows where to ask for a repository: mirrors and the registry itself, best first. Its error means that the operator
// blocked it, or that a file of the operator's cannot be read.
type Registries interface {
	Endpoints(host, repository string, byDigest bool) ([]registries.Endpoint, error)
}

// Client opens repositories. It is safe for concurrent use.
type Client struct {
	cfg      Config
	sessions *lru.Cache[string, *session]
	avoided  *lru.Cache[string, time.Time] // what to ask last until then: endpoints that are down, blobs that they have wrong
	plain    *lru.Cache[string, struct{}]  // loopback hosts that speak plain HTTP
}

// New returns a client; it connects to nothing yet.
func New(cfg Config) *Client {
	if cfg.HTTP == nil {
		cfg.HTTP = safehttp.New(safehttp.Config{})
	}
	if cfg.Registries == nil {
		cfg.Registries = themselves{}
	}
	if cfg.Credentials == nil {
		cfg.Credentials = nobody{}
	}
	cfg.MaxManifest = cmp.Or(cfg.MaxManifest, 4<<20)
	return &Client{
		cfg: cfg, sessions: newLRU[string, *session](maxSessions), avoided: newLRU[string, time.Time](maxAvoided),
		plain: newLRU[string, struct{}](maxPlain),
	}
}

func newLRU[K comparable, V any](size int) *lru.Cache[K, V] {
	cache, err := lru.New[K, V](size)
	if err != nil {
		panic(err) // the sizes are constants
	}
	return cache
}

// themselves has each registry be itself.
type themselves struct{}

func (themselves) Endpoints(host, repository string, _ bool) ([]registries.Endpoint, error) {
	return []registries.Endpoint{{Host: host, Repository: repository, Key: host}}, nil
}

// nobody has no credentials.
type nobody struct{}

func (nobody) Resolve(context.Context, string, string) (authn.AuthConfig, error) {
	return authn.AuthConfig{}, nil
}

// ParseReference parses host/repository[:tag][@digest], without a scheme. A reference with both is the digest's.
func ParseReference(s string) (name.Reference, error) {
	ref, err := name.ParseReference(s)
	if err != nil {
		return nil, &Error{
			Kind: Broken, Op: "parse reference " + safehttp.RedactRaw(s),
			Err: errors.New("not an image reference"), Hint: "write it as host/repository:tag or host/repository@sha256:…, without credentials",
		}
	}
	return ref, nil
}
