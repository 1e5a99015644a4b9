package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// wiretap stands at istiod's address, passes every call on to a fake istiod, and keeps what was said on the way there.
type wiretap struct {
	mu    sync.Mutex
	calls []*tappedCall
}

// tappedCall is one gRPC call.
type tappedCall struct {
	method   string
	header   metadata.MD
	requests [][]byte
}

// frames is a codec that leaves messages as they are.
type frames struct{}

func (frames) Name() string { return "proto" }

func (frames) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (frames) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = slices.Clone(data)
	return nil
}

// newWiretap listens with istiod's certificate until the test ends.
func newWiretap(t *testing.T, address, behind string, cert *tls.Certificate) *wiretap {
	t.Helper()
	var listener net.Listener
	eventually(t, 5*time.Second, "istiod's address is free", func() (err error) {
		listener, err = net.Listen("tcp", address)
		return err
	})
	onward, err := grpc.NewClient(behind, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	w := &wiretap{}
	server := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*cert}, NextProtos: []string{"h2"}})),
		grpc.ForceServerCodec(frames{}), grpc.WaitForHandlers(true), //nolint:staticcheck // the successor's buffers are of no use here
		grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error { return w.pass(s, onward) }),
	)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
		_ = onward.Close()
	})
	return w
}

// pass serves one call.
func (w *wiretap) pass(s grpc.ServerStream, onward *grpc.ClientConn) error {
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	method, _ := grpc.MethodFromServerStream(s)
	header, _ := metadata.FromIncomingContext(ctx)
	call := &tappedCall{method: method, header: header.Copy()}
	w.mu.Lock()
	w.calls = append(w.calls, call)
	w.mu.Unlock()
	out := header.Copy()
	maps.DeleteFunc(out, func(name string, _ []string) bool { return strings.HasPrefix(name, ":") || name == "content-type" })
	both := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	stream, err := onward.NewStream(metadata.NewOutgoingContext(ctx, out), both, method, grpc.ForceCodec(frames{})) //nolint:staticcheck // as above
	if err != nil {
		return err
	}
	go func() { _ = w.upward(s, stream, call) }() // it ends with s
	err = downward(s, stream)
	cancel()
	return err
}

func (w *wiretap) upward(s grpc.ServerStream, stream grpc.ClientStream, call *tappedCall) error {
	for {
		var frame []byte
		if err := s.RecvMsg(&frame); err != nil {
			return errors.Join(err, stream.CloseSend())
		}
		w.mu.Lock()
		call.requests = append(call.requests, frame)
		w.mu.Unlock()
		if err := stream.SendMsg(&frame); err != nil {
			return err
		}
	}
}

func downward(s grpc.ServerStream, stream grpc.ClientStream) error {
	for {
		var frame []byte
		err := stream.RecvMsg(&frame)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.SendMsg(&frame); err != nil {
			return status.Error(codes.Unavailable, err.Error())
		}
	}
}

// take returns the calls of a service so far, oldest first.
func (w *wiretap) take(service string) (calls []tappedCall) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, call := range w.calls {
		if strings.HasPrefix(call.method, "/"+service+"/") {
			calls = append(calls, tappedCall{call.method, call.header, slices.Clone(call.requests)})
		}
	}
	return calls
}

func (w *wiretap) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = nil
}

// lenient takes what a fake finds wrong for a remark: the fakes judge our own agent elsewhere, and here the real one shows what is right.
type lenient struct{ testing.TB }

func (l lenient) Error(args ...any) { l.Log(fmt.Sprint(args...)) }

func (l lenient) Errorf(format string, args ...any) { l.Logf(format, args...) }
