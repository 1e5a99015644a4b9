package sds

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/gateway-agent/gateway-agent/internal/testbuffer"
)

// rig is a running Server with a client connection to it.
type rig struct {
	*Server
	client secretv3.SecretDiscoveryServiceClient
	log    *testbuffer.Buffer
}

// newServerRig works inside a synctest bubble with PollOnly set.
func newServerRig(t *testing.T, cfg Config) *rig {
	t.Helper()
	r := &rig{log: &testbuffer.Buffer{}}
	cfg.Log = slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.Server = s
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	s.Register(server)
	conn, err := grpc.NewClient("passthrough:///sds", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return listener.Dial() }))
	if err != nil {
		t.Fatal(err)
	}
	r.client = secretv3.NewSecretDiscoveryServiceClient(conn)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(listener) })
	wg.Go(func() {
		if err := s.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(func() {
		conn.Close()
		server.Stop()
		cancel()
		wg.Wait()
	})
	return r
}

// answer is what a client got, in either protocol.
type answer struct {
	name, version, nonce string
	secret               *tlsv3.Secret // nil: it cannot be served
	refusal              string        // the words of a refusal, state of the world only
}

// session is a client's stream in either protocol.
type session interface {
	subscribe(names ...string)   // adds names
	unsubscribe(names ...string) // takes names away
	ack(answer)
	nack(answer, string)
	recv() (answer, error)
	close()
}

func openSession(t *testing.T, r *rig, protocol string, held map[string]string) session {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	if protocol == "delta" {
		stream, err := r.client.DeltaSecrets(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return &deltaSession{t: t, stream: stream, cancel: cancel, held: held}
	}
	stream, err := r.client.StreamSecrets(ctx)
	if err != nil {
		t.Fatal(err)
	}
	s := &sotwSession{t: t, stream: stream, cancel: cancel}
	for _, version := range held {
		s.version = version
	}
	return s
}

type sotwSession struct {
	t              *testing.T
	stream         secretv3.SecretDiscoveryService_StreamSecretsClient
	cancel         context.CancelFunc
	names          []string
	version, nonce string
	node           bool
}

func (s *sotwSession) send(req *discoveryv3.DiscoveryRequest) {
	s.t.Helper()
	req.TypeUrl, req.ResourceNames = TypeURL, s.names
	if !s.node {
		req.Node, s.node = &corev3.Node{Id: "test"}, true
	}
	if err := s.stream.Send(req); err != nil {
		s.t.Fatalf("send: %v", err)
	}
}

func (s *sotwSession) subscribe(names ...string) {
	s.names = append(s.names, names...)
	s.send(&discoveryv3.DiscoveryRequest{VersionInfo: s.version, ResponseNonce: s.nonce})
}

func (s *sotwSession) unsubscribe(names ...string) {
	var left []string
	for _, n := range s.names {
		if n != names[0] {
			left = append(left, n)
		}
	}
	s.names = left
	s.send(&discoveryv3.DiscoveryRequest{VersionInfo: s.version, ResponseNonce: s.nonce})
}

func (s *sotwSession) ack(a answer) {
	s.version, s.nonce = a.version, a.nonce
	s.send(&discoveryv3.DiscoveryRequest{VersionInfo: s.version, ResponseNonce: a.nonce})
}

func (s *sotwSession) nack(a answer, text string) {
	s.nonce = a.nonce
	s.send(&discoveryv3.DiscoveryRequest{VersionInfo: s.version, ResponseNonce: a.nonce, ErrorDetail: &rpcstatus.Status{Code: 13, Message: text}})
}

func (s *sotwSession) recv() (answer, error) {
	resp, err := s.stream.Recv()
	if err != nil {
		return answer{}, err
	}
	if len(resp.GetResources()) != 1 {
		return answer{}, errors.New("response without exactly one resource")
	}
	a := answer{version: resp.GetVersionInfo(), nonce: resp.GetNonce()}
	if a.secret, err = decode(resp.GetResources()[0]); err != nil {
		a.refusal, err = string(resp.GetResources()[0].GetValue()), nil
	} else {
		a.name = a.secret.GetName()
	}
	return a, err
}

func (s *sotwSession) close() { s.cancel() }

func decode(body *anypb.Any) (*tlsv3.Secret, error) {
	secret := &tlsv3.Secret{}
	if err := body.UnmarshalTo(secret); err != nil {
		return nil, err
	}
	return secret, nil
}

type deltaSession struct {
	t      *testing.T
	stream secretv3.SecretDiscoveryService_DeltaSecretsClient
	cancel context.CancelFunc
	held   map[string]string
}

func (s *deltaSession) send(req *discoveryv3.DeltaDiscoveryRequest) {
	s.t.Helper()
	req.TypeUrl, req.InitialResourceVersions, s.held = TypeURL, s.held, nil
	if err := s.stream.Send(req); err != nil {
		s.t.Fatalf("send: %v", err)
	}
}

func (s *deltaSession) subscribe(names ...string) {
	s.send(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: names})
}

func (s *deltaSession) unsubscribe(names ...string) {
	s.send(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesUnsubscribe: names})
}

