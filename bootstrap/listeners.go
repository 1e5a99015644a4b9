package bootstrap

import (
	"slices"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	proxyprotocolv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/proxy_protocol/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	readyPath      = "/healthz/ready"
	prometheusPath = "/stats/prometheus"
	metricsPath    = "/metrics"

	readyTimeout = 2 * time.Second
	// With 15 000 clusters Envoy needs 7 s for its statistics.
	prometheusTimeout = time.Minute
	// Anybody who reaches these listeners may connect: a client that says nothing does not stay.
	clientTimeout = 10 * time.Second
	idleTimeout   = 5 * time.Minute
)

// ownListener passes GET and HEAD of some paths to one cluster and answers 404 to all else.
type ownListener struct {
	name    string
	address *corev3.Address
	paths   []string
	cluster string
	timeout time.Duration

	compressed    bool
	proxyProtocol bool // a PROXY header may come first
	mutual        bool // for clients with a certificate of the mesh only
}

// ownListeners are those that c asks for.
func ownListeners(c Config, p parsed) []*listenerv3.Listener {
	compressed := !c.Uncompressed
	var all []*listenerv3.Listener
	for _, l := range []ownListener{
		{
			name: ListenerReadiness, address: p.ready, paths: []string{readyPath}, cluster: ClusterAgent, timeout: readyTimeout,
			proxyProtocol: c.ReadyProxyProtocol,
		},
		{
			name: ListenerPrometheus, address: p.prometheus, paths: []string{prometheusPath}, cluster: ClusterPrometheus, timeout: prometheusTimeout,
			compressed: compressed,
		},
		{
			name: ListenerSecurePrometheus, address: p.securePrometheus, paths: []string{prometheusPath}, cluster: ClusterPrometheus,
			timeout: prometheusTimeout, compressed: compressed, mutual: true,
		},
		// The agent compresses by itself.
		{
			name: ListenerSecureMetrics, address: p.secureMetrics, paths: []string{prometheusPath, metricsPath}, cluster: ClusterAgent,
			timeout: prometheusTimeout, mutual: true,
		},
	} {
		if l.address != nil {
			all = append(all, l.message(c.DualStack))
		}
	}
	return all
}

// message: probes and metrics must get through to a gateway that is overloaded or full: that is when they are needed.
func (l ownListener) message(dual bool) *listenerv3.Listener {
	chain := &listenerv3.FilterChain{Filters: []*listenerv3.Filter{{
		Name:       "envoy.filters.network.http_connection_manager",
		ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: mustAny(l.manager())},
	}}}
	if l.mutual {
		chain.TransportSocket = meshSocket()
	}
	message := &listenerv3.Listener{
		Name:                  l.name,
		Address:               l.address,
		StatPrefix:            l.name,
		FilterChains:          []*listenerv3.FilterChain{chain},
		BypassOverloadManager: true,
		IgnoreGlobalConnLimit: true,
	}
	if other := otherFamily(l.address); dual && other != nil {
		message.AdditionalAddresses = []*listenerv3.AdditionalAddress{{Address: other}}
	}
	if l.proxyProtocol {
		message.ListenerFilters = []*listenerv3.ListenerFilter{{
			Name: "envoy.filters.listener.proxy_protocol",
			ConfigType: &listenerv3.ListenerFilter_TypedConfig{
				TypedConfig: mustAny(&proxyprotocolv3.ProxyProtocol{AllowRequestsWithoutProxyProtocol: true}),
			},
		}}
	}
	return message
}

func (l ownListener) manager() *hcmv3.HttpConnectionManager {
	var routes []*routev3.Route
	for _, path := range l.paths {
		routes = append(routes, route(path, l.cluster, l.timeout))
	}
	filters := []*hcmv3.HttpFilter{{
		Name:       "envoy.filters.http.router",
		ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: mustAny(&routerv3.Router{})},
	}}
	if l.compressed {
		filters = slices.Concat(compressors(), filters)
	}
	hosts := []*routev3.VirtualHost{{Name: l.name, Domains: []string{"*"}, Routes: routes}}
	return &hcmv3.HttpConnectionManager{
		StatPrefix: l.name,
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{
			RouteConfig: &routev3.RouteConfiguration{Name: l.name, VirtualHosts: hosts},
		},
		HttpFilters:               filters,
		CommonHttpProtocolOptions: &corev3.HttpProtocolOptions{IdleTimeout: durationpb.New(idleTimeout)},
		RequestTimeout:            durationpb.New(clientTimeout),
		RequestHeadersTimeout:     durationpb.New(clientTimeout),
		GenerateRequestId:         wrapperspb.Bool(false),
	}
}

func route(path, cluster string, timeout time.Duration) *routev3.Route {
	read := &routev3.HeaderMatcher{
		Name: ":method",
		HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: &matcherv3.StringMatcher{
			MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: "GET|HEAD"}},
		}},
	}
	return &routev3.Route{
		Match: &routev3.RouteMatch{
			PathSpecifier: &routev3.RouteMatch_Path{Path: path},
			Headers:       []*routev3.HeaderMatcher{read},
		},
		Action: &routev3.Route_Route{Route: &routev3.RouteAction{
			ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster},
			Timeout:          durationpb.New(timeout),
		}},
	}
}
