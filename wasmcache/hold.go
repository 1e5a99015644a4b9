package wasmcache

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"syscall"
	"time"
)

// holding keeps a blob from every collector, of this and of other processes: it is open and locked here. The kernel forgets it with the
// process, so the dead hold nothing.
type holding struct {
	file  *os.File
	info  fs.FileInfo
	users int       // Gets that work with it; guarded by Store.mu
	used  time.Time // end of the last use; guarded by Store.mu
}

// hold keeps a blob from being collected until release is called, and in an agent (a store with Pins) for the time that it may take until
// it is pinned. ok is false when there is no such blob.
func (s *Store) hold(ctx context.Context, digest string) (release func(), ok bool, err error) {
	info, err := s.lookUp(ctx, digest)
	if info == nil {
		return func() {}, false, err
	}
	if h := s.joinHolding(digest, info); h != nil {
		return func() { s.release(digest, h) }, true, nil
	}
	file, err := s.lockShared(ctx, digest)
	if file == nil {
		return func() {}, false, err
	}
	h, err := s.addHolding(digest, file)
	if err != nil {
		file.Close()
		return func() {}, false, s.diskError("look up module "+digest, err)
	}
	return func() { s.release(digest, h) }, true, nil
}

// lookUp returns nil when there is no such blob.
func (s *Store) lookUp(ctx context.Context, digest string) (fs.FileInfo, error) {
	if !isDigest(digest) {
		return nil, nil
	}
	info, err := s.root.Lstat(blobName(digest))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, s.diskError("look up module "+digest, err)
	}
	if !info.Mode().IsRegular() {
		s.quarantine(ctx, digest, &damagedError{reason: "it is not a regular file", file: info})
		return nil, nil
	}
	return info, nil
}

func (s *Store) joinHolding(digest string, info fs.FileInfo) *holding {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.held[digest]
	if h == nil || !os.SameFile(h.info, info) { // another process replaced a damaged one
		return nil
	}
	h.users++
	return h
}

// lockShared opens a blob and locks it; nil: it is gone. A collector has the lock for a moment only.
func (s *Store) lockShared(ctx context.Context, digest string) (*os.File, error) {
	start := time.Now()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		f, err := s.openBlob(digest, os.O_RDONLY)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, s.diskError("open module "+digest, err)
		}
		err = flock(f, syscall.LOCK_SH)
		if !isHeld(err) && s.isAt(f, blobName(digest)) {
			return f, nil
		}
		f.Close()
		if time.Since(start) > patience {
			return nil, s.diskError("open module "+digest, errors.New("a process that does not move is about to remove it: let it continue, or end it"))
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

func (s *Store) openBlob(digest string, flag int) (*os.File, error) {
	return s.root.OpenFile(blobName(digest), flag|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
}

func (s *Store) addHolding(digest string, file *os.File) (*holding, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if h := s.joinHolding(digest, info); h != nil { // another Get was faster
		file.Close()
		return h, nil
	}
	h := &holding{file: file, info: info, users: 1}
	s.mu.Lock()
	old := s.held[digest]
	s.held[digest] = h
	s.mu.Unlock()
	s.letGo(digest, old, 0)
	return h, nil
}

func (s *Store) release(digest string, h *holding) {
	now := time.Now()
	s.mu.Lock()
	h.users--
	h.used = now
	s.used.Add(digest, now)
	s.mu.Unlock()
	keep := time.Duration(0)
	if s.cfg.Pins != nil {
		keep = s.grace()
	}
	s.letGo(digest, h, keep)
}

// letGo ends a holding that nobody works with and that was not used for so long. One that was replaced ends at once.
func (s *Store) letGo(digest string, h *holding, unused time.Duration) {
	if h == nil {
		return
	}
	s.mu.Lock()
	current := s.held[digest] == h
	end := h.users == 0 && h.file != nil && (!current || time.Since(h.used) >= unused)
	file := h.file
	if end {
		h.file = nil
		if current {
			delete(s.held, digest)
		}
	}
	s.mu.Unlock()
	if end {
		file.Close()
	}
}

// publish holds what is pinned and lets go what is neither pinned nor just used, so that every process that collects knows. It returns what
// is pinned.
func (s *Store) publish(ctx context.Context) map[string]bool {
	pins := s.pinned()
	for digest := range pins {
		release, _, err := s.hold(ctx, digest)
		if err != nil && ctx.Err() == nil {
			s.cfg.Log.Warn("cannot protect a module that is in use from other processes", "digest", digest, "err", err)
		}
		release()
	}
	s.mu.Lock()
	held := make(map[string]*holding, len(s.held))
	maps.Copy(held, s.held)
	s.mu.Unlock()
	for digest, h := range held {
		s.letGo(digest, h, s.grace())
	}
	return pins
}

func (s *Store) pinned() map[string]bool {
	pins := map[string]bool{}
	if s.cfg.Pins != nil {
		for _, digest := range s.cfg.Pins() {
			pins[digest] = true
		}
	}
	return pins
}

// inUse reports that some process holds the blob.
func (s *Store) inUse(digest string) bool {
	s.mu.Lock()
	_, mine := s.held[digest]
	s.mu.Unlock()
	if mine {
		return true
	}
	f, err := s.openBlob(digest, os.O_RDONLY)
	if err != nil {
		return false
	}
	defer f.Close()
	return isHeld(flock(f, syscall.LOCK_EX))
}

// takeOut runs move while no process uses the blob or replaces it; false: one does. The error is fs.ErrNotExist when another process took it
// out.
func (s *Store) takeOut(digest string, move func() error) (bool, error) {
	l, err := s.tryLock(lockName(blobLock(digest)))
	if err != nil && !isDisk(err) { // a full disk has no room for the lock, and this may make some
		return false, nil
	}
	defer l.unlock()
	f, err := s.openBlob(digest, os.O_RDWR) // network file systems give exclusive locks to writers only
	if err != nil {
		return errors.Is(err, fs.ErrNotExist), err
	}
	defer f.Close()
	if flock(f, syscall.LOCK_EX) != nil || !s.isAt(f, blobName(digest)) {
		return false, nil
	}
	return true, move()
}
