package peercred

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

// whoami is a service that remembers who called it.
type whoami struct {
	grpc_health_v1.UnimplementedHealthServer
	cred Cred
	ok   bool
}

func (w *whoami) Check(ctx context.Context, _ *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	w.cred, w.ok = FromContext(ctx)
	return &grpc_health_v1.HealthCheckResponse{}, nil
}

func call(t *testing.T, listener net.Listener, target string, server credentials.TransportCredentials, options ...grpc.DialOption) (*whoami, error) {
	t.Helper()
	w := new(whoami)
	s := grpc.NewServer(grpc.Creds(server))
	grpc_health_v1.RegisterHealthServer(s, w)
	served := make(chan error, 1)
	go func() { served <- s.Serve(listener) }()
	t.Cleanup(func() { s.Stop(); <-served })
	conn, err := grpc.NewClient(target, append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err = grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	return w, err
}

func unixListener(t *testing.T) (net.Listener, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	return listener, "unix:" + path
}

func TestUnixPeerIsKnown(t *testing.T) {
	listener, target := unixListener(t)
	w, err := call(t, listener, target, New())
	if err != nil {
		t.Fatal(err)
	}
	want := Cred{PID: os.Getpid(), UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	if !w.ok || w.cred != want {
		t.Errorf("FromContext = %+v, %v, want %+v", w.cred, w.ok, want)
	}
}

func TestOtherUsersAreRefused(t *testing.T) {
	listener, target := unixListener(t)
	_, err := call(t, listener, target, &creds{allowed: []uint32{4242}})
	if status.Code(err) != codes.Unavailable {
		t.Errorf("call of a user who may not = %v, want Unavailable", err)
	}
}

func TestRefusalNamesTheUser(t *testing.T) {
	listener, target := unixListener(t)
	dialed, err := net.Dial("unix", strings.TrimPrefix(target, "unix:"))
	if err != nil {
		t.Fatal(err)
	}
	defer dialed.Close()
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	_, _, err = (&creds{allowed: []uint32{4242}}).ServerHandshake(accepted)
	if err == nil || !strings.Contains(err.Error(), "only users [4242] may") {
		t.Errorf("ServerHandshake = %v, want a refusal that names who may", err)
	}
}

func TestOtherConnectionsHaveNoCred(t *testing.T) {
	listener := bufconn.Listen(1024)
	dial := grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) })
	w, err := call(t, listener, "passthrough:///x", New(7), dial)
	if err != nil {
		t.Fatal(err)
	}
	if w.ok {
		t.Errorf("FromContext = %+v on a connection that tells nothing", w.cred)
	}
	if _, ok := FromContext(context.Background()); ok {
		t.Error("FromContext of a context without a peer is true")
	}
}

func TestAllowed(t *testing.T) {
	c := New(7, 0).(*creds).Clone().(*creds)
	for _, uid := range []uint32{0, 7, uint32(os.Geteuid())} {
		if !contains(c.allowed, uid) {
			t.Errorf("user %d is not in %v", uid, c.allowed)
		}
	}
}

func contains(uids []uint32, uid uint32) bool {
	return slices.Contains(uids, uid)
}
