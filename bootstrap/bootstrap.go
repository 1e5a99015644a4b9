// Package bootstrap makes the file that Envoy starts from: where its node comes from, how it reaches the agent, and the few
// static listeners that belong to the agent. It is a pure function from settings to a typed, validated message.
package bootstrap

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	overloadv3 "github.com/envoyproxy/go-control-plane/envoy/config/overload/v3"
	connectionsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/downstream_connections/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
)

// Names of what the bootstrap brings along. Configuration from a control plane may refer to the clusters; it must not reuse the names.
const (
	ClusterXDS        = "xds-grpc"         // the agent's ADS
	ClusterSDS        = "sds-grpc"         // the agent's SDS, on a connection of its own
	ClusterSDSFiles   = "sds-files-grpc"   // the same
	ClusterSDSOther   = "sds-external"     // somebody else's SDS for certificates that are not the workload's
	ClusterAgent      = "agent"            // the agent's status address
	ClusterPrometheus = "prometheus_stats" // Envoy's own admin, reached only for /stats/prometheus

	ClusterLocal = "local_cluster" // gateways like this one, as the control plane knows them

	ListenerReadiness        = StatPrefix + "readiness"
	ListenerPrometheus       = StatPrefix + "prometheus"
	ListenerSecurePrometheus = StatPrefix + "secure_prometheus"
	ListenerSecureMetrics    = StatPrefix + "secure_metrics"

	// StatPrefix starts the statistics of the agent's own listeners, so that a drain does not wait for their requests.
	StatPrefix = "gateway_agent_"
)

// Modes of the ADS stream between Envoy and the agent.
const (
	ModeSotW  = "sotw"
	ModeDelta = "delta"
)

// Config is what a bootstrap is made from.
type Config struct {
	NodeID       string         // Envoy's node.id; required
	NodeCluster  string         // Envoy's node.cluster; required
	NodeMetadata map[string]any // Envoy's node.metadata, as JSON values; default none

	Locality Locality // Envoy's node.locality; default none

	XDSSocket    string // path of the agent's unix socket for ADS, absolute, at most 107 bytes, as all socket paths here; required
	SDSSocket    string // the agent's socket for SDS; default XDSSocket
	OtherSDS     string // socket of somebody else's SDS server for cluster sds-external; default none
	FilesSDS     bool   // also a cluster sds-files-grpc, for certificates from files; it leads where sds-grpc does
	AdminSocket  string // path of the unix socket that Envoy's admin listens on; one of it and AdminAddress is required
	AdminAddress string // IP:port that Envoy's admin listens on; everybody who reaches it can stop Envoy
	Mode         string // what Envoy speaks on ADS, "sotw" or "delta"; default "delta"

	StatusAddress     string // IP:port where the agent serves /healthz/ready; "" = no cluster `agent`
	ReadyAddress      string // IP:port of the readiness listener, which asks StatusAddress; "" = no such listener
	PrometheusAddress string // IP:port of the Prometheus listener; "" = no such listener

	SecurePrometheusAddress string // IP:port of one like it for clients with a certificate of the mesh; "" = no such listener
	SecureMetricsAddress    string // the same for the metrics of StatusAddress, the agent's and Envoy's; "" = no such listener

	DualStack          bool // these listeners also have the other IP family's counterpart of their address, if it is loopback or the wildcard
	ReadyProxyProtocol bool // a PROXY header may come first on ReadyAddress
	Uncompressed       bool // metrics are not compressed, not even for who asks

	MaxConnections int    // most downstream connections over all listeners but the agent's own; 0 = no limit
	ProfileFile    string // where Envoy writes its profiles when its admin is told to; default Envoy's

	Statistics   Statistics     // what Envoy counts and how it is labelled; default everything, with Envoy's labels
	Telemetry    Telemetry      // where Envoy sends what it knows; default nowhere
	Runtime      map[string]any // Envoy's static runtime layer; default none
	OutlierLog   string         // file for outlier ejections; default none
	LocalCluster bool           // a cluster of gateways like this one, which the control plane fills, for zone-aware balancing
	Internal     bool           // allow listeners inside Envoy, which istiod's configuration may use
	PeerMetadata bool           // Istio's peer metadata discovery; only Istio's build of Envoy accepts it

	Overlays []Overlay // merged over the result one after the other, as Envoy merges: scalars replaced, messages merged, lists appended
}

// Locality is where a node is.
type Locality struct{ Region, Zone, SubZone string }

