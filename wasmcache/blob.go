package wasmcache

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"github.com/gateway-agent/gateway-agent/wasmcache/fetch"
)

var isDigest = regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString

// touchEvery is how often a blob's time of last use is written to disk.
const touchEvery = time.Minute

// stamp tells whether a file is still the one that was hashed.
type stamp struct {
	size  int64
	mtime time.Time
	inode uint64
}

func stampOf(info fs.FileInfo) stamp {
	st := stamp{size: info.Size(), mtime: info.ModTime()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		st.inode = sys.Ino
	}
	return st
}

func blobName(digest string) string { return path.Join(blobDir, digest) }

func (s *Store) blobPath(digest string) string {
	return filepath.Join(s.dir, filepath.FromSlash(blobName(digest)))
}

// hold keeps a blob from being collected until release is called.
func (s *Store) hold(digest string) (release func()) {
	s.files.RLock()
	defer s.files.RUnlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy[digest]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.busy[digest]--; s.busy[digest] == 0 {
			delete(s.busy, digest)
		}
		s.used[digest] = time.Now()
	}
}

// intact reports that the blob is there and whole. It is hashed before its first use in this process; a damaged one is quarantined.
// The caller holds the blob.
func (s *Store) intact(ctx context.Context, digest string) (bool, error) {
	if !isDigest(digest) {
		return false, nil
	}
	info, err := s.root.Lstat(blobName(digest))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, s.diskError("look up module "+digest, err)
	}
	if !info.Mode().IsRegular() {
		s.quarantine(digest, &damagedError{"it is not a regular file"})
		return false, nil
	}
	if s.isVerified(digest, stampOf(info)) {
		return true, nil
	}
	_, err = s.hashing.do(ctx, digest, digest, nil, func(ctx context.Context, _ func(int64, int64)) (struct{}, error) {
		return struct{}{}, s.hash(ctx, digest)
	})
	if bad, ok := errors.AsType[*damagedError](err); ok {
		s.quarantine(digest, bad)
		return false, nil
	}
	return err == nil, err
}

func (s *Store) isVerified(digest string, now stamp) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	was, ok := s.verified[digest]
	return ok && was == now
}

func (s *Store) setVerified(digest string, st stamp) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.verified[digest] = st
}

// damagedError is a blob that is not what its name says.
type damagedError struct{ reason string }

func (e *damagedError) Error() string { return e.reason }

func (s *Store) hash(ctx context.Context, digest string) error {
	f, err := s.root.OpenFile(blobName(digest), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return s.diskError("read module "+digest, err)
	}
	defer f.Close()
	before, err := f.Stat()
	if err != nil {
		return s.diskError("read module "+digest, err)
	}
	h := sha256.New()
	if _, err := io.CopyBuffer(struct{ io.Writer }{h}, &ctxReader{ctx.Err, f}, make([]byte, 256<<10)); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return s.diskError("read module "+digest, err)
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != digest {
		return &damagedError{fmt.Sprintf("its %d bytes have the digest %s", before.Size(), got)}
	}
	s.setVerified(digest, stampOf(before))
	return nil
}

// ctxReader stops reading when the context ended.
type ctxReader struct {
	ended func() error
	io.Reader
}

func (r *ctxReader) Read(p []byte) (int, error) {
	if err := r.ended(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

// quarantined is the record of a damaged blob.
type quarantined struct {
	Digest string    `json:"digest"`
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
}

// quarantine takes a damaged blob out of use, keeping the file for whoever wants to know what happened to it.
func (s *Store) quarantine(digest string, why error) {
	s.cfg.Log.Error("damaged module in the store: quarantined, it will be pulled again", "digest", digest, "err", why)
	s.metrics.quarantined.Inc()
	err := s.root.Rename(blobName(digest), path.Join(quarantineDir, digest))
	if err != nil {
		err = errors.Join(err, s.root.RemoveAll(blobName(digest)))
	}
	record := quarantined{Digest: digest, Reason: why.Error(), Since: time.Now()}
	if err := errors.Join(err, s.writeJSON(path.Join(quarantineDir, digest+".json"), record)); err != nil {
		s.cfg.Log.Warn("cannot write to the quarantine", "digest", digest, "err", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.verified, digest)
}

// touch notes a use: in memory always, on disk now and then, so that the order of last use survives a restart.
func (s *Store) touch(digest string) {
	now := time.Now()
	s.mu.Lock()
	st, known := s.verified[digest]
	s.used[digest] = now
	s.mu.Unlock()
	if !known || now.Sub(st.mtime) < touchEvery {
		return
	}
	if s.root.Chtimes(blobName(digest), now, now) != nil {
		return // a store that cannot be written still serves
	}
	info, err := s.root.Lstat(blobName(digest))
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if after := stampOf(info); after.size == st.size && after.inode == st.inode && s.verified[digest] == st {
		s.verified[digest] = after
	}
}

// download fetches r into the store.
func (s *Store) download(ctx context.Context, r *fetch.Resolved, report func(done, total int64)) (fetch.Result, error) {
	if r.Size > s.cfg.Quota {
		s.cfg.Log.Warn("module is larger than the store's quota", "bytes", r.Size, "quota", s.cfg.Quota)
	}
	tmp := randomName("blob")
	f, err := s.root.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fetch.Result{}, s.diskError("begin a download", err)
	}
	result, err := s.cfg.Fetch.Fetch(ctx, r, f, report)
	if err == nil && result.Size > s.cfg.MaxSize {
		err = permanentError("", "module %s is %d bytes, more than the limit of %d: raise --wasm-max-size", result.Digest, result.Size, s.cfg.MaxSize)
	}
	if err != nil {
		_ = f.Close()
		_ = s.root.Remove(tmp)
		if isDisk(err) {
			err = s.diskError("download", err)
		}
		return fetch.Result{}, err
	}
	if err := s.commit(f, tmp, result.Digest); err != nil {
		_ = s.root.Remove(tmp)
		return fetch.Result{}, s.diskError("keep module "+result.Digest, err)
	}
	return result, nil
}

// commit makes a downloaded file the blob of digest. From here on no crash can lose or damage it.
func (s *Store) commit(f *os.File, tmp, digest string) error {
	now := time.Now() // the time of last use is this clock's, not the disk's
	err := errors.Join(f.Chmod(0o644), s.root.Chtimes(tmp, now, now), f.Sync())
	info, statErr := f.Stat()
	if err = errors.Join(err, statErr, f.Close()); err != nil {
		return err
	}
	s.files.RLock()
	defer s.files.RUnlock()
	if have, err := s.root.Lstat(blobName(digest)); err == nil && s.isVerified(digest, stampOf(have)) {
		s.touch(digest)
		return s.root.Remove(tmp) // a file that Envoy may have open stays what it is
	}
	if err := s.place(tmp, blobName(digest)); err != nil {
		return err
	}
	s.mu.Lock()
	s.verified[digest] = stampOf(info)
	s.used[digest] = time.Now()
	s.mu.Unlock()
	_ = s.root.Remove(path.Join(quarantineDir, digest))
	_ = s.root.Remove(path.Join(quarantineDir, digest+".json"))
	select {
	case s.kick <- struct{}{}:
	default:
	}
	return nil
}
