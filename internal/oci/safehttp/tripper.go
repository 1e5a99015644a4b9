package safehttp

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// tripper applies the rules to one request at a time.
type tripper struct {
	client   *Client
	endpoint Endpoint
	local    bool // the endpoint is on loopback
}

func (t *tripper) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.roundTrip(req)
	if err != nil && req.Body != nil {
		_ = req.Body.Close() // it may not have come to be sent
	}
	return resp, err
}

func (t *tripper) roundTrip(req *http.Request) (*http.Response, error) {
	home := SameOrigin(req.URL, &url.URL{Scheme: req.URL.Scheme, Host: t.endpoint.Host})
	endpoint, own := t.settings(req.URL.Host, home)
	if err := t.check(req, endpoint.Plain); err != nil {
		return nil, err
	}
	loopback := home || t.local
	proxy, err := t.client.proxyFor(req.URL, loopback)
	if err != nil {
		return nil, err
	}
	out := req.Clone(withProxy(req.Context(), proxy))
	t.clean(out)
	resp, err := t.client.watched(t.client.pools.get(t.client.cfg, endpoint, own, loopback, proxy != nil), out)
	if err != nil {
		if proxy != nil {
			err = fmt.Errorf("through proxy %s: %w", proxy.Host, err)
		}
		return nil, err
	}
	if proxy != nil && resp.StatusCode == http.StatusProxyAuthRequired {
		resp.Body.Close()
		return nil, proxyAnswer(out.Context(), proxy, out, resp)
	}
	if later(resp.StatusCode) {
		return nil, newStatusError(resp)
	}
	return resp, nil
}

// settings returns the endpoint whose settings count for host, and whether it is host's own.
func (t *tripper) settings(host string, home bool) (Endpoint, bool) {
	if home || t.endpoint.Led == nil {
		return t.endpoint, home
	}
	if e, ok := t.endpoint.Led(host); ok {
		e.Plain = e.Plain || t.endpoint.Plain
		return e, true
	}
	return t.endpoint, false
}

// clean takes out what another host may not see.
func (t *tripper) clean(out *http.Request) {
	out.Header.Del("Referer")
	if ua := t.client.cfg.UserAgent; !strings.HasPrefix(out.Header.Get("User-Agent"), ua) {
		out.Header.Set("User-Agent", ua)
	}
	// http.Client compares only host names, and lets subdomains have them.
	if Redirected(out) {
		for _, name := range []string{"Authorization", "Cookie", "Proxy-Authorization"} {
			out.Header.Del(name)
		}
	}
}

// Redirected reports whether req is the end of redirects that left its first host, be it to come back: such a request carries no
// credentials. Scheme and port count.
func Redirected(req *http.Request) bool {
	for from := req.Response; from != nil && from.Request != nil; from = from.Request.Response {
		if !SameOrigin(from.Request.URL, req.URL) {
			return true
		}
	}
	return false
}

// SameOrigin reports whether a and b have the same scheme, host and port.
func SameOrigin(a, b *url.URL) bool {
	return strings.EqualFold(a.Scheme, b.Scheme) && strings.EqualFold(hostPort(a.Scheme, a.Host), hostPort(b.Scheme, b.Host))
}

// hostPort returns host with its port, also where that is the scheme's own.
func hostPort(scheme, host string) string {
	u := url.URL{Host: host}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[strings.ToLower(scheme)]
	}
	return net.JoinHostPort(u.Hostname(), port)
}

func (c *Client) proxyFor(u *url.URL, loopback bool) (*url.URL, error) {
	if c.cfg.Proxy == nil {
		return nil, nil
	}
	proxy, err := c.cfg.Proxy(u)
	if err != nil {
		return nil, &RefusedError{What: "no proxy can be found for " + u.Host, Remedy: "check HTTPS_PROXY, HTTP_PROXY and NO_PROXY"}
	}
	if proxy == nil {
		return nil, nil
	}
	return proxy, checkProxied(u, loopback)
}

// maxHost is more than a name with its port may have, in bytes.
const maxHost = 300

func (t *tripper) check(req *http.Request, plain bool) error {
	target := OneLine(req.URL.Host, maxHost)
	if len(req.URL.Host) >= maxHost {
		return &RefusedError{What: "a host name longer than any: " + OneLine(req.URL.Host, 80), Remedy: "check where the server redirects"}
	}
	if addr, err := netip.ParseAddr(req.URL.Hostname()); err == nil {
		// The dialer does this for every address; here it is for the reason: where it leads says more than that it is not https.
		if err := checkAddress(addr, true); err != nil {
			return err
		}
	}
	switch req.URL.Scheme {
	case "https":
	case "http":
		if !plain && !(t.local && IsLoopback(req.URL.Host)) {
			return &RefusedError{What: "plain HTTP to " + target, Remedy: "serve it over https; only loopback registries, and those with plain-http in --registry-config, may be plain"}
		}
	default:
		return &RefusedError{What: "scheme " + OneLine(req.URL.Scheme, 40), Remedy: "only http and https are followed"}
	}
	from := req.Response
	if from == nil || from.Request == nil {
		return nil
	}
	if from.Request.URL.Scheme == "https" && req.URL.Scheme == "http" {
		return &RefusedError{What: "redirect from https to plain HTTP at " + target, Remedy: "use the final https address"}
	}
	if req.Body != nil && req.Body != http.NoBody && Redirected(req) {
		return &RefusedError{What: "redirect of a request with credentials in its body to " + target}
	}
	return nil
}

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
