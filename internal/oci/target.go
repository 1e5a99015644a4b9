package oci

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"syscall"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/gateway-agent/gateway-agent/internal/oci/credential"
	"github.com/gateway-agent/gateway-agent/internal/oci/registries"
	"github.com/gateway-agent/gateway-agent/internal/oci/safehttp"
)

// target is one endpoint as one caller uses it.
type target struct {
	client   *Client
	endpoint registries.Endpoint
	id       string
	secret   []byte
	base     http.RoundTripper // without credentials
	session  *session          // shared with other targets of this caller here

	turn  chan struct{} // capacity 1: its holder asks for the credentials
	found *authn.AuthConfig
}

func targetID(e registries.Endpoint) string {
	return fmt.Sprintf("%s|%s|%s|%s|%t|%t|%s", e.Host, e.Key, e.Repository, e.Path, e.Plain, e.SkipVerify, e.Namespace)
}

func (c *Client) target(e registries.Endpoint, actions string, secret []byte) *target {
	connection := connectionTo(e)
	connection.Led = c.settingsOf
	base := c.cfg.HTTP.Endpoint(connection)
	id := targetID(e)
	caller := fmt.Sprintf("%s|%s|%x", id, actions, sha256.Sum256(secret))
	s := newSession("repository:" + e.Repository + ":" + actions)
	if before, ok, _ := c.sessions.PeekOrAdd(caller, s); ok {
		s = before
		c.sessions.Get(caller) // it is in use
	}
	return &target{client: c, endpoint: e, id: id, secret: secret, base: base, session: s, turn: make(chan struct{}, 1)}
}

func connectionTo(e registries.Endpoint) safehttp.Endpoint {
	return safehttp.Endpoint{
		Host: e.Host, Plain: e.Plain, SkipVerify: e.SkipVerify, RootCAs: e.RootCAs, Certificates: e.Certificates, Key: e.Key,
	}
}

// settingsOf returns what the operator says of a host that a registry leads to: a token server, or where it keeps its blobs.
func (c *Client) settingsOf(host string) (safehttp.Endpoint, bool) {
	endpoints, err := c.cfg.Registries.Endpoints(host, "led", true)
	if err != nil {
		return safehttp.Endpoint{}, false
	}
	for _, e := range endpoints {
		says := e.Plain || e.SkipVerify || e.RootCAs != nil || len(e.Certificates) > 0
		if !e.Mirror && says && strings.EqualFold(e.Host, host) {
			return connectionTo(e), true
		}
	}
	return safehttp.Endpoint{}, false
}

// credentials looks for this endpoint's host in the pull secret first, then asks for this machine's; once.
func (t *target) credentials(ctx context.Context) (authn.AuthConfig, error) {
	select {
	case t.turn <- struct{}{}:
		defer func() { <-t.turn }()
	case <-ctx.Done():
		return authn.AuthConfig{}, context.Cause(ctx)
	}
	if t.found != nil {
		return *t.found, nil
	}
	auth, ok, err := authn.AuthConfig{}, false, error(nil)
	if len(t.secret) > 0 {
		auth, ok, err = credential.FromSecret(t.secret, t.endpoint.Host, t.endpoint.Repository)
	}
	if !ok && err == nil {
		auth, err = t.client.cfg.Credentials.Resolve(ctx, t.endpoint.Host, t.endpoint.Repository)
	}
	if err != nil {
		return authn.AuthConfig{}, fmt.Errorf("find credentials for %s: %w", t.endpoint.Host, err)
	}
	t.found = &auth
	return auth, nil
}

// do sends a request for what is in the repository and wants one of the codes.
func (t *target) do(ctx context.Context, method, what string, header http.Header, codes ...int) (*http.Response, error) {
	resp, err := t.send(ctx, method, t.scheme(), what, header)
	if err != nil && t.maybePlain() && notTLS(err) {
		resp, err = t.sendPlain(ctx, method, what, header, err)
	}
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusBadRequest {
		t.client.plain.Remove(t.endpoint.Host) // this is what https servers answer to plain HTTP
	}
	if err := transport.CheckError(resp, codes...); err != nil {
		resp.Body.Close()
		return nil, err
	}
	return resp, nil
}

