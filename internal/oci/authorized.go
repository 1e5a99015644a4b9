package oci

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"net/url"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/gateway-agent/gateway-agent/internal/oci/safehttp"
)

// authorized is a target as a transport that proves who the caller is, to the target's own host only.
type authorized target

// maxProofs is how many times a caller that was refused tries to prove itself better: with a new token, then with new credentials.
const maxProofs = 2

// RoundTrip implements http.RoundTripper. What the registry refuses although it was thought to be good is asked for again.
func (a *authorized) RoundTrip(req *http.Request) (*http.Response, error) {
	t := (*target)(a)
	home := &url.URL{Scheme: req.URL.Scheme, Host: t.endpoint.Host}
	if !safehttp.SameOrigin(req.URL, home) || safehttp.Redirected(req) {
		return t.base.RoundTrip(req)
	}
	req = req.Clone(req.Context())
	maps.Copy(req.Header, t.endpoint.Header)
	for tries := 0; ; tries++ {
		kept := t.session.current()
		_, times := t.who.now()
		resp, used, err := t.prove(req)
		if tries == maxProofs || !refused(resp, err) {
			return resp, err
		}
		outdated := used != "" && used == kept
		if !outdated && !t.who.renew(req.Context(), times) {
			return resp, err
		}
		again, ok := rewind(req)
		if !ok {
			return resp, err
		}
		t.session.drop(used)
		discard(resp)
		req = again
	}
}

// prove sends req, answers the challenge of a registry that wants to know who asks, and returns how it did that.
func (t *target) prove(req *http.Request) (*http.Response, string, error) {
	value, err := t.session.authorization(req.Context(), t)
	if err != nil {
		return nil, "", closing(req, err)
	}
	resp, err := t.base.RoundTrip(with(req, value))
	if err != nil || resp.StatusCode != http.StatusUnauthorized {
		return resp, value, err
	}
	answer, err := t.session.answer(req.Context(), t, resp, value)
	if err != nil {
		resp.Body.Close()
		return nil, value, err
	}
	again, ok := rewind(req)
	if answer == "" || !ok {
		return resp, value, closing(again, nil)
	}
	discard(resp)
	resp, err = t.base.RoundTrip(with(again, answer))
	return resp, answer, err
}

// refused reports that the registry, or its token server, does not take who asks.
func refused(resp *http.Response, err error) bool {
	status := 0
	if e, ok := errors.AsType[*transport.Error](err); ok {
		status = e.StatusCode
	} else if err == nil {
		status = resp.StatusCode
	}
	return status == http.StatusUnauthorized || status == http.StatusForbidden
}

// discard closes an answer so that its connection can be used again.
func discard(resp *http.Response) {
	if resp == nil {
		return
	}
	_, _ = io.CopyN(io.Discard, resp.Body, 4<<10)
	resp.Body.Close()
}

func with(req *http.Request, authorization string) *http.Request {
	if authorization == "" {
		return req
	}
	out := req.Clone(req.Context())
	out.Header.Set("Authorization", authorization)
	return out
}

// rewind returns req with its body at the beginning, if that can be had.
func rewind(req *http.Request) (*http.Request, bool) {
	if req.Body == nil || req.Body == http.NoBody {
		return req, true
	}
	if req.GetBody == nil {
		return nil, false
	}
	body, err := req.GetBody()
	if err != nil {
		return nil, false
	}
	again := req.Clone(req.Context())
	again.Body = body
	return again, true
}

func closing(req *http.Request, err error) error {
	if req != nil && req.Body != nil {
		req.Body.Close()
	}
	return err
}
