package bootstrap

import (
	"math"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/common/v3"
	leastrequestv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/least_request/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	// Envoy's own default starts at 0.5 s and goes up to 30 s: it would still wait long after a restarted agent is back. The
	// agent is on the same host, and an absent socket costs next to nothing.
	retryBase = 50 * time.Millisecond
	retryMax  = 500 * time.Millisecond

	// Envoy never notices by itself that the agent hangs with its socket open. The ADS server must allow pings this often.
	keepaliveInterval = 10 * time.Second
	keepaliveTimeout  = 5 * time.Second

	connectTimeout = time.Second
)

func dynamicResources(mode string) *bootstrapv3.Bootstrap_DynamicResources {
	api := corev3.ApiConfigSource_DELTA_GRPC
	if mode == ModeSotW {
		api = corev3.ApiConfigSource_GRPC
	}
	return &bootstrapv3.Bootstrap_DynamicResources{
		AdsConfig: &corev3.ApiConfigSource{
			ApiType:                   api,
			TransportApiVersion:       corev3.ApiVersion_V3,
			SetNodeOnFirstMessageOnly: true,
			GrpcServices:              []*corev3.GrpcService{grpcService(ClusterXDS)},
		},
		CdsConfig: ads(),
		LdsConfig: ads(),
	}
}

// ads waits for its first answer without end. With Envoy's default of 15 s each for clusters and listeners, Envoy calls itself
// LIVE 30 s after a start without any configuration, and in a hot restart takes over from a process that had one. So LIVE means
// configured; a control plane that is away is the agent's to replace (its last configuration), not Envoy's to forget about.
func ads() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		InitialFetchTimeout:   durationpb.New(0),
		ResourceApiVersion:    corev3.ApiVersion_V3,
	}
}

func grpcService(cluster string) *corev3.GrpcService {
	return &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{
		ClusterName: cluster,
		RetryPolicy: &corev3.RetryPolicy{RetryBackOff: &corev3.BackoffStrategy{
			BaseInterval: durationpb.New(retryBase),
			MaxInterval:  durationpb.New(retryMax),
		}},
	}}}
}

// grpcCluster leads to the agent. Its pings find an agent that hangs with its socket open.
func grpcCluster(name, path string) *clusterv3.Cluster {
	return unlimited(http2(plainCluster(name, pipe(path)), &corev3.KeepaliveSettings{
		Interval: durationpb.New(keepaliveInterval),
		Timeout:  durationpb.New(keepaliveTimeout),
	}))
}

func foreignCluster(name, path string) *clusterv3.Cluster {
	return unlimited(http2(plainCluster(name, pipe(path)), nil))
}

// unlimited: Envoy opens a stream for each secret, and with its own limit of 1024 the other certificates would never come.
func unlimited(c *clusterv3.Cluster) *clusterv3.Cluster {
	most := wrapperspb.UInt32(math.MaxUint32)
	c.CircuitBreakers = &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{
		{MaxConnections: most, MaxPendingRequests: most, MaxRequests: most},
	}}
	return c
}

// localCluster is filled by the control plane. Zone-aware balancing compares it with the clusters it is for, and needs a policy that knows
// of zones itself.
func localCluster() *clusterv3.Cluster {
	policy := &leastrequestv3.LeastRequest{LocalityLbConfig: &commonv3.LocalityLbConfig{
		LocalityConfigSpecifier: &commonv3.LocalityLbConfig_ZoneAwareLbConfig_{
			ZoneAwareLbConfig: &commonv3.LocalityLbConfig_ZoneAwareLbConfig{MinClusterSize: wrapperspb.UInt64(1)},
		},
	}}
	source := ads()
	source.InitialFetchTimeout = durationpb.New(secretWait)
	return &clusterv3.Cluster{
		Name:                 ClusterLocal,
		ConnectTimeout:       durationpb.New(connectTimeout),
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{EdsConfig: source, ServiceName: ClusterLocal},
		LoadBalancingPolicy: &clusterv3.LoadBalancingPolicy{Policies: []*clusterv3.LoadBalancingPolicy_Policy{{
			TypedExtensionConfig: &corev3.TypedExtensionConfig{
				Name: "envoy.load_balancing_policies.least_request", TypedConfig: mustAny(policy),
			},
		}}},
	}
}

func http2(c *clusterv3.Cluster, keepalive *corev3.KeepaliveSettings) *clusterv3.Cluster {
	h2 := &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
		ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{
			Http2ProtocolOptions: &corev3.Http2ProtocolOptions{ConnectionKeepalive: keepalive},
		},
	}
	options := &httpv3.HttpProtocolOptions{
		UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: h2},
	}
	c.TypedExtensionProtocolOptions = map[string]*anypb.Any{
		"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": mustAny(options),
	}
	return c
}

func plainCluster(name string, address *corev3.Address) *clusterv3.Cluster {
	endpoint := &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{
		Endpoint: &endpointv3.Endpoint{Address: address},
	}}
	return &clusterv3.Cluster{
		Name:                 name,
		ConnectTimeout:       durationpb.New(connectTimeout),
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		LoadAssignment: &endpointv3.ClusterLoadAssignment{
			ClusterName: name,
			Endpoints:   []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{endpoint}}},
		},
	}
}

// mustAny packs a message of our own making; only invalid UTF-8 could fail, and check has refused that.
func mustAny(m proto.Message) *anypb.Any {
	a, err := anypb.New(m)
	if err != nil {
		panic(err)
	}
	return a
}
