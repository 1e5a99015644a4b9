package wasmcache

import (
	"os"
	"syscall"
)

// dirLocks says whether other processes have the store open. A nil *dirLocks, of a store that cannot be written, never is alone.
type dirLocks struct {
	open *os.File // shared while open; exclusive only inside Open, to empty tmp
	keep *os.File // shared while open; exclusive while blobs are removed
}

func openLocks(root *os.Root) (*dirLocks, error) {
	open, err := root.OpenFile("open.lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	keep, err := root.OpenFile("keep.lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		open.Close()
		return nil, err
	}
	return &dirLocks{open: open, keep: keep}, nil
}

func flock(f *os.File, how int) error {
	for {
		err := syscall.Flock(int(f.Fd()), how)
		if err != syscall.EINTR { //nolint:errorlint // an errno
			return err
		}
	}
}

// alone reports, inside Open, that no other process has the store open.
func (l *dirLocks) alone() bool {
	return l != nil && flock(l.open, syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

// share ends alone and tells other processes that the store is open here.
func (l *dirLocks) share() {
	if l == nil {
		return
	}
	_ = flock(l.open, syscall.LOCK_SH)
	_ = flock(l.keep, syscall.LOCK_SH)
}

// exclusive runs fn while no other process has the store open; it returns false, without running it, when one has.
func (l *dirLocks) exclusive(fn func()) bool {
	if l == nil {
		return false
	}
	defer func() { _ = flock(l.keep, syscall.LOCK_SH) }()
	if flock(l.keep, syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		return false
	}
	fn()
	return true
}

func (l *dirLocks) close() {
	if l == nil {
		return
	}
	l.open.Close()
	l.keep.Close()
}
