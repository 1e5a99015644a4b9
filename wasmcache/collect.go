package wasmcache

import (
	"cmp"
	"context"
	"path"
	"slices"
	"time"
)

// Bounds of collection.
const (
	graceMax = time.Minute // a module just returned may not be pinned yet
	tmpAge   = time.Hour   // a download that nobody wrote to for so long is dead
)

// Run collects unused modules until ctx ends; it then returns nil.
func (s *Store) Run(ctx context.Context) error {
	tick := time.NewTicker(s.cfg.CollectEvery)
	defer tick.Stop()
	skipped := s.locks == nil // Open said so
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-s.kick:
		}
		ok := s.locks.exclusive(s.collect)
		if !ok && !skipped {
			s.cfg.Log.Info("nothing is collected while another process uses the module store", "dir", s.dir)
		}
		skipped = !ok
	}
}

// candidate is a blob that may be removed.
type candidate struct {
	digest string
	size   int64
	used   time.Time
}

// collect removes what is too old, then what is too much, the least recently used first; never what is pinned or in use.
func (s *Store) collect() {
	s.emptyTmp(tmpAge)
	pins := s.pinned()
	s.files.Lock()
	free, total := s.candidates(pins)
	now := time.Now()
	var removed []candidate
	for _, c := range free {
		// The clock of an agent that was down did not run for its modules.
		expired := now.Sub(later(c.used, s.started)) > s.cfg.Expiry
		if !expired && total <= s.cfg.Quota || now.Sub(c.used) < min(graceMax, s.cfg.Expiry) {
			continue
		}
		if err := s.root.Remove(blobName(c.digest)); err != nil {
			s.cfg.Log.Warn("cannot remove an unused module", "digest", c.digest, "err", err)
			continue
		}
		total -= c.size
		removed = append(removed, c)
	}
	s.files.Unlock()
	for _, c := range removed {
		s.cfg.Log.Info("unused module removed", "digest", c.digest, "bytes", c.size, "last_used", c.used)
		s.metrics.collected.Inc()
		s.forget(c.digest)
	}
	if len(removed) > 0 {
		s.pruneRecords()
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (s *Store) pinned() map[string]bool {
	pins := map[string]bool{}
	for _, digest := range s.cfg.Pins() {
		pins[digest] = true
	}
	return pins
}

// candidates returns what may be removed, oldest use first, and the size of everything.
func (s *Store) candidates(pins map[string]bool) (free []candidate, total int64) {
	for _, digest := range s.names(blobDir) {
		info, err := s.root.Lstat(blobName(digest))
		if err != nil {
			continue
		}
		total += info.Size()
		s.mu.Lock()
		used, busy := later(info.ModTime(), s.used[digest]), s.busy[digest] > 0
		s.mu.Unlock()
		if !pins[digest] && !busy {
			free = append(free, candidate{digest: digest, size: info.Size(), used: used})
		}
	}
	slices.SortFunc(free, func(a, b candidate) int {
		return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.digest, b.digest))
	})
	return free, total
}

func (s *Store) forget(digest string) {
	if err := s.root.RemoveAll(path.Join(verdictDir, digest)); err != nil {
		s.cfg.Log.Warn("cannot remove verdicts", "digest", digest, "err", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.verified, digest)
	delete(s.used, digest)
	for name := range s.unsure {
		if path.Dir(name) == path.Join(verdictDir, digest) {
			delete(s.unsure, name)
		}
	}
}

// pruneRecords removes records that lead to no blob any more.
func (s *Store) pruneRecords() {
	s.refMu.Lock()
	defer s.refMu.Unlock()
	for _, name := range s.names(refDir) {
		name = path.Join(refDir, name)
		var r record
		if s.readJSON(name, &r) && !slices.ContainsFunc(r.Versions, func(v version) bool { return s.has(v.Digest) }) {
			_ = s.root.Remove(name)
		}
	}
	for _, name := range s.names(manifestDir) {
		name = path.Join(manifestDir, name)
		var v version
		if s.readJSON(name, &v) && !s.has(v.Digest) {
			_ = s.root.Remove(name)
		}
	}
}

func (s *Store) has(digest string) bool {
	if !isDigest(digest) {
		return false
	}
	_, err := s.root.Lstat(blobName(digest))
	return err == nil
}
