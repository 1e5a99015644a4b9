package sds_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gateway-agent/gateway-agent/internal/testca"
	"github.com/gateway-agent/gateway-agent/internal/upstream"
	"github.com/gateway-agent/gateway-agent/internal/xdstest"
	"github.com/gateway-agent/gateway-agent/sds"
	"github.com/gateway-agent/gateway-agent/sds/ca"
	"github.com/gateway-agent/gateway-agent/sds/identity"
)

const workload = "spiffe://cluster.local/ns/ingress/sa/gw"

// cutter is a listener whose connections can be cut.
type cutter struct {
	net.Listener
	mu    sync.Mutex
	conns []net.Conn
}

func (c *cutter) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.mu.Lock()
		c.conns = append(c.conns, conn)
		c.mu.Unlock()
	}
	return conn, err
}

// cut closes all connections and says how many there were since the last time.
func (c *cutter) cut() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.conns)
	for _, conn := range c.conns {
		conn.Close()
	}
	c.conns = nil
	return n
}

// agent is what an agent does for an Envoy's identity.
type agent struct {
	*cutter
	*identity.Workload
	secrets *sds.Server
	stop    func()
}

func startAgent(t *testing.T, r *envoyRig, cfg identity.Config) *agent {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	secrets, err := sds.New(sds.Config{Log: log})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Server, cfg.Log = secrets, log
	w, err := identity.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	_ = os.Remove(r.path("sds.sock"))
	l, err := net.Listen("unix", r.path("sds.sock"))
	if err != nil {
		t.Fatal(err)
	}
	a := &agent{cutter: &cutter{Listener: l}, Workload: w, secrets: secrets}
	server := grpc.NewServer()
	secrets.Register(server)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(a.cutter) })
	wg.Go(func() { _ = secrets.Run(ctx) })
	wg.Go(func() { _ = w.Run(ctx) })
	a.stop = sync.OnceFunc(func() { server.Stop(); cancel(); wg.Wait() })
	t.Cleanup(a.stop)
	return a
}

// authority is a fake of istiod's, on a real port, and the configuration of an identity from it.
func authority(t *testing.T, r *envoyRig, life time.Duration) (*xdstest.CA, identity.Config) {
	t.Helper()
	fake := xdstest.NewCA(t, xdstest.CAConfig{ID: workload, Tokens: []string{"token"}, Life: life})
	root := r.path("ca-root.pem")
	if err := os.WriteFile(root, fake.Signer().PEM, 0o600); err != nil {
		t.Fatal(err)
	}
	client, err := ca.New(ca.Config{Upstream: upstream.Config{
		Address: fake.Listen(t), ServerName: "istiod.istio-system.svc", Roots: upstream.RootsFile(root),
		Token: func() (string, error) { return "token", nil },
	}})
	if err != nil {
		t.Fatal(err)
	}
	return fake, identity.Config{
		Choice: identity.Choice{Source: identity.CA, Why: "test"}, Signer: client, Authority: "fake", ID: workload, RootFiles: []string{root},
		Keep: filepath.Join(r.dir, "kept", "identity.json"),
	}
}

