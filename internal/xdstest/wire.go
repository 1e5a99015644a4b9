package xdstest

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
)

const (
	service  = "envoy.service.discovery.v3.AggregatedDiscoveryService"
	maxSize  = 1 << 30
	patience = 90 * time.Second // for one message; in a bubble that is fake time
)

// istiodPings is what istiod allows its clients.
var istiodPings = keepalive.EnforcementPolicy{MinTime: 15 * time.Second}

var errIdle = errors.New("nothing came")

func method(delta bool) string {
	if delta {
		return "DeltaAggregatedResources"
	}
	return "StreamAggregatedResources"
}

// bytesCodec carries *[]byte as they are, and messages as ever.
type bytesCodec struct{}

func (bytesCodec) Marshal(v any) (mem.BufferSlice, error) {
	if raw, ok := v.(*[]byte); ok {
		return mem.BufferSlice{mem.SliceBuffer(*raw)}, nil
	}
	data, err := proto.Marshal(v.(proto.Message))
	return mem.BufferSlice{mem.SliceBuffer(data)}, err
}

func (bytesCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if raw, ok := v.(*[]byte); ok {
		*raw = data.Materialize()
		return nil
	}
	return proto.Unmarshal(data.Materialize(), v.(proto.Message))
}

func (bytesCodec) Name() string { return "proto" }

// Network is where a server can be reached, until it is taken down. The zero value is ready.
type Network struct{ listener chan *bufconn.Listener }

// NewNetwork makes a network without a server.
func NewNetwork() *Network { return &Network{listener: make(chan *bufconn.Listener, 1)} }

// Listen puts a server there.
func (n *Network) Listen() net.Listener {
	l := bufconn.Listen(64 << 10)
	n.listener <- l
	return l
}

// Down takes the server away; its connections stay.
func (n *Network) Down() { <-n.listener }

// Conn connects to the server there.
func (n *Network) Conn(ctx context.Context) (net.Conn, error) {
	select {
	case l := <-n.listener:
		n.listener <- l
		return l.DialContext(ctx)
	default:
		return nil, errors.New("connection refused: nothing listens")
	}
}

// Dial makes a client connection, closed when the test ends.
func (n *Network) Dial(t testing.TB, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	dial := func(ctx context.Context, _ string) (net.Conn, error) { return n.Conn(ctx) }
	conn, err := grpc.NewClient("passthrough:///xdstest", append([]grpc.DialOption{
		grpc.WithContextDialer(dial), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxSize), grpc.MaxCallSendMsgSize(maxSize)),
	}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// Serve runs a gRPC server there until the test ends or stop is called.
func (n *Network) Serve(t testing.TB, server *grpc.Server) (stop func()) {
	t.Helper()
	listener := n.Listen()
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener)
	}()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			n.Down()
			server.Stop()
			<-served
		}
	}
	t.Cleanup(stop)
	return stop
}

// received is one message or the end of the stream.
type received struct {
	raw []byte
	err error
}

// pump hands over what a stream receives, one message at a time, so that flow control is felt.
func pump(ctx context.Context, receive func(any) error) <-chan received {
	ch := make(chan received)
	go func() {
		defer close(ch)
		for {
			var r received
			r.err = receive(&r.raw)
			select {
			case ch <- r:
			case <-ctx.Done():
				return
			}
			if r.err != nil {
				return
			}
		}
	}()
	return ch
}

// take waits for a message.
func take(ch <-chan received, limit time.Duration) ([]byte, error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case r, ok := <-ch:
		if !ok {
			return nil, errors.New("the stream has ended before")
		}
		return r.raw, r.err
	case <-timer.C:
		return nil, errIdle
	}
}
