package lockfile

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// patience is how long Update waits for another process that changes a file beside its own.
const patience = 10 * time.Second

// Update changes the file at path, so that of two processes that do so at the same time neither loses what the other wrote. change gets
// what the file says by then, nothing where there is none yet, and returns what it is to say. Update returns both.
func Update(ctx context.Context, path string, change func(now *File) (*File, error)) (before, after *File, err error) {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target // a link stays one
	}
	unlock, err := lockDir(ctx, path)
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	before, err = Read(path)
	if IsMissing(err) {
		before, err = &File{}, nil
	}
	if err != nil {
		return nil, nil, err
	}
	if after, err = change(before.Clone()); err != nil {
		return nil, nil, err
	}
	return before, after, after.Write(path)
}

// lockDir locks the directory of a file: the file itself is replaced, and a file for the lock would lie about in somebody's repository. Where
// directories cannot be locked there is no lock.
func lockDir(ctx context.Context, path string) (unlock func(), err error) {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("write lockfile: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("write lockfile: %s: another process has had its directory locked for %v: let it continue, or end it", path, patience))
	defer cancel()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err := syscall.Flock(int(dir.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err != syscall.EWOULDBLOCK && err != syscall.EINTR { //nolint:errorlint // an errno
			return func() { dir.Close() }, nil
		}
		select {
		case <-ctx.Done():
			dir.Close()
			return nil, context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}
