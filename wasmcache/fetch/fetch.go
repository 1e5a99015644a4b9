// Package fetch brings one Wasm module from where a reference says it is: an OCI registry in any layout that tools produce, a web
// server, or a local file. It streams, checks digests and limits on the way, and never trusts a media type or a size. It does
// not know where the module is kept.
package fetch

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"io"
	"net/url"
	"time"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/gateway-agent/gateway-agent/internal/oci"
	"github.com/gateway-agent/gateway-agent/internal/oci/safehttp"
)

// Config says what may be fetched and how. The zero value is usable.
type Config struct {
	// MaxSize bounds a module, in bytes. Default 256 MiB.
	MaxSize int64
	// MaxDownload bounds what is downloaded for one module, in bytes. Default MaxSize.
	MaxDownload int64
	// MaxUnpacked bounds a layer or box once unpacked, in bytes. Default twice MaxSize.
	MaxUnpacked int64
	// MaxEntries bounds the files in a layer. Default 10 000.
	MaxEntries int
	// RootCAs are trusted for https. Default: the system's.
	RootCAs *x509.CertPool
	// Credentials are this machine's, for registries. Default: none.
	Credentials oci.Credentials
	// Registries says where each registry is really asked. Default: each is itself, over https.
	Registries oci.Registries
	// Proxy returns the proxy for a URL; nil, nil: none. Default: no proxies.
	Proxy func(*url.URL) (*url.URL, error)
	// StallTime is the time in which a download must bring 64 KiB. Default 30 s.
	StallTime time.Duration
	// UserAgent is sent with each request. Default "gateway-agent".
	UserAgent string
}

// Client fetches modules. It is safe for concurrent use.
type Client struct {
	http   *safehttp.Client
	oci    *oci.Client
	limits limits
}

// New returns a client; it connects to nothing yet.
func New(cfg Config) *Client {
	h := safehttp.New(safehttp.Config{RootCAs: cfg.RootCAs, Proxy: cfg.Proxy, StallTime: cfg.StallTime, UserAgent: cfg.UserAgent})
	return &Client{http: h, oci: oci.New(oci.Config{HTTP: h, Credentials: cfg.Credentials, Registries: cfg.Registries}), limits: cfg.limits()}
}

