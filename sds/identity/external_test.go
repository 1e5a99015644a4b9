package identity

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/gateway-agent/gateway-agent/internal/testca"
	"github.com/gateway-agent/gateway-agent/sds"
)

// external is our own secret server in the place of a SPIFFE agent's.
type external struct {
	*sds.Server
	stop func()
}

func startExternal(t *testing.T, socket string, ca *testca.CA) *external {
	t.Helper()
	s, err := sds.New(sds.Config{PollOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	e := &external{Server: s}
	e.stop = serveSecrets(t, socket, s.Register, s.Run)
	e.rotate(t, ca)
	return e
}

func serveSecrets(t *testing.T, socket string, register func(grpc.ServiceRegistrar), run func(context.Context) error) (stop func()) {
	t.Helper()
	_ = os.Remove(socket)
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // as if it had been killed
	server := grpc.NewServer()
	register(server)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(l) })
	wg.Go(func() { _ = run(ctx) })
	stop = sync.OnceFunc(func() { server.Stop(); cancel(); wg.Wait() })
	t.Cleanup(stop)
	return stop
}

func (e *external) rotate(t *testing.T, ca *testca.CA) testca.Pair {
	t.Helper()
	p := ca.Issue(t, testca.Leaf{Hosts: []string{testID}})
	e.Assign(Certificate, pairSecret(inline(p.CertPEM), inline(p.KeyPEM)), nil)
	e.Assign(Roots, (&Workload{}).rootSecret(inline(ca.PEM)), nil)
	return p
}

// testNode is an Envoy that says its version, without which SPIRE gives no bundles of other trust domains.
var testNode = &corev3.Node{Id: "router~10.1.2.3~gw.ingress~x", UserAgentName: "envoy", UserAgentVersionType: &corev3.Node_UserAgentBuildVersion{
	UserAgentBuildVersion: &corev3.BuildVersion{Version: &typev3.SemanticVersion{MajorNumber: 1, MinorNumber: 40}},
}}

func startProxy(t *testing.T, socket string) *running {
	t.Helper()
	w := &running{recorder: newRecorder()}
	var err error
	w.Workload, err = New(Config{Server: w.recorder, Choice: Choice{Source: External, Socket: socket}, Node: testNode, Poll: 20 * time.Millisecond, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return w
}

// until waits for what comes over a real socket.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for start := time.Now(); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Since(start) > 10*time.Second {
			t.Fatalf("%s: not after 10 s", what)
		}
	}
}

func (r *recorder) has(serial string) bool {
	secret, _, _ := r.get(Certificate)
	chain, _ := certificates(string(secret.GetTlsCertificate().GetCertificateChain().GetInlineBytes()))
	return len(chain) > 0 && chain[0].SerialNumber.String() == serial
}

// The external server comes late, rotates, dies, leaves its socket behind, and is replaced while it still runs. What it gave stays.
func TestExternal(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(place(t), "s")
	ca := testca.New(t, "spire")
	w := startProxy(t, socket)
	until(t, "the reason", func() bool {
		_, why, _ := w.get(Certificate)
		return strings.Contains(why, "no such file") && w.Status().State == StateDegraded
	})
	e := startExternal(t, socket, ca)
	second := e.rotate(t, ca)
	until(t, "a server that comes late", func() bool {
		return w.has(second.Cert.SerialNumber.String()) && w.roots(t) == "spire" && w.Status().State == StateOK
	})
	if _, why, _ := w.get(Certificate); why != "" {
		t.Errorf("why %q", why)
	}
	third := e.rotate(t, ca)
	until(t, "a rotation", func() bool { return w.has(third.Cert.SerialNumber.String()) })
	e.stop()
	until(t, "an outage to show", func() bool {
		_, why, _ := w.get(Certificate)
		return strings.Contains(why, socket) && w.Status().State == StateDegraded && w.has(third.Cert.SerialNumber.String())
	})
	again := startExternal(t, socket, ca)
	fourth := again.rotate(t, ca)
	until(t, "its return", func() bool { return w.has(fourth.Cert.SerialNumber.String()) && w.Status().State == StateOK })
	successor := startExternal(t, socket, testca.New(t, "successor")) // the one before it still runs, its socket has no name
	fifth := successor.rotate(t, ca)
	until(t, "the successor's", func() bool { return w.has(fifth.Cert.SerialNumber.String()) })
	if err := w.SetTrustBundle([]string{string(ca.PEM)}); err != nil {
		t.Errorf("SetTrustBundle: %v", err)
	}
}

