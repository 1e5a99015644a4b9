package wasmcache

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"time"
)

// Error is a module that cannot be had, or not used.
type Error struct {
	// Ref is the reference for people.
	Ref string
	// Err says why and what to do.
	Err error

	permanent bool
	after     time.Duration
}

func (e *Error) Error() string { return e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// Permanent reports that trying again soon cannot help: credentials, reference or module must change.
func (e *Error) Permanent() bool { return e.permanent }

// RetryAfter is how long the server asked to wait; zero: it did not.
func (e *Error) RetryAfter() time.Duration { return e.after }

func newError(ref string, err error) *Error {
	if e, ok := err.(*Error); ok { //nolint:errorlint // one that is wrapped has text around it
		e.Ref = cmp.Or(e.Ref, ref)
		return e
	}
	e := &Error{Ref: ref, Err: err}
	if p, ok := errors.AsType[interface {
		error
		Permanent() bool
	}](err); ok {
		e.permanent = p.Permanent()
	}
	if r, ok := errors.AsType[interface {
		error
		RetryAfter() time.Duration
	}](err); ok {
		e.after = r.RetryAfter()
	}
	return e
}

func permanentError(ref, text string, args ...any) *Error {
	return &Error{Ref: ref, Err: fmt.Errorf(text, args...), permanent: true}
}

func openError(dir string, err error) error {
	return fmt.Errorf("open module store %s: %w (the agent's user must be able to read it, and to write it for pulls)", dir, err)
}

// isDisk reports that this side's disk is the problem.
func isDisk(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.EIO)
}

// diskError adds the remedy to a failed write.
func (s *Store) diskError(op string, err error) error {
	hint := ""
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		hint = "free space there; what is stored is still served"
	case errors.Is(err, syscall.EROFS), errors.Is(err, fs.ErrPermission):
		hint = "make it writable for the agent's user; what is stored is still served"
	default:
		return fmt.Errorf("%s in module store %s: %w", op, s.dir, err)
	}
	return fmt.Errorf("%s in module store %s: %w (%s)", op, s.dir, err, hint)
}