// New makes the bootstrap, or says everything that is wrong with c.
func New(c Config) (*bootstrapv3.Bootstrap, error) {
	c.Mode = orDefault(c.Mode, ModeDelta)
	p, err := check(c)
	if err != nil {
		return nil, err
	}
	b := &bootstrapv3.Bootstrap{
		Node:                &corev3.Node{Id: c.NodeID, Cluster: c.NodeCluster, Metadata: p.metadata, Locality: c.Locality.message()},
		Admin:               admin(p.admin, c.ProfileFile),
		DynamicResources:    dynamicResources(c.Mode),
		StaticResources:     staticResources(c, p),
		OverloadManager:     overload(c.MaxConnections),
		StatsConfig:         c.Statistics.message(),
		StatsSinks:          sinks(c.Telemetry, p),
		Tracing:             tracing(c.Telemetry, c.NodeCluster),
		LayeredRuntime:      p.runtime,
		ClusterManager:      clusterManager(c),
		BootstrapExtensions: extensions(c),
	}
	c.Statistics.when(b)
	for _, overlay := range c.Overlays {
		if err := overlay.merge(b); err != nil {
			return nil, err
		}
	}
	if err := b.ValidateAll(); err != nil {
		return nil, fmt.Errorf("bootstrap: the result is not a valid bootstrap: %w", err)
	}
	return b, nil
}

// Marshal writes b as indented JSON with Envoy's field names. Equal messages give equal bytes.
func Marshal(b *bootstrapv3.Bootstrap) ([]byte, error) {
	raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(b)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: encode: %w", err)
	}
	// protojson varies its white space from build to build on purpose.
	var compact, out bytes.Buffer
	if err := errors.Join(json.Compact(&compact, raw), json.Indent(&out, compact.Bytes(), "", "  ")); err != nil {
		return nil, fmt.Errorf("bootstrap: indent: %w", err)
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

func orDefault(s, def string) string {
	if s == "" {
		return def
	}
	return s
}

func staticResources(c Config, p parsed) *bootstrapv3.Bootstrap_StaticResources {
	clusters := append([]*clusterv3.Cluster{grpcCluster(ClusterXDS, c.XDSSocket)}, sdsClusters(c)...)
	clusters = append(clusters, telemetryClusters(c.Telemetry)...)
	if p.status != nil {
		clusters = append(clusters, plainCluster(ClusterAgent, p.status))
	}
	if p.prometheus != nil || p.securePrometheus != nil {
		clusters = append(clusters, plainCluster(ClusterPrometheus, p.admin))
	}
	if c.LocalCluster {
		clusters = append(clusters, localCluster())
	}
	return &bootstrapv3.Bootstrap_StaticResources{Clusters: clusters, Listeners: ownListeners(c, p)}
}

// sdsClusters lead to whoever serves certificates. Somebody else's server gets no pings: gRPC closes connections that ping too often.
func sdsClusters(c Config) []*clusterv3.Cluster {
	own := orDefault(c.SDSSocket, c.XDSSocket)
	clusters := []*clusterv3.Cluster{grpcCluster(ClusterSDS, own)}
	if c.FilesSDS {
		clusters = append(clusters, grpcCluster(ClusterSDSFiles, own))
	}
	if c.OtherSDS != "" {
		clusters = append(clusters, foreignCluster(ClusterSDSOther, c.OtherSDS))
	}
	return clusters
}

func admin(address *corev3.Address, profile string) *bootstrapv3.Admin {
	if socket := address.GetPipe(); socket != nil {
		address = &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: socket.GetPath(), Mode: 0o600}}}
	}
	// A gateway that is full must still be drained and asked how it is.
	return &bootstrapv3.Admin{Address: address, IgnoreGlobalConnLimit: true, ProfilePath: profile}
}

func overload(maxConnections int) *overloadv3.OverloadManager {
	if maxConnections == 0 {
		return nil
	}
	return &overloadv3.OverloadManager{ResourceMonitors: []*overloadv3.ResourceMonitor{{
		Name: "envoy.resource_monitors.global_downstream_max_connections",
		ConfigType: &overloadv3.ResourceMonitor_TypedConfig{TypedConfig: mustAny(&connectionsv3.DownstreamConnectionsConfig{
			MaxActiveDownstreamConnections: int64(maxConnections),
		})},
	}}}
}

func (l Locality) message() *corev3.Locality {
	if l == (Locality{}) {
		return nil
	}
	return &corev3.Locality{Region: l.Region, Zone: l.Zone, SubZone: l.SubZone}
}

func metadata(m map[string]any) (*structpb.Struct, error) {
	if len(m) == 0 {
		return nil, nil
	}
	s, err := structpb.NewStruct(m)
	if err != nil {
		return nil, fmt.Errorf("node metadata (--node-metadata) has a value that JSON cannot hold: %w", err)
	}
	return s, nil
}
