// Package wasmcache keeps Wasm modules on disk by their content, so that what was pulled once is there after a restart, without a
// network. The directory is the index:
//
//	blobs/sha256/<digest>   verified modules, read-only; the only files that Envoy opens
//	refs/<hash>.json        reference → digests seen under it, and who may use them
//	manifests/<digest>.json manifest digest → module digest
//	verdicts/<digest>/      what the checker said, for which Envoy
//	quarantine/             blobs that were found damaged
//	tmp/                    downloads in progress
//	locks/                  what processes that share the directory do just now
//
// Several processes may use one directory at the same time: every file appears by rename, what one downloads the others wait for, and
// nothing is collected that any of them uses.
package wasmcache

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/gateway-agent/gateway-agent/wasmcache/abi"
	"github.com/gateway-agent/gateway-agent/wasmcache/fetch"
)

// Fetcher brings modules; *fetch.Client is one.
type Fetcher interface {
	// Resolve asks what a reference names now.
	Resolve(ctx context.Context, req fetch.Request) (*fetch.Resolved, error)
	// Head asks only which digest ("sha256:…") an image has now; an error for what is no image.
	Head(ctx context.Context, req fetch.Request) (string, error)
	// Fetch downloads it.
	Fetch(ctx context.Context, r *fetch.Resolved, dst fetch.Sink, progress func(done, total int64)) (fetch.Result, error)
}

// What to do with a module of which the checker cannot say whether Envoy runs it.
const (
	UnvouchedWarn   = "warn"
	UnvouchedRefuse = "refuse"
)

// What the operator's Preload means for callers that the registry was not asked about.
const (
	PreloadedTrust  = "trust"
	PreloadedVerify = "verify"
)

// Config says how modules are kept.
type Config struct {
	// Dir is the store's directory; it is made when missing. Required.
	Dir string
	// Fetch brings what is not there. Required.
	Fetch Fetcher
	// Check judges a module for an Envoy. Default abi.Check.
	Check func(ctx context.Context, host abi.Host, path string) abi.Verdict
	// MaxSize bounds a module, in bytes. Default 256 MiB.
	MaxSize int64
	// Quota is how many bytes of modules are kept; pinned ones may exceed it. Default 1 GiB.
	Quota int64
	// Expiry is how long an unused module is kept. Default 7 days.
	Expiry time.Duration
	// CollectEvery is the time between two collections. Default 1 min.
	CollectEvery time.Duration
	// PullTimeout bounds one pull, its download included. Default 15 min.
	PullTimeout time.Duration
	// MaxPulls bounds the downloads at one time. Default 16.
	MaxPulls int
	// Pins returns the digests that must not be removed. An agent has it; nil, for a command: what is returned is protected only while it
	// is fresh.
	Pins func() []string
	// AccessExpiry is how long the registry's yes to a pull secret is good for; then it is asked again. Default 24 h.
	AccessExpiry time.Duration
	// Preloaded is PreloadedTrust (default): what the operator preloaded is for every caller; or PreloadedVerify: only for those whom the
	// registry accepts.
	Preloaded string
	// RequireDigest refuses references that can mean another module tomorrow, but for local files.
	RequireDigest bool
	// Refresh is how often Run asks whether tags that resources use have moved. Default 0: never.
	Refresh time.Duration
	// OnChange, if not nil, is told the URL of a tag that has moved, as requests spelled it: the next Get for it asks the registry. It is
	// called from several goroutines and must not block.
	OnChange func(url string)
	// Unvouched is UnvouchedWarn (default) or UnvouchedRefuse.
	Unvouched string
	// Log; default: discarded.
	Log *slog.Logger
}

