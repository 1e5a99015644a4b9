package safehttp

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gateway-agent/gateway-agent/internal/registrytest"
	"github.com/gateway-agent/gateway-agent/internal/testca"
)

func TestProxy(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch to := r.URL.Query().Get("to"); to {
		case "":
			_, _ = w.Write([]byte("hello"))
		default:
			http.Redirect(w, r, to, http.StatusFound)
		}
	}))
	defer web.Close()
	tunnel := registrytest.NewTunnel(t, map[string]string{"web.test:80": web.Listener.Addr().String()})
	tunnel.URL.User = url.UserPassword("me", "p4ss")
	c := New(Config{Proxy: tunnel.Proxy})
	defer c.CloseIdleConnections()
	rt := c.Transport("web.test", true)
	if _, err := do(t, c, rt, http.MethodGet, "http://web.test/x", ""); err != nil {
		t.Errorf("GET = %v", err)
	}
	// The guard holds for what the proxy would resolve or reach for us.
	for to, text := range map[string]string{
		"http://169.254.169.254/":                "link-local",
		"http://127.0.0.1/":                      "a loopback address that a remote server led to",
		"http://[::1]/":                          "a loopback address that a remote server led to",
		"http://localhost/":                      "through a proxy to localhost",
		"http://x.localhost./":                   "through a proxy to x.localhost",
		"http://metadata.google.internal/":       "through a proxy to metadata.google.internal",
		"http://METADATA.google.internal./x":     "through a proxy to metadata.google.internal",
		"http://2852039166/":                     "through a proxy to 2852039166",
		"http://0xa9fea9fe/":                     "through a proxy to 0xa9fea9fe",
		"http://0251.0376.0251.0376/":            "through a proxy to 0251.0376.0251.0376",
		"http://169.254.43518/":                  "through a proxy to 169.254.43518",
		"http://[64:ff9b::a9fe:a9fe]/":           "link-local",
		"http://[::ffff:169.254.169.254]/latest": "link-local",
	} {
		_, err := do(t, c, rt, http.MethodGet, "http://web.test/?to="+url.QueryEscape(to), "")
		if _, ok := errors.AsType[*RefusedError](err); !ok || !strings.Contains(err.Error(), text) {
			t.Errorf("redirect to %s = %v, want a refusal that says %q", to, err, text)
		}
	}
	for _, seen := range tunnel.Requests() {
		if !strings.HasPrefix(seen, "GET http://web.test/") || !strings.HasSuffix(seen, " as me:p4ss") {
			t.Errorf("the proxy saw %q", seen)
		}
	}
}

func TestProxyErrors(t *testing.T) {
	tunnel := registrytest.NewTunnel(t, nil)
	tunnel.URL.User = url.UserPassword("me", "p4ss")
	at := tunnel.URL.Host
	for _, tt := range []struct {
		name, url, text string
		refuse          int
		proxy           func(*url.URL) (*url.URL, error)
	}{
		{"407", "https://web.test/", "the proxy " + at + " wants credentials (407)", http.StatusProxyAuthRequired, tunnel.Proxy},
		{"407 in plain", "http://web.test/", "the proxy " + at + " wants credentials (407)", http.StatusProxyAuthRequired, tunnel.Proxy},
		{"403", "https://web.test/", "the proxy " + at + " does not connect to web.test:443 (403 Forbidden) (allow it there, or add the host to NO_PROXY)", http.StatusForbidden, tunnel.Proxy},
		{"502", "https://web.test/", "the proxy " + at + " cannot connect to web.test:443: 502 Bad Gateway", 0, tunnel.Proxy},
		{"down", "https://web.test/", "through proxy 127.0.0.1:1: proxyconnect", 0, func(*url.URL) (*url.URL, error) { return url.Parse("http://me:p4ss@127.0.0.1:1") }},
		{"unusable", "https://web.test/", "no proxy can be found for web.test (check HTTPS_PROXY", 0, func(*url.URL) (*url.URL, error) { return nil, errors.New("bad p4ss") }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tunnel.Refuse = tt.refuse
			c := New(Config{Proxy: tt.proxy})
			defer c.CloseIdleConnections()
			_, err := do(t, c, c.Transport("web.test", true), http.MethodGet, tt.url, "")
			if err == nil || !strings.Contains(err.Error(), tt.text) || strings.Contains(err.Error(), "p4ss") {
				t.Errorf("GET = %v, want an error that says %q and no password", err, tt.text)
			}
		})
	}
}

// Some hosts without a proxy, others with: both guards at once.
func TestSomeHostsThroughProxy(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) }))
	defer web.Close()
	tunnel := registrytest.NewTunnel(t, map[string]string{"web.test:80": web.Listener.Addr().String()})
	c := New(Config{Proxy: func(u *url.URL) (*url.URL, error) {
		if strings.HasSuffix(u.Hostname(), ".test") {
			return tunnel.URL, nil
		}
		return nil, nil
	}})
	defer c.CloseIdleConnections()
	for _, at := range []string{"http://web.test/", web.URL} {
		u, _ := url.Parse(at)
		if _, err := do(t, c, c.Transport(u.Host, true), http.MethodGet, at, ""); err != nil {
			t.Errorf("GET %s = %v", at, err)
		}
	}
	if seen := tunnel.Requests(); len(seen) != 1 {
		t.Errorf("the proxy saw %q, want only the .test host", seen)
	}
	_, err := do(t, c, c.Transport("web.test", true), http.MethodGet, web.URL, "")
	if _, ok := errors.AsType[*RefusedError](err); !ok {
		t.Errorf("led from there to loopback, without a proxy: %v, want a refusal", err)
	}
}

