package standalone

import (
	"context"
	"maps"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	deltav3 "github.com/envoyproxy/go-control-plane/pkg/server/delta/v3"
	sotwv3 "github.com/envoyproxy/go-control-plane/pkg/server/sotw/v3"
	"google.golang.org/grpc"
)

// Register adds the aggregated discovery service, state-of-the-world and delta, to a gRPC server.
func (s *Source) Register(r grpc.ServiceRegistrar) {
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(r, &service{source: s})
}

type service struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	source *Source
}

// StreamAggregatedResources serves one state-of-the-world stream. Each stream has a server object of its own, so that
// what is remembered of it belongs to it alone.
func (v *service) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	sess := v.source.sessions.open()
	defer v.source.sessions.close(sess)
	cb := &sotwCallbacks{session: sess, source: v.source}
	return sotwv3.NewServer(stream.Context(), v.source.cache, cb).StreamHandler(stream, resourcev3.AnyType)
}

// DeltaAggregatedResources serves one delta stream.
func (v *service) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	sess := v.source.sessions.open()
	defer v.source.sessions.close(sess)
	cb := &deltaCallbacks{session: sess, source: v.source}
	return deltav3.NewServer(stream.Context(), v.source.cache, cb).DeltaStreamHandler(stream, resourcev3.AnyType)
}

// oneNode: every Envoy gets the same configuration.
type oneNode struct{}

func (oneNode) ID(*corev3.Node) string { return "" }

type sotwCallbacks struct {
	session *session
	source  *Source
}

func (*sotwCallbacks) OnStreamOpen(context.Context, int64, string) error { return nil }
func (*sotwCallbacks) OnStreamClosed(int64, *corev3.Node)                {}

// OnStreamRequest notes what Envoy says of the last response. It also makes the request say the version that was sent
// last: after a rejection Envoy repeats the version before it, which the cache would answer with the rejected one at
// once, again and again.
func (c *sotwCallbacks) OnStreamRequest(_ int64, req *discoveryv3.DiscoveryRequest) error {
	last := c.source.sessions.answered(c.session, req.GetTypeUrl(), req.GetResponseNonce())
	if last == nil {
		return nil
	}
	if req.GetResponseNonce() == last.nonce {
		c.source.answer(req.GetTypeUrl(), last.names, req.GetErrorDetail())
	}
	req.VersionInfo = last.version
	return nil
}

func (c *sotwCallbacks) OnStreamResponse(_ context.Context, _ int64, req *discoveryv3.DiscoveryRequest, resp *discoveryv3.DiscoveryResponse) {
	c.source.sessions.sent(c.session, resp.GetTypeUrl(), sending{version: resp.GetVersionInfo(), nonce: resp.GetNonce(), names: req.GetResourceNames()})
}

type deltaCallbacks struct {
	session *session
	source  *Source
}

func (*deltaCallbacks) OnDeltaStreamOpen(context.Context, int64, string) error { return nil }
func (*deltaCallbacks) OnDeltaStreamClosed(int64, *corev3.Node)                {}

// OnStreamDeltaRequest notes what Envoy says of the last response. The cache counts as known what was sent, so a
// rejected resource is not sent again by itself.
func (c *deltaCallbacks) OnStreamDeltaRequest(_ int64, req *discoveryv3.DeltaDiscoveryRequest) error {
	last := c.source.sessions.answered(c.session, req.GetTypeUrl(), req.GetResponseNonce())
	if last != nil && req.GetResponseNonce() == last.nonce {
		c.source.answer(req.GetTypeUrl(), last.names, req.GetErrorDetail())
	}
	return nil
}

func (c *deltaCallbacks) OnStreamDeltaResponse(_ int64, req *discoveryv3.DeltaDiscoveryRequest, resp *discoveryv3.DeltaDiscoveryResponse) {
	names := make(map[string]bool, len(resp.GetResources()))
	for _, r := range resp.GetResources() {
		names[r.GetName()] = true
	}
	c.source.sessions.sent(c.session, req.GetTypeUrl(), sending{
		version: resp.GetSystemVersionInfo(), nonce: resp.GetNonce(), delta: true, names: slices.Sorted(maps.Keys(names)),
	})
}
