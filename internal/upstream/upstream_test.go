package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/gateway-agent/gateway-agent/internal/testca"
)

// server is a real gRPC server over TLS that notes who calls it.
type server struct {
	t       *testing.T
	address string

	mu     sync.Mutex
	pair   tls.Certificate
	metas  []metadata.MD
	client string // common name of the client certificate seen last
}

func startServer(t *testing.T, issued testca.Pair, options ...grpc.ServerOption) *server {
	t.Helper()
	s := &server{t: t}
	s.use(issued)
	config := &tls.Config{
		MinVersion: tls.VersionTLS12, ClientAuth: tls.RequestClientCert,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			return new(s.pair), nil
		},
	}
	s.serve(append(options, grpc.Creds(credentials.NewTLS(config)))...)
	return s
}

func (s *server) use(issued testca.Pair) {
	s.t.Helper()
	pair, err := tls.X509KeyPair(issued.CertPEM, issued.KeyPEM)
	if err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pair = pair
}

func (s *server) serve(options ...grpc.ServerOption) {
	s.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	s.address = listener.Addr().String()
	g := grpc.NewServer(append(options, grpc.UnaryInterceptor(s.note))...)
	grpc_health_v1.RegisterHealthServer(g, health.NewServer())
	served := make(chan error, 1)
	go func() { served <- g.Serve(listener) }()
	s.t.Cleanup(func() { g.Stop(); <-served })
}

func (s *server) note(ctx context.Context, request any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	p, _ := peer.FromContext(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.metas = append(s.metas, md)
	s.client = ""
	if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.PeerCertificates) > 0 {
		s.client = info.State.PeerCertificates[0].Subject.CommonName
	}
	return next(ctx, request)
}

func (s *server) last() (metadata.MD, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.metas[len(s.metas)-1], s.client
}

func open(t *testing.T, config Config) *Conn {
	t.Helper()
	conn, err := Open(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// call makes one call, which does not wait for a connection that fails.
func call(t *testing.T, conn *Conn) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	return err
}

// calls repeats a call until it succeeds.
func calls(t *testing.T, conn *Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
}

// redial cuts the connection and waits until gRPC noticed: a call that begins before would go down with it.
func redial(t *testing.T, conn *Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	conn.Redial()
	if !conn.WaitForStateChange(ctx, connectivity.Ready) {
		t.Fatal("the connection is not cut by Redial")
	}
}

// files are what is mounted into a pod.
type files struct {
	t                       *testing.T
	roots, cert, key, token string
}

func newFiles(t *testing.T) *files {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	return &files{t, path("roots.pem"), path("cert.pem"), path("key.pem"), path("token")}
}

func (f *files) write(path string, data []byte) {
	f.t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		f.t.Fatal(err)
	}
}

func (f *files) config(address string) Config {
	return Config{
		Address: address, ServerName: "istiod.test", Roots: RootsFile(f.roots), Certificate: CertificateFiles(f.cert, f.key),
		Token: TokenFile(f.token, false), Header: map[string]string{"ClusterID": "Kubernetes"}, BackoffBase: 10 * time.Millisecond,
	}
}

func serverLeaf() testca.Leaf { return testca.Leaf{Hosts: []string{"istiod.test"}} }

