package oci

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"syscall"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/gateway-agent/gateway-agent/internal/oci/registries"
	"github.com/gateway-agent/gateway-agent/internal/oci/safehttp"
)

// target is one endpoint as one caller uses it.
type target struct {
	client   *Client
	endpoint registries.Endpoint
	id       string
	base     http.RoundTripper // without credentials
	session  *session          // shared with other targets of this caller here

	who *identity
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
	return &target{client: c, endpoint: e, id: id, base: base, session: s, who: newIdentity(c.cfg.Credentials, e, secret)}
}

func connectionTo(e registries.Endpoint) safehttp.Endpoint {
	return safehttp.Endpoint{
		Host: e.Host, Plain: e.Plain, SkipVerify: e.SkipVerify, RootCAs: e.RootCAs, Certificates: e.Certificates, Key: e.Key,
	}
}

// Web returns the transport for a web server. What the operator says of a registry of that name, its CA or that any certificate will do, counts
// there too; credentials are for registries. plain allows plain HTTP.
func (c *Client) Web(host string, plain bool) http.RoundTripper {
	e, _ := c.settingsOf(host)
	e.Host, e.Plain, e.Led = host, plain, c.settingsOf
	return c.cfg.HTTP.Endpoint(e)
}

// settingsOf returns what the operator says of a host that is no registry: a token server, where a registry keeps its blobs, or a web server.
func (c *Client) settingsOf(host string) (safehttp.Endpoint, bool) {
	for _, byDigest := range []bool{true, false} { // it may be configured for one only
		endpoints, err := c.cfg.Registries.Endpoints(host, "led", byDigest)
		if err != nil {
			continue
		}
		for _, e := range endpoints {
			says := e.Plain || e.SkipVerify || e.RootCAs != nil || len(e.Certificates) > 0
			if !e.Mirror && says && strings.EqualFold(e.Host, host) {
				return connectionTo(e), true
			}
		}
	}
	return safehttp.Endpoint{}, false
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
	if _, ok := errors.AsType[tls.RecordHeaderError](secure); ok || speaksPlain(secure) {
		return nil, err // whatever it speaks, it is not TLS
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
