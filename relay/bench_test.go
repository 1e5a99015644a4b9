package relay

import (
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

// BenchmarkPassed sends responses of one size through the relay, through the smallest possible frame proxy, and without anything between,
// over unix sockets. All three take turns in one run; what counts are the ratios of their median speeds.
func BenchmarkPassed(b *testing.B) {
	for _, c := range []struct {
		name        string
		size, batch int // bytes of a response, responses asked for at a time
	}{{"32KiB-pipeline", 32 << 10, 1024}, {"1MiB", 1 << 20, 32}, {"32MiB-push", 32 << 20, 2}} {
		b.Run(c.name, func(b *testing.B) { race(b, c.size, c.batch) })
	}
}

const minRounds = 7

// race measures rounds in which each way is used once.
func race(b *testing.B, size, batch int) {
	relay := func(upstream *grpc.ClientConn) func(*grpc.Server) {
		s, err := New(Config{Upstream: upstream})
		if err != nil {
			b.Fatal(err)
		}
		return func(g *grpc.Server) { s.Register(g) }
	}
	ways := []*way{
		openWay(b, benchSource(b, size, batch)),
		openWay(b, benchServe(b, bareProxy(benchSource(b, size, batch)))),
		openWay(b, benchServe(b, relay(benchSource(b, size, batch)))),
	}
	round := func(record bool) {
		for _, w := range ways {
			if took := w.batch(b, batch); record {
				w.took = append(w.took, took)
			}
		}
	}
	round(false) // connections and buffers grow
	b.SetBytes(int64(len(ways) * size * batch))
	for b.Loop() {
		round(true)
	}
	for len(ways[0].took) < minRounds {
		round(true)
	}
	direct, proxy, through := ways[0].median(), ways[1].median(), ways[2].median()
	b.ReportMetric(direct/proxy, "proxy/direct")
	b.ReportMetric(direct/through, "relay/direct")
	b.ReportMetric(proxy/through, "relay/proxy")
	b.ReportMetric(float64(size*batch)/through/1e6, "relay-MB/s")
}

// way is one of the things that are compared: a stream, and how long each batch took on it.
type way struct {
	stream grpc.ClientStream
	took   []float64 // seconds
}

func openWay(b *testing.B, conn *grpc.ClientConn) *way {
	b.Helper()
	desc := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	stream, err := conn.NewStream(b.Context(), desc, "/"+serviceName+"/StreamAggregatedResources", grpc.ForceCodecV2(newCodec()), grpc.WaitForReady(true))
	if err != nil {
		b.Fatal(err)
	}
	return &way{stream: stream}
}

// batch asks for a batch, takes it and tells how long that took, in seconds. Nothing flows when nothing was asked for, so that the others
// have the machine for themselves.
func (w *way) batch(b *testing.B, n int) float64 {
	start := time.Now()
	if err := w.stream.SendMsg(&discoveryv3.DiscoveryRequest{TypeUrl: typeCDS}); err != nil {
		b.Fatal(err)
	}
	for range n {
		var f frame
		if err := w.stream.RecvMsg(&f); err != nil {
			b.Fatal(err)
		}
		f.data.Free()
	}
	return time.Since(start).Seconds()
}

func (w *way) median() float64 {
	slices.Sort(w.took)
	return w.took[len(w.took)/2]
}

// benchSource is a control plane that sends a batch of the same response for each request.
func benchSource(b *testing.B, size, batch int) *grpc.ClientConn {
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
		for {
			var request frame
			if err := s.RecvMsg(&request); err != nil {
				return err
			}
			request.data.Free()
			for range batch {
				if err := s.SendMsg(&f); err != nil {
					return err
				}
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
func bareProxy(upstream *grpc.ClientConn) func(*grpc.Server) {
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
