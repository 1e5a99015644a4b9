// Package safehttp makes HTTP requests to addresses that somebody else chose: a module's URL, a registry's redirect, a token
// realm. It refuses addresses that no such request may reach, never falls back to plain HTTP, and ends bodies that stall.
package safehttp

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/netip"
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
	// StallTime is the window in which a body must bring StallBytes. Default 30 s.
	StallTime time.Duration
	// StallBytes is the least that a body must bring in each StallTime. Default 64 KiB.
	StallBytes int64
	// Proxy returns the proxy for a URL; nil, nil: none. Default: no proxies.
	Proxy func(*url.URL) (*url.URL, error)
	// UserAgent is sent with each request. Default "gateway-agent".
	UserAgent string
}

// Client holds the connections. It is safe for concurrent use.
type Client struct {
	cfg Config
	// home dials what the operator named, which may be loopback; foreign dials what a remote server named.
	home, foreign *http.Transport
}

// New returns a client; it connects to nothing yet.
func New(cfg Config) *Client {
	cfg.ConnectTimeout = cmp.Or(cfg.ConnectTimeout, 10*time.Second)
	cfg.HeaderTimeout = cmp.Or(cfg.HeaderTimeout, 30*time.Second)
	cfg.StallTime = cmp.Or(cfg.StallTime, 30*time.Second)
	cfg.StallBytes = cmp.Or(cfg.StallBytes, 64<<10)
	cfg.UserAgent = cmp.Or(cfg.UserAgent, "gateway-agent")
	return &Client{cfg: cfg, home: newTransport(cfg, true), foreign: newTransport(cfg, false)}
}

func newTransport(cfg Config, loopback bool) *http.Transport {
	dialer := &net.Dialer{Timeout: cfg.ConnectTimeout, KeepAlive: 30 * time.Second, Control: control(loopback)}
	return &http.Transport{
		DialContext:            dialer.DialContext,
		TLSClientConfig:        &tls.Config{RootCAs: cfg.RootCAs, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    cfg.ConnectTimeout,
		ResponseHeaderTimeout:  cfg.HeaderTimeout,
		MaxResponseHeaderBytes: 256 << 10,
		MaxIdleConns:           32,
		MaxIdleConnsPerHost:    8,
		IdleConnTimeout:        30 * time.Second,
		ForceAttemptHTTP2:      true,
		// The body's bytes are what a digest names: nothing may unpack them on the way.
		DisableCompression: true,
	}
}

// CloseIdleConnections closes what no request uses.
func (c *Client) CloseIdleConnections() {
	c.home.CloseIdleConnections()
	c.foreign.CloseIdleConnections()
}

// Transport returns the transport for requests that begin at host, a name or address with an optional port. Where such a
// request is led elsewhere by a redirect or a token realm, that host may not be loopback unless host is. Plain HTTP is
// refused unless plain is true or both ends are loopback.
func (c *Client) Transport(host string, plain bool) http.RoundTripper {
	return &tripper{client: c, host: host, local: IsLoopback(host), plain: plain}
}

// Do sends req through rt, a transport made by Transport or one that wraps it, and follows redirects. The response's body
// fails when it stalls. Responses that ask to come back later (408, 425, 429, 5xx) are a *StatusError.
func (c *Client) Do(ctx context.Context, rt http.RoundTripper, req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	client := http.Client{Transport: rt, CheckRedirect: checkRedirect}
	resp, err := client.Do(req.WithContext(ctx))
	if err != nil {
		defer cancel(nil)
		return nil, fmt.Errorf("%s %s: %w", req.Method, Redact(req.URL), cause(ctx, bare(err)))
	}
	resp.Body = watch(ctx, cancel, resp.Body, c.cfg.StallTime, c.cfg.StallBytes)
	return resp, nil
}

func checkRedirect(req *http.Request, via []*http.Request) error {
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

// bare strips the URL that http.Client puts around an error: it may hold a signature or token.
func bare(err error) error {
	if ue, ok := err.(*url.Error); ok { //nolint:errorlint // only the outermost
		return ue.Err
	}
	return err
}

// tripper applies the rules to one request at a time.
type tripper struct {
	client *Client
	host   string
	local  bool
	plain  bool
}

func (t *tripper) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := t.check(req); err != nil {
		return nil, err
	}
	out := req.Clone(req.Context())
	out.Header.Del("Referer")
	if ua := t.client.cfg.UserAgent; !strings.HasPrefix(out.Header.Get("User-Agent"), ua) {
		out.Header.Set("User-Agent", ua)
	}
	transport := t.client.home
	if !t.local && !sameHost(req.URL.Host, t.host) {
		transport = t.client.foreign
	}
	resp, err := transport.RoundTrip(out)
	if err != nil {
		return nil, err
	}
	if later(resp.StatusCode) {
		return nil, newStatusError(resp)
	}
	return resp, nil
}

func (t *tripper) check(req *http.Request) error {
	target := req.URL.Host
	if addr, err := netip.ParseAddr(req.URL.Hostname()); err == nil {
		// The dialer does this for every address; here it is for the reason: where it leads says more than that it is not https.
		if err := checkAddress(addr, true); err != nil {
			return err
		}
	}
	switch req.URL.Scheme {
	case "https":
	case "http":
		if !t.plain && !(t.local && IsLoopback(target)) {
			return &RefusedError{What: "plain HTTP to " + target, Remedy: "serve it over https; only loopback registries may be plain"}
		}
	default:
		return &RefusedError{What: "scheme " + req.URL.Scheme, Remedy: "only http and https are followed"}
	}
	from := req.Response
	if from == nil || from.Request == nil {
		return nil
	}
	if from.Request.URL.Scheme == "https" && req.URL.Scheme == "http" {
		return &RefusedError{What: "redirect from https to plain HTTP at " + target, Remedy: "use the final https address"}
	}
	if req.Body != nil && req.Body != http.NoBody && !sameHost(from.Request.URL.Host, target) {
		return &RefusedError{What: "redirect of a request with credentials in its body to " + target}
	}
	return nil
}

func sameHost(a, b string) bool { return strings.EqualFold(a, b) }

// IsLoopback reports whether host, with or without a port, names this machine.
func IsLoopback(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
