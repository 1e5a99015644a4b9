package e2e

import (
	"context"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"sigs.k8s.io/yaml"
)

// oneNode hands every Envoy the same snapshot.
type oneNode struct{}

func (oneNode) ID(*corev3.Node) string { return "gateway" }

// controlPlane is go-control-plane's snapshot-cache server, which can be stopped and started.
type controlPlane struct {
	t         *testing.T
	address   string
	cache     cache.SnapshotCache
	server    *grpc.Server
	options   []grpc.ServerOption
	version   int
	listeners atomic.Int64 // LDS responses sent
}

func newControlPlane(t *testing.T, options ...grpc.ServerOption) *controlPlane {
	t.Helper()
	c := &controlPlane{t: t, address: freeAddress(t), cache: cache.NewSnapshotCache(false, oneNode{}, nil), options: options}
	c.start()
	t.Cleanup(func() { c.server.Stop() })
	return c
}

func (c *controlPlane) start() {
	c.t.Helper()
	var listener net.Listener
	eventually(c.t, 5*time.Second, "listen on "+c.address, func() (err error) {
		listener, err = net.Listen("tcp", c.address)
		return err
	})
	count := func(typeURL string) {
		if typeURL == resource.ListenerType {
			c.listeners.Add(1)
		}
	}
	callbacks := server.CallbackFuncs{
		StreamResponseFunc: func(_ context.Context, _ int64, _ *discoveryv3.DiscoveryRequest, r *discoveryv3.DiscoveryResponse) {
			count(r.GetTypeUrl())
		},
		StreamDeltaResponseFunc: func(_ int64, _ *discoveryv3.DeltaDiscoveryRequest, r *discoveryv3.DeltaDiscoveryResponse) {
			count(r.GetTypeUrl())
		},
	}
	c.server = grpc.NewServer(c.options...)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(c.server, server.NewServer(c.t.Context(), c.cache, callbacks))
	go func() { _ = c.server.Serve(listener) }()
}

// stop ends every stream and frees the address.
func (c *controlPlane) stop() { c.server.Stop() }

// set publishes the resources: YAML items as the fixtures make them.
func (c *controlPlane) set(items ...string) {
	c.t.Helper()
	byType := map[resource.Type][]types.Resource{}
	for _, item := range items {
		message := decodeItem(c.t, item)
		typeURL := "type.googleapis.com/" + string(message.ProtoReflect().Descriptor().FullName())
		byType[typeURL] = append(byType[typeURL], message)
	}
	c.version++
	snapshot, err := cache.NewSnapshot(strconv.Itoa(c.version), byType)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := c.cache.SetSnapshot(c.t.Context(), "gateway", snapshot); err != nil {
		c.t.Fatal(err)
	}
}

// decodeItem turns one "- "@type": …" item of YAML into its message.
func decodeItem(t *testing.T, item string) proto.Message {
	t.Helper()
	var list []any
	if err := yaml.Unmarshal([]byte(item), &list); err != nil {
		t.Fatalf("%v in\n%s", err, item)
	}
	data, err := yaml.YAMLToJSON([]byte(item))
	if err != nil || len(list) != 1 {
		t.Fatalf("want one item: %v\n%s", err, item)
	}
	boxed := &anypb.Any{}
	if err := protojson.Unmarshal(data[1:len(data)-1], boxed); err != nil {
		t.Fatalf("%v in\n%s", err, item)
	}
	message, err := boxed.UnmarshalNew()
	if err != nil {
		t.Fatal(err)
	}
	return message
}

var _, _ = (*listenerv3.Listener)(nil), (*clusterv3.Cluster)(nil)
