package e2e

import "strings"

// bootstrapCase is a pod.
type bootstrapCase struct {
	name        string
	args        []string
	env         map[string]string
	proxy       map[string]any // ProxyConfig
	annotations map[string]string
	ethernet    string            // from here on the pod has an interface with this address
	refused     map[string]string // by Envoy: whose bootstrap, and why that is right
}

type members = map[string]any

var remoteTLS = members{
	"address": "metrics.example:15000", "tcpKeepalive": members{"probes": 3, "time": "10s", "interval": "5s"},
	"tlsSettings": members{
		"mode": "MUTUAL", "sni": "m.example", "subjectAltNames": []string{"spiffe://m"}, "caCertificates": "/c/ca.pem",
		"clientCertificate": "/c/cert.pem", "privateKey": "/c/key.pem",
	},
}

var bootstrapCases = []bootstrapCase{
	{name: "as injected"},
	{name: "zipkin", proxy: members{"tracing": members{"zipkin": members{"address": "zipkin.example:9411"}}}},
	{name: "zipkin with TLS", proxy: members{"tracing": members{
		"zipkin":      members{"address": "$(HOST_IP):9411"},
		"tlsSettings": members{"mode": "SIMPLE", "caCertificates": "/c/ca.pem", "sni": "z.example"},
	}}},
	{name: "zipkin in the mesh", proxy: members{"tracing": members{
		"zipkin":      members{"address": "zipkin.example:9411"},
		"tlsSettings": members{"mode": "ISTIO_MUTUAL", "subjectAltNames": []string{"spiffe://z"}},
	}}},
	{name: "datadog", proxy: members{"tracing": members{"datadog": members{"address": "10.9.9.9:8126"}}}},
	{
		name: "a tracer that is gone", proxy: members{"tracing": members{"lightstep": members{"address": "l.example:443", "accessToken": "t"}}},
		refused: map[string]string{"pilot-agent's": "Envoy has no such tracer any more"},
	},
	{name: "sinks", proxy: members{
		"statsdUdpAddress": "10.9.9.9:8125", "envoyMetricsService": members{"address": "metrics.example:15000"},
		"envoyAccessLogService": remoteTLS,
	}},
	{
		name: "sinks in the mesh", proxy: members{"envoyMetricsService": members{
			"address":     "metrics.example:15000",
			"tlsSettings": members{"mode": "ISTIO_MUTUAL"},
		}, "envoyAccessLogService": members{
			"address":     "als.example:15000",
			"tlsSettings": members{"mode": "SIMPLE", "caCertificates": "/c/ca.pem"},
		}},
		env: map[string]string{"ISTIO_META_TLS_CLIENT_ROOT_CERT": "/c/other.pem"},
	},
	{name: "chosen statistics", proxy: members{"proxyStatsMatcher": members{
		"inclusionPrefixes": []string{"cluster.outbound", "http.0.0.0.0_"},
		"inclusionSuffixes": []string{"upstream_rq_timeout"}, "inclusionRegexps": []string{"listener\\..*"},
	}, "extraStatTags": []string{"team", "tier"}}},
	{name: "annotated statistics", proxy: members{"proxyStatsMatcher": members{"inclusionPrefixes": []string{"gone"}}}, annotations: map[string]string{
		"sidecar.istio.io/statsInclusionPrefixes": "cluster.outbound,cluster.inbound", "sidecar.istio.io/statsInclusionSuffixes": "rq_timeout",
		"sidecar.istio.io/statsInclusionRegexps": "a.*b", "sidecar.istio.io/extraStatTags": "one,two",
		"sidecar.istio.io/statsHistogramBuckets": `{"istiocustom":[1,5,10],"cluster":[2,4]}`,
		"sidecar.istio.io/statsFlushInterval":    "10s", "sidecar.istio.io/statsEvictionInterval": "20s",
	}},
	{
		name: "runtime values", proxy: members{"runtimeValues": members{
			"a.b": "1", "c.d": "true", "re2.max_program_size.error_level": "",
			"overload.global_downstream_max_connections": "5000",
		}},
		env: map[string]string{"HTTP_STRIP_FRAGMENT_FROM_PATH_UNSAFE_IF_DISABLED": "false"},
	},
	{name: "concurrency, drain, ports", args: []string{"--concurrency", "3", "--outlierLogPath", "/dev/null"}, env: map[string]string{
		"ENVOY_STATUS_PORT": "16021", "ENVOY_PROMETHEUS_PORT": "16090", "EXIT_ON_ZERO_ACTIVE_CONNECTIONS": "true",
	}, proxy: members{
		"drainDuration": "7s", "terminationDrainDuration": "11s", "proxyAdminPort": 16000, "statusPort": 16020, "statNameLength": 300,
		"serviceCluster": "edge",
	}},
	{
		name: "secure metrics", env: map[string]string{"ENVOY_SECURE_METRICS_PORT": "15091", "ENVOY_SECURE_MERGED_METRICS_PORT": "15092"},
		proxy: members{"statsCompression": false},
	},
	{name: "what istiod reads", proxy: members{
		"gatewayTopology": members{"numTrustedProxies": 2}, "proxyHeaders": members{"server": members{"disabled": true}},
		"privateKeyProvider": members{"cryptomb": members{"pollDelay": "1ms"}}, "caCertificatesPem": []string{"x"},
		"tracing": members{"sampling": 5.0, "maxPathTagLength": 10},
	}},
	{
		name: "behind a load balancer", env: map[string]string{"ENVOY_STATUS_PORT_ENABLE_PROXY_PROTOCOL": "true", "ISTIO_META_GLOBAL_DOWNSTREAM_MAX_CONNECTIONS": "777"},
		proxy: members{"proxyMetadata": members{"ISTIO_META_GLOBAL_DOWNSTREAM_MAX_CONNECTIONS": "777", "METRICS_LOCALHOST_ACCESS_ONLY": "true"}},
	},
	{
		name: "zones", env: map[string]string{"ISTIO_META_ENABLE_SELF_DISCOVERY": "true", "ISTIO_METAJSON_LABELS": `{"istio-locality":"eu.eu-1.rack7"}`},
		proxy: members{"tracingServiceName": "CANONICAL_NAME_ONLY"},
	},
	{name: "load reports", env: map[string]string{"ISTIO_META_LOAD_STATS_CONFIG_JSON": `{"api_type":"GRPC","transport_api_version":"V3","grpc_services":[{"envoy_grpc":{"cluster_name":"xds-grpc"}}]}`}},
	{name: "ambient", env: map[string]string{"ISTIO_META_ENABLE_HBONE": "true"}, refused: map[string]string{"pilot-agent's": "only Istio's Envoy has this extension"}},
	{
		name: "two families", ethernet: "fd00::5", env: map[string]string{"ISTIO_DUAL_STACK": "true"},
		proxy: members{"tracing": members{"zipkin": members{"address": "zipkin.example:9411"}}},
	},
	{name: "two families, not told"},
	{
		name: "only IPv6", env: map[string]string{"INSTANCE_IP": sixth.pod, "ENVOY_SECURE_METRICS_PORT": "15091"},
		proxy: members{"statsdUdpAddress": "[fd00::9]:8125", "envoyMetricsService": members{"address": "[fd00::9]:15000"}},
	},
}

