package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/grpc/test/bufconn"

	"github.com/gateway-agent/gateway-agent/internal/testbuffer"
	"github.com/gateway-agent/gateway-agent/internal/upstream"
	"github.com/gateway-agent/gateway-agent/internal/xdstest"
	"github.com/gateway-agent/gateway-agent/sds/ca"
)

const testID = "spiffe://cluster.local/ns/ingress/sa/gw"

// recorder is a Server that remembers.
type recorder struct {
	mu     sync.Mutex
	secret map[string]*tlsv3.Secret
	why    map[string]string
	pushes map[string]int // contents that differ from the one before
	order  []string
}

func newRecorder() *recorder {
	return &recorder{secret: map[string]*tlsv3.Secret{}, why: map[string]string{}, pushes: map[string]int{}}
}

func (r *recorder) Assign(name string, secret *tlsv3.Secret, why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.why[name] = ""
	if why != nil {
		r.why[name] = why.Error()
	}
	if secret != nil && secret.String() != r.secret[name].String() {
		r.secret[name] = secret
		r.pushes[name]++
		r.order = append(r.order, name)
	}
}

func (r *recorder) get(name string) (secret *tlsv3.Secret, why string, pushes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.secret[name], r.why[name], r.pushes[name]
}

// leaf is the certificate in use.
func (r *recorder) leaf(t *testing.T) *x509.Certificate {
	t.Helper()
	secret, why, _ := r.get(Certificate)
	if secret == nil {
		t.Fatalf("no certificate: %s", why)
	}
	c := secret.GetTlsCertificate()
	pair, err := tls.X509KeyPair(c.GetCertificateChain().GetInlineBytes(), c.GetPrivateKey().GetInlineBytes())
	if err != nil {
		t.Fatalf("the pair in use: %v", err)
	}
	return pair.Leaf
}

// roots are the common names of the roots in use.
func (r *recorder) roots(t *testing.T) string {
	t.Helper()
	secret, _, _ := r.get(Roots)
	var names []string
	rest := secret.GetValidationContext().GetTrustedCa().GetInlineBytes()
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return strings.Join(names, " ")
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, cert.Subject.CommonName)
	}
}

// rig is a fake authority in memory, reached by the real client over TLS. It works inside a bubble.
type rig struct {
	*xdstest.CA
	t           *testing.T
	cfg         Config
	log         *testbuffer.Buffer
	token, root string // files
}

func newRig(t *testing.T, cfg xdstest.CAConfig) *rig {
	t.Helper()
	cfg.ID, cfg.Tokens = testID, []string{"good"}
	r := &rig{CA: xdstest.NewCA(t, cfg), t: t, log: &testbuffer.Buffer{}}
	dir := t.TempDir()
	r.token, r.root = filepath.Join(dir, "token"), filepath.Join(dir, "root.pem")
	r.write(r.token, []byte("good"))
	r.write(r.root, r.Signer().Root().PEM)
	l := bufconn.Listen(1 << 20)
	r.ServeTLS(t, l)
	client, err := ca.New(ca.Config{Upstream: upstream.Config{
		Address: "istiod.istio-system.svc:15012", Roots: upstream.RootsFile(r.root), Token: upstream.TokenFile(r.token, true),
		Header: map[string]string{"ClusterID": "Kubernetes"},
		Dial:   func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) },
	}})
	if err != nil {
		t.Fatal(err)
	}
	r.cfg = Config{
		Choice: Choice{Source: CA, Why: "test"}, Signer: client, Authority: "istiod", ID: testID, Tokens: []string{r.token}, RootFiles: []string{r.root},
		Log: slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	return r
}

func (r *rig) write(path string, data []byte) {
	r.t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// running is a Workload that runs.
type running struct {
	*Workload
	*recorder
	stop func()
}

// run runs a Workload of the rig's configuration until the test ends or stop is called; what is to be done before comes first.
func (r *rig) run(before ...func(*Workload)) *running {
	r.t.Helper()
	w := &running{recorder: newRecorder()}
	r.cfg.Server = w.recorder
	var err error
	if w.Workload, err = New(r.cfg); err != nil {
		r.t.Fatal(err)
	}
	for _, do := range before {
		do(w.Workload)
	}
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Errorf("Run: %v", err)
		}
	})
	r.t.Cleanup(w.stop)
	return w
}

// gate is a Signer that can be shut, which is quicker than an authority that refuses.
type gate struct {
	Signer
	mu    sync.Mutex
	err   error // nil: open
	slow  time.Duration
	tries []time.Time
}

func (r *rig) gate() *gate {
	g := &gate{Signer: r.cfg.Signer}
	r.cfg.Signer = g
	return g
}

func (g *gate) shut(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.err, g.tries = err, nil
}

func (g *gate) seen() []time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.tries)
}

func (g *gate) Sign(ctx context.Context, csr []byte, life time.Duration, own *tls.Certificate) ([]string, error) {
	g.mu.Lock()
	err, slow := g.err, g.slow
	g.tries = append(g.tries, time.Now())
	g.mu.Unlock()
	time.Sleep(slow)
	if err != nil {
		return nil, err
	}
	return g.Signer.Sign(ctx, csr, life, own)
}

// grants are the times at which certificates were granted.
func (r *rig) grants() []time.Time {
	var at []time.Time
	for _, req := range r.Requests() {
		if req.Granted {
			at = append(at, req.At)
		}
	}
	return at
}
