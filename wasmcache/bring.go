package wasmcache

import (
	"context"
	"errors"
	"os"
	"path"
	"time"

	"github.com/gateway-agent/gateway-agent/wasmcache/fetch"
)

// brought is the module of a download, or of the one that another process made in the meantime.
type brought struct {
	version
	downloaded bool
}

// downloadLock waits while another process downloads the same. One that was stopped in the middle of it is not waited for: then the lock is
// nil, and the module is downloaded twice.
func (s *Store) downloadLock(ctx context.Context, a *ask, key string, report func(done, total int64)) (*lock, error) {
	if a.ref.Local() {
		return nil, nil
	}
	l, err := s.lock(ctx, downloadLock(key), report)
	if stuck, ok := errors.AsType[*stuckError](err); ok {
		s.cfg.Log.Warn("another process downloads this module and does not move on: it is downloaded here as well", "ref", a.ref.String(), "err", stuck)
		return nil, nil
	}
	return l, err
}

// meanwhile looks whether another process downloaded it while this one waited for the lock.
func (s *Store) meanwhile(ctx context.Context, a *ask, r *fetch.Resolved, l *lock) (version, bool) {
	if r.Manifest != "" {
		v, here := s.known(ctx, r)
		if _, err := r.Match(v.Digest); err != nil {
			return version{}, false
		}
		return v, here
	}
	if l == nil || l.waited.IsZero() {
		return version{}, false
	}
	rec := s.record(a.ref)
	v, may := s.find(&rec, a)
	return v, may == granted && v.Seen.After(l.waited)
}

// fetchNow downloads r and notes what came while the lock l keeps other processes waiting for it.
func (s *Store) fetchNow(ctx context.Context, a *ask, r *fetch.Resolved, l *lock, report func(done, total int64)) (brought, error) {
	report, stop := l.live(report)
	defer stop()
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return brought{}, context.Cause(ctx)
	}
	result, err := s.download(ctx, r, report)
	if err != nil {
		return brought{}, err
	}
	v := version{Digest: result.Digest, Size: result.Size, Manifest: r.Manifest, Index: r.Index, Seen: time.Now()}
	switch {
	case r.Manifest != "":
		if err := s.writeJSON(manifestName(r.Manifest), v); err != nil {
			s.cfg.Log.Warn("cannot note an image's module: it is downloaded again under another name", "ref", a.ref.String(), "err", s.diskError("note it", err))
		}
	case !a.ref.Local():
		err = s.remember(ctx, a, v)
	}
	return brought{version: v, downloaded: true}, err
}

// download fetches r into the store.
func (s *Store) download(ctx context.Context, r *fetch.Resolved, report func(done, total int64)) (fetch.Result, error) {
	if r.Size > s.cfg.Quota {
		s.cfg.Log.Warn("module is larger than the store's quota", "bytes", r.Size, "quota", s.cfg.Quota)
	}
	f, tmp, err := s.createTemp("blob")
	if err != nil {
		return fetch.Result{}, s.diskError("begin a download", err)
	}
	defer f.Close()
	result, err := s.cfg.Fetch.Fetch(ctx, r, f, report)
	if err == nil && result.Size > s.cfg.MaxSize {
		err = permanentError("", "module %s is %d bytes, more than the limit of %d: raise --wasm-max-size", result.Digest, result.Size, s.cfg.MaxSize)
	}
	if err != nil {
		_ = s.root.Remove(tmp)
		if isDisk(err) {
			err = s.diskError("download", err)
		}
		return fetch.Result{}, err
	}
	if err := s.commit(ctx, f, tmp, result.Digest); err != nil {
		_ = s.root.Remove(tmp)
		return fetch.Result{}, s.diskError("keep module "+result.Digest, err)
	}
	return result, nil
}

// commit makes a downloaded file the blob of digest. From here on no crash of the process can lose or damage it.
func (s *Store) commit(ctx context.Context, f *os.File, tmp, digest string) error {
	now := time.Now() // the time of last use is this clock's, not the disk's
	err := errors.Join(f.Chmod(0o644), s.root.Chtimes(tmp, now, now), f.Sync())
	info, statErr := f.Stat()
	if err = errors.Join(err, statErr); err != nil {
		return err
	}
	l, err := s.lock(ctx, blobLock(digest), nil)
	if err != nil {
		return err
	}
	defer l.unlock()
	if have, err := s.root.Lstat(blobName(digest)); err == nil && s.isVerified(digest, stampOf(have)) {
		s.touch(digest)
		return s.root.Remove(tmp) // a file that Envoy may have open stays what it is
	}
	if err := s.root.Rename(tmp, blobName(digest)); err != nil {
		return err
	}
	s.verified.Add(digest, stampOf(info))
	s.used.Add(digest, time.Now())
	_ = s.root.Remove(path.Join(quarantineDir, digest))
	_ = s.root.Remove(path.Join(quarantineDir, digest+".json"))
	select {
	case s.kick <- struct{}{}:
	default:
	}
	return nil
}
