package safehttp

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
)

const (
	// maxPools bounds the connection pools: one for each endpoint with TLS settings of its own, and their proxied and foreign variants.
	maxPools = 128
	// idleTime is how long a connection is kept that nobody uses.
	idleTime = 30 * time.Second
)

// poolKey names a set of connections that may be shared.
type poolKey struct {
	tls      string // "" for the client's own settings
	loopback bool   // may dial loopback
	proxied  bool   // dials proxies only
}

// A pool is a set of connections, which holds the authorities and certificates that they were made with.
type pool struct {
	*http.Transport
	used atomic.Int64 // when it was last asked for, in Unix nanoseconds
}

type pools struct {
	byKey *lru.Cache[poolKey, *pool]
}

func newPools() *pools {
	cache, err := lru.NewWithEvict(maxPools, func(_ poolKey, p *pool) { p.CloseIdleConnections() })
	if err != nil {
		panic(err) // the size is a constant
	}
	return &pools{cache}
}

func (p *pools) closeIdle() {
	for _, one := range p.byKey.Values() {
		one.CloseIdleConnections()
	}
}

// get returns the pool for requests to e itself (own), or to where e led.
func (p *pools) get(cfg Config, e Endpoint, own, loopback, proxied bool) *pool {
	key := poolKey{tls: e.tlsKey(own), loopback: loopback, proxied: proxied}
	found, ok := p.byKey.Get(key)
	if !ok {
		p.sweep()
		found = &pool{Transport: newTransport(cfg, e.tlsConfig(cfg, own), loopback, proxied)}
		found.used.Store(time.Now().UnixNano())
		if before, ok, _ := p.byKey.PeekOrAdd(key, found); ok {
			found = before
		}
	}
	found.used.Store(time.Now().UnixNano())
	return found
}

// sweep forgets the pools that cannot have an idle connection any more: those of certificates that were replaced, above all. A request that
// still runs in one goes on.
func (p *pools) sweep() {
	for _, key := range p.byKey.Keys() {
		if one, ok := p.byKey.Peek(key); ok && time.Since(time.Unix(0, one.used.Load())) > 2*idleTime {
			p.byKey.Remove(key)
		}
	}
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
		IdleConnTimeout:        idleTime,
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
	t.DialTLSContext = dialProxy(dialer, cfg.RootCAs)
	return t
}
