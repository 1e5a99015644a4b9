package wasmcache

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

// quarantined is the record of a damaged blob.
type quarantined struct {
	Digest string    `json:"digest"`
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
}

// quarantine takes a damaged blob out of use, keeping the file for whoever wants to know what happened to it.
func (s *Store) quarantine(ctx context.Context, digest string, bad *damagedError) {
	l, err := s.lock(ctx, blobLock(digest), nil)
	defer l.unlock()
	if now, err := s.root.Lstat(blobName(digest)); err != nil || !os.SameFile(now, bad.file) {
		return // another process did it
	}
	s.cfg.Log.Error("damaged module in the store: quarantined, it will be pulled again", "digest", digest, "err", bad)
	s.metrics.quarantined.Inc()
	s.verified.Remove(digest)
	if err == nil {
		err = s.root.Rename(blobName(digest), path.Join(quarantineDir, digest))
		if err != nil {
			err = errors.Join(err, s.root.RemoveAll(blobName(digest)))
		}
	}
	record := quarantined{Digest: digest, Reason: bad.reason, Since: time.Now()}
	if err := errors.Join(err, s.writeJSON(path.Join(quarantineDir, digest+".json"), record)); err != nil {
		s.cfg.Log.Warn("cannot write to the quarantine", "digest", digest, "err", err)
	}
}

const recordSuffix = ".json"

// inQuarantine lists what is in quarantine, the oldest first. A file there may lack its record, and a record its file.
func (s *Store) inQuarantine() (all []candidate) {
	at := map[string]int{}
	for _, name := range s.names(quarantineDir) {
		info, err := s.root.Lstat(path.Join(quarantineDir, name))
		if err != nil {
			continue
		}
		digest, isRecord := strings.CutSuffix(name, recordSuffix)
		i, known := at[digest]
		if !known {
			i = len(all)
			at[digest] = i
			all = append(all, candidate{digest: digest, damaged: true})
		}
		var q quarantined
		switch {
		case isRecord && s.readJSON(path.Join(quarantineDir, name), &q) && !q.Since.IsZero():
			all[i].used = q.Since
		case all[i].used.IsZero():
			all[i].used = info.ModTime()
		}
		if !isRecord && info.Mode().IsRegular() {
			all[i].size = info.Size()
		}
	}
	slices.SortFunc(all, func(a, b candidate) int { return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.digest, b.digest)) })
	return all
}

// quarantineSize is how many bytes the damaged blobs take.
func (s *Store) quarantineSize() (total int64) {
	for _, name := range s.names(quarantineDir) {
		if info, err := s.root.Lstat(path.Join(quarantineDir, name)); err == nil && info.Mode().IsRegular() && !strings.HasSuffix(name, recordSuffix) {
			total += info.Size()
		}
	}
	return total
}

// reduceQuarantine removes damaged blobs by a policy: nobody can use them, so that they go before any other. blobs is the size of those; what
// it returns includes what is left here.
func (s *Store) reduceQuarantine(p policy, blobs int64) (removed []candidate, total int64) {
	all := s.inQuarantine()
	total = blobs
	for _, c := range all {
		total += c.size
	}
	now := time.Now()
	for _, c := range all {
		if now.Sub(later(c.used, p.notBefore)) <= p.olderThan && total <= p.maxBytes {
			continue
		}
		if !p.dryRun {
			name := path.Join(quarantineDir, c.digest)
			if err := errors.Join(s.root.RemoveAll(name), s.root.RemoveAll(name+recordSuffix)); err != nil {
				s.cfg.Log.Warn("cannot remove a damaged module from the quarantine", "digest", c.digest, "err", err)
				continue
			}
		}
		total -= c.size
		removed = append(removed, c)
	}
	return removed, total
}