// Roots, server certificate, client certificate and token are all replaced while the connection lives; nothing is restarted.
func TestRotation(t *testing.T) {
	t.Parallel()
	ca, f := testca.New(t, "one"), newFiles(t)
	s := startServer(t, ca.Issue(t, serverLeaf()))
	client := func(ca *testca.CA, name string) {
		pair := ca.Issue(t, testca.Leaf{Name: name})
		f.write(f.cert, pair.CertPEM)
		f.write(f.key, pair.KeyPEM)
	}
	f.write(f.roots, ca.PEM)
	f.write(f.token, []byte("first\n"))
	client(ca, "old")
	conn := open(t, f.config(s.address))
	calls(t, conn)
	md, name := s.last()
	if got := md.Get("authorization"); !slices.Equal(got, []string{"Bearer first"}) {
		t.Errorf("authorization is %q, want the token of the file, trimmed", got)
	}
	if got := md.Get("clusterid"); !slices.Equal(got, []string{"Kubernetes"}) || name != "old" {
		t.Errorf("clusterid is %q, the client certificate %q", got, name)
	}

	f.write(f.token, []byte("second"))
	calls(t, conn)
	if md, _ := s.last(); md.Get("authorization")[0] != "Bearer second" {
		t.Error("a new token is not used for the next call")
	}

	next := testca.New(t, "two")
	s.use(next.Issue(t, serverLeaf()))
	f.write(f.roots, next.PEM)
	client(next, "new")
	redial(t, conn)
	calls(t, conn)
	if _, name := s.last(); name != "new" {
		t.Errorf("the client certificate is %q, want the new one", name)
	}
}

// What is wrong with a file is said with its name, and healed by replacing the file.
func TestProblemsAreNamed(t *testing.T) {
	t.Parallel()
	ca := testca.New(t, "ca")
	s := startServer(t, ca.Issue(t, serverLeaf()))
	pair, other := ca.Issue(t, testca.Leaf{Name: "a"}), ca.Issue(t, testca.Leaf{Name: "b"})
	for _, test := range []struct {
		name  string
		spoil func(*files)
		want  []string
	}{
		{"no roots", func(f *files) { os.Remove(f.roots) }, []string{"roots.pem", "no such file"}},
		{"empty roots", func(f *files) { f.write(f.roots, nil) }, []string{"roots.pem", "no PEM certificate"}},
		{"endless roots", func(f *files) { f.write(f.roots, make([]byte, maxBundle+1)) }, []string{"roots.pem", "larger than"}},
		{"other roots", func(f *files) { f.write(f.roots, testca.New(t, "x").PEM) }, []string{"unknown authority"}},
		{"no key", func(f *files) { os.Remove(f.key) }, []string{"key.pem", "no such file"}},
		{"another's key", func(f *files) { f.write(f.key, other.KeyPEM) }, []string{"cert.pem and ", "key.pem", "does not match"}},
		{"no token", func(f *files) { os.Remove(f.token) }, []string{"read the token", "no such file"}},
		{"empty token", func(f *files) { f.write(f.token, []byte("\n")) }, []string{"token: the file is empty"}},
		{"token of two lines", func(f *files) { f.write(f.token, []byte("hunter\nsecret")) }, []string{"cannot be sent"}},
		{"endless token", func(f *files) { f.write(f.token, make([]byte, maxToken+1)) }, []string{"larger than"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFiles(t)
			whole := func() {
				f.write(f.roots, ca.PEM)
				f.write(f.cert, pair.CertPEM)
				f.write(f.key, pair.KeyPEM)
				f.write(f.token, []byte("a-token"))
			}
			whole()
			test.spoil(f)
			conn := open(t, f.config(s.address))
			err := call(t, conn)
			for _, want := range test.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("the call's error is %v, want %q in it", err, want)
				}
			}
			if err != nil && (strings.Contains(err.Error(), "hunter") || strings.Contains(err.Error(), "PRIVATE KEY")) {
				t.Errorf("the error shows a secret: %v", err)
			}
			whole()
			calls(t, conn)
		})
	}
}

func TestServerMustBeTheOne(t *testing.T) {
	t.Parallel()
	ca, f := testca.New(t, "ca"), newFiles(t)
	f.write(f.roots, ca.PEM)
	elsewhere := startServer(t, ca.Issue(t, testca.Leaf{Hosts: []string{"elsewhere.test"}}))
	config := Config{Address: elsewhere.address, ServerName: "istiod.test", Roots: RootsFile(f.roots)}
	if err := call(t, open(t, config)); err == nil || !strings.Contains(err.Error(), "elsewhere.test") {
		t.Errorf("a server with another name: %v, want an error that tells it", err)
	}
	old := &server{t: t}
	old.use(ca.Issue(t, serverLeaf()))
	old.serve(grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{old.pair}, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11})))
	config.Address = old.address
	if err := call(t, open(t, config)); err == nil || !strings.Contains(err.Error(), "protocol version") {
		t.Errorf("a server with TLS 1.1: %v, want an error about the version", err)
	}
}

