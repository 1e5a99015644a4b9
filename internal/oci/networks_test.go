package oci

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gateway-agent/gateway-agent/internal/oci/registries"
	"github.com/gateway-agent/gateway-agent/internal/oci/safehttp"
	"github.com/gateway-agent/gateway-agent/internal/registrytest"
	"github.com/gateway-agent/gateway-agent/internal/testca"
)

func TestEndpointTLS(t *testing.T) {
	r := registrytest.New(t)
	digest := r.Push(t, "tls", "v1", registrytest.WasmToOCI([]byte("module")))
	front := registrytest.NewProxy(t, r.Addr)
	ca, other := testca.New(t, "ours"), testca.New(t, "theirs")
	host := serveTLS(t, ca, front, nil, "127.0.0.1")
	stranger := serveTLS(t, ca, front, nil, "elsewhere.test")
	mutual := serveTLS(t, ca, front, func(c *tls.Config) { c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, roots(ca) }, "127.0.0.1")
	tests := []struct {
		name     string
		endpoint registries.Endpoint
		text     string // of the error
	}{
		{"CA", registries.Endpoint{Host: host, RootCAs: roots(ca)}, ""},
		{"skip-verify", registries.Endpoint{Host: host, SkipVerify: true}, ""},
		{"skip-verify of another name", registries.Endpoint{Host: stranger, SkipVerify: true}, ""},
		{"client certificate", registries.Endpoint{Host: mutual, RootCAs: roots(ca), Certificates: clientCertificate(t, ca)}, ""},
		{"nothing", registries.Endpoint{Host: host}, "unknown CA: add that CA to the trusted ones, or give it as ca for this host in --registry-config"},
		{"other CA", registries.Endpoint{Host: host, RootCAs: roots(other)}, "unknown CA"},
		{"other name", registries.Endpoint{Host: stranger, RootCAs: roots(ca)}, "does not fit: check the host name"},
		{"no client certificate", registries.Endpoint{Host: mutual, RootCAs: roots(ca)}, "wants a client certificate: give cert and key"},
		{"wrong client certificate", registries.Endpoint{Host: mutual, RootCAs: roots(ca), Certificates: clientCertificate(t, other)}, "client certificate"},
		{"plain where https is", registries.Endpoint{Host: host, Plain: true}, "400 Bad Request"},
		{"https where plain is", registries.Endpoint{Host: r.Addr, SkipVerify: true}, "speaks plain HTTP"},
		{"plain", registries.Endpoint{Host: r.Addr, Plain: true}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := safehttp.New(safehttp.Config{})
			defer h.CloseIdleConnections()
			got, err := read(t, New(Config{HTTP: h, Registries: places{tt.endpoint}}), repository(t, tt.endpoint.Host+"/tls"), nil)
			if tt.text != "" {
				wantKind(t, err, Broken, tt.text)
				return
			}
			if err != nil || got.Digest.String() != digest || got.Source != tt.endpoint.Host {
				t.Errorf("Manifest = %v from %s, %v, want %s", got.Digest, got.Source, err, digest)
			}
		})
	}
}

// One client, endpoints that differ in nothing but their TLS settings: none uses the connections of another.
func TestEndpointsDoNotShareTLS(t *testing.T) {
	ca := testca.New(t, "ours")
	host := serveTLS(t, ca, http.NotFoundHandler(), nil, "127.0.0.1")
	h := safehttp.New(safehttp.Config{})
	defer h.CloseIdleConnections()
	for _, key := range []string{"", "key of the host"} {
		_, err := read(t, New(Config{HTTP: h, Registries: places{{Host: host, SkipVerify: true, Key: key}}}), repository(t, host+"/x"), nil)
		wantKind(t, err, NotFound)
		_, err = read(t, New(Config{HTTP: h, Registries: places{{Host: host, Key: key}}}), repository(t, host+"/x"), nil)
		wantKind(t, err, Broken, "unknown CA")
	}
}

// R23: a registry that only speaks HTTP, without the operator's leave. Its name is not this machine's, so it is reached through a proxy.
func TestPlainRegistryIsRefusedAndSeesNothing(t *testing.T) {
	r := registrytest.New(t, registrytest.WithAccount())
	digest := r.Push(t, "plain", "v1", registrytest.WasmToOCI([]byte("module")))
	front := registrytest.NewProxy(t, r.Addr)
	tunnel := registrytest.NewTunnel(t, map[string]string{"registry.test:443": front.Addr, "registry.test:80": front.Addr, "registry.test:5000": front.Addr})
	h := safehttp.New(safehttp.Config{Proxy: tunnel.Proxy})
	defer h.CloseIdleConnections()
	for _, host := range []string{"registry.test", "registry.test:80", "registry.test:5000"} {
		secret := basic(host, registrytest.User, registrytest.Password)
		_, err := read(t, New(Config{HTTP: h}), repository(t, host+"/plain"), secret)
		wantKind(t, err, Broken, "the server speaks plain HTTP; only loopback registries may: serve it over https, or set plain-http for this host in --registry-config")
		if seen := front.Requests(""); len(seen) != 0 {
			t.Errorf("%s saw %+v, want nothing", host, seen)
		}
		if strings.Contains(err.Error(), registrytest.Password) {
			t.Errorf("the error quotes the password: %v", err)
		}
		got, err := read(t, New(Config{HTTP: h, Registries: places{{Host: host, Plain: true}}}), repository(t, host+"/plain"), secret)
		if err != nil || got.Digest.String() != digest {
			t.Errorf("with plain-http: %v, %v, want %s", got.Digest, err, digest)
		}
		front.Forget()
	}
}

