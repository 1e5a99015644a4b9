package bootstrap

import (
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	readyPath      = "/healthz/ready"
	prometheusPath = "/stats/prometheus"

	readyTimeout = 2 * time.Second
	// With 15 000 clusters Envoy needs 7 s for its statistics.
	prometheusTimeout = time.Minute
	// Anybody who reaches these listeners may connect: a client that says nothing does not stay.
	clientTimeout = 10 * time.Second
	idleTimeout   = 5 * time.Minute
)

func readinessListener(address *corev3.Address) *listenerv3.Listener {
	return ownListener(ListenerReadiness, address, readyPath, ClusterAgent, readyTimeout)
}

func prometheusListener(address *corev3.Address) *listenerv3.Listener {
	return ownListener(ListenerPrometheus, address, prometheusPath, ClusterPrometheus, prometheusTimeout)
}

// ownListener passes GET of one path to one cluster and answers 404 to all else. Probes and metrics must get through to a
// gateway that is overloaded or full: that is when they are needed.
func ownListener(name string, address *corev3.Address, path, cluster string, timeout time.Duration) *listenerv3.Listener {
	hcm := &listenerv3.Filter{
		Name:       "envoy.filters.network.http_connection_manager",
		ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: mustAny(onePath(name, path, cluster, timeout))},
	}
	return &listenerv3.Listener{
		Name:                  name,
		Address:               address,
		StatPrefix:            name,
		FilterChains:          []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{hcm}}},
		BypassOverloadManager: true,
		IgnoreGlobalConnLimit: true,
	}
}

func onePath(name, path, cluster string, timeout time.Duration) *hcmv3.HttpConnectionManager {
	hosts := []*routev3.VirtualHost{{Name: name, Domains: []string{"*"}, Routes: []*routev3.Route{route(path, cluster, timeout)}}}
	return &hcmv3.HttpConnectionManager{
		StatPrefix: name,
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{
			RouteConfig: &routev3.RouteConfiguration{Name: name, VirtualHosts: hosts},
		},
		HttpFilters: []*hcmv3.HttpFilter{{
			Name:       "envoy.filters.http.router",
			ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: mustAny(&routerv3.Router{})},
		}},
		CommonHttpProtocolOptions: &corev3.HttpProtocolOptions{IdleTimeout: durationpb.New(idleTimeout)},
		RequestTimeout:            durationpb.New(clientTimeout),
		RequestHeadersTimeout:     durationpb.New(clientTimeout),
		GenerateRequestId:         wrapperspb.Bool(false),
	}
}

func route(path, cluster string, timeout time.Duration) *routev3.Route {
	get := &routev3.HeaderMatcher{
		Name: ":method",
		HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: &matcherv3.StringMatcher{
			MatchPattern: &matcherv3.StringMatcher_Exact{Exact: "GET"},
		}},
	}
	return &routev3.Route{
		Match: &routev3.RouteMatch{
			PathSpecifier: &routev3.RouteMatch_Path{Path: path},
			Headers:       []*routev3.HeaderMatcher{get},
		},
		Action: &routev3.Route_Route{Route: &routev3.RouteAction{
			ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster},
			Timeout:          durationpb.New(timeout),
		}},
	}
}
