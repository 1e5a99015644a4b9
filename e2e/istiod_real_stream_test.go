package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

// ask is one request. What is empty is not sent, but for the nonce: "last" is the one of the type's last response.
type ask struct {
	kind    string // a short name of the type, as in typeURLs
	names   []string
	unnames []string // delta
	initial []string // delta: names that the client has
	nonce   string
	err     string // of a NACK
	hasty   bool   // the next request follows at once
	node    *corev3.Node
}

var typeURLs = map[string]string{
	"CDS": xdstest.CDS, "EDS": xdstest.EDS, "LDS": xdstest.LDS, "RDS": xdstest.RDS, "ECDS": xdstest.ECDS, "SDS": xdstest.SDS,
	"NDS": xdstest.NDS, "PCDS": xdstest.PCDS, "health": xdstest.Health, "other": "type.googleapis.com/google.protobuf.StringValue",
}

func shortType(url string) string {
	for name, u := range typeURLs {
		if u == url {
			return name
		}
	}
	return url
}

// String is the request's line in a transcript.
func (a ask) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %v", a.kind, a.names)
	for _, part := range []struct {
		word string
		said bool
		what any
	}{
		{"without", a.unnames != nil, a.unnames}, {"having", a.initial != nil, a.initial}, {"nonce", a.nonce != "", a.nonce}, {"NACK", a.err != "", ""},
	} {
		if part.said {
			fmt.Fprintf(&b, " %s %v", part.word, part.what)
		}
	}
	return b.String()
}

// reply is one response, or the end of the stream.
type reply struct {
	kind, version, nonce string
	names, removed       []string
	resources            []*anypb.Any // state-of-the-world
	err                  error
}

func (r reply) String() string {
	if r.err != nil {
		if errors.Is(r.err, io.EOF) {
			return "ends without an error"
		}
		return "ends with " + grpcstatus.Code(r.err).String()
	}
	text := fmt.Sprintf("%s %v", r.kind, slices.Sorted(slices.Values(r.names)))
	if len(r.removed) > 0 {
		text += fmt.Sprintf(" removed %v", r.removed)
	}
	return text
}

// stream is a client's, in either protocol. It is used by one goroutine.
type stream struct {
	t       *testing.T
	delta   bool
	send    func(proto.Message) error
	replies chan reply // the end is the last
	last    map[string]reply
	probes  int
}