// As WASM_INSECURE_REGISTRIES asks for: https without verification, then plain HTTP; but never plain after an answer over https.
func TestInsecureEndpoints(t *testing.T) {
	insecure := func(host string) places { return places{{Host: host, SkipVerify: true}, {Host: host, Plain: true}} }
	r := registrytest.New(t)
	digest := r.Push(t, "m", "v1", registrytest.WasmToOCI([]byte("module")))
	if got, err := read(t, New(Config{Registries: insecure(r.Addr)}), repository(t, r.Addr+"/m"), nil); err != nil || got.Digest.String() != digest {
		t.Errorf("plain registry: %v, %v, want %s", got.Digest, err, digest)
	}
	var plain atomic.Int64
	refusing := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil {
			plain.Add(1)
		}
		w.WriteHeader(http.StatusForbidden)
	})
	host := serveTLS(t, testca.New(t, "self-signed"), refusing, nil, "elsewhere.test")
	_, err := read(t, New(Config{Registries: insecure(host)}), repository(t, host+"/m"), basic(host, "u", "p"))
	wantKind(t, err, Unauthorized, "403 Forbidden")
	if strings.Contains(err.Error(), "plain") {
		t.Errorf("error = %v, want no word of plain HTTP, which was not tried", err)
	}
}

func TestThroughProxy(t *testing.T) {
	r := registrytest.New(t)
	module := []byte("module")
	digest := r.Push(t, "team/proxied", "v1", registrytest.WasmToOCI(module))
	ca := testca.New(t, "ours")
	addr := serveTLS(t, ca, registrytest.NewProxy(t, r.Addr), nil, "registry.test")
	tunnel := registrytest.NewTunnel(t, map[string]string{"registry.test:443": addr})
	h := safehttp.New(safehttp.Config{Proxy: tunnel.Proxy, RootCAs: roots(ca)})
	defer h.CloseIdleConnections()
	c, repo := New(Config{HTTP: h}), repository(t, "registry.test/team/proxied")
	got, err := read(t, c, repo, nil)
	if err != nil || got.Digest.String() != digest {
		t.Errorf("Manifest = %v, %v, want %s", got.Digest, err, digest)
	}
	if body, err := readBlob(t, c, repo, module); err != nil || body != string(module) {
		t.Errorf("Blob = %q, %v", body, err)
	}
	if seen := tunnel.Requests(); len(seen) != 1 || seen[0] != "CONNECT registry.test:443" {
		t.Errorf("the proxy saw %q, want one connection for both requests", seen)
	}
	_, err = read(t, c, repository(t, "unknown.test/x"), nil)
	wantKind(t, err, Temporary, "the proxy "+tunnel.URL.Host+" cannot connect to unknown.test:443: 502 Bad Gateway")
	tunnel.Refuse = http.StatusProxyAuthRequired
	h.CloseIdleConnections()
	_, err = read(t, c, repo, nil)
	wantKind(t, err, Broken, "the proxy "+tunnel.URL.Host+" wants credentials (407)")
}

// A mirror gets the credentials of its own host, and the registry those of its own.
func TestCredentialsStayWithTheirHost(t *testing.T) {
	var saw [2]atomic.Value
	ask := func(i int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			user, _, _ := r.BasicAuth()
			saw[i].Store(user)
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		}
	}
	mirror, origin := httptest.NewServer(ask(0)), httptest.NewServer(ask(1))
	defer mirror.Close()
	defer origin.Close()
	mirrorHost, originHost := mirror.Listener.Addr().String(), origin.Listener.Addr().String()
	c := New(Config{Registries: places{{Host: mirrorHost, Mirror: true}, {Host: originHost}}})
	repo := repository(t, originHost+"/x")
	for _, tt := range []struct{ secretFor, mirror, origin string }{{originHost, "", "me"}, {mirrorHost, "me", ""}} {
		_, err := read(t, c, repo, basic(tt.secretFor, "me", "p4ss"))
		wantKind(t, err, Unauthorized, "none of 2 places has it: mirror "+mirrorHost+": 401 Unauthorized", "; "+originHost+": 401 Unauthorized")
		if saw[0].Load() != tt.mirror || saw[1].Load() != tt.origin {
			t.Errorf("with a secret for %s the mirror saw %q and the registry %q, want %q and %q", tt.secretFor, saw[0].Load(), saw[1].Load(), tt.mirror, tt.origin)
		}
	}
}