// sendPlain tries whether the server, on this machine, speaks plain HTTP.
func (t *target) sendPlain(ctx context.Context, method, what string, header http.Header, secure error) (*http.Response, error) {
	resp, err := t.send(ctx, method, "http", what, header)
	if err == nil || answered(err) {
		t.client.plain.Add(t.endpoint.Host, struct{}{})
		return resp, err
	}
	if speaksPlain(secure) {
		return nil, err
	}
	return nil, secure
}

func (t *target) send(ctx context.Context, method, scheme, what string, header http.Header) (*http.Response, error) {
	u := &url.URL{Scheme: scheme, Host: t.endpoint.Host, Path: t.root() + "/" + t.endpoint.Repository + "/" + what}
	if t.endpoint.Namespace != "" {
		u.RawQuery = url.Values{"ns": {t.endpoint.Namespace}}.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return nil, broken("%s is not a usable address", safehttp.OneLine(t.endpoint.Host, 100))
	}
	req.Header = header.Clone()
	return t.client.cfg.HTTP.Do(ctx, (*authorized)(t), req)
}

func (t *target) root() string { return strings.TrimSuffix(cmp.Or(t.endpoint.Path, "/v2"), "/") }

// scheme is https unless the operator asked for plain HTTP, or a registry on this machine is known to speak nothing else.
func (t *target) scheme() string {
	if t.endpoint.Plain || t.maybePlain() && t.client.plain.Contains(t.endpoint.Host) {
		return "http"
	}
	return "https"
}

// maybePlain reports a registry on this machine, of which the operator says nothing.
func (t *target) maybePlain() bool {
	e := t.endpoint
	return safehttp.IsLoopback(e.Host) && !e.Plain && !e.SkipVerify && e.RootCAs == nil && len(e.Certificates) == 0
}

// notTLS reports an error of a server that does not speak TLS.
func notTLS(err error) bool {
	_, ok := errors.AsType[tls.RecordHeaderError](err)
	return ok || speaksPlain(err) || errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)
}

// answered reports that err comes from an HTTP answer.
func answered(err error) bool {
	_, status := errors.AsType[*safehttp.StatusError](err)
	_, refused := errors.AsType[*transport.Error](err)
	_, token := errors.AsType[*tokenError](err)
	return status || refused || token
}

// authorized is a target as a transport that proves who the caller is, to the target's own host only.
type authorized target

// RoundTrip implements http.RoundTripper.
func (a *authorized) RoundTrip(req *http.Request) (*http.Response, error) {
	t := (*target)(a)
	home := &url.URL{Scheme: req.URL.Scheme, Host: t.endpoint.Host}
	if !safehttp.SameOrigin(req.URL, home) || safehttp.Redirected(req) {
		return t.base.RoundTrip(req)
	}
	req = req.Clone(req.Context())
	maps.Copy(req.Header, t.endpoint.Header)
	value, err := t.session.authorization(req.Context(), t)
	if err != nil {
		return nil, closing(req, err)
	}
	resp, err := t.base.RoundTrip(with(req, value))
	if err != nil || resp.StatusCode != http.StatusUnauthorized {
		return resp, err
	}
	again, ok := rewind(req)
	if !ok {
		return resp, nil
	}
	value, err = t.session.answer(req.Context(), t, resp, value)
	if err != nil {
		resp.Body.Close()
		return nil, err
	}
	if value == "" {
		return resp, nil
	}
	_, _ = io.CopyN(io.Discard, resp.Body, 4<<10) // so that the connection can be used again
	resp.Body.Close()
	return t.base.RoundTrip(with(again, value))
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
	if req.Body != nil {
		req.Body.Close()
	}
	return err
}
