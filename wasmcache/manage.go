package wasmcache

import (
	"context"
	"fmt"
	"io/fs"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gateway-agent/gateway-agent/wasmcache/fetch"
)

// PruneOptions say what Prune removes. The zero value removes what the collector of an agent would: what was not used for Config.Expiry, and
// then, beginning with the least recently used, what exceeds Config.Quota.
type PruneOptions struct {
	// DryRun removes nothing.
	DryRun bool
	// All removes every module that no process uses.
	All bool
	// OlderThan removes what was not used for so long.
	OlderThan time.Duration
	// MaxBytes removes the least recently used until so many bytes are left.
	MaxBytes int64
}

func (s *Store) policy(o PruneOptions) policy {
	p := policy{olderThan: math.MaxInt64, maxBytes: math.MaxInt64, preloaded: true, dryRun: o.DryRun}
	switch {
	case o.All:
		p.olderThan = -1
	case o.OlderThan == 0 && o.MaxBytes == 0:
		p.olderThan, p.maxBytes, p.preloaded = s.cfg.Expiry, s.cfg.Quota, false
	}
	if o.OlderThan > 0 {
		p.olderThan = min(p.olderThan, o.OlderThan)
	}
	if o.MaxBytes > 0 {
		p.maxBytes = o.MaxBytes
	}
	return p
}

// Prune removes modules and returns them: first the damaged ones, then the least recently used. What a process uses, this one or another, stays.
func (s *Store) Prune(o PruneOptions) ([]ModuleStatus, error) {
	if !o.DryRun && !s.writable.Load() {
		return nil, s.diskError("remove modules", fs.ErrPermission)
	}
	refs := s.refsByDigest()
	removed := []ModuleStatus{}
	for _, c := range s.reduce(s.policy(o), s.pinned()) {
		removed = append(removed, ModuleStatus{Digest: c.digest, Size: c.size, LastUsed: c.used, Refs: refs[c.digest], Damaged: c.damaged})
	}
	return removed, nil
}

// Verify hashes every module. Damaged ones go to the quarantine. progress, if not nil, is told the bytes read of all.
func (s *Store) Verify(ctx context.Context, progress func(done, total int64)) (damaged []QuarantineStatus, checked int, err error) {
	names := s.names(blobDir)
	sizes := make([]int64, len(names))
	var done, total int64
	for i, digest := range names {
		if info, err := s.root.Lstat(blobName(digest)); err == nil {
			sizes[i] = info.Size()
			total += sizes[i]
		}
	}
	for i, digest := range names {
		whole, there, err := s.verify(ctx, digest)
		if err != nil {
			return damaged, checked, fmt.Errorf("verify module %s: %w", digest, err)
		}
		if there {
			checked++
		}
		if there && !whole {
			damaged = append(damaged, s.quarantineStatus(digest))
		}
		if done += sizes[i]; progress != nil {
			progress(done, total)
		}
	}
	return damaged, checked, nil
}

// verify hashes one blob, whatever was found of it earlier. there is false for one that was removed in between, and for what is not ours.
func (s *Store) verify(ctx context.Context, digest string) (whole, there bool, err error) {
	info, err := s.root.Lstat(blobName(digest))
	if err != nil || !isDigest(digest) {
		return false, false, nil
	}
	release, ok, err := s.hold(ctx, digest)
	defer release()
	if err != nil || !ok {
		return false, err == nil && !info.Mode().IsRegular(), err // hold has put that in the quarantine
	}
	s.verified.Remove(digest)
	whole, err = s.intact(ctx, digest)
	return whole, true, err
}

// Whole returns the file of a module that the store holds undamaged, else "". It is hashed unless that was done in this process; a damaged
// one goes to the quarantine.
func (s *Store) Whole(ctx context.Context, digest string) (path string, err error) {
	release, ok, err := s.hold(ctx, digest)
	defer release()
	if ok {
		ok, err = s.intact(ctx, digest)
	}
	if !ok || err != nil {
		return "", err
	}
	return s.blobPath(digest), nil
}

func (s *Store) quarantineStatus(digest string) QuarantineStatus {
	var q quarantined
	if !s.readJSON(path.Join(quarantineDir, digest+".json"), &q) {
		return QuarantineStatus{Digest: digest, Reason: "it is damaged, and the store cannot be written", Since: time.Now()}
	}
	return QuarantineStatus(q)
}

// Find returns what the store holds for a reference, the newest of it, or for a digest ("sha256:…" or in hex) of a module, manifest or index.
// It asks nobody, checks no access and hashes nothing: it is for the operator.
func (s *Store) Find(ref string) (Module, bool) {
	if sum, err := fetch.NormalizeSHA256(ref); err == nil && sum != "" {
		return s.findDigest(sum)
	}
	parsed, err := fetch.Parse(ref)
	if err != nil {
		return Module{}, false
	}
	r := s.record(parsed)
	i := slices.IndexFunc(r.Versions, func(v version) bool { return s.has(v.Digest) })
	if i < 0 {
		return Module{}, false
	}
	return s.module(parsed.String(), r.Versions[i]), true
}

func (s *Store) findDigest(sum string) (Module, bool) {
	var found Module
	s.eachRecord(func(r *record) {
		for _, v := range r.Versions {
			if found.Digest == "" && v.is(sum) && s.has(v.Digest) {
				found = s.module(r.Ref, v)
			}
		}
	})
	if info, err := s.root.Lstat(blobName(sum)); found.Digest == "" && err == nil {
		found = s.module("", version{Digest: sum, Size: info.Size()})
	}
	return found, found.Digest != ""
}

// eachRecord calls fn with every record of a reference, in no order.
func (s *Store) eachRecord(fn func(r *record)) {
	for _, name := range s.names(refDir) {
		var r record
		if strings.HasSuffix(name, ".json") && s.readJSON(path.Join(refDir, name), &r) {
			fn(&r)
		}
	}
}
