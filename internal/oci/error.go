package oci

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

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
	// Elsewhere says that the same, tried again at once, asks another of the endpoints configured.
	Elsewhere bool
	// After is how long the server asked to wait; zero: it did not.
	After time.Duration
}

func (e *Error) Error() string {
	text := e.Err.Error()
	if e.Op != "" {
		text = e.Op + ": " + text
	}
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
		named := *e
		named.Op = op
		return &named
	}
	out := classify(anonymous, err)
	out.Op = op
	if t, ok := errors.AsType[*tokenError](err); ok {
		out.Err = &tokenError{host: t.host, err: out.Err}
	}
	return out
}

func classify(anonymous bool, err error) *Error {
	if hint, ok := untrusted(err); ok {
		return &Error{Kind: Broken, Err: strip(err), Hint: hint}
	}
	if e, ok := errors.AsType[*safehttp.StatusError](err); ok {
		kind := Temporary
		if e.Status == http.StatusTooManyRequests {
			kind = RateLimited
		}
		return &Error{Kind: kind, Err: e, After: e.After}
	}
	if e, ok := errors.AsType[*safehttp.RefusedError](err); ok {
		return &Error{Kind: Broken, Err: e}
	}
	if e, ok := errors.AsType[*transport.Error](err); ok {
		return wrapStatus(anonymous, e)
	}
	kind, hint := local(err)
	return &Error{Kind: kind, Err: strip(err), Hint: hint}
}

// What a person can do about a refusal.
const (
	hintRefused = "the registry refused the credentials"
	hintNobody  = "no credentials for this registry: give the resource a pull secret, or log in with docker login"
	hintMend    = "mend that, or give the resource a pull secret"
)

// wrapStatus is for what the registry itself says.
func wrapStatus(anonymous bool, e *transport.Error) *Error {
	out := &Error{Kind: Broken, Err: errors.New(answer(e))}
	switch e.StatusCode {
	case http.StatusNotFound, http.StatusGone:
		out.Kind, out.Hint = NotFound, "check the repository and the tag"
	case http.StatusUnauthorized, http.StatusForbidden:
		out.Kind, out.Hint = Unauthorized, hintRefused
		if anonymous {
			out.Hint = hintNobody
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
	for _, d := range e.Errors[:min(len(e.Errors), 3)] {
		text += ", " + safehttp.OneLine(string(d.Code)+": "+d.Message, 200)
	}
	return text
}

// untrusted returns the remedy for a certificate that does not hold.
func untrusted(err error) (string, bool) {
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "the server's certificate is signed by an unknown CA: add that CA to the trusted ones, or give it as ca for this host in --registry-config", true
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "the server's certificate does not fit: check the host name and its dates", true
	}
	return "", false
}

// local is for what failed on this side or on the way.
func local(err error) (Kind, string) {
	_, notTLS := errors.AsType[tls.RecordHeaderError](err)
	switch {
	case speaksPlain(err):
		return Broken, "the server speaks plain HTTP; only loopback registries may: serve it over https, or set plain-http for this host in --registry-config"
	case notTLS:
		return Broken, "the server does not speak TLS on this port"
	case strings.Contains(err.Error(), "remote error: tls: certificate required"):
		return Broken, "the server wants a client certificate: give cert and key for this host in --registry-config"
	case isCertificateAlert(err):
		return Broken, "the server refused our client certificate: check cert and key for this host in --registry-config"
	case errors.Is(err, context.DeadlineExceeded):
		return Temporary, "the server is slow or unreachable"
	}
	return Temporary, ""
}

// speaksPlain reports that a server answered to TLS in HTTP. The library notices it only where no proxy is between.
func speaksPlain(err error) bool {
	e, ok := errors.AsType[tls.RecordHeaderError](err)
	return ok && string(e.RecordHeader[:]) == "HTTP/" || errors.Is(err, http.ErrSchemeMismatch)
}

// isCertificateAlert reports that the other side refused our certificate. The alerts of crypto/tls have no exported type.
func isCertificateAlert(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "remote error" && strings.Contains(op.Err.Error(), "certificate")
}

// strip takes the URL out of an error, since it may hold a signature or a token.
func strip(err error) error {
	if ue, ok := errors.AsType[*url.Error](err); ok {
		return ue.Err
	}
	return err
}
