package ca

import (
	"cmp"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/gateway-agent/gateway-agent/internal/testca"
	"github.com/gateway-agent/gateway-agent/internal/upstream"
	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

const id = "spiffe://cluster.local/ns/ingress/sa/gw"

// rig is a fake authority on a real port, and the files with which it is reached.
type rig struct {
	*xdstest.CA
	cfg         Config
	token, root string // files
}

func newRig(t *testing.T, cfg xdstest.CAConfig) *rig {
	t.Helper()
	cfg.ID = id
	r := &rig{CA: xdstest.NewCA(t, cfg)}
	dir := t.TempDir()
	r.token, r.root = filepath.Join(dir, "token"), filepath.Join(dir, "root.pem")
	write(t, r.token, []byte("good\n"))
	write(t, r.root, r.Signer().Root().PEM)
	r.cfg = Config{Upstream: upstream.Config{
		Address: r.Listen(t), ServerName: "istiod.istio-system.svc", Roots: upstream.RootsFile(r.root), Token: upstream.TokenFile(r.token, true),
		Header: map[string]string{"ClusterID": "Kubernetes"},
	}}
	return r
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func request(t *testing.T) []byte {
	t.Helper()
	uri, err := url.Parse(id)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{URIs: []*url.URL{uri}}, testca.NewKey(t, testca.P256))
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func (r *rig) sign(t *testing.T, own *tls.Certificate) ([]string, error) {
	t.Helper()
	c, err := New(r.cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c.Sign(t.Context(), request(t), 24*time.Hour, own)
}

func (r *rig) last(t *testing.T) xdstest.CARequest {
	t.Helper()
	all := r.Requests()
	if len(all) == 0 {
		t.Fatal("no request came")
	}
	return all[len(all)-1]
}

func (r *rig) pair(t *testing.T, ca *testca.CA) *tls.Certificate {
	t.Helper()
	p := ca.Issue(t, testca.Leaf{Hosts: []string{id}})
	pair, err := tls.X509KeyPair(p.CertPEM, p.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	return &pair
}

func TestSignWithToken(t *testing.T) {
	r := newRig(t, xdstest.CAConfig{Tokens: []string{"good"}, CertSigner: "signer.example/gw", Header: map[string]string{"clusterid": "Kubernetes", "x-mesh": "m"}})
	r.cfg.CertSigner = "signer.example/gw"
	r.cfg.Upstream.Header["x-mesh"] = "m"
	chain, err := r.sign(t, r.pair(t, testca.New(t, "unknown to the authority")))
	if err != nil || len(chain) != 2 {
		t.Fatalf("Sign: %d texts, %v", len(chain), err)
	}
	if got := r.last(t); got.Token != "good" || got.Peer != "" || got.Life != 24*time.Hour {
		t.Errorf("request: token %q, peer %q, life %v: want the token only", got.Token, got.Peer, got.Life)
	}
}

func TestTokenAndRootAreReadEachTime(t *testing.T) {
	r := newRig(t, xdstest.CAConfig{Tokens: []string{"good"}})
	if _, err := r.sign(t, nil); err != nil {
		t.Fatal(err)
	}
	r.Accept("next")
	next := testca.New(t, "next")
	r.SignWith(next)
	if _, err := r.sign(t, nil); err == nil || !strings.Contains(err.Error(), "correct the root file") {
		t.Errorf("with the old root: %v", err)
	}
	write(t, r.root, next.PEM)
	if _, err := r.sign(t, nil); err == nil || !strings.Contains(err.Error(), "is the token fresh") {
		t.Errorf("with the old token: %v", err)
	}
	write(t, r.token, []byte("next"))
	if _, err := r.sign(t, nil); err != nil {
		t.Errorf("with new files: %v", err)
	}
}

// Without a good token the own certificate proves who asks; what the authority does not know is shown to it only then.
func TestSignWithCertificate(t *testing.T) {
	for name, tc := range map[string]struct {
		token      string // "": no file
		own        bool   // one of the authority's
		configured bool   // one of the authority's
		good       bool
		requests   int    // that came: one whose certificate the authority does not know comes without it
		stranger   string // name of the CA of what the authority does not know
	}{
		"no token":                     {own: true, good: true, requests: 1},
		"stale token":                  {token: "stale", own: true, good: true, requests: 2},
		"own unknown, configured good": {configured: true, good: true, requests: 2},
		"neither good":                 {token: "stale", requests: 3},
		// A certificate of an earlier root of the same name is shown, and ends the handshake.
		"own of an earlier root, configured good": {configured: true, good: true, requests: 1, stranger: "root"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, xdstest.CAConfig{Tokens: []string{"good"}})
			write(t, r.token, []byte(tc.token))
			stranger := testca.New(t, cmp.Or(tc.stranger, "stranger"))
			pair := func(good bool) *tls.Certificate {
				if good {
					return r.pair(t, r.Signer())
				}
				return r.pair(t, stranger)
			}
			configured := pair(tc.configured)
			r.cfg.Upstream.Certificate = func() (*tls.Certificate, error) { return configured, nil }
			chain, err := r.sign(t, pair(tc.own))
			if (err == nil) != tc.good || tc.good && len(chain) != 2 {
				t.Fatalf("Sign: %d texts, %v", len(chain), err)
			}
			if got := r.Requests(); len(got) != tc.requests {
				t.Errorf("%d requests came, want %d", len(got), tc.requests)
			}
			if got := r.last(t); tc.good && (got.Peer != id || got.Token != "") {
				t.Errorf("request: token %q, peer %q: want the certificate only", got.Token, got.Peer)
			}
			if !tc.good && !strings.Contains(err.Error(), "with the configured certificate") {
				t.Errorf("Sign: %v, want every way named", err)
			}
		})
	}
}

// What is not about who asks is not asked again in another way: an authority that is overloaded has enough to do.
func TestAwayIsAskedOnce(t *testing.T) {
	r := newRig(t, xdstest.CAConfig{Tokens: []string{"good"}})
	r.Refuse(status.Error(codes.Unavailable, "overloaded"))
	if _, err := r.sign(t, r.pair(t, r.Signer())); err == nil || strings.Contains(err.Error(), "own certificate") {
		t.Errorf("Sign: %v; want the refusal of the token's request only", err)
	}
	if n := len(r.Requests()); n != 1 {
		t.Errorf("%d requests came, want 1", n)
	}
}

func TestErrors(t *testing.T) {
	r := newRig(t, xdstest.CAConfig{Tokens: []string{"good"}})
	r.cfg.Timeout = 300 * time.Millisecond
	for name, tc := range map[string]struct {
		set  func()
		code codes.Code
		want []string
	}{
		"refused":    {func() { r.Refuse(status.Error(codes.PermissionDenied, "not\nyours")) }, codes.PermissionDenied, []string{"not yours", r.cfg.Upstream.Address}},
		"long":       {func() { r.Refuse(status.Error(codes.Internal, strings.Repeat("x", 9000)+"END")) }, codes.Internal, []string{"xxx…"}},
		"a key":      {func() { r.Refuse(status.Error(codes.Internal, "bad\n-----BEGIN PRIVATE KEY-----\nMIG2\n")) }, codes.Internal, []string{"Internal: bad"}},
		"empty text": {func() { r.Refuse(status.Error(codes.Internal, "")) }, codes.Internal, []string{"no reason given"}},
		"slow":       {func() { r.Delay(time.Minute) }, codes.DeadlineExceeded, []string{"no answer within 300ms"}},
		"huge": {func() {
			r.Mangle(func([]string) []string { return []string{strings.Repeat("x", 2<<20)} })
		}, codes.ResourceExhausted, []string{"larger than max"}},
	} {
		r.Refuse(nil)
		r.Delay(0)
		r.Mangle(nil)
		tc.set()
		_, err := r.sign(t, nil)
		if e, ok := errors.AsType[*Error](err); !ok || e.Code != tc.code {
			t.Errorf("%s: %v, want %v", name, err, tc.code)
			continue
		}
		for _, want := range append(tc.want, "certificate authority") {
			if !strings.Contains(err.Error(), want) || len(err.Error()) > 800 {
				t.Errorf("%s: %v, want %q", name, err, want)
			}
		}
		if strings.Contains(err.Error(), "good") || strings.Contains(err.Error(), "MIG2") {
			t.Errorf("%s: the error holds the token or a key: %v", name, err)
		}
	}
}

// Lifetimes that the protocol, which counts seconds, or the authority cannot have.
func TestOddLifetimes(t *testing.T) {
	r := newRig(t, xdstest.CAConfig{Tokens: []string{"good"}})
	c, err := New(r.cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ life, want time.Duration }{{time.Nanosecond, time.Second}, {1500 * time.Millisecond, 2 * time.Second}, {time.Hour, time.Hour}} {
		if _, err := c.Sign(t.Context(), request(t), tc.life, nil); err != nil || r.last(t).Life != tc.want {
			t.Errorf("a life of %v: %v, asked for %v, want %v", tc.life, err, r.last(t).Life, tc.want)
		}
	}
	if _, err := c.Sign(t.Context(), request(t), 10000*time.Hour, nil); err == nil || !strings.Contains(err.Error(), "SECRET_TTL") {
		t.Errorf("a life longer than the authority grants: %v, want the setting named", err)
	}
}

func TestNobodyAndNothingThere(t *testing.T) {
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead.Close()
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(other) }()
	t.Cleanup(func() { server.Stop(); <-done })
	for name, tc := range map[string]struct {
		address string
		want    string
	}{
		"nobody":          {dead.Addr().String(), "connection refused"},
		"another service": {other.Addr().String(), "nothing at this address serves"},
	} {
		r := &rig{cfg: Config{Upstream: upstream.Config{Address: tc.address, Plaintext: true}}}
		if _, err := r.sign(t, nil); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
	r := &rig{cfg: Config{Upstream: upstream.Config{Address: other.Addr().String(), Token: upstream.TokenFile("/does/not/exist", false)}}}
	if _, err := r.sign(t, nil); err == nil || !strings.Contains(err.Error(), "/does/not/exist") {
		t.Errorf("unreadable token: %v, want the file named", err)
	}
}

func TestNewRefuses(t *testing.T) {
	for name, cfg := range map[string]Config{
		"no port": {Upstream: upstream.Config{Address: "istiod"}},
		"timeout": {Upstream: upstream.Config{Address: "istiod:15012"}, Timeout: -1},
	} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: New: no error", name)
		}
	}
}