// difference is one that is meant.
type difference struct {
	where string // in the bootstrap: the beginning of a path, with * for anything
	in    string // only in this case; "" = in all
	why   string
}

const manager = "/static_resources/listeners/*/typed_config/"

var meantDifferences = []difference{
	{"/admin/access_log/", "", "no log is no log"},
	{"/admin/ignore_global_conn_limit", "", "a gateway that is full can still be asked and drained"},
	{"/application_log_config/", "", "the agent writes Envoy's lines into its own log"},
	{"/dynamic_resources/ads_config/grpc_services/0/envoy_grpc/retry_policy/", "", "Envoy is back within half a second after the agent is"},
	{"/layered_runtime/layers/[static_layer]/name", "", "nothing refers to it"},
	{"/layered_runtime/layers/[static_layer]/static_layer/envoy.deprecated_features", "", "for sidecars' listeners, and Envoy has forgotten it"},
	{"/node/locality missing", "", "empty"},
	{"/bootstrap_extensions/[metadata_discovery]/", "ambient", "left out, and told, where Envoy has no such extension"},
	{"/static_resources/clusters/[local_cluster]/eds_cluster_config/eds_config/initial_fetch_timeout", "zones", "zones cannot hold up the gateway for 15s"},
	{"/static_resources/clusters/[lightstep]/", "a tracer that is gone", "Envoy has no such tracer any more, and refuses all"},
	{"/tracing/", "a tracer that is gone", "Envoy has no such tracer any more, and refuses all"},
	{"/cluster_manager/enable_deferred_cluster_creation", "", "saves memory, where pilot-agent happens to write something about clusters; the rest of gateways has it not either"},
	{"/layered_runtime/layers/[static_layer]/static_layer/envoy.reloadable_features.http_strip", "runtime values", "Envoy has forgotten it, and calls it a bug of its own"},
	{"/static_resources/clusters/*/alt_stat_name", "", "the label cluster_name is the same"},
	{"/static_resources/clusters/*/connect_timeout", "", "1s for all"},
	{"/static_resources/clusters/*/http2_protocol_options", "", "an agent that hangs with its socket open is noticed"},
	{"/static_resources/clusters/[sds-files-grpc]/", "", "always there: it leads where sds-grpc does"},
	{"/static_resources/clusters/*/circuit_breakers/", "", "no limit at all, on the way to certificates too: each is a stream of its own"},
	{"/static_resources/clusters/[xds-grpc]/max_requests_per_connection", "", "one stream is all there is"},
	{"/static_resources/clusters/[xds-grpc]/upstream_connection_options/", "", "a unix socket has none"},
	{"/static_resources/clusters/*/dns_lookup_family", "", "other addresses are taken by names that have no others"},
	{"/static_resources/clusters/*/dns_refresh_rate", "", "every 5s"},
	{"/static_resources/clusters/*/respect_dns_ttl", "", "every 5s; newer Envoys call the field deprecated"},
	{"/static_resources/clusters/*/sds_config/initial_fetch_timeout", "", "who takes metrics or traces cannot hold up the gateway"},
	{"/static_resources/clusters/*/sds_config/*/retry_policy/", "", "as that of ads_config"},
	{"/static_resources/clusters/*/match_", "", "names of types DNS and URI instead of any, whose field is deprecated"},
	{"/static_resources/listeners/*/name", "", "nothing refers to them; the statistics' names tell a drain which requests are not users'"},
	{"/static_resources/listeners/*/stat_prefix", "", "as the names"},
	{manager + "route_config/", "", "GET and HEAD of these paths, nothing below them; a time limit"},
	{manager + "common_http_protocol_options/idle_timeout", "", "clients that say nothing do not stay"},
	{manager + "request_", "", "clients that say nothing do not stay"},
	{manager + "generate_request_id", "", "nobody traces them"},
	{"/static_resources/listeners/*/filter_chain_match/transport_protocol", "", "what is not TLS fails as such"},
	{"/static_resources/listeners/*/listener_filters/[envoy.filters.listener.tls_inspector]/", "", "what is not TLS fails as such"},
	{"/static_resources/listeners/[[::]:15091]/*/http_filters/[envoy.filters.http.compressor", "only IPv6", "compressed as the plain one"},
	{"/static_resources/listeners/*/response_direction_config/", "", "text is compressed, which it is without saying so; newer Envoys call the field deprecated"},
	{"/static_resources/listeners/*/sds_config/", "", "as those of clusters: metrics cannot hold up the gateway"},
	{"/static_resources/listeners/*/listener_filters/*proxy_protocol]/", "behind a load balancer", "only the filter's name: its type counts"},
	{"/stats_config/stats_matcher/inclusion_list/patterns/*downstream_", "", "by these a drain knows what is in flight"},
	{"/stats_config/stats_matcher/inclusion_list/patterns/[gateway_agent_]", "", "of the listeners that are not users'"},
	{"/stats_config/stats_tags/*/regex", "", "the same labels (TestLabelsAsPilotAgents), for names of older istiods too (TestTagsInEnvoy)"},
}

func (d difference) covers(name, line string) bool {
	if d.in != "" && d.in != name {
		return false
	}
	parts := strings.Split(d.where, "*")
	rest, ok := strings.CutPrefix(line, parts[0])
	for _, part := range parts[1:] {
		if !ok {
			return false
		}
		_, rest, ok = strings.Cut(rest, part)
	}
	return ok
}
