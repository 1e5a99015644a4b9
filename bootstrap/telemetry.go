package bootstrap

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	xdstypev3 "github.com/cncf/xds/go/xds/type/v3"
	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	metricsv3 "github.com/envoyproxy/go-control-plane/envoy/config/metrics/v3"
	tracev3 "github.com/envoyproxy/go-control-plane/envoy/config/trace/v3"
	internalv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/bootstrap/internal_listener/v3"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Tracers.
const (
	TracerZipkin  = "zipkin"
	TracerDatadog = "datadog"
)

// Clusters of Telemetry, with the names that istiod's configuration uses.
const (
	clusterZipkin    = "zipkin"
	clusterDatadog   = "datadog_agent"
	clusterMetrics   = "envoy_metrics_service"
	clusterAccessLog = "envoy_accesslog_service"
)

// Telemetry is where Envoy sends traces, statistics and access logs.
type Telemetry struct {
	Tracer           string // TracerZipkin or TracerDatadog; "" = no tracing
	Trace            Remote // where to
	Statsd           string // IP:port, UDP; "" = none
	MetricsService   Remote // gRPC
	AccessLogService Remote // gRPC; only its cluster, which a control plane's configuration names
	OnlyIPv6         bool   // there is no IPv4 here; default: names are resolved to addresses of IPv4, and of IPv6 when they have none
}

// Remote is a service that Envoy calls by name.
type Remote struct {
	Address   string // HOST:PORT; "" = none
	TLS       *TLS   // nil = plaintext
	Keepalive Keepalive
}

// Keepalive is TCP's; zero = the system's.
type Keepalive struct {
	Probes         uint32
	Time, Interval time.Duration
}

func (t Telemetry) check() error {
	var errs []error
	switch t.Tracer {
	case "":
	case TracerZipkin, TracerDatadog:
		if t.Trace.Address == "" {
			errs = append(errs, fmt.Errorf("tracing with %s (--tracing): no address", t.Tracer))
		}
	default:
		errs = append(errs, fmt.Errorf("tracing with %q (--tracing): use %q or %q", t.Tracer, TracerZipkin, TracerDatadog))
	}
	for _, remote := range []struct {
		what string
		Remote
	}{
		{"tracing (--tracing)", t.Trace},
		{"metrics service (--metrics-service)", t.MetricsService},
		{"access log service (--access-log-service)", t.AccessLogService},
	} {
		if _, _, err := remote.target(); remote.Address != "" && err != nil {
			errs = append(errs, fmt.Errorf("%s %q: want HOST:PORT", remote.what, remote.Address))
		}
	}
	return errors.Join(errs...)
}

func (r Remote) target() (host string, port uint32, err error) {
	host, text, err := net.SplitHostPort(r.Address)
	if err != nil {
		return "", 0, err
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 || host == "" {
		return "", 0, fmt.Errorf("address %q has no host or no port", r.Address)
	}
	return host, uint32(n), nil
}

func telemetryClusters(t Telemetry) []*clusterv3.Cluster {
	var all []*clusterv3.Cluster
	switch t.Tracer {
	case TracerZipkin:
		all = append(all, t.cluster(t.Trace, clusterZipkin, false))
	case TracerDatadog:
		all = append(all, t.cluster(t.Trace, clusterDatadog, false))
	}
	if t.MetricsService.Address != "" {
		all = append(all, t.cluster(t.MetricsService, clusterMetrics, true))
	}
	if t.AccessLogService.Address != "" {
		all = append(all, t.cluster(t.AccessLogService, clusterAccessLog, true))
	}
	return all
}

// cluster leads to a service by name; check has seen the address.
func (t Telemetry) cluster(r Remote, name string, h2 bool) *clusterv3.Cluster {
	host, port, _ := r.target()
	c := plainCluster(name, &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}})
	c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS}
	c.DnsLookupFamily = clusterv3.Cluster_V4_PREFERRED
	if t.OnlyIPv6 {
		c.DnsLookupFamily = clusterv3.Cluster_V6_ONLY
	}
	c.TransportSocket = r.TLS.socket(purpose(name), h2)
	if h2 {
		http2(c, nil)
	}
	if k := r.Keepalive; k != (Keepalive{}) {
		c.UpstreamConnectionOptions = &clusterv3.UpstreamConnectionOptions{TcpKeepalive: &corev3.TcpKeepalive{
			KeepaliveProbes: number(k.Probes), KeepaliveTime: seconds(k.Time), KeepaliveInterval: seconds(k.Interval),
		}}
	}
	return c
}

