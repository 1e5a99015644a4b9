package wasmcache

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Locks between processes are flock(2) on files, because the kernel releases them however their holder ends. A holder that was stopped
// keeps them, so nobody waits longer than patience for one that shows no sign of life.
//
//	locks/<hash>   exclusive: who changes a reference's record, who replaces a blob, who downloads; gone when nobody has it
//	tmp/<name>     shared by its writer: what nobody has locked is left over from a crash
//	a blob itself  shared by every process that uses it (hold.go), exclusive for the moment in which it is removed
const (
	patience  = 10 * time.Second
	beatEvery = time.Second
)

// lock is a lock that this process has. A nil lock, where there can be none, is good for nothing and does no harm.
type lock struct {
	store *Store
	name  string
	file  *os.File
	beats int64
	// waited is when the wait for it began; zero: nobody else had it.
	waited time.Time
}

// stuckError is a lock whose holder does not move.
type stuckError struct {
	file, host string
	pid        int
}

func (e *stuckError) Error() string {
	return fmt.Sprintf("process %d on %s has its lock %s and did not move for %v: let it continue, or end it", e.pid, e.host, e.file, patience)
}

func flock(f *os.File, how int) error {
	for {
		err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
		if err != syscall.EINTR { //nolint:errorlint // an errno
			return err
		}
	}
}

func lockName(object string) string {
	sum := sha256.Sum256([]byte(object))
	return path.Join(lockDir, hex.EncodeToString(sum[:16]))
}

// The objects that have locks.
func blobLock(digest string) string   { return "blob " + digest }
func recordLock(file string) string   { return "record " + file }
func downloadLock(what string) string { return "download " + what }

func isHeld(err error) bool { return errors.Is(err, syscall.EWOULDBLOCK) }

// lock takes the lock of an object. It waits as long as the holder shows life; report, if not nil, gets what the holder says of its progress.
// Where the file system has no locks it returns nil.
func (s *Store) lock(ctx context.Context, object string, report func(done, total int64)) (*lock, error) {
	name, start := lockName(object), time.Now()
	seen, since := "", start
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		l, err := s.tryLock(name)
		if !isHeld(err) {
			if l != nil && pause > time.Millisecond {
				l.waited = start
			}
			return l, nil
		}
		note, done, total := s.lockNote(name)
		if note != seen {
			seen, since = note, time.Now()
			if report != nil && total != 0 {
				report(done, total)
			}
		}
		if time.Since(since) > patience {
			return nil, stuck(name, note)
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

func stuck(name, note string) error {
	e := &stuckError{file: name, host: "an unknown host"}
	var ignored int64
	_, _ = fmt.Sscan(note, &e.pid, &ignored, &ignored, &ignored, &e.host)
	return e
}

// tryLock returns an error for which isHeld is true when somebody has the lock, and another when there can be no locks here.
func (s *Store) tryLock(name string) (*lock, error) {
	for {
		f, err := s.create(name, 0)
		if err != nil {
			return nil, err
		}
		err = flock(f, syscall.LOCK_EX)
		if err == nil && s.isAt(f, name) {
			l := &lock{store: s, name: name, file: f, beats: rand.Int64N(1 << 40)}
			l.note(0, 0)
			return l, nil
		}
		f.Close()
		if err != nil {
			if !isHeld(err) {
				s.noLocks(err)
			}
			return nil, err
		}
		// Its last holder removed the file before we had it.
	}
}

func (s *Store) noLocks(err error) {
	s.lockless.Do(func() {
		s.cfg.Log.Warn("module store cannot be locked: do not share it between processes, and nothing is collected", "dir", s.dir, "err", err)
	})
}

// isAt reports that an open file is still the one of that name.
func (s *Store) isAt(f *os.File, name string) bool {
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := s.root.Lstat(name)
	return err == nil && os.SameFile(mine, there)
}

func (l *lock) unlock() {
	if l == nil {
		return
	}
	_ = l.store.root.Remove(l.name) // while nobody else can have it
	l.file.Close()
}

// note writes a sign of life. That it fails costs those who wait their patience only.
func (l *lock) note(done, total int64) {
	l.beats++
	host, _ := os.Hostname() // in a pod its name, where every process is number 1
	_, _ = fmt.Fprintf(&atStart{l.file}, "%10d %20d %20d %20d %.200s\n", os.Getpid(), l.beats, done, total, host)
}

type atStart struct{ f *os.File }

func (w *atStart) Write(p []byte) (int, error) { return w.f.WriteAt(p, 0) }

func (s *Store) lockNote(name string) (note string, done, total int64) {
	data, err := s.root.ReadFile(name)
	if err != nil || len(data) > 1<<10 {
		return "", 0, 0
	}
	var pid, beats int64
	_, _ = fmt.Sscan(string(data), &pid, &beats, &done, &total)
	return string(data), done, total
}

// live shows that the holder is alive, and how far it is, until stop is called.
func (l *lock) live(report func(done, total int64)) (told func(done, total int64), stop func()) {
	if l == nil {
		return report, func() {}
	}
	var done, total atomic.Int64
	ended := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(beatEvery)
		defer tick.Stop()
		for {
			select {
			case <-ended:
				return
			case <-tick.C:
				l.note(done.Load(), total.Load())
			}
		}
	})
	told = func(d, t int64) {
		done.Store(d)
		total.Store(t)
		report(d, t)
	}
	return told, func() {
		close(ended)
		wg.Wait()
	}
}

// sweepLocks removes the files of locks that nobody has: those of processes that were killed.
func (s *Store) sweepLocks() {
	for _, name := range s.names(lockDir) {
		if l, err := s.tryLock(path.Join(lockDir, name)); err == nil {
			l.unlock()
		}
	}
}
