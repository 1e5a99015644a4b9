package standalone

import (
	"os"
	"path/filepath"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	ondemandv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/on_demand/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gateway-agent/gateway-agent/standalone/protoyaml"
)

// ownClusters are in the bootstrap that the agent makes for Envoy.
var ownClusters = map[string]bool{"xds-grpc": true, "sds-grpc": true, "agent": true, "prometheus_stats": true}

// ownListeners are there too. Envoy silently ignores a discovered listener with the name of one in its bootstrap.
var ownListeners = map[string]bool{"gateway_agent_readiness": true, "gateway_agent_prometheus": true}

// clusterFields are the fields that name a cluster.
var clusterFields = map[protoreflect.FullName]protoreflect.Name{
	"envoy.config.core.v3.ApiConfigSource":                                                 "cluster_names",
	"envoy.config.core.v3.GrpcService.EnvoyGrpc":                                           "cluster_name",
	"envoy.config.core.v3.HttpUri":                                                         "cluster",
	"envoy.config.route.v3.RouteAction":                                                    "cluster",
	"envoy.config.route.v3.RouteAction.RequestMirrorPolicy":                                "cluster",
	"envoy.config.route.v3.WeightedCluster.ClusterWeight":                                  "name",
	"envoy.config.trace.v3.ZipkinConfig":                                                   "collector_cluster",
	"envoy.config.trace.v3.DatadogConfig":                                                  "collector_cluster",
	"envoy.extensions.clusters.aggregate.v3.ClusterConfig":                                 "clusters",
	"envoy.extensions.filters.network.generic_proxy.action.v3.RouteAction":                 "cluster",
	"envoy.extensions.filters.network.redis_proxy.v3.RedisProxy.PrefixRoutes.Route":        "cluster",
	"envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy":                               "cluster",
	"envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy.WeightedCluster.ClusterWeight": "name",
	"envoy.extensions.filters.network.thrift_proxy.v3.RouteAction":                         "cluster",
	"envoy.extensions.filters.network.thrift_proxy.v3.WeightedCluster.ClusterWeight":       "name",
	"envoy.extensions.filters.udp.udp_proxy.v3.Route":                                      "cluster",
	"envoy.extensions.filters.udp.udp_proxy.v3.UdpProxyConfig":                             "cluster",
}

// references checks that everything named exists, and makes references to other sources references to this one.
func (c *config) references() {
	onDemand := c.hasOnDemand()
	for _, r := range c.resources {
		c.tree.Walk(r.msg, func(m proto.Message) bool {
			switch m := m.(type) {
			case *wasmv3.VmConfig:
				return false // the agent pulls the module: the cluster of a remote one is not used
			case *routev3.RouteConfiguration:
				if v := m.GetValidateClusters(); v != nil && !v.GetValue() {
					return false
				}
			case *tcpproxyv3.TcpProxy:
				if m.GetOnDemand() != nil {
					return true
				}
			case *hcmv3.Rds:
				c.refer(r, m, routes, m.GetRouteConfigName(), &m.ConfigSource)
			case *listenerv3.Listener:
				if ownListeners[m.GetName()] {
					c.add(r.node, r.String(), "this name is used by the agent itself: choose another one")
				}
			case *clusterv3.Cluster:
				c.cluster(r, m)
			case *tlsv3.SdsSecretConfig:
				c.secret(r, m)
			case *tlsv3.CommonTlsContext:
				c.secretKinds(r, m)
			}
			c.discovered(r, m)
			if !onDemand {
				c.clusterNames(r, m)
			}
			return true
		})
	}
}

// hasOnDemand: clusters may be asked for while serving, so that a name that is unknown now may be right.
func (c *config) hasOnDemand() bool {
	found := false
	for _, r := range c.resources {
		c.tree.Walk(r.msg, func(m proto.Message) bool {
			_, is := m.(*ondemandv3.OnDemandCds)
			found = found || is
			return !found
		})
	}
	return found
}

func (c *config) clusterNames(r *resource, m proto.Message) {
	d := m.ProtoReflect().Descriptor()
	name, ok := clusterFields[d.FullName()]
	if !ok {
		return
	}
	fd := d.Fields().ByName(name)
	v := m.ProtoReflect().Get(fd)
	if !fd.IsList() {
		c.clusterName(r, m, name, v.String())
		return
	}
	for i := range v.List().Len() {
		c.clusterName(r, m, name, v.List().Get(i).String())
	}
}

func (c *config) clusterName(r *resource, m proto.Message, field protoreflect.Name, name string) {
	if name == "" || ownClusters[name] || c.byName[clusters][name] != nil || strings.HasPrefix(name, "DFPCluster:") {
		return
	}
	n := c.fieldNode(m, field, r)
	c.add(n, r.String(), "cluster %q does not exist in %s", name, c.dir)
}

// fieldNode is where a field of m is written, or else m, or else the resource.
func (c *config) fieldNode(m proto.Message, field protoreflect.Name, r *resource) *protoyaml.Node {
	fd := m.ProtoReflect().Descriptor().Fields().ByName(field)
	if n := c.tree.Node(m).Get(string(field), fd.JSONName()); n != nil {
		return n
	}
	return c.lineOf(m, r)
}

func (c *config) lineOf(m proto.Message, r *resource) *protoyaml.Node {
	if n := c.tree.Node(m); n != nil {
		return n
	}
	return r.node
}

