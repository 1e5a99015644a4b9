package relay

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

// BenchmarkPassed streams responses of one size through the relay, through the smallest possible frame proxy, and without anything
// between, over unix sockets. The ratios are what counts.
func BenchmarkPassed(b *testing.B) {
	for _, size := range []int{32 << 10, 1 << 20} {
		through := map[string]func(*testing.B, *grpc.ClientConn) func(*grpc.Server){
			"relay": func(b *testing.B, upstream *grpc.ClientConn) func(*grpc.Server) {
				s, err := New(Config{Upstream: upstream})
				if err != nil {
					b.Fatal(err)
				}
				return func(g *grpc.Server) { s.Register(g) }
			},
			"proxy": bareProxy,
		}
		b.Run(fmt.Sprintf("%dKiB/direct", size>>10), func(b *testing.B) { stream(b, size, benchSource(b, size)) })
		for _, name := range []string{"proxy", "relay"} {
			b.Run(fmt.Sprintf("%dKiB/%s", size>>10, name), func(b *testing.B) {
				register := through[name](b, benchSource(b, size))
				stream(b, size, benchServe(b, register))
			})
		}
	}
}

// stream receives one response for each round of the benchmark.
func stream(b *testing.B, size int, conn *grpc.ClientConn) {
	desc := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	s, err := conn.NewStream(b.Context(), desc, "/"+serviceName+"/StreamAggregatedResources", grpc.ForceCodecV2(newCodec()), grpc.WaitForReady(true))
	if err != nil {
		b.Fatal(err)
	}
	if err := s.SendMsg(&discoveryv3.DiscoveryRequest{TypeUrl: typeCDS}); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		var f frame
		if err := s.RecvMsg(&f); err != nil {
			b.Fatal(err)
		}
		f.data.Free()
	}
}

// benchSource is a control plane that sends the same response for ever.
func benchSource(b *testing.B, size int) *grpc.ClientConn {
	response := &discoveryv3.DiscoveryResponse{
		TypeUrl: typeCDS, VersionInfo: "1", Nonce: "1",
	}
	for range size >> 11 {
		response.Resources = append(response.Resources, xdstest.Pack(typeCDS, "c", strings.Repeat("x", 1<<11-200)))
	}
	raw, err := newCodec().Marshal(response)
	if err != nil {
		b.Fatal(err)
	}
	f := frameOf(raw.Materialize())
	handler := func(_ any, s grpc.ServerStream) error {
		var request frame
		if err := s.RecvMsg(&request); err != nil {
			return err
		}
		for {
			if err := s.SendMsg(&f); err != nil {
				return err
			}
		}
	}
	return benchServe(b, func(g *grpc.Server) { g.RegisterService(benchService(handler), nil) })
}

func benchService(handler grpc.StreamHandler) *grpc.ServiceDesc {
	return &grpc.ServiceDesc{ServiceName: serviceName, HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{
		{StreamName: "StreamAggregatedResources", ServerStreams: true, ClientStreams: true, Handler: handler},
	}}
}

func benchServe(b *testing.B, register func(*grpc.Server)) *grpc.ClientConn {
	b.Helper()
	path := filepath.Join(b.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		b.Fatal(err)
	}
	server := grpc.NewServer(grpc.ForceServerCodecV2(newCodec()), grpc.MaxRecvMsgSize(defaultMaxMessage), grpc.MaxSendMsgSize(defaultMaxMessage))
	register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	b.Cleanup(func() { server.Stop(); <-served })
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(defaultMaxMessage)))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	return conn
}

// bareProxy copies frames between two streams and does nothing else.
func bareProxy(_ *testing.B, upstream *grpc.ClientConn) func(*grpc.Server) {
	handler := func(_ any, s grpc.ServerStream) error {
		desc := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
		up, err := upstream.NewStream(s.Context(), desc, "/"+serviceName+"/StreamAggregatedResources", grpc.ForceCodecV2(newCodec()))
		if err != nil {
			return err
		}
		go func() {
			for copyFrame(s.RecvMsg, up.SendMsg) == nil {
			}
		}()
		for {
			if err := copyFrame(up.RecvMsg, s.SendMsg); err != nil {
				return err
			}
		}
	}
	return func(g *grpc.Server) { g.RegisterService(benchService(handler), nil) }
}

func copyFrame(receive, send func(any) error) error {
	var f frame
	if err := receive(&f); err != nil {
		return err
	}
	err := send(&f)
	f.data.Free()
	return err
}