// purpose is the server name for calls in the mesh, where nobody gives one.
func purpose(cluster string) string {
	if cluster == clusterZipkin || cluster == clusterDatadog {
		return "tracer"
	}
	return cluster
}

func number(n uint32) *wrapperspb.UInt32Value {
	if n == 0 {
		return nil
	}
	return wrapperspb.UInt32(n)
}

func seconds(d time.Duration) *wrapperspb.UInt32Value { return number(uint32(d / time.Second)) }

// tracing is the default tracer of listeners that ask for tracing without naming one.
func tracing(t Telemetry, service string) *tracev3.Tracing {
	var config *tracev3.Tracing_Http
	switch t.Tracer {
	case TracerZipkin:
		config = &tracev3.Tracing_Http{Name: "envoy.tracers.zipkin", ConfigType: &tracev3.Tracing_Http_TypedConfig{
			TypedConfig: mustAny(&tracev3.ZipkinConfig{
				CollectorCluster:         clusterZipkin,
				CollectorEndpoint:        "/api/v2/spans",
				CollectorEndpointVersion: tracev3.ZipkinConfig_HTTP_JSON,
				TraceId_128Bit:           true,
				SharedSpanContext:        wrapperspb.Bool(false),
			}),
		}}
	case TracerDatadog:
		config = &tracev3.Tracing_Http{Name: "envoy.tracers.datadog", ConfigType: &tracev3.Tracing_Http_TypedConfig{
			TypedConfig: mustAny(&tracev3.DatadogConfig{CollectorCluster: clusterDatadog, ServiceName: service}),
		}}
	default:
		return nil
	}
	return &tracev3.Tracing{Http: config}
}

func sinks(t Telemetry, p parsed) []*metricsv3.StatsSink {
	var all []*metricsv3.StatsSink
	if t.MetricsService.Address != "" {
		service := &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
			EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: clusterMetrics},
		}}
		all = append(all, &metricsv3.StatsSink{Name: "envoy.stat_sinks.metrics_service", ConfigType: &metricsv3.StatsSink_TypedConfig{
			TypedConfig: mustAny(&metricsv3.MetricsServiceConfig{GrpcService: service, TransportApiVersion: corev3.ApiVersion_V3}),
		}})
	}
	if p.statsd != nil {
		all = append(all, &metricsv3.StatsSink{Name: "envoy.stat_sinks.statsd", ConfigType: &metricsv3.StatsSink_TypedConfig{
			TypedConfig: mustAny(&metricsv3.StatsdSink{StatsdSpecifier: &metricsv3.StatsdSink_Address{Address: p.statsd}}),
		}})
	}
	return all
}

func clusterManager(c Config) *bootstrapv3.ClusterManager {
	if c.OutlierLog == "" && !c.LocalCluster {
		return nil
	}
	manager := &bootstrapv3.ClusterManager{}
	if c.OutlierLog != "" {
		manager.OutlierDetection = &bootstrapv3.ClusterManager_OutlierDetection{EventLogPath: c.OutlierLog}
	}
	if c.LocalCluster {
		manager.LocalClusterName = ClusterLocal
	}
	return manager
}

const internalBuffer = 64 // KiB between two listeners inside Envoy

func extensions(c Config) []*corev3.TypedExtensionConfig {
	var all []*corev3.TypedExtensionConfig
	if c.PeerMetadata {
		all = append(all, &corev3.TypedExtensionConfig{Name: "metadata_discovery", TypedConfig: mustAny(peerMetadata())})
	}
	if c.Internal {
		all = append(all, &corev3.TypedExtensionConfig{
			Name:        "envoy.bootstrap.internal_listener",
			TypedConfig: mustAny(&internalv3.InternalListener{BufferSizeKb: wrapperspb.UInt32(internalBuffer)}),
		})
	}
	return all
}

// PeerMetadataType is of Istio's peer metadata discovery; an Envoy without it says this name when it refuses the bootstrap.
const PeerMetadataType = "istio.workload.BootstrapExtension"

// peerMetadata is a message that only Istio's Envoy knows, so it goes as its type's name and plain values.
func peerMetadata() *xdstypev3.TypedStruct {
	source := map[string]any{"config_source": map[string]any{"ads": map[string]any{}}}
	value, err := structpb.NewStruct(source)
	if err != nil {
		panic(err) // strings and maps only
	}
	return &xdstypev3.TypedStruct{TypeUrl: "type.googleapis.com/" + PeerMetadataType, Value: value}
}