func TestTokenAndPlaintext(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		allowed bool
		want    []string
	}{{false, nil}, {true, []string{"Bearer secret"}}} {
		s := &server{t: t}
		s.serve()
		conn := open(t, Config{
			Address: s.address, Plaintext: true, PlaintextToken: test.allowed, Header: map[string]string{"X-A": "b"},
			Token: func() (string, error) { return "secret", nil },
		})
		calls(t, conn)
		md, _ := s.last()
		if got := md.Get("authorization"); !slices.Equal(got, test.want) {
			t.Errorf("without TLS, PlaintextToken=%v: authorization is %q, want %q", test.allowed, got, test.want)
		}
		if got := md.Get("x-a"); !slices.Equal(got, []string{"b"}) {
			t.Errorf("the header is %q, want it", got)
		}
	}
}

func TestNoTokenIsNoError(t *testing.T) {
	t.Parallel()
	ca, f := testca.New(t, "ca"), newFiles(t)
	f.write(f.roots, ca.PEM)
	s := startServer(t, ca.Issue(t, serverLeaf()))
	conn := open(t, Config{Address: s.address, ServerName: "istiod.test", Roots: RootsFile(f.roots), Token: TokenFile(f.token, true)})
	calls(t, conn)
	if md, _ := s.last(); len(md.Get("authorization")) != 0 {
		t.Errorf("authorization is %q without a token", md.Get("authorization"))
	}
}

func TestOpenChecksItsConfig(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		config Config
		want   string
	}{
		{Config{Address: "host"}, "want HOST:PORT"},
		{Config{Address: "a:1", Header: map[string]string{"": "x"}}, "name of gRPC metadata"},
		{Config{Address: "a:1", Header: map[string]string{"grpc-timeout": "x"}}, "name of gRPC metadata"},
		{Config{Address: "a:1", Header: map[string]string{":authority": "x"}}, "name of gRPC metadata"},
		{Config{Address: "a:1", Header: map[string]string{"Content-Type": "x"}}, "name of gRPC metadata"},
		{Config{Address: "a:1", Header: map[string]string{"x": "hunter2\r\ny: z"}}, "printable ASCII"},
		{Config{Address: "a:1", Header: map[string]string{"x": "1", "X": "2"}}, "given twice"},
	} {
		_, err := Open(test.config)
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("Open(%+v) = %v, want %q", test.config, err, test.want)
		}
	}
}

// A stuck connection is left for another of the host's addresses, one that is down or hangs too.
func TestAnotherAddressIsUsed(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var used []string
	d := newDialer("istiod.test", "15012", nil)
	d.lookup = func(context.Context, string) ([]string, error) {
		return []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}, nil
	}
	down := map[string]bool{}
	d.open = func(_ context.Context, address string) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		if down[address] {
			return nil, fmt.Errorf("dial %s: connection refused", address)
		}
		used = append(used, address)
		conn, _ := net.Pipe()
		return conn, nil
	}
	for range 60 {
		conn, err := d.dial(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		d.cut()
		if _, err := conn.Write([]byte("x")); err == nil {
			t.Error("a cut connection can still be written to")
		}
	}
	for i := range used[1:] {
		if used[i] == used[i+1] {
			t.Errorf("%s is used twice in a row", used[i])
		}
	}
	if distinct := len(slices.Compact(slices.Sorted(slices.Values(used)))); distinct != 3 {
		t.Errorf("%d addresses are used of 3", distinct)
	}
	down["10.0.0.1:15012"], down["10.0.0.2:15012"] = true, true
	for range 10 {
		if _, err := d.dial(t.Context(), ""); err != nil || used[len(used)-1] != "10.0.0.3:15012" {
			t.Errorf("dial = %v, last address %s; want the one that is up", err, used[len(used)-1])
		}
	}
	down["10.0.0.3:15012"] = true
	_, err := d.dial(t.Context(), "")
	for _, address := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"} {
		if err == nil || !strings.Contains(err.Error(), address) {
			t.Errorf("all addresses are down: %v, want each with its reason", err)
		}
	}
	if len(d.conns) != 10 {
		t.Errorf("%d connections are tracked, want those that are open: 10", len(d.conns))
	}
}

