package fetch

import (
	"errors"
	"fmt"

	"github.com/gateway-agent/gateway-agent/internal/oci"
)

// formatError is something wrong with the bytes of a module, layer or box.
type formatError struct{ text string }

func (e *formatError) Error() string { return e.text }

func format(text string, args ...any) error { return &formatError{text: fmt.Sprintf(text, args...)} }

// limitError ends unpacking at once: what follows is not worth reading.
type limitError struct{ text string }

func (e *limitError) Error() string { return e.text }

func tooBig(text string, args ...any) error { return &limitError{text: fmt.Sprintf(text, args...)} }

func broken(op, text string, args ...any) error {
	return &oci.Error{Kind: oci.Broken, Op: op, Err: fmt.Errorf(text, args...)}
}

// writeError is a failure of the sink: a full disk, not a bad module.
type writeError struct{ err error }

func (e *writeError) Error() string { return e.err.Error() }
func (e *writeError) Unwrap() error { return e.err }

// named puts the operation in front of an error and keeps its class.
func named(op string, err error) error {
	if w, ok := errors.AsType[*writeError](err); ok {
		return fmt.Errorf("%s: store it: %w", op, w.err)
	}
	if _, ok := errors.AsType[*oci.Error](err); ok {
		return underRef(op, err)
	}
	if _, ok := errors.AsType[*formatError](err); ok {
		return broken(op, "%w", err)
	}
	if _, ok := errors.AsType[*limitError](err); ok {
		return broken(op, "%w", err)
	}
	return underRef(op, err)
}