func (c Config) withDefaults() Config {
	c.MaxSize = cmp.Or(c.MaxSize, 256<<20)
	c.Quota = cmp.Or(c.Quota, 1<<30)
	c.Expiry = cmp.Or(c.Expiry, 7*24*time.Hour)
	c.CollectEvery = cmp.Or(c.CollectEvery, time.Minute)
	c.PullTimeout = cmp.Or(c.PullTimeout, 15*time.Minute)
	c.MaxPulls = cmp.Or(c.MaxPulls, 16)
	c.AccessExpiry = cmp.Or(c.AccessExpiry, 24*time.Hour)
	c.Preloaded = cmp.Or(c.Preloaded, PreloadedTrust)
	c.Unvouched = cmp.Or(c.Unvouched, UnvouchedWarn)
	if c.Check == nil {
		c.Check = abi.Check
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) check() error {
	var errs []error
	if c.Dir == "" {
		errs = append(errs, errors.New("no directory for the module store"))
	}
	if c.Fetch == nil {
		errs = append(errs, errors.New("no fetcher for the module store"))
	}
	if c.Unvouched != "" && c.Unvouched != UnvouchedWarn && c.Unvouched != UnvouchedRefuse {
		errs = append(errs, errors.New("unvouched modules: want warn or refuse, not "+c.Unvouched))
	}
	if c.Preloaded != "" && c.Preloaded != PreloadedTrust && c.Preloaded != PreloadedVerify {
		errs = append(errs, errors.New("preloaded modules: want trust or verify, not "+c.Preloaded))
	}
	return errors.Join(errs...)
}

// Request names a module and says who asks.
type Request struct {
	// URL is oci://, http(s):// or file://.
	URL string
	// SHA256 must match, in hex; "": nothing.
	SHA256 string
	// PullSecret is a docker configuration (JSON); nil: this machine's credentials. It is never stored or logged.
	PullSecret []byte
	// Always asks the registry again when ResourceVersion is another than at the last time for this Resource, and each time when
	// Resource is "".
	Always          bool
	ResourceVersion string
	Resource        string
	// Preload says that the operator puts the module there for every caller, whatever the registry says of them. It needs no network for
	// what the store holds and the caller may have.
	Preload bool
	// Host is the Envoy that is to run it; the zero Host is an unknown one: the verdict only warns.
	Host abi.Host
	// Progress, if not nil, is told the bytes downloaded and the total (-1: unknown), from another goroutine.
	Progress func(done, total int64)
}

// LogValue implements slog.LogValuer, without the secret.
func (r Request) LogValue() slog.Value {
	ref, err := fetch.Parse(r.URL)
	if err != nil {
		return slog.StringValue("unparsable")
	}
	return slog.StringValue(ref.String())
}

// Module is a module in the store.
type Module struct {
	// Digest is the SHA-256 of the module, in hex.
	Digest string
	// Path is the file for Envoy.
	Path string
	// Size is in bytes.
	Size int64
	// Warning is what the operator should know although the module is usable; "": nothing.
	Warning string
	// Ref is the reference for people.
	Ref string
	// ManifestDigest is "sha256:…" of the manifest that it came with; "": none.
	ManifestDigest string
	// Index is "sha256:…" of the index that led to the manifest; "": none.
	Index string
}

// Bounds of what is in memory only. What falls out costs a hash, a check or a question again.
const (
	maxRemembered = 4096
	maxWatched    = 4096
)

// Store is an open module store. It is safe for concurrent use, and several may be open on one directory.
//
// refMu serializes changes of records where the file system has no locks. No lock of a file is waited for while it or mu is held.
type Store struct {
	cfg      Config
	dir      string // absolute
	root     *os.Root
	started  time.Time
	metrics  *metrics
	slots    chan struct{} // one per running download
	kick     chan struct{} // capacity 1: a blob came, the quota may be exceeded
	writable atomic.Bool
	lockless sync.Once // said that there are no locks
	buffers  sync.Pool // of *[hashBuffer]byte

	pulls     flights[version]
	downloads flights[brought]
	hashing   flights[struct{}]
	checking  flights[abi.Verdict]

	verified   *lru.Cache[string, stamp]       // blobs hashed in this process
	used       *lru.Cache[string, time.Time]   // last use in this process
	judgedHere *lru.Cache[string, abi.Verdict] // verdicts that are not on disk
	unasked    *lru.Cache[string, unasked]     // callers whose access the registry could not confirm
	moved      *lru.Cache[string, string]      // tag and caller → digest that the registry named last
	watchMore  chan struct{}                   // capacity 1: there is a new tag to watch

	refMu sync.Mutex

	mu        sync.Mutex
	held      map[string]*holding         // blobs in use here
	unsettled map[string]bool             // records that a crash of the machine may cost
	watching  *lru.Cache[string, watched] // tags in use, by resource and URL
}

func newCache[V any](size int) *lru.Cache[string, V] {
	c, err := lru.New[string, V](size)
	if err != nil {
		panic(err) // the size is a constant above zero
	}
	return c
}

// Open opens the store in cfg.Dir and empties what an earlier process left unfinished. A store that cannot be written serves what it holds.
func Open(cfg Config) (*Store, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, openError(cfg.Dir, err)
	}
	root, err := openRoot(dir)
	if err != nil {
		return nil, openError(dir, err)
	}
	s := &Store{
		cfg: cfg, dir: dir, root: root, started: time.Now(), metrics: newMetrics(),
		slots: make(chan struct{}, cfg.MaxPulls), kick: make(chan struct{}, 1),
		verified: newCache[stamp](maxRemembered), used: newCache[time.Time](maxRemembered), judgedHere: newCache[abi.Verdict](maxRemembered),
		unasked: newCache[unasked](maxRemembered), moved: newCache[string](maxRemembered),
		watchMore: make(chan struct{}, 1), watching: newCache[watched](maxWatched), held: map[string]*holding{}, unsettled: map[string]bool{},
	}
	s.writable.Store(true) // until it turns out otherwise
	s.checkWritable()
	s.emptyTmp()
	return s, nil
}

// Close ends running pulls and closes the store. What was returned stays on disk.
func (s *Store) Close() error {
	s.pulls.close()
	s.downloads.close()
	s.hashing.close()
	s.checking.close()
	s.settle()
	s.mu.Lock()
	held := s.held
	s.held = map[string]*holding{}
	s.mu.Unlock()
	for digest, h := range held {
		s.letGo(digest, h, 0)
	}
	return s.root.Close()
}