func TestFamilyOfTheResolverComesFirst(t *testing.T) {
	t.Parallel()
	d := newDialer("h", "1", nil)
	for range 20 {
		if got := d.order([]string{"fd00::1", "10.0.0.1", "fd00::2"}); got[2] != "10.0.0.1" {
			t.Errorf("order = %v, want the resolver's preferred family first", got)
		}
	}
}

// An address that swallows packets gets its share of the time, not all of it.
func TestBlackHoleAmongAddresses(t *testing.T) {
	t.Parallel()
	d := newDialer("h", "1", nil)
	d.lookup = func(context.Context, string) ([]string, error) { return []string{"hole", "good"}, nil }
	d.last = "good" // so that the other comes first
	d.open = func(ctx context.Context, address string) (net.Conn, error) {
		if address == "hole:1" {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		conn, _ := net.Pipe()
		return conn, nil
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	start := time.Now()
	if _, err := d.dial(ctx, ""); err != nil || time.Since(start) < minAddressTimeout {
		t.Errorf("dial = %v after %v, want the good address after %v", err, time.Since(start), minAddressTimeout)
	}
}

// Many clients that lost the same server do not all come back at the same moment, and one that was away for 10 s is found within 1.5 s.
func TestBackoffGrowsWithTheOutage(t *testing.T) {
	t.Parallel()
	var c Config
	c.setDefaults("h")
	b := c.backoff()
	outage, wait := time.Duration(0), b.BaseDelay
	for outage < 10*time.Second {
		outage += wait
		wait = time.Duration(float64(wait) * b.Multiplier)
	}
	if longest := time.Duration(float64(wait) * (1 + b.Jitter)); longest > 1600*time.Millisecond || longest < 500*time.Millisecond {
		t.Errorf("after 10 s without the server the longest wait is %v, want about 1.4 s", longest)
	}
	if b.Jitter != 1 {
		t.Errorf("the jitter is %v, want all of the wait", b.Jitter)
	}
}

func TestErrorsAreCodes(t *testing.T) {
	t.Parallel()
	conn := open(t, Config{Address: "127.0.0.1:1", Plaintext: true, Token: func() (string, error) { return "", errors.New("x") }, PlaintextToken: true})
	if err := call(t, conn); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("nobody listens: %v, want Unavailable and the address", err)
	}
}

// A server in this process is not pinged: gRPC's servers take offence, unless they are told not to.
func TestPingsCanBeOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		listener := bufconn.Listen(1 << 16)
		g := grpc.NewServer()
		grpc_health_v1.RegisterHealthServer(g, health.NewServer())
		served := make(chan error, 1)
		go func() { served <- g.Serve(listener) }()
		conn := open(t, Config{
			Address: "in-process:0", Plaintext: true, KeepaliveTime: -1,
			Dial: func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) },
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stream, err := grpc_health_v1.NewHealthClient(conn).Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { _, err := stream.Recv(); ended <- err }()
		select {
		case err := <-ended:
			t.Errorf("the stream ended: %v", err)
		case <-time.After(time.Hour):
			cancel()
			<-ended
		}
		_ = conn.Close()
		g.Stop()
		<-served
	})
}
