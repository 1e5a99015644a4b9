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
)

var isDigest = regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString

// touchEvery is how often a blob's time of last use is written to disk. Each time makes the other processes that share the store hash the
// blob once more.
const touchEvery = 10 * time.Minute

// hashBuffer is small enough for the processor's cache.
const hashBuffer = 64 << 10

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

// intact reports that the blob is there and whole. It is hashed before its first use in this process; a damaged one is quarantined.
// The caller holds the blob.
func (s *Store) intact(ctx context.Context, digest string) (bool, error) {
	info, err := s.lookUp(ctx, digest)
	if info == nil {
		return false, err
	}
	if s.isVerified(digest, stampOf(info)) {
		return true, nil
	}
	_, err = s.hashing.do(ctx, digest, digest, nil, func(ctx context.Context, _ func(int64, int64)) (struct{}, error) {
		return struct{}{}, s.hash(ctx, digest)
	})
	if bad, ok := errors.AsType[*damagedError](err); ok {
		s.quarantine(ctx, digest, bad)
		return false, nil
	}
	return err == nil, err
}

func (s *Store) isVerified(digest string, now stamp) bool {
	was, ok := s.verified.Get(digest)
	return ok && was == now
}

// damagedError is a blob that is not what its name says.
type damagedError struct {
	reason string
	file   fs.FileInfo
}

func (e *damagedError) Error() string { return e.reason }

func (s *Store) hash(ctx context.Context, digest string) error {
	f, err := s.openBlob(digest, os.O_RDONLY)
	if err != nil {
		return s.diskError("read module "+digest, err)
	}
	defer f.Close()
	before, err := f.Stat()
	if err != nil {
		return s.diskError("read module "+digest, err)
	}
	h := sha256.New()
	buffer, _ := s.buffers.Get().(*[hashBuffer]byte)
	if buffer == nil {
		buffer = new([hashBuffer]byte)
	}
	defer s.buffers.Put(buffer)
	if _, err := io.CopyBuffer(struct{ io.Writer }{h}, &ctxReader{ctx.Err, f}, buffer[:]); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return s.diskError("read module "+digest, err)
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != digest {
		return &damagedError{fmt.Sprintf("its %d bytes have the digest %s", before.Size(), got), before}
	}
	s.verified.Add(digest, stampOf(before))
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

// touch notes a use: in memory always, on disk now and then, so that the order of last use survives a restart.
func (s *Store) touch(digest string) {
	now := time.Now()
	s.used.Add(digest, now)
	st, known := s.verified.Get(digest)
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
	if after := stampOf(info); after.size == st.size && after.inode == st.inode && s.isVerified(digest, st) {
		s.verified.Add(digest, after)
	}
}