func TestCredentialsAndOrigins(t *testing.T) {
	get := func(url string, via *http.Request) *http.Request {
		req, err := http.NewRequest(http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if via != nil {
			req.Response = &http.Response{Request: via}
		}
		return req
	}
	for _, tt := range []struct {
		chain []string
		want  bool
	}{
		{[]string{"https://a.test/"}, false},
		{[]string{"https://a.test/", "https://a.test/x"}, false},
		{[]string{"https://a.test/", "https://A.test:443/x"}, false},
		{[]string{"https://a.test/", "https://a.test:8443/"}, true},
		{[]string{"https://a.test/", "http://a.test:443/"}, true},
		{[]string{"https://a.test/", "https://sub.a.test/"}, true},
		{[]string{"https://a.test/", "https://b.test/", "https://a.test/"}, true}, // b chose what is asked of a
		{[]string{"https://[::1]/", "https://[::1]:443/"}, false},
	} {
		var req *http.Request
		for _, url := range tt.chain {
			req = get(url, req)
		}
		if got := Redirected(req); got != tt.want {
			t.Errorf("Redirected(%q) = %v, want %v", tt.chain, got, tt.want)
		}
	}
}

// Pools are bounded, also when certificates rotate for ever.
func TestPoolsAreBounded(t *testing.T) {
	c := New(Config{})
	for i := range 3 * maxPools {
		e := Endpoint{Host: "registry.test", SkipVerify: true, Key: strings.Repeat("x", i)}
		c.pools.get(c.cfg, e, true, true, false)
	}
	if n := c.pools.byKey.Len(); n != maxPools {
		t.Errorf("%d pools, want %d", n, maxPools)
	}
	one, other := Endpoint{Host: "a.test", SkipVerify: true}, Endpoint{Host: "a.test", SkipVerify: true}
	if c.pools.get(c.cfg, one, true, true, false) != c.pools.get(c.cfg, other, true, true, false) {
		t.Error("equal endpoints do not share connections")
	}
	if got := c.pools.get(c.cfg, one, false, false, false); got.TLSClientConfig.InsecureSkipVerify {
		t.Error("where an unverified endpoint leads is not verified either")
	}
}

// The TLS to an https proxy has nothing of the endpoint's: its CA, its client certificate, or that its certificate may be any.
func TestTLSProxy(t *testing.T) {
	site, private := testca.New(t, "site"), testca.New(t, "registry's own")
	var asked atomic.Bool
	server := func(ca *testca.CA, host string, ask bool) *tls.Config {
		config := &tls.Config{Certificates: []tls.Certificate{issue(t, ca, testca.Leaf{Hosts: []string{host}})}}
		if ask {
			config.ClientAuth = tls.RequestClientCert
			config.VerifyPeerCertificate = func(raw [][]byte, _ [][]*x509.Certificate) error {
				asked.Store(len(raw) > 0)
				return nil
			}
		}
		return config
	}
	web := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) }))
	web.TLS = server(private, "web.test", false)
	web.StartTLS()
	defer web.Close()
	hosts := map[string]string{"web.test:443": web.Listener.Addr().String()}
	own := Endpoint{Host: "web.test", RootCAs: pool509(private), Certificates: []tls.Certificate{issue(t, private, testca.Leaf{Name: "agent"})}, Key: "own"}
	get := func(tunnel *registrytest.Tunnel, e Endpoint) error {
		c := New(Config{Proxy: tunnel.Proxy, RootCAs: pool509(site)})
		defer c.CloseIdleConnections()
		_, err := do(t, c, c.Endpoint(e), http.MethodGet, "https://web.test/", "")
		return err
	}
	good := registrytest.NewTLSTunnel(t, server(site, "127.0.0.1", true), hosts)
	if err := get(good, own); err != nil || asked.Load() {
		t.Errorf("GET = %v, the proxy saw the registry's client certificate: %v", err, asked.Load())
	}
	for name, e := range map[string]Endpoint{"signed by the registry's CA": own, "unverified registry": {Host: "web.test", SkipVerify: true, Key: "any"}} {
		err := get(registrytest.NewTLSTunnel(t, server(private, "127.0.0.1", false), hosts), e)
		if _, ok := errors.AsType[*RefusedError](err); !ok || !strings.Contains(err.Error(), "TLS to the proxy 127.0.0.1:") {
			t.Errorf("proxy %s: GET = %v, want a refusal", name, err)
		}
	}
}

func issue(t *testing.T, ca *testca.CA, leaf testca.Leaf) tls.Certificate {
	t.Helper()
	pair := ca.Issue(t, leaf)
	cert, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func pool509(ca *testca.CA) *x509.CertPool {
	all := x509.NewCertPool()
	all.AddCert(ca.Cert)
	return all
}
