package sds_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/gateway-agent/gateway-agent/internal/testca"
	"github.com/gateway-agent/gateway-agent/sds"
)

var apis = []string{"GRPC", "DELTA_GRPC"}

// runServer runs a Server until the test ends.
func runServer(t *testing.T, cfg sds.Config) *sds.Server {
	t.Helper()
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	s, err := sds.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return s
}

func clientFor(t *testing.T, ca *testca.CA, own ...testca.Pair) *tls.Config {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AddCert(ca.Cert)
	config := &tls.Config{RootCAs: roots, ServerName: "localhost"}
	for _, p := range own {
		cert, err := tls.X509KeyPair(p.CertPEM, p.KeyPEM)
		if err != nil {
			t.Fatal(err)
		}
		config.Certificates = append(config.Certificates, cert)
	}
	return config
}

func TestEnvoyRotation(t *testing.T) {
	for _, api := range apis {
		t.Run(api, func(t *testing.T) {
			t.Parallel()
			ca := testca.New(t, "ca")
			r := newRig(t)
			first := ca.Issue(t, testca.Leaf{})
			cert, key := first.Write(t, r.dir)
			s := runServer(t, sds.Config{})
			r.serve(t, s.Register)
			r.start(t, api, r.tls("tls", "file-cert:"+cert+"~"+key, ""))

			var serial atomic.Pointer[string] // of the certificate that the last handshake saw
			var failed, made atomic.Int32
			config := clientFor(t, ca)
			shake := func() {
				state, err := r.handshake(t.Context(), "tls", config)
				made.Add(1)
				if err != nil {
					failed.Add(1)
					t.Errorf("handshake: %v", err)
					return
				}
				serial.Store(new(state.PeerCertificates[0].SerialNumber.String()))
			}
			r.listening(t, "tls", 10*time.Second)
			stop, stopped := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(stopped)
				for {
					select {
					case <-stop:
						return
					default:
						shake()
					}
				}
			}()
			for i := range 10 {
				next := ca.Issue(t, testca.Leaf{})
				next.Write(t, r.dir)
				start := time.Now()
				for p := serial.Load(); p == nil || *p != next.Cert.SerialNumber.String(); p = serial.Load() {
					if time.Since(start) > 2*time.Second {
						t.Fatalf("rotation %d: not served after 2 s; status %+v", i, s.Status())
					}
					time.Sleep(5 * time.Millisecond)
				}
				t.Logf("rotation %d: new certificate in a handshake after %v", i, time.Since(start).Round(time.Millisecond))
			}
			close(stop)
			<-stopped
			t.Logf("%d handshakes, %d failed", made.Load(), failed.Load())
		})
	}
}

