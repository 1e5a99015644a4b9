package safehttp

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
)

// maxPools bounds the connection pools: one for each endpoint with TLS settings of its own, and their proxied and foreign variants.
const maxPools = 128

// Endpoint is a host with the operator's settings for it.
type Endpoint struct {
	// Host is a name or address with an optional port.
	Host string
	// Plain allows plain HTTP, there and where it leads.
	Plain bool
	// SkipVerify takes any certificate from Host, and only from it.
	SkipVerify bool
	// RootCAs are trusted for Host and for https hosts that it leads to. Default: the client's.
	RootCAs *x509.CertPool
	// Certificates are shown to Host when it asks for one, and to nobody else. Default: none.
	Certificates []tls.Certificate
	// Key is equal for endpoints that may share connections. It must differ when the settings above do. Default: they are shared
	// by endpoints of this host with the same RootCAs and as many Certificates.
	Key string
	// Led has the operator's settings for a host that Host leads to; false: none, and then those above count as they say. Such a host
	// may still not be on loopback. Default: none.
	Led func(host string) (Endpoint, bool)
}

// poolKey names a set of connections that may be shared.
type poolKey struct {
	tls      string // "" for the client's own settings
	loopback bool   // may dial loopback
	proxied  bool   // dials proxies only
}

type pools struct {
	byKey *lru.Cache[poolKey, *http.Transport]
}

func newPools() *pools {
	cache, err := lru.NewWithEvict(maxPools, func(_ poolKey, t *http.Transport) { t.CloseIdleConnections() })
	if err != nil {
		panic(err) // the size is a constant
	}
	return &pools{cache}
}

func (p *pools) closeIdle() {
	for _, t := range p.byKey.Values() {
		t.CloseIdleConnections()
	}
}

// get returns the pool for requests to e itself (own), or to where e led.
func (p *pools) get(cfg Config, e Endpoint, own, loopback, proxied bool) *http.Transport {
	key := poolKey{tls: e.tlsKey(own), loopback: loopback, proxied: proxied}
	if t, ok := p.byKey.Get(key); ok {
		return t
	}
	fresh := newTransport(cfg, e.tlsConfig(cfg, own), loopback, proxied)
	if before, ok, _ := p.byKey.PeekOrAdd(key, fresh); ok {
		return before
	}
	return fresh
}

func (e Endpoint) tlsKey(own bool) string {
	if e.RootCAs == nil && !own || e.RootCAs == nil && !e.SkipVerify && len(e.Certificates) == 0 {
		return ""
	}
	key := e.Key
	if key == "" {
		key = fmt.Sprintf("%p %d", e.RootCAs, len(e.Certificates))
	}
	return fmt.Sprintf("%s %t %t %s", e.Host, own, e.SkipVerify, key)
}

func (e Endpoint) tlsConfig(cfg Config, own bool) *tls.Config {
	out := &tls.Config{RootCAs: cfg.RootCAs, MinVersion: tls.VersionTLS12}
	if e.RootCAs != nil {
		out.RootCAs = e.RootCAs
	}
	if own {
		out.InsecureSkipVerify = e.SkipVerify
		out.Certificates = e.Certificates
	}
	return out
}

func newTransport(cfg Config, tlsConfig *tls.Config, loopback, proxied bool) *http.Transport {
	dialer := &net.Dialer{Timeout: cfg.ConnectTimeout, KeepAlive: 30 * time.Second}
	t := &http.Transport{
		DialContext:            dialer.DialContext,
		TLSClientConfig:        tlsConfig,
		TLSHandshakeTimeout:    cfg.ConnectTimeout,
		ResponseHeaderTimeout:  cfg.HeaderTimeout,
		MaxResponseHeaderBytes: 256 << 10,
		MaxIdleConns:           100,
		MaxIdleConnsPerHost:    50,
		IdleConnTimeout:        30 * time.Second,
		// HTTP/1.1, with a connection for each request: many downloads over one HTTP/2 connection are slower, and break together.
		ForceAttemptHTTP2: false,
		// The body's bytes are what a digest names: nothing may unpack them on the way.
		DisableCompression: true,
	}
	if !proxied {
		dialer.Control = control(loopback)
		return t
	}
	t.Proxy = func(req *http.Request) (*url.URL, error) {
		if proxy, ok := req.Context().Value(proxyKey{}).(*url.URL); ok {
			return proxy, nil
		}
		return nil, errors.New("no proxy for a request that needs one")
	}
	t.OnProxyConnectResponse = proxyAnswer
	return t
}

// proxyKey is under which a request carries its proxy.
type proxyKey struct{}

// proxyAnswer says what a proxy that refuses to connect says.
func proxyAnswer(_ context.Context, proxy *url.URL, req *http.Request, resp *http.Response) error {
	switch resp.StatusCode {
	case http.StatusOK:
		return nil
	case http.StatusProxyAuthRequired:
		return &RefusedError{What: "the proxy " + proxy.Host + " wants credentials (407)", Remedy: "put them into the proxy's URL, as in http://user:password@proxy:3128"}
	case http.StatusForbidden, http.StatusMethodNotAllowed:
		return &RefusedError{
			What:   fmt.Sprintf("the proxy %s does not connect to %s (%d %s)", proxy.Host, req.Host, resp.StatusCode, http.StatusText(resp.StatusCode)),
			Remedy: "allow it there, or add the host to NO_PROXY",
		}
	}
	return fmt.Errorf("the proxy %s cannot connect to %s: %d %s", proxy.Host, req.Host, resp.StatusCode, http.StatusText(resp.StatusCode))
}