// meshPeer is a client of the mesh: it shows a certificate, and wants one of the workload from root.
func meshPeer(t *testing.T, root *testca.CA, own testca.Pair) *tls.Config {
	t.Helper()
	config := clientFor(t, root, own)
	config.InsecureSkipVerify = true // there is no host name in it: VerifyConnection does the rest
	config.VerifyConnection = func(state tls.ConnectionState) error {
		leaf, between := state.PeerCertificates[0], x509.NewCertPool()
		for _, c := range state.PeerCertificates[1:] {
			between.AddCert(c)
		}
		if len(leaf.URIs) != 1 || leaf.URIs[0].String() != workload {
			return fmt.Errorf("the server is %v", leaf.URIs)
		}
		_, err := leaf.Verify(x509.VerifyOptions{Roots: config.RootCAs, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
		return err
	}
	return config
}

// visits makes requests over new connections until ctx ends, and counts them.
func (r *envoyRig) visits(ctx context.Context, name string, config *tls.Config) (made int, failed []error) {
	for ctx.Err() == nil {
		err := r.request(context.WithoutCancel(ctx), name, config)
		if made++; err != nil {
			failed = append(failed, fmt.Errorf("at %s: %w", time.Now().Format("05.000"), err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
	return made, failed
}

// The authority refuses for nine tenths of a certificate's life, Envoy's streams are cut twenty times, and the agent is restarted: no handshake
// fails, and a new certificate is in use before the old one ends.
func TestEnvoyIdentityOutlivesAnOutage(t *testing.T) {
	const life, cuts = 16 * time.Second, 20
	for _, api := range apis {
		t.Run(api, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			fake, cfg := authority(t, r, life)
			a := startAgent(t, r, cfg)
			r.start(t, api, r.tls("tls", identity.Certificate, identity.Roots))
			peer := meshPeer(t, fake.Signer(), fake.Signer().Issue(t, testca.Leaf{}))
			r.eventually(t, 8*time.Second, "handshake", func() error { return r.request(t.Context(), "tls", peer) })
			fake.Refuse(status.Error(codes.Unavailable, "down"))
			first := a.TLS().Leaf

			ctx, cancel := context.WithCancel(t.Context())
			var made int
			var failed []error
			var wg sync.WaitGroup
			wg.Go(func() { made, failed = r.visits(ctx, "tls", peer) })
			back := first.NotAfter.Add(-life / 10)
			step := time.Until(back) / (cuts + 1)
			for i := range cuts {
				time.Sleep(step)
				if n := a.cut(); n == 0 {
					t.Errorf("cut %d: Envoy had no connection", i)
				}
				if i == cuts/2 {
					a.stop()
					a = startAgent(t, r, cfg)
				}
			}
			time.Sleep(time.Until(back))
			if got := a.TLS(); got == nil || !got.Leaf.Equal(first) || a.Status().State != identity.StateDegraded {
				t.Errorf("the first certificate is not in use any more, or nobody knows of the outage: %+v", a.Status())
			}
			fake.Refuse(nil)
			time.Sleep(time.Until(first.NotAfter) + 500*time.Millisecond)
			cancel()
			wg.Wait()
			for _, err := range failed {
				t.Error(err)
			}
			state, err := r.handshake(t.Context(), "tls", peer)
			if err != nil || state.PeerCertificates[0].Equal(first) {
				t.Errorf("after the outage: %v, want a new certificate", err)
			}
			t.Logf("%d handshakes, %d failed", made, len(failed))
		})
	}
}

// A new root of the authority reaches Envoy while peers still have certificates of the old one.
func TestEnvoyIdentityRootRotation(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	fake, cfg := authority(t, r, 4*time.Second)
	old, next, foreign := fake.Signer(), testca.New(t, "next"), testca.New(t, "foreign")
	a := startAgent(t, r, cfg)
	r.start(t, "GRPC", r.tls("tls", identity.Certificate, identity.Roots))
	mine := old.Issue(t, testca.Leaf{})
	r.eventually(t, 8*time.Second, "handshake", func() error { return r.request(t.Context(), "tls", meshPeer(t, old, mine)) })
	guest := foreign.Issue(t, testca.Leaf{})
	if err := r.request(t.Context(), "tls", meshPeer(t, old, guest)); err == nil {
		t.Error("a peer of another mesh gets in before its root is in the bundle")
	}
	if err := a.SetTrustBundle([]string{string(foreign.PEM)}); err != nil {
		t.Fatal(err)
	}
	both := meshPeer(t, old, guest)
	both.RootCAs.AddCert(next.Cert)
	r.eventually(t, 2*time.Second, "peer of the bundle", func() error { return r.request(t.Context(), "tls", both) })

	if err := os.WriteFile(r.path("ca-root.pem"), append(old.PEM, next.PEM...), 0o600); err != nil {
		t.Fatal(err)
	}
	fake.SignWith(next)
	newer := meshPeer(t, next, next.Issue(t, testca.Leaf{}))
	r.eventually(t, 8*time.Second, "peer with the new root", func() error { return r.request(t.Context(), "tls", newer) })
	older := meshPeer(t, next, mine)
	if err := r.request(t.Context(), "tls", older); err != nil {
		t.Errorf("peer with a certificate of the old root: %v", err)
	}
	r.eventually(t, 12*time.Second, "end of the overlap", func() error {
		if err := r.request(t.Context(), "tls", older); err == nil {
			return errors.New("the old root is still trusted")
		}
		return nil
	})
}
