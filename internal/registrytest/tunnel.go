package registrytest

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"sync"
	"testing"
)

// Tunnel is a forward proxy, as HTTPS_PROXY names one: it connects names that only it knows to addresses on loopback.
type Tunnel struct {
	// URL is its own; set its User to send credentials.
	URL *url.URL
	// Refuse answers every request with this status, when it is not 0.
	Refuse int

	hosts map[string]string
	mu    sync.Mutex
	seen  []string
}

// NewTunnel starts a forward proxy that ends with the test. hosts are the real addresses by "name:port".
func NewTunnel(t testing.TB, hosts map[string]string) *Tunnel {
	t.Helper()
	tunnel := &Tunnel{hosts: hosts}
	server := httptest.NewServer(tunnel)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	tunnel.URL = &url.URL{Scheme: "http", Host: server.Listener.Addr().String()}
	return tunnel
}

// NewTLSTunnel is NewTunnel with an https URL.
func NewTLSTunnel(t testing.TB, config *tls.Config, hosts map[string]string) *Tunnel {
	t.Helper()
	tunnel := &Tunnel{hosts: hosts}
	server := httptest.NewUnstartedServer(tunnel)
	server.TLS, server.Config.ErrorLog = config, log.New(io.Discard, "", 0) // refused handshakes
	server.StartTLS()
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	tunnel.URL = &url.URL{Scheme: "https", Host: server.Listener.Addr().String()}
	return tunnel
}

// Proxy sends everything through the tunnel.
func (t *Tunnel) Proxy(*url.URL) (*url.URL, error) { return t.URL, nil }

// Requests returns what came, as "CONNECT name:port" or "GET http://name/path", with " as user:password" behind it for credentials.
func (t *Tunnel) Requests() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.seen)
}

// ServeHTTP implements http.Handler.
func (t *Tunnel) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	note := r.Method + " " + r.RequestURI
	as := http.Request{Header: http.Header{"Authorization": r.Header["Proxy-Authorization"]}}
	if user, password, ok := as.BasicAuth(); ok {
		note += " as " + user + ":" + password
	}
	t.mu.Lock()
	t.seen = append(t.seen, note)
	t.mu.Unlock()
	host := r.Host
	if _, _, err := net.SplitHostPort(host); err != nil {
		host += ":80"
	}
	switch address, ok := t.hosts[host]; {
	case t.Refuse != 0:
		w.WriteHeader(t.Refuse)
	case !ok:
		w.WriteHeader(http.StatusBadGateway)
	case r.Method == http.MethodConnect:
		t.connect(r.Context(), w, address)
	default:
		t.forward(w, r, address)
	}
}

func (t *Tunnel) forward(w http.ResponseWriter, r *http.Request, address string) {
	out := r.Clone(r.Context())
	out.RequestURI, out.URL.Host = "", address
	resp, err := http.DefaultTransport.RoundTrip(out)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer resp.Body.Close()
	maps.Copy(w.Header(), resp.Header)
	w.WriteHeader(resp.StatusCode)
	_, _ = io.Copy(w, resp.Body)
}

func (t *Tunnel) connect(ctx context.Context, w http.ResponseWriter, address string) {
	server, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer server.Close()
	w.WriteHeader(http.StatusOK)
	client, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer client.Close()
	var both sync.WaitGroup
	both.Go(func() { _, _ = io.Copy(server, buffered); server.Close() })
	both.Go(func() { _, _ = io.Copy(client, server); client.Close() })
	both.Wait()
}