// listening waits until something accepts on <name>.sock.
func (r *envoyRig) listening(t *testing.T, name string, limit time.Duration) {
	t.Helper()
	start := time.Now()
	for {
		_, err := r.handshake(t.Context(), name, &tls.Config{InsecureSkipVerify: true})
		if err == nil {
			return
		}
		if time.Since(start) > limit {
			t.Fatalf("%s does not accept after %v: %v", name, limit, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// A secret that cannot be served delays a starting Envoy by Wait, not by its own 15 s; it lets nobody in, says why in Envoy's own
// log, and is taken as soon as its file is there.
func TestEnvoyMissingSecret(t *testing.T) {
	const wait = 300 * time.Millisecond
	for _, api := range apis {
		for _, missing := range []string{"certificate", "root"} {
			t.Run(api+"/"+missing, func(t *testing.T) {
				t.Parallel()
				ca, stranger := testca.New(t, "ca"), testca.New(t, "ca")
				r := newRig(t)
				pair := ca.Issue(t, testca.Leaf{})
				cert, key := pair.Write(t, r.dir)
				root := r.path("ca.pem")
				late := map[string][]byte{root: ca.PEM}
				if missing == "certificate" {
					late = map[string][]byte{cert: pair.CertPEM, root: ca.PEM}
					if err := os.Remove(cert); err != nil {
						t.Fatal(err)
					}
				}
				s := runServer(t, sds.Config{Wait: wait})
				r.serve(t, s.Register)
				r.start(t, api, r.plain("plain"), r.tls("tls", "file-cert:"+cert+"~"+key, "file-root:"+root))

				took, ok := r.served(t, "plain", 5*time.Second)
				if !ok || took > wait+3*time.Second {
					t.Fatalf("plain listener serves after %v (%v), want soon after %v", took, ok, wait)
				}
				t.Logf("plain listener serves after %v", took.Round(time.Millisecond))
				friend, foe := clientFor(t, ca, pair), clientFor(t, ca, stranger.Issue(t, testca.Leaf{}))
				for who, config := range map[string]*tls.Config{"friend": friend, "foe": foe} {
					if err := r.request(t.Context(), "tls", config); err == nil {
						t.Errorf("%s gets in while the %s is missing", who, missing)
					}
				}
				for path, data := range late {
					if err := os.WriteFile(path, data, 0o600); err != nil {
						t.Fatal(err)
					}
				}
				r.eventually(t, 3*time.Second, "friend gets in", func() error { return r.request(t.Context(), "tls", friend) })
				if err := r.request(t.Context(), "tls", foe); err == nil {
					t.Error("foe gets in, want refused by the root")
				}
				if log, _ := os.ReadFile(r.log); api == "GRPC" && !strings.Contains(string(log), "does not exist: create it") {
					t.Error("Envoy's log does not say which file is missing")
				}
			})
		}
	}
}

func (r *envoyRig) eventually(t *testing.T, limit time.Duration, what string, try func() error) {
	t.Helper()
	start := time.Now()
	for err := try(); err != nil; err = try() {
		if time.Since(start) > limit {
			t.Fatalf("%s: not after %v: %v", what, limit, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// request sends one HTTP request over TLS; a client that the server refuses learns it only here.
func (r *envoyRig) request(ctx context.Context, name string, config *tls.Config) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	conn, err := r.dialTLS(ctx, name, config)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := conn.Write([]byte("GET / HTTP/1.1\r\nhost: rig\r\n\r\n")); err != nil {
		return err
	}
	head := make([]byte, 12)
	if _, err := conn.Read(head); err != nil {
		return err
	}
	if !bytes.HasPrefix(head, []byte("HTTP/1.1 200")) {
		return errors.New("answer is not 200")
	}
	return nil
}

// rawServer answers every name with the same resources, once.
type rawServer struct {
	secretv3.UnimplementedSecretDiscoveryServiceServer
	answer func(name string) []*anypb.Any
}

func (s *rawServer) StreamSecrets(stream secretv3.SecretDiscoveryService_StreamSecretsServer) error {
	req, err := stream.Recv()
	if err != nil {
		return err
	}
	name := req.GetResourceNames()[0]
	err = stream.Send(&discoveryv3.DiscoveryResponse{TypeUrl: sds.TypeURL, VersionInfo: "1", Nonce: "1", Resources: s.answer(name)})
	<-stream.Context().Done()
	return err
}

func (s *rawServer) start(t *testing.T, r *envoyRig) {
	r.serve(t, func(g grpc.ServiceRegistrar) { secretv3.RegisterSecretDiscoveryServiceServer(g, s) })
}

// The facts about Envoy that the package comment builds on. When one of them changes, so may the design.
func TestEnvoyFacts(t *testing.T) {
	t.Run("an empty response keeps every listener shut", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		(&rawServer{answer: func(string) []*anypb.Any { return nil }}).start(t, r)
		r.start(t, "GRPC", r.plain("plain"), r.tls("tls", "cert", ""))
		if took, ok := r.served(t, "plain", 4*time.Second); ok {
			t.Errorf("plain listener serves after %v, want shut", took)
		}
	})
	t.Run("a secret of another kind lets every client in", func(t *testing.T) {
		t.Parallel()
		ca, stranger := testca.New(t, "ca"), testca.New(t, "stranger")
		pair := ca.Issue(t, testca.Leaf{})
		r := newRig(t)
		(&rawServer{answer: func(name string) []*anypb.Any {
			secret, err := anypb.New(&tlsv3.Secret{Name: name, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
				CertificateChain: inlineBytes(pair.CertPEM), PrivateKey: inlineBytes(pair.KeyPEM),
			}}})
			if err != nil {
				t.Error(err)
			}
			return []*anypb.Any{secret}
		}}).start(t, r)
		r.start(t, "GRPC", r.tls("tls", "cert", "root"))
		foe := clientFor(t, ca, stranger.Issue(t, testca.Leaf{}))
		r.eventually(t, 5*time.Second, "client of another authority gets in", func() error { return r.request(t.Context(), "tls", foe) })
	})
}

// Every form of key and certificate that this package lets through is one that Envoy serves.
func TestEnvoyTakesWhatPasses(t *testing.T) {
	ca := testca.New(t, "ca")
	r := newRig(t)
	leaf := map[string]testca.Leaf{
		"p256": {}, "p384": {Key: testca.P384}, "p521": {Key: testca.P521}, "ed25519": {Key: testca.Ed25519}, "rsa": {Key: testca.RSA2048},
		"sec1": {Form: testca.SEC1}, "pkcs1": {Key: testca.RSA2048, Form: testca.PKCS1},
		"expired": {NotAfter: time.Now().Add(-time.Minute)},
	}
	s := runServer(t, sds.Config{})
	r.serve(t, s.Register)
	var listeners []string
	for name, l := range leaf {
		dir := filepath.Join(r.dir, name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		cert, key := ca.Sub(t, "sub").Issue(t, l).Write(t, dir)
		listeners = append(listeners, r.tls(name, "file-cert:"+cert+"~"+key, ""))
	}
	r.start(t, "DELTA_GRPC", listeners...)
	for name := range leaf {
		r.listening(t, name, 10*time.Second)
		_, err := r.handshake(t.Context(), name, clientFor(t, ca))
		if expired := name == "expired"; expired != (err != nil) {
			t.Errorf("handshake with %s: %v", name, err)
		} else if expired && !strings.Contains(err.Error(), "expired") {
			t.Errorf("handshake with an expired certificate: %v, want the client to learn that it has expired", err)
		}
	}
	for _, st := range s.Status() {
		if want := map[bool]string{true: sds.StateExpired, false: sds.StateOK}[strings.Contains(st.Name, "/expired/")]; st.State != want {
			t.Errorf("status of %s: %s (%s), want %s", st.Name, st.State, st.Reason, want)
		}
	}
}
