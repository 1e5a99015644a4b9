package standalone

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
)

// Config is what a Source needs.
type Config struct {
	// Dir holds the configuration files. Required.
	Dir string
	// Secrets is called with all secrets of the configuration each time one was accepted, before Envoy gets anything
	// that names them. nil: secrets are only checked.
	Secrets func([]*tlsv3.Secret)
	// Poll is how often the files are compared by content, in case no change was reported. Default 500 ms.
	Poll time.Duration
	// Linger is how long clusters that were removed from the files are kept for connections that still use the former
	// listeners and routes. Default 15 s.
	Linger time.Duration
	// Log gets one record for each accepted configuration and each problem. nil: nothing is logged.
	Log *slog.Logger
}

// Source is a directory served as an ADS server. Its methods are safe for concurrent use, except that Load must have
// returned before Run is called.
type Source struct {
	cfg      Config
	cache    cachev3.SnapshotCache
	sessions sessions

	// Owned by Load and then by Run.
	sum    string   // of the contents that were looked at last
	served snapshot // what the cache has: the target and what lingers

	mu       sync.Mutex
	target   snapshot // the accepted configuration; nil before the first
	version  string
	loadedAt time.Time
	files    []string
	secrets  int
	found    []Problem             // of the last load
	warnings []Problem             // of the accepted configuration
	rejected map[rejection]Problem // said by Envoy
	healed   map[string]string     // extension configs that came to run without another answer: content by name
	loads    map[string]uint64     // by result
}

// New checks the settings.
func New(cfg Config) (*Source, error) {
	if cfg.Dir == "" {
		return nil, errors.New("standalone: no configuration directory given")
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("standalone: configuration directory %s: %w", cfg.Dir, err)
	}
	cfg.Dir = dir
	if cfg.Poll < 0 || cfg.Linger < 0 {
		return nil, errors.New("standalone: poll and linger must not be negative")
	}
	if cfg.Poll == 0 {
		cfg.Poll = 500 * time.Millisecond
	}
	if cfg.Linger == 0 {
		cfg.Linger = 15 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Source{
		cfg: cfg,
		// Not "ads": that would leave a request unanswered until it names everything that is served, and a listener that
		// Envoy rejects would keep what it names unnamed. The order is ours (see publish).
		cache:    cachev3.NewSnapshotCache(false, oneNode{}, nil),
		rejected: map[rejection]Problem{}, healed: map[string]string{},
		loads: map[string]uint64{"ok": 0, "failed": 0},
	}, nil
}

func (*Source) now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// Load reads the directory for the first time. The error holds every problem, each as "file:line: reason".
func (s *Source) Load(ctx context.Context) error {
	c, err := readDir(s.cfg.Dir)
	if err != nil {
		s.fail([]Problem{{File: s.cfg.Dir, Reason: reasonOf(err)}})
		return err
	}
	s.sum = c.sum
	return s.apply(c, func(next snapshot) error { return s.set(ctx, next) })
}

// apply loads contents and hands an accepted configuration to publish.
func (s *Source) apply(contents contents, publish func(snapshot) error) error {
	c := load(s.cfg.Dir, contents.files)
	var next snapshot
	if len(c.problems) == 0 {
		var err error
		if next, err = c.snapshot(); err != nil {
			c.problems = append(c.problems, Problem{Reason: err.Error()})
		}
	}
	if len(c.problems) > 0 {
		s.fail(c.problems)
		return joined(c.problems)
	}
	if s.cfg.Secrets != nil {
		s.cfg.Secrets(c.secrets())
	}
	s.accept(c, next, contents)
	return publish(next)
}

// fail records the problems of a load; what runs is kept.
func (s *Source) fail(problems []Problem) {
	s.mu.Lock()
	s.loads["failed"]++
	known := map[Problem]time.Time{}
	for _, p := range s.found {
		known[p.key()] = p.Since
	}
	var fresh []Problem
	for i, p := range problems {
		since, old := known[p.key()]
		if !old {
			since = s.now()
			fresh = append(fresh, p)
		}
		problems[i].Since = since
	}
	s.found = problems
	running := s.target != nil
	s.mu.Unlock()
	if !running {
		return // the caller of Load tells
	}
	for _, p := range fresh {
		s.cfg.Log.Error("configuration cannot be used, what runs is kept", "file", p.File, "line", p.Line, "resource", p.Resource, "err", p.Reason)
	}
}

// accept makes a configuration the one that status shows and that Envoy's answers are about.
func (s *Source) accept(c *config, next snapshot, contents contents) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loads["ok"]++
	for r := range s.rejected {
		if e, ok := next[r.kind][r.name]; !ok || e.sum != s.target[r.kind][r.name].sum {
			delete(s.rejected, r)
		}
	}
	maps.DeleteFunc(s.healed, func(name, sum string) bool { return next[extensions][name].sum != sum })
	for r, p := range s.rejected { // the same resource may have moved
		p.File, p.Line = next[r.kind][r.name].file, next[r.kind][r.name].line
		s.rejected[r] = p
	}
	unchanged := s.version == next.total()
	s.target, s.version, s.found, s.warnings = next, next.total(), nil, c.warnings
	s.loadedAt, s.secrets, s.files = s.now(), len(c.of(secrets)), nil
	for _, f := range contents.files {
		s.files = append(s.files, f.name)
	}
	for _, w := range c.warnings {
		s.cfg.Log.Warn("part of the configuration is ignored", "file", w.File, "line", w.Line, "err", w.Reason)
	}
	s.cfg.Log.Info("configuration accepted", "version", s.version, "unchanged", unchanged, "files", len(s.files),
		"listeners", len(next[listeners]), "routes", len(next[routes]), "clusters", len(next[clusters]),
		"endpoints", len(next[endpoints]), "extension_configs", len(next[extensions]), "secrets", s.secrets)
}

// set serves a snapshot as it is.
func (s *Source) set(ctx context.Context, next snapshot) error {
	s.served = next
	// The cache only passes responses to channels that have room for them, and would take the end of ctx for a failure.
	if err := s.cache.SetSnapshot(context.WithoutCancel(ctx), "", next.cached()); err != nil {
		return fmt.Errorf("serve configuration: %w", err)
	}
	return nil
}

// Status is the state of a Source.
type Status struct {
	Dir       string         `json:"dir"`
	Version   string         `json:"version,omitempty"`
	LoadedAt  time.Time      `json:"loaded_at,omitzero"`
	Files     []string       `json:"files,omitempty"`
	Resources map[string]int `json:"resources,omitempty"` // per kind
	Problems  []Problem      `json:"problems,omitempty"`
	Warnings  []Problem      `json:"warnings,omitempty"`
	Streams   int            `json:"streams"` // open ADS streams
}

// Status tells what is served and what is wrong.
func (s *Source) Status() Status {
	streams := s.sessions.count()
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Status{
		Dir: s.cfg.Dir, Version: s.version, LoadedAt: s.loadedAt, Files: slices.Clone(s.files),
		Problems: s.problemsLocked(), Warnings: slices.Clone(s.warnings), Streams: streams,
	}
	if s.target != nil {
		st.Resources = s.target.counts()
		st.Resources["secrets"] = s.secrets
	}
	return st
}

// Problems lists what is wrong with the files and what Envoy rejected, by place.
func (s *Source) Problems() []Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.problemsLocked()
}

func (s *Source) problemsLocked() []Problem {
	return sorted(slices.AppendSeq(slices.Clone(s.found), maps.Values(s.rejected)))
}

// Listeners maps the names of the listeners to their addresses.
func (s *Source) Listeners() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.target.addresses()
}
