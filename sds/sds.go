// Package sds is the secret discovery server: it gives Envoy certificates, trust bundles and other secrets from files,
// checks them before they are pushed, and follows their rotation.
//
// # How a secret lives
//
// One goroutine follows each secret: it reads the files, checks what they hold and publishes the result. File system
// notifications make it look sooner; comparing contents every [Config.Poll] is what decides. What cannot be used never
// replaces what works: a pair that does not match, a damaged file or an expired certificate leaves the old one served.
//
// One goroutine owns each stream, in both protocols. Every secret goes to Envoy in a response of its own, so that a bad one
// fails alone.
//
// # A secret that cannot be served
//
// While one secret is missing, a starting Envoy keeps every listener shut for 15 s (its initial fetch timeout). Measured with
// Envoy 1.40: an empty response, or a stream that ends with an error, changes nothing about that. Only three things do: a
// removal (delta), a rejected response, and a secret of another kind. The last is accepted, and it switches the
// verification of clients off, so it must never be sent. After [Config.Wait] a delta stream is therefore told "removed", and a
// state-of-the-world stream gets a resource that no Envoy can decode and whose bytes are the reason in plain text: Envoy
// rejects it, logs the reason, opens its other listeners within 0.1 s, refuses TLS on the one concerned, keeps what it
// already had, and takes the real secret as soon as it is there.
package sds

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// TypeURL is the resource type of this service.
const TypeURL = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"

const (
	maxSecrets = 10_000           // names known at once; more are refused
	linger     = 10 * time.Minute // how long a file secret without streams is still followed: an Envoy that restarts finds its last good one
)

// Config is what a Server needs. The zero value works.
type Config struct {
	Poll     time.Duration // how often the contents of files are compared; default 1 s
	Wait     time.Duration // how long Envoy waits for a secret that cannot be served before it is told so; default 2 s
	Deny     []string      // directories, absolute, below which no file is served; default none
	PollOnly bool          // never use inotify (kqueue); changes are then seen at the next poll; default false
	Log      *slog.Logger  // default: discards
}

// Server serves secrets. Its methods may be called from any goroutine.
type Server struct {
	secretv3.UnimplementedSecretDiscoveryServiceServer
	cfg   Config
	log   *slog.Logger
	read  reader
	hints *hints
	boot  string // makes versions of different processes differ

	mu      sync.Mutex
	follow  func(*entry) // starts following an entry; nil while Run is not running
	entries map[string]*entry
	streams int
	changes uint64 // contents published, the number in versions
	pushes  uint64
	rejects uint64
}

// New checks the configuration.
func New(cfg Config) (*Server, error) {
	var errs []error
	for _, dir := range cfg.Deny {
		if !filepath.IsAbs(dir) {
			errs = append(errs, fmt.Errorf("denied directory %q is not an absolute path", dir))
		}
	}
	if cfg.Poll < 0 || cfg.Wait < 0 {
		errs = append(errs, fmt.Errorf("poll %v and wait %v must not be negative", cfg.Poll, cfg.Wait))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("sds: %w", err)
	}
	if cfg.Poll == 0 {
		cfg.Poll = time.Second
	}
	if cfg.Wait == 0 {
		cfg.Wait = 2 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Server{
		cfg: cfg, log: cfg.Log, read: reader{deny: cfg.Deny}, hints: newHints(cfg.Log),
		boot: rand.Text()[:8], entries: map[string]*entry{},
	}, nil
}

// Register adds the secret discovery service to a gRPC server.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	secretv3.RegisterSecretDiscoveryServiceServer(r, s)
}

// Run follows the files until ctx ends. Streams get nothing before it runs, and keep what they have after it.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer cancel()
	if err := s.begin(func(e *entry) { wg.Go(func() { s.followEntry(ctx, e) }) }); err != nil {
		return err
	}
	if !s.cfg.PollOnly {
		wg.Go(func() { s.hints.run(ctx) })
	}
	<-ctx.Done()
	s.mu.Lock()
	s.follow = nil // nothing is started after this
	s.mu.Unlock()
	wg.Wait()
	return nil
}

func (s *Server) begin(follow func(*entry)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.follow != nil {
		return errors.New("sds: run is called twice at the same time")
	}
	s.follow = follow
	for _, e := range s.entries {
		follow(e)
	}
	return nil
}

// SetNamed replaces the secrets that the configuration names. Their data sources may be files, which are followed,
// or inline; the environment is not read. A name that is gone keeps its last content while Envoy still uses it. A name that
// is assigned keeps what is assigned.
func (s *Server) SetNamed(secrets []*tlsv3.Secret) {
	wanted := map[string]*tlsv3.Secret{}
	for _, secret := range secrets {
		if name := secret.GetName(); name == "" || wanted[name] != nil {
			s.log.Warn("secret without a name or named twice is ignored", "resource", name)
		} else {
			wanted[name] = secret
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, secret := range wanted {
		e := s.entryLocked(name)
		if !proto.Equal(e.named, secret) {
			if e.named = proto.CloneOf(secret); e.own != nil {
				s.log.Warn("secret of the configuration is not used, the agent's own identity has its name: choose another name", "resource", name)
			}
			e.nudge()
		}
	}
	for name, e := range s.entries {
		if e.named != nil && wanted[name] == nil {
			e.named, e.gone = nil, true
			e.nudge()
			s.dropUnusedLocked(e)
		}
	}
}

// entryLocked finds or makes the entry for name; mu is held.
func (s *Server) entryLocked(name string) *entry {
	e := s.entries[name]
	if e == nil {
		e = &entry{name: name, poke: make(chan struct{}, 1), subs: map[*stream]*delivery{}, idle: time.Now()}
		s.entries[name] = e
		if s.follow != nil {
			s.follow(e)
		}
	}
	return e
}

// dropUnusedLocked forgets an entry that nobody can want back; mu is held.
func (s *Server) dropUnusedLocked(e *entry) {
	if e.named == nil && e.own == nil && len(e.subs) == 0 && !isFileName(e.name) {
		delete(s.entries, e.name)
		e.dropped = true
		e.nudge()
	}
}