// cluster points an EDS cluster here, and refuses what the agent's own bootstrap has.
func (c *config) cluster(r *resource, m *clusterv3.Cluster) {
	if ownClusters[m.GetName()] {
		c.add(r.node, r.String(), "this name is used by the agent itself: choose another one")
	}
	if m.GetType() != clusterv3.Cluster_EDS || m.GetEdsClusterConfig() == nil {
		return
	}
	name := m.GetEdsClusterConfig().GetServiceName()
	if name == "" {
		name = m.GetName()
	}
	c.refer(r, m.GetEdsClusterConfig(), endpoints, name, &m.GetEdsClusterConfig().EdsConfig)
}

// discovered handles every filter whose configuration is discovered.
func (c *config) discovered(r *resource, m proto.Message) {
	pr := m.ProtoReflect()
	fd := pr.Descriptor().Fields().ByName("config_discovery")
	if fd == nil || !pr.Has(fd) {
		return
	}
	source, ok := pr.Get(fd).Message().Interface().(*corev3.ExtensionConfigSource)
	named, hasName := m.(interface{ GetName() string })
	if ok && hasName {
		c.refer(r, m, extensions, named.GetName(), &source.ConfigSource)
	}
}

// refer makes a reference to something in this directory use the stream that serves it. One that is not here is left to
// Envoy when it says where else to look, and is otherwise a problem.
func (c *config) refer(r *resource, m proto.Message, k kind, name string, source **corev3.ConfigSource) {
	if c.byName[k][name] != nil {
		*source = &corev3.ConfigSource{
			ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
			ResourceApiVersion:    corev3.ApiVersion_V3,
			InitialFetchTimeout:   (*source).GetInitialFetchTimeout(),
		}
		return
	}
	if c.elsewhere(*source) {
		return
	}
	c.add(c.lineOf(m, r), r.String(), "%s %q does not exist in %s", k, name, c.dir)
}

// elsewhere: Envoy can obtain it without us, from another server or from a file outside the directory.
func (c *config) elsewhere(s *corev3.ConfigSource) bool {
	switch {
	case s.GetApiConfigSource() != nil:
		return true
	case s.GetPathConfigSource() != nil:
		return c.outside(s.GetPathConfigSource().GetPath())
	}
	return c.outside(s.GetPath())
}

func (c *config) outside(path string) bool {
	if path == "" || filepath.Dir(path) == c.dir {
		return false
	}
	_, err := os.Stat(path)
	return err == nil
}

// secret points a reference to a secret at the agent's secret service.
func (c *config) secret(r *resource, m *tlsv3.SdsSecretConfig) {
	if c.byName[secrets][m.GetName()] != nil || agentSecret(m.GetName()) {
		m.SdsConfig = sdsSource(m.GetSdsConfig().GetInitialFetchTimeout())
		return
	}
	if !c.elsewhere(m.GetSdsConfig()) {
		c.add(c.lineOf(m, r), r.String(), "secret %q does not exist in %s", m.GetName(), c.dir)
	}
}

// secretKinds refuses a secret of one kind where Envoy wants the other. Envoy takes a certificate under the name of a validation
// context for an empty one and then verifies no client at all (sds tests measure it).
func (c *config) secretKinds(r *resource, m *tlsv3.CommonTlsContext) {
	for _, s := range m.GetTlsCertificateSdsSecretConfigs() {
		c.secretKind(r, s, true)
	}
	c.secretKind(r, m.GetValidationContextSdsSecretConfig(), false)
	c.secretKind(r, m.GetCombinedValidationContext().GetValidationContextSdsSecretConfig(), false)
}

func (c *config) secretKind(r *resource, m *tlsv3.SdsSecretConfig, wantCertificate bool) {
	certificate, known := strings.HasPrefix(m.GetName(), "file-cert:"), agentSecret(m.GetName())
	if own := c.byName[secrets][m.GetName()]; own != nil {
		secret, _ := own.msg.(*tlsv3.Secret)
		certificate, known = secret.GetTlsCertificate() != nil, true
	} else if m.GetName() == "default" {
		certificate = true
	}
	switch {
	case !known || certificate == wantCertificate:
	case wantCertificate:
		c.add(c.lineOf(m, r), r.String(), "secret %q is no tls_certificate, which is wanted here", m.GetName())
	default:
		c.add(c.lineOf(m, r), r.String(), "secret %q is no validation_context, which is wanted here: Envoy would verify no peer with it", m.GetName())
	}
}

// agentSecret knows the names that the agent's secret service understands by itself.
func agentSecret(name string) bool {
	return name == "default" || name == "ROOTCA" || strings.HasPrefix(name, "file-cert:") || strings.HasPrefix(name, "file-root:")
}

// sdsSource is the agent's secret service. It is quick to come back after the agent was restarted: Envoy's own default
// may wait for half a minute.
func sdsSource(timeout *durationpb.Duration) *corev3.ConfigSource {
	const ms = 1e6
	backOff := &corev3.BackoffStrategy{BaseInterval: &durationpb.Duration{Nanos: 50 * ms}, MaxInterval: &durationpb.Duration{Nanos: 500 * ms}}
	return &corev3.ConfigSource{
		ResourceApiVersion:  corev3.ApiVersion_V3,
		InitialFetchTimeout: timeout,
		ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: &corev3.ApiConfigSource{
			ApiType:                   corev3.ApiConfigSource_GRPC,
			TransportApiVersion:       corev3.ApiVersion_V3,
			SetNodeOnFirstMessageOnly: true,
			GrpcServices: []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{
				ClusterName: "sds-grpc",
				RetryPolicy: &corev3.RetryPolicy{RetryBackOff: backOff},
			}}}},
		}},
	}
}