// Who waits for a server that does not answer sees when its socket is replaced.
func TestAwaitSocket(t *testing.T) {
	for name, tc := range map[string]struct {
		there bool          // a leftover, at first
		comes time.Duration // 0: never
		want  time.Duration
		found bool
	}{
		"appears":     {false, 3 * time.Second, 3 * time.Second, true},
		"is replaced": {true, 3 * time.Second, 3 * time.Second, true},
		"stays":       {true, 0, 10 * time.Second, false},
		"never comes": {false, 0, 10 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "s")
				create := func() {
					if err := os.WriteFile(path, nil, 0o600); err != nil {
						t.Fatal(err)
					}
				}
				if tc.there {
					create()
				}
				w := &Workload{cfg: Config{Choice: Choice{Socket: path}, Poll: time.Second}}
				before, _ := os.Stat(path)
				if tc.comes > 0 {
					time.AfterFunc(tc.comes-time.Millisecond, func() { _ = os.Remove(path); create() })
				}
				began := time.Now()
				found := w.awaitSocket(t.Context(), before, 10*time.Second)
				if took := time.Since(began); found != tc.found || took != tc.want {
					t.Errorf("found %v after %v, want %v after %v", found, took, tc.found, tc.want)
				}
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				if began = time.Now(); w.awaitSocket(ctx, before, time.Hour) && !tc.found || time.Since(began) > 0 {
					t.Errorf("told to end, it waited %v more", time.Since(began))
				}
			})
		})
	}
}

// oddServer answers every request with something else.
type oddServer struct {
	secretv3.UnimplementedSecretDiscoveryServiceServer
	answers []*discoveryv3.DiscoveryResponse

	mu   sync.Mutex
	seen []*discoveryv3.DiscoveryRequest
}

func (s *oddServer) StreamSecrets(stream secretv3.SecretDiscoveryService_StreamSecretsServer) error {
	for i := 0; ; i++ {
		req, err := stream.Recv()
		if err != nil {
			return err
		}
		if req.GetResourceNames()[0] != Certificate {
			<-stream.Context().Done()
			return nil
		}
		s.mu.Lock()
		s.seen = append(s.seen, req)
		s.mu.Unlock()
		if i >= len(s.answers) {
			<-stream.Context().Done()
			return nil
		}
		if err := stream.Send(s.answers[i]); err != nil {
			return err
		}
	}
}

// What would harm Envoy is rejected, in the words of the protocol.
func TestExternalAnswersNonsense(t *testing.T) {
	t.Parallel()
	ca := testca.New(t, "spire")
	good := ca.Issue(t, testca.Leaf{})
	pack := func(s *tlsv3.Secret) *anypb.Any {
		a, err := anypb.New(s)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	root := (&Workload{}).rootSecret(inline(ca.PEM))
	root.Name = Certificate
	answer := func(n string, resources ...*anypb.Any) *discoveryv3.DiscoveryResponse {
		return &discoveryv3.DiscoveryResponse{TypeUrl: secretType, VersionInfo: "v" + n, Nonce: "n" + n, Resources: resources}
	}
	s := &oddServer{answers: []*discoveryv3.DiscoveryResponse{
		answer("1", pack(root)), // of the wrong kind
		answer("2"),             // nothing yet
		answer("3", &anypb.Any{TypeUrl: secretType, Value: []byte{0xff}}),
		answer("4", &anypb.Any{TypeUrl: "x"}),
		answer("5", pack(pairSecret(inline(good.CertPEM), inline(good.KeyPEM)))),
		answer("6", pack(root)),
	}}
	socket := filepath.Join(place(t), "s")
	serveSecrets(t, socket, func(r grpc.ServiceRegistrar) { secretv3.RegisterSecretDiscoveryServiceServer(r, s) },
		func(ctx context.Context) error { <-ctx.Done(); return nil })
	w := startProxy(t, socket)
	var seen []*discoveryv3.DiscoveryRequest
	until(t, "all answers", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		seen = s.seen
		return len(seen) == len(s.answers)+1
	})
	for i, want := range []struct {
		nonce, version string
		nack           bool
	}{{"", "", false}, {"n1", "", true}, {"n2", "", false}, {"n3", "", true}, {"n4", "", true}, {"n5", "v5", false}, {"n6", "v5", true}} {
		got := seen[i]
		if got.GetResponseNonce() != want.nonce || got.GetVersionInfo() != want.version || (got.GetErrorDetail() != nil) != want.nack || (got.GetNode() != nil) != (i == 0) || i == 0 && !proto.Equal(got.GetNode(), testNode) {
			t.Errorf("request %d: %v, want nonce %q, version %q, rejection %v", i, got, want.nonce, want.version, want.nack)
		}
	}
	if !w.has(good.Cert.SerialNumber.String()) {
		t.Error("the good secret is not in use")
	}
	if st := w.Status(); st.State != StateDegraded || !strings.Contains(st.Reason, "wrong kind") {
		t.Errorf("status: %+v", st)
	}
}
