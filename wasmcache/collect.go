package wasmcache

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"sync"
	"time"
)

// graceMax is how long a module that was just returned may not be pinned yet.
const graceMax = time.Minute

func (s *Store) grace() time.Duration { return min(graceMax, s.cfg.Expiry) }

// Run collects unused modules, protects those in use from other processes, and asks whether tags have moved, until ctx ends; it then returns
// nil.
func (s *Store) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	if s.cfg.Refresh > 0 {
		wg.Go(func() { s.refresh(ctx) })
	}
	tick := time.NewTicker(s.cfg.CollectEvery)
	defer tick.Stop()
	s.publish(ctx)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			s.checkWritable()
			s.settle()
		case <-s.kick:
		}
		pins := s.publish(ctx)
		if s.writable.Load() {
			s.collect(pins)
		}
	}
}

// checkWritable finds out whether the store can be written, and says so once when that changes.
func (s *Store) checkWritable() {
	f, name, err := s.createTemp("probe")
	if err == nil {
		err = errors.Join(s.root.Remove(name), f.Close())
	}
	if was := s.writable.Swap(err == nil); was == (err == nil) {
		return
	}
	if err != nil {
		s.cfg.Log.Warn("module store cannot be written: it serves what it holds, and nothing new can be pulled", "dir", s.dir, "err", err)
		return
	}
	s.cfg.Log.Info("module store can be written again", "dir", s.dir)
}

// candidate is a blob that may be removed.
type candidate struct {
	digest  string
	size    int64
	used    time.Time
	damaged bool // it is in the quarantine, since the time of use
}

// policy says what is too old and what is too much.
type policy struct {
	olderThan time.Duration
	notBefore time.Time // the age counts from here at the earliest
	maxBytes  int64
	grace     time.Duration // what was used so lately stays
	preloaded bool          // age counts for preloaded modules too
	dryRun    bool
}

// collect removes what is too old, then what is too much.
func (s *Store) collect(pins map[string]bool) {
	s.emptyTmp()
	s.sweepLocks()
	// The clock of an agent that was down did not run for its modules.
	removed := s.reduce(policy{olderThan: s.cfg.Expiry, notBefore: s.started, maxBytes: s.cfg.Quota, grace: s.grace()}, pins)
	for _, c := range removed {
		s.cfg.Log.Info("unused module removed", "digest", c.digest, "bytes", c.size, "last_used", c.used, "damaged", c.damaged)
		s.metrics.collected.Inc()
	}
}

// reduce removes by a policy, first what is damaged, then the least recently used; never what is pinned or in use, by whatever process.
func (s *Store) reduce(p policy, pins map[string]bool) (removed []candidate) {
	free, total := s.candidates(pins)
	removed, total = s.reduceQuarantine(p, total)
	now := time.Now()
	preloaded := sync.OnceValue(s.preloaded)
	for _, c := range free {
		expired := now.Sub(later(c.used, p.notBefore)) > p.olderThan && (p.preloaded || !preloaded()[c.digest])
		if !expired && total <= p.maxBytes || now.Sub(c.used) < p.grace {
			continue
		}
		gone, err := s.discard(c.digest, p.dryRun)
		if gone {
			total -= c.size
		}
		if gone && err == nil {
			removed = append(removed, c)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.cfg.Log.Warn("cannot remove an unused module", "digest", c.digest, "err", err)
		}
	}
	if len(removed) > 0 && !p.dryRun {
		s.pruneRecords()
	}
	return removed
}

// discard removes an unused blob and what is known of it; dry: it only says whether it would.
func (s *Store) discard(digest string, dry bool) (gone bool, err error) {
	if dry {
		return !s.inUse(digest), nil
	}
	gone, err = s.takeOut(digest, func() error { return s.root.Remove(blobName(digest)) })
	if gone && err == nil {
		s.forget(digest)
	}
	return gone && (err == nil || errors.Is(err, fs.ErrNotExist)), err
}

// preloaded are the modules that the operator put there: they wait for their first use however long it takes.
func (s *Store) preloaded() map[string]bool {
	found := map[string]bool{}
	s.eachRecord(func(r *record) {
		for _, v := range r.Versions {
			if v.Preloaded {
				found[v.Digest] = true
			}
		}
	})
	return found
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// candidates returns what may be removed, oldest use first, and the size of everything.
func (s *Store) candidates(pins map[string]bool) (free []candidate, total int64) {
	for _, digest := range s.names(blobDir) {
		info, err := s.root.Lstat(blobName(digest))
		if err != nil {
			continue
		}
		total += info.Size()
		if !pins[digest] {
			free = append(free, candidate{digest: digest, size: info.Size(), used: s.lastUse(digest, info)})
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
	s.verified.Remove(digest)
	s.used.Remove(digest)
	for _, name := range s.judgedHere.Keys() {
		if path.Dir(name) == path.Join(verdictDir, digest) {
			s.judgedHere.Remove(name)
		}
	}
}

// lastUse is when a blob was used last, as far as this process knows.
func (s *Store) lastUse(digest string, info fs.FileInfo) time.Time {
	used, _ := s.used.Peek(digest)
	return later(info.ModTime(), used)
}

// pruneRecords removes records that lead to no blob any more.
func (s *Store) pruneRecords() {
	for _, name := range s.names(refDir) {
		s.pruneRecord(path.Join(refDir, name))
	}
	for _, name := range s.names(manifestDir) {
		name = path.Join(manifestDir, name)
		var v version
		if s.readJSON(name, &v) && !s.has(v.Digest) {
			_ = s.root.Remove(name)
		}
	}
}

// pruneRecord leaves a record alone that is being changed: its blob has just come.
func (s *Store) pruneRecord(name string) {
	var r record
	useless := func() bool {
		return s.readJSON(name, &r) && !slices.ContainsFunc(r.Versions, func(v version) bool { return s.has(v.Digest) })
	}
	if !useless() {
		return
	}
	l, err := s.tryLock(lockName(recordLock(name)))
	if err != nil {
		return
	}
	defer l.unlock()
	if useless() {
		_ = s.root.Remove(name)
	}
}

func (s *Store) has(digest string) bool {
	if !isDigest(digest) {
		return false
	}
	_, err := s.root.Lstat(blobName(digest))
	return err == nil
}