func (s *deltaSession) ack(a answer) {
	s.send(&discoveryv3.DeltaDiscoveryRequest{ResponseNonce: a.nonce})
}

func (s *deltaSession) nack(a answer, text string) {
	s.send(&discoveryv3.DeltaDiscoveryRequest{ResponseNonce: a.nonce, ErrorDetail: &rpcstatus.Status{Code: 13, Message: text}})
}

func (s *deltaSession) recv() (answer, error) {
	resp, err := s.stream.Recv()
	if err != nil {
		return answer{}, err
	}
	if len(resp.GetResources())+len(resp.GetRemovedResources()) != 1 {
		return answer{}, errors.New("response without exactly one resource")
	}
	if removed := resp.GetRemovedResources(); len(removed) == 1 {
		return answer{name: removed[0], nonce: resp.GetNonce()}, nil
	}
	res := resp.GetResources()[0]
	a := answer{name: res.GetName(), version: res.GetVersion(), nonce: resp.GetNonce()}
	a.secret, err = decode(res.GetResource())
	return a, err
}

func (s *deltaSession) close() { s.cancel() }

// inbox receives everything a session gets, so that a test can ask for what came and for silence.
type inbox struct {
	session
	t   *testing.T
	got chan answer
}

func newInbox(t *testing.T, r *rig, protocol string, held map[string]string) *inbox {
	t.Helper()
	in := &inbox{session: openSession(t, r, protocol, held), t: t, got: make(chan answer, 100)} // more than any test gets
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(in.got)
		for {
			a, err := in.recv()
			if err != nil {
				return
			}
			in.got <- a
		}
	}()
	t.Cleanup(func() { in.close(); <-done })
	return in
}

// next is the next answer, which must come within limit.
func (in *inbox) next(limit time.Duration) answer {
	in.t.Helper()
	select {
	case a, ok := <-in.got:
		if !ok {
			in.t.Fatal("stream ended, want an answer")
		}
		return a
	case <-time.After(limit):
		in.t.Fatalf("no answer within %v", limit)
		return answer{}
	}
}

// silence fails when anything comes within d.
func (in *inbox) silence(d time.Duration) {
	in.t.Helper()
	select {
	case a, ok := <-in.got:
		in.t.Fatalf("got %s@%s (open %v), want silence", a.name, a.version, ok)
	case <-time.After(d):
	}
}

// sotwRequest and deltaRequest make the requests of clients that answer at random: a, if given, is accepted or rejected.
func sotwRequest(s *sotwSession, a *answer) *discoveryv3.DiscoveryRequest {
	req := &discoveryv3.DiscoveryRequest{TypeUrl: TypeURL, ResourceNames: s.names}
	if a != nil {
		req.ResponseNonce, req.ErrorDetail = a.nonce, perhaps()
	}
	return req
}

func deltaRequest(name string, a *answer) *discoveryv3.DeltaDiscoveryRequest {
	req := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: TypeURL}
	if name != "" {
		req.ResourceNamesSubscribe = []string{name}
	}
	if a != nil {
		req.ResponseNonce, req.ErrorDetail = a.nonce, perhaps()
	}
	return req
}

func perhaps() *rpcstatus.Status {
	if rand.IntN(4) > 0 {
		return nil
	}
	return &rpcstatus.Status{Code: 13, Message: "no"}
}
