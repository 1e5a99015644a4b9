package identity

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const (
	secretType    = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
	externalBase  = 100 * time.Millisecond
	externalMost  = 10 * time.Second
	healthy       = 30 * time.Second // a stream that lasted so long begins the waits anew
	maxExternal   = 4 << 20          // bytes of one answer
	maxExternText = 300              // bytes of what the server says about an error
)

// runExternal passes on what an external server gives, until ctx ends. It waits for the server for ever, and nobody else takes its place.
func (w *Workload) runExternal(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, name := range []string{Certificate, Roots} {
		wg.Go(func() { w.followExternal(ctx, name) })
	}
	<-ctx.Done()
}

// followExternal keeps one secret up to date, over as many streams as that takes.
func (w *Workload) followExternal(ctx context.Context, name string) {
	socket := w.cfg.Choice.Socket
	waiting := fmt.Errorf("waiting for the server at %s", socket)
	w.mu.Lock()
	w.notes[name] = waiting.Error()
	w.mu.Unlock()
	w.cfg.Server.Assign(name, nil, waiting)
	for failures := 0; ctx.Err() == nil; {
		begin := time.Now()
		before, _ := os.Stat(socket)
		err := w.streamExternal(ctx, name)
		if ctx.Err() != nil {
			return
		}
		if time.Since(begin) >= healthy {
			failures = 0
		}
		w.note(name, fmt.Errorf("the server at %s cannot be asked for %s: %w", socket, name, err))
		failures++
		limit := min(externalBase<<min(failures, 10), externalMost)
		if w.awaitSocket(ctx, before, max(time.Duration(rand.Float64()*float64(limit)), externalBase/4)) {
			failures = 0
		}
	}
}

// awaitSocket waits, at most until the socket's file is another than before, and says whether it is.
func (w *Workload) awaitSocket(ctx context.Context, before os.FileInfo, limit time.Duration) bool {
	for end := time.Now().Add(limit); time.Now().Before(end) && ctx.Err() == nil; {
		pause(ctx, min(w.cfg.Poll, time.Until(end)))
		if w.replaced(before) {
			return true
		}
	}
	return false
}

// note remembers and logs what is wrong with a secret of the external server; nil: nothing.
func (w *Workload) note(name string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	w.mu.Lock()
	before, known := w.notes[name]
	w.notes[name] = text
	w.mu.Unlock()
	switch {
	case known && before == text:
		return
	case err != nil:
		w.log.Warn("external server does not give the identity", "resource", name, "err", err)
		w.cfg.Server.Assign(name, nil, err)
	default:
		w.log.Info("external server gives the identity", "resource", name)
	}
}

// streamExternal asks on a stream of its own until that ends.
func (w *Workload) streamExternal(ctx context.Context, name string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	before, err := os.Stat(w.cfg.Choice.Socket)
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("unix://"+w.cfg.Choice.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxExternal)))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	wg.Go(func() { w.watchSocket(ctx, cancel, before) })
	stream, err := secretv3.NewSecretDiscoveryServiceClient(conn).StreamSecrets(ctx)
	if err != nil {
		return plain(ctx, err)
	}
	req := &discoveryv3.DiscoveryRequest{Node: w.cfg.Node, TypeUrl: secretType, ResourceNames: []string{name}}
	for {
		if err := stream.Send(req); err != nil && !errors.Is(err, io.EOF) {
			return plain(ctx, err)
		}
		resp, err := stream.Recv() // after EOF this has the reason
		if err != nil {
			return plain(ctx, err)
		}
		secret, err := pick(resp, name)
		req = &discoveryv3.DiscoveryRequest{TypeUrl: secretType, ResourceNames: []string{name}, ResponseNonce: resp.GetNonce(), VersionInfo: req.GetVersionInfo()}
		switch {
		case err != nil:
			req.ErrorDetail = &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: err.Error()}
			w.note(name, fmt.Errorf("the server at %s: %w", w.cfg.Choice.Socket, err))
		case secret != nil:
			req.VersionInfo = resp.GetVersionInfo()
			w.note(name, nil)
			w.cfg.Server.Assign(name, secret, nil)
		}
	}
}

// replaced says whether the socket's file is there and another than before, which may be nil. A new one may get the number of the old one.
func (w *Workload) replaced(before os.FileInfo) bool {
	now, err := os.Stat(w.cfg.Choice.Socket)
	return err == nil && (before == nil || !os.SameFile(before, now) || !before.ModTime().Equal(now.ModTime()))
}

// watchSocket ends the stream when the socket's file is replaced: whoever listens now is the one to ask.
func (w *Workload) watchSocket(ctx context.Context, cancel context.CancelCauseFunc, before os.FileInfo) {
	for pause(ctx, w.cfg.Poll) {
		if w.replaced(before) {
			cancel(errors.New("its socket has been replaced"))
			return
		}
	}
}

// pick finds a secret in an answer; none is not an error: the server has none yet. A secret of the wrong kind would switch off the
// verification of peers in Envoy.
func pick(resp *discoveryv3.DiscoveryResponse, name string) (*tlsv3.Secret, error) {
	for _, resource := range resp.GetResources() {
		secret := new(tlsv3.Secret)
		if resource.GetTypeUrl() != secretType || proto.Unmarshal(resource.GetValue(), secret) != nil {
			return nil, errors.New("an answer holds something that is not a secret")
		}
		if secret.GetName() != name {
			continue
		}
		if name == Certificate && secret.GetTlsCertificate() == nil || name == Roots && secret.GetValidationContext() == nil {
			return nil, fmt.Errorf("secret %s is of the wrong kind", name)
		}
		return secret, nil
	}
	return nil, nil
}

// plain is an error of a stream in short.
func plain(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	text := status.Convert(err).Message()
	if text == "" {
		text = "the stream has ended"
	}
	if len(text) > maxExternText {
		text = text[:maxExternText] + "…"
	}
	return fmt.Errorf("%v: %q", status.Code(err), text)
}

// pause waits; false means that ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
