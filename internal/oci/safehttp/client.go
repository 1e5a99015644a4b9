// Package safehttp makes HTTP requests to addresses that somebody else chose: a module's URL, a registry's redirect, a token
// realm. It refuses addresses that no such request may reach, never falls back to plain HTTP, keeps credentials from other
// hosts, and ends bodies that stall.
package safehttp

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const maxRedirects = 10

// Config says how to connect. The zero value is usable.
type Config struct {
	// RootCAs are trusted for https. Default: the system's.
	RootCAs *x509.CertPool
	// ConnectTimeout bounds the dial and the TLS handshake, each. Default 10 s.
	ConnectTimeout time.Duration
	// HeaderTimeout bounds the wait for response headers. Default 30 s.
	HeaderTimeout time.Duration
	// StallTime is the window in which a body, of a response or of a request, must bring StallBytes. Default 30 s.
	StallTime time.Duration
	// StallBytes is the least that a body must bring in each StallTime. Default 64 KiB.
	StallBytes int64
	// Proxy returns the proxy for a URL; nil, nil: none. The operator chose it, so its own address may be any. Default: no proxies.
	Proxy func(*url.URL) (*url.URL, error)
	// UserAgent is sent with each request. Default "gateway-agent".
	UserAgent string
}

// Client holds the connections. It is safe for concurrent use.
type Client struct {
	cfg   Config
	pools *pools
}

// New returns a client; it connects to nothing yet.
func New(cfg Config) *Client {
	cfg.ConnectTimeout = cmp.Or(cfg.ConnectTimeout, 10*time.Second)
	cfg.HeaderTimeout = cmp.Or(cfg.HeaderTimeout, 30*time.Second)
	cfg.StallTime = cmp.Or(cfg.StallTime, 30*time.Second)
	cfg.StallBytes = cmp.Or(cfg.StallBytes, 64<<10)
	cfg.UserAgent = cmp.Or(cfg.UserAgent, "gateway-agent")
	return &Client{cfg: cfg, pools: newPools()}
}

// CloseIdleConnections closes what no request uses.
func (c *Client) CloseIdleConnections() { c.pools.closeIdle() }

// Transport returns the transport for requests that begin at host, a name or address with an optional port, with the client's own
// settings. Plain HTTP is refused unless plain is true or both ends are loopback.
func (c *Client) Transport(host string, plain bool) http.RoundTripper {
	return c.Endpoint(Endpoint{Host: host, Plain: plain})
}

// Endpoint returns the transport for requests that begin at e. Where such a request is led elsewhere by a redirect or a token
// realm, that host may not be loopback unless e is, gets no credentials and no client certificate, and must have a certificate. Bodies
// of requests and responses that stall fail. Responses that ask to come back later (408, 425, 429, 5xx) are a *StatusError.
func (c *Client) Endpoint(e Endpoint) http.RoundTripper {
	return &tripper{client: c, endpoint: e, local: IsLoopback(e.Host)}
}

// Do sends req through rt, a transport made by Transport or Endpoint or one that wraps it, and follows redirects.
func (c *Client) Do(ctx context.Context, rt http.RoundTripper, req *http.Request) (*http.Response, error) {
	client := http.Client{Transport: rt, CheckRedirect: checkRedirect}
	resp, err := client.Do(req.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", req.Method, Redact(req.URL), cause(ctx, bare(err)))
	}
	return resp, nil
}

func checkRedirect(_ *http.Request, via []*http.Request) error {
	if len(via) >= maxRedirects {
		return &RefusedError{What: fmt.Sprintf("more than %d redirects", maxRedirects), Remedy: "check where the server redirects"}
	}
	return nil
}

// Redact returns u for people: without password and query, which may hold tokens.
func Redact(u *url.URL) string {
	short := *u
	short.User, short.Fragment = nil, ""
	if short.RawQuery != "" {
		short.RawQuery = "…"
	}
	return short.String()
}

// RedactRaw shortens what was to be a URL or a reference and could not be parsed as one, for error texts: whatever may be a password or a
// token is left out.
func RedactRaw(raw string) string {
	if u, err := url.Parse(raw); err == nil && u.Host != "" {
		return OneLine(Redact(u), 200)
	}
	raw, _, query := strings.Cut(raw, "?")
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		scheme, rest = "", raw
	} else {
		scheme += "://"
	}
	digest := ""
	if i := strings.LastIndex(rest, "@sha"); i >= 0 {
		rest, digest = rest[:i], rest[i:]
	}
	if i := strings.LastIndex(rest, "@"); i >= 0 {
		rest = "…" + rest[i:]
	}
	if query {
		digest += "?…"
	}
	return OneLine(scheme+rest+digest, 200)
}

// bare strips the URL that http.Client puts around an error: it may hold a signature or token.
func bare(err error) error {
	if ue, ok := err.(*url.Error); ok { //nolint:errorlint // only the outermost
		return ue.Err
	}
	return err
}
