package oci

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/gateway-agent/gateway-agent/internal/oci/safehttp"
)

// Kind says what a caller can do about an error.
type Kind string

// The kinds of errors.
const (
	NotFound     Kind = "not_found"    // no such repository, tag or blob
	Unauthorized Kind = "unauthorized" // credentials missing or refused
	RateLimited  Kind = "rate_limited" // 429
	Temporary    Kind = "temporary"    // network, timeout, 5xx
	Broken       Kind = "broken"       // what came, or where it led, cannot be used
)

// Error is a failed request to a registry or web server.
type Error struct {
	// Kind is its class.
	Kind Kind
	// Op is the operation and its object.
	Op string
	// Err is the reason.
	Err error
	// Hint is the remedy; "" where the reason is enough.
	Hint string
	// After is how long the server asked to wait; zero: it did not.
	After time.Duration
}

func (e *Error) Error() string {
	text := e.Op + ": " + e.Err.Error()
	if e.Hint != "" {
		text += " (" + e.Hint + ")"
	}
	return text
}

func (e *Error) Unwrap() error { return e.Err }

// Permanent reports that only a change elsewhere, in the registry or the reference, can help.
func (e *Error) Permanent() bool {
	return e.Kind == NotFound || e.Kind == Unauthorized || e.Kind == Broken
}

// RetryAfter is how long the server asked to wait; zero: it did not.
func (e *Error) RetryAfter() time.Duration { return e.After }

func broken(format string, args ...any) error {
	return &Error{Kind: Broken, Err: fmt.Errorf(format, args...)}
}

// Classify names the operation of an error that came from HTTP and finds its kind.
func Classify(op string, err error) *Error { return wrap(op, false, err) }

func wrap(op string, anonymous bool, err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		if e.Op != "" {
			return e
		}
		return &Error{Kind: e.Kind, Op: op, Err: e.Err, Hint: e.Hint, After: e.After}
	}
	if hint, ok := untrusted(err); ok {
		return &Error{Kind: Broken, Op: op, Err: strip(err), Hint: hint}
	}
	if e, ok := errors.AsType[*safehttp.StatusError](err); ok {
		kind := Temporary
		if e.Status == http.StatusTooManyRequests {
			kind = RateLimited
		}
		return &Error{Kind: kind, Op: op, Err: e, After: e.After}
	}
	if e, ok := errors.AsType[*safehttp.RefusedError](err); ok {
		return &Error{Kind: Broken, Op: op, Err: e}
	}
	if e, ok := errors.AsType[*transport.Error](err); ok {
		return wrapStatus(op, anonymous, e)
	}
	kind, hint := local(err)
	return &Error{Kind: kind, Op: op, Err: strip(err), Hint: hint}
}

// wrapStatus is for what the registry itself says.
func wrapStatus(op string, anonymous bool, e *transport.Error) *Error {
	out := &Error{Kind: Broken, Op: op, Err: errors.New(answer(e))}
	switch e.StatusCode {
	case http.StatusNotFound, http.StatusGone:
		out.Kind, out.Hint = NotFound, "check the repository and the tag"
	case http.StatusUnauthorized, http.StatusForbidden:
		out.Kind, out.Hint = Unauthorized, "the registry refused the credentials"
		if anonymous {
			out.Hint = "no credentials for this registry: give the resource a pull secret, or log in with docker login"
		}
	default:
		if e.StatusCode < 400 {
			out.Hint = "this does not look like a registry"
		}
	}
	return out
}

func answer(e *transport.Error) string {
	text := fmt.Sprintf("%d %s", e.StatusCode, http.StatusText(e.StatusCode))
	for _, d := range e.Errors {
		text += ", " + safehttp.OneLine(string(d.Code)+": "+d.Message, 200)
	}
	return text
}

// handshake picks the error that matters. To a loopback or private address the library tries https and then plain HTTP, of which
// the second is refused for private ones, and may be the only one that a loopback registry speaks.
func handshake(reg name.Registry, err error) error {
	if reg.Scheme() != "http" {
		return err
	}
	if !safehttp.IsLoopback(reg.RegistryStr()) {
		return strip(err)
	}
	if _, ok := untrusted(err); !ok && errors.Is(err, http.ErrSchemeMismatch) {
		return &bothError{err}
	}
	return err
}

// bothError is a failure of https and of plain HTTP; that https is not spoken is not the reason.
type bothError struct{ err error }

func (e *bothError) Error() string { return e.err.Error() }

func (e *bothError) Is(target error) bool {
	return target != http.ErrSchemeMismatch && errors.Is(e.err, target)
}

func (e *bothError) As(target any) bool {
	if _, ok := target.(**url.Error); ok {
		return false
	}
	return errors.As(e.err, target)
}

// untrusted returns the remedy for a certificate that does not hold.
func untrusted(err error) (string, bool) {
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "the server's certificate is signed by an unknown CA: add that CA to the trusted ones", true
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "the server's certificate does not fit: check the host name and its dates", true
	}
	return "", false
}

// local is for what failed on this side or on the way.
func local(err error) (Kind, string) {
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return Broken, "the server does not speak TLS on this port"
	}
	switch {
	case errors.Is(err, http.ErrSchemeMismatch):
		return Broken, "the server speaks plain HTTP; only loopback registries may"
	case strings.Contains(err.Error(), "invalid realm in www-authenticate"):
		return Broken, "the registry names a token server that may not be asked"
	case errors.Is(err, context.DeadlineExceeded):
		return Temporary, "the server is slow or unreachable"
	}
	return Temporary, ""
}

// strip takes the URL out of an error, since it may hold a signature or a token.
func strip(err error) error {
	if ue, ok := errors.AsType[*url.Error](err); ok {
		return ue.Err
	}
	return err
}