func (cfg *Config) limits() limits {
	l := limits{module: cmp.Or(cfg.MaxSize, 256<<20), entries: cmp.Or(cfg.MaxEntries, 10_000)}
	l.download = cmp.Or(cfg.MaxDownload, l.module)
	l.unpacked = cmp.Or(cfg.MaxUnpacked, 2*l.module)
	return l
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Request names a module.
type Request struct {
	// URL is oci://, http://, https:// or file://.
	URL string
	// SHA256 is what must match, in hex; "": nothing. For oci it may be the digest of the index, of the manifest or of the module,
	// else it is the module's.
	SHA256 string
	// PullSecret is a docker configuration (JSON) for the registry; nil: this machine's credentials.
	PullSecret []byte
	// Digest is "sha256:…" of the manifest or index that a tag is taken to mean, whatever the registry says by now; "": it is asked.
	Digest string
}

// Resolved is a module that was found, before it is downloaded.
type Resolved struct {
	// Manifest is the digest of the chosen manifest, Index of the index that led to it: "sha256:…", "" where there is none.
	Manifest, Index string
	// Repository is where the manifest is, as host/repository; "" where there is none.
	Repository string
	// Size is how many bytes there are to download; -1: unknown.
	Size int64
	// MediaType, ArtifactType and Annotations are the manifest's; nothing where there is none. An old artifact has its type in its
	// configuration's media type.
	MediaType, ArtifactType string
	Annotations             map[string]string
	// Layers are the manifest's, in its order.
	Layers []Layer
	// Source is the host that answered, which may be a mirror, or the path of a layout; "" for web servers and files.
	Source string

	want     want
	verified bool                                                // open checks a digest
	digest   string                                              // that it checks, when it is a SHA-256, in hex
	open     func(context.Context) (io.ReadCloser, int64, error) // the layer or body, and its size
	op       string
}

// Layer is one layer of an image.
type Layer struct {
	MediaType string
	// Size is in bytes, of the layer as it is stored.
	Size   int64
	Digest string
	// Title is the file name that the layer was given; "" none.
	Title string
	// Module says that the Wasm module is in it.
	Module bool
}

// Sink receives a module; an *os.File is one.
type Sink interface {
	io.WriteSeeker
	Truncate(size int64) error
}

// Result is a module that was fetched.
type Result struct {
	// Digest is the SHA-256 of the module, in hex.
	Digest string
	// Size is its size in bytes.
	Size int64
	// Matched says which digest Request.SHA256 was: index, manifest or module; "" when none was asked for.
	Matched string
}

// Resolve finds out what req names. For oci it asks the registry, with the request's credentials, and gets the manifest; for others
// it only checks the URL.
func (c *Client) Resolve(ctx context.Context, req Request) (*Resolved, error) {
	ref, err := Parse(req.URL)
	if err != nil {
		return nil, err
	}
	w, err := newWant(ref, req.SHA256)
	if err != nil {
		return nil, err
	}
	switch ref.kind {
	case kindOCI:
		return c.resolveOCI(ctx, ref, w, req)
	case kindFile:
		return c.resolveFile(ref, w), nil
	default:
		return c.resolveHTTP(ref, w), nil
	}
}

// Head asks the registry which digest, "sha256:…", the image that req names has now: that of its index if it has one. It downloads nothing.
func (c *Client) Head(ctx context.Context, req Request) (string, error) {
	ref, err := Parse(req.URL)
	if err != nil {
		return "", err
	}
	op := "look up " + ref.String()
	if ref.kind != kindOCI {
		return "", broken(op, "only images have a digest to ask for")
	}
	if digest, ok := ref.image.(name.Digest); ok {
		return digest.DigestStr(), nil
	}
	repo, err := c.oci.Open(ctx, ref.image.Context(), req.PullSecret)
	if err != nil {
		return "", underRef(op, err)
	}
	digest, err := repo.Digest(ctx, ref.image.Identifier())
	if err != nil {
		return "", underRef(op, err)
	}
	return digest.String(), nil
}

// Fetch downloads r into dst and unpacks it there. progress, if not nil, is called now and then with the bytes downloaded and the
// total, -1 when that is unknown. After an error dst holds rubbish.
func (c *Client) Fetch(ctx context.Context, r *Resolved, dst Sink, progress func(done, total int64)) (Result, error) {
	return r.fetch(ctx, dst, c.limits, progress)
}

// maxElsewhere is how many times in a row a download is begun again because of wrong bytes. Each time another place is asked.
const maxElsewhere = 8

func (r *Resolved) fetch(ctx context.Context, dst Sink, l limits, progress func(done, total int64)) (Result, error) {
	for tries := 0; ; tries++ {
		result, err := r.fetchOnce(ctx, dst, l, progress)
		if !elsewhere(err) || tries == maxElsewhere || ctx.Err() != nil {
			return result, err
		}
		if err := reset(dst); err != nil {
			return Result{}, named(r.op, err)
		}
	}
}

// elsewhere reports that the same, tried again at once, asks another place.
func elsewhere(err error) bool {
	e, ok := errors.AsType[*oci.Error](err)
	return ok && e.Elsewhere
}

func (r *Resolved) fetchOnce(ctx context.Context, dst Sink, l limits, progress func(done, total int64)) (Result, error) {
	body, total, err := r.open(ctx)
	if err != nil {
		return Result{}, err
	}
	defer body.Close()
	if total > l.download {
		return Result{}, broken(r.op, "it is %d bytes to download, more than the limit of %d: raise --wasm-max-size, or make it smaller", total, l.download)
	}
	src := &source{inner: body, verified: r.verified, limit: l.download, total: total, progress: progress}
	digest, size, err := unbox(src, dst, l, r.digest)
	if err = src.finish(err); err != nil {
		return Result{}, named(r.op, err)
	}
	matched, err := r.Match(digest)
	if err != nil {
		return Result{}, err
	}
	return Result{Digest: digest, Size: size, Matched: matched}, nil
}

// Match says which digest of r the request's SHA256 is, given the module's digest in hex; it is an error when it is none.
func (r *Resolved) Match(digest string) (string, error) {
	return r.want.match(r.op, r.Index, r.Manifest, digest)
}