// dialPeer connects to an istiod, with TLS when there is a configuration for it.
func dialPeer(t *testing.T, address string, config *tls.Config) *grpc.ClientConn {
	t.Helper()
	security := insecure.NewCredentials()
	if config != nil {
		security = credentials.NewTLS(config)
	}
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(security))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// openStream opens one, which ends with the test.
func openStream(t *testing.T, conn *grpc.ClientConn, delta bool, headers metadata.MD) *stream {
	t.Helper()
	s := &stream{t: t, delta: delta, replies: make(chan reply), last: map[string]reply{}}
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(t.Context(), headers))
	client, method := discoveryv3.NewAggregatedDiscoveryServiceClient(conn), s.sotw
	if delta {
		method = s.deltas
	}
	receive, err := method(ctx, client)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for r := (reply{}); r.err == nil; {
			r = receive()
			select {
			case s.replies <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return s
}

func (s *stream) deltas(ctx context.Context, client discoveryv3.AggregatedDiscoveryServiceClient) (func() reply, error) {
	c, err := client.DeltaAggregatedResources(ctx)
	if err != nil {
		return nil, err
	}
	s.send = func(m proto.Message) error { return c.Send(m.(*discoveryv3.DeltaDiscoveryRequest)) }
	return func() reply {
		m, err := c.Recv()
		r := reply{kind: shortType(m.GetTypeUrl()), version: m.GetSystemVersionInfo(), nonce: m.GetNonce(), removed: m.GetRemovedResources(), err: err}
		for _, one := range m.GetResources() {
			r.names = append(r.names, described(one.GetName(), one.GetResource())+one.GetVersion())
		}
		return r
	}, nil
}

func (s *stream) sotw(ctx context.Context, client discoveryv3.AggregatedDiscoveryServiceClient) (func() reply, error) {
	c, err := client.StreamAggregatedResources(ctx)
	if err != nil {
		return nil, err
	}
	s.send = func(m proto.Message) error { return c.Send(m.(*discoveryv3.DiscoveryRequest)) }
	return func() reply {
		m, err := c.Recv()
		r := reply{kind: shortType(m.GetTypeUrl()), version: m.GetVersionInfo(), nonce: m.GetNonce(), resources: m.GetResources(), err: err}
		for _, packed := range m.GetResources() {
			r.names = append(r.names, described(nameOf(packed), packed))
		}
		return r
	}, nil
}

// nameOf is what a resource is asked for by; "" when it has no name.
func nameOf(packed *anypb.Any) string {
	m, err := packed.UnmarshalNew()
	if err != nil {
		return "" // Istio's own types, of which there is one resource
	}
	switch m := m.(type) {
	case interface{ GetClusterName() string }:
		return m.GetClusterName()
	case interface{ GetName() string }:
		return m.GetName()
	}
	return ""
}

// described is a name, of a plugin with what is said of its pull secret.
func described(name string, packed *anypb.Any) string {
	extension, filter := new(corev3.TypedExtensionConfig), new(wasmv3.Wasm)
	if packed.UnmarshalTo(extension) != nil || extension.GetTypedConfig().UnmarshalTo(filter) != nil {
		return name
	}
	switch secret, has := filter.GetConfig().GetVmConfig().GetEnvironmentVariables().GetKeyValues()[pullSecret]; {
	case !has:
		return name
	case secret == "":
		return name + " (empty secret)"
	}
	return name + " (secret)"
}

// ask sends a request and returns all that comes before the answer to one that is sent after it. Nothing is missed: an istiod answers a
// stream's requests in their order.
func (s *stream) ask(a ask) []reply {
	s.t.Helper()
	s.request(a)
	if a.hasty {
		return nil
	}
	s.probes++
	probe := ask{kind: "NDS", names: []string{fmt.Sprintf("probe-%d", s.probes)}}
	s.request(probe)
	var all []reply
	for {
		select {
		case r := <-s.replies:
			if r.kind == "NDS" && (a.kind != "NDS" || slices.ContainsFunc(all, func(r reply) bool { return r.kind == "NDS" })) {
				return all
			}
			all = append(all, r)
			if r.err != nil {
				return all
			}
			s.last[r.kind] = r
		case <-time.After(10 * time.Second):
			s.t.Fatalf("%v: nothing more came after %v", a, all)
		}
	}
}

// pushed is what comes by itself: at least one response, and all that follow it closely.
func (s *stream) pushed() []reply {
	s.t.Helper()
	var all []reply
	for wait := 10 * time.Second; ; wait = 300 * time.Millisecond { // istiod waits for 100 ms until it pushes, and then pushes all
		select {
		case r := <-s.replies:
			all = append(all, r)
			if r.err != nil {
				return all
			}
			s.last[r.kind] = r
		case <-time.After(wait):
			return all
		}
	}
}

// request sends. That the stream has ended is seen where it is read.
func (s *stream) request(a ask) {
	nonce, version := a.nonce, ""
	if nonce == "last" {
		nonce, version = s.last[a.kind].nonce, s.last[a.kind].version
	}
	var detail *status.Status
	if a.err != "" {
		detail = &status.Status{Code: int32(codes.Internal), Message: a.err}
	}
	if !s.delta {
		_ = s.send(&discoveryv3.DiscoveryRequest{
			Node: a.node, TypeUrl: typeURLs[a.kind], ResourceNames: a.names, ResponseNonce: nonce, VersionInfo: version, ErrorDetail: detail,
		})
		return
	}
	initial := map[string]string{}
	for _, name := range a.initial {
		initial[name] = ""
	}
	_ = s.send(&discoveryv3.DeltaDiscoveryRequest{
		Node: a.node, TypeUrl: typeURLs[a.kind], ResourceNamesSubscribe: a.names, ResourceNamesUnsubscribe: a.unnames,
		InitialResourceVersions: initial, ResponseNonce: nonce, ErrorDetail: detail,
	})
}

// routerNode is the node of a gateway that istiod takes, changed by more; a nil value removes a key of the metadata.
func routerNode(id string, more map[string]any) *corev3.Node {
	meta := map[string]any{
		"NAMESPACE": "ingress", "SERVICE_ACCOUNT": "gw", "CLUSTER_ID": "Kubernetes", "INSTANCE_IPS": "10.1.2.3", "ISTIO_VERSION": "1.32.0",
		"LABELS": map[string]any{"istio": "ingress"},
	}
	maps.Copy(meta, more)
	maps.DeleteFunc(meta, func(_ string, value any) bool { return value == nil })
	return &corev3.Node{Id: id, Metadata: structOf(meta)}
}
