package istio

import (
	"maps"
	"slices"
	"strings"
)

// Variable is an environment variable of a gateway pod.
type Variable struct {
	Name    string // a * at the end stands for any ending
	Meaning string // what it does here; for one that is ignored, why
	Ignored bool
	Quiet   []string // values of an ignored one that ask for nothing
}

// Variables are all that the gateway chart, the injector and users set.
var Variables = []Variable{
	{Name: "INSTANCE_IP", Meaning: "the pod's address, first in the node"},
	{Name: "POD_NAME", Meaning: "part of the node id, metadata NAME"},
	{Name: "POD_NAMESPACE", Meaning: "part of the node id, metadata NAMESPACE, the identity"},
	{Name: "SERVICE_ACCOUNT", Meaning: "metadata SERVICE_ACCOUNT, the identity (else that of the token)"},
	{Name: "HOST_IP", Meaning: "stands for $(HOST_IP) in ProxyConfig's addresses"},
	{Name: "ISTIO_CPU_LIMIT", Meaning: "Envoy's concurrency, after --concurrency and ProxyConfig"},
	{Name: "PROXY_CONFIG", Meaning: "ProxyConfig over the mesh file, under the pod's annotation"},
	{Name: "TRUST_DOMAIN", Meaning: "trust domain of the identity"},
	{Name: "CA_ADDR", Meaning: "the CA (default: istiod)"},
	{Name: "CA_PROVIDER", Meaning: "Citadel; GkeWorkloadCertificate: only the files that Google's platform mounts, waited for; another one is told and taken for Citadel"},
	{Name: "CA_ROOT_CA", Meaning: "roots for the CA; SYSTEM for the system's"},
	{Name: "PILOT_CERT_PROVIDER", Meaning: "custom: the CA's roots are in ./etc/certs/root-cert.pem"},
	{Name: "XDS_ROOT_CA", Meaning: "roots for istiod; SYSTEM for the system's"},
	{Name: "XDS_AUTH_PROVIDER", Ignored: true, Meaning: "no authentication providers but the token file and client certificates"},
	{Name: "XDS_AUTH_PLAINTEXT", Meaning: "send the token over plaintext too"},
	{Name: "XDS_HEADER_*", Meaning: "gRPC metadata of the xDS streams"},
	{Name: "CA_HEADER_*", Meaning: "gRPC metadata of the CA's calls"},
	{Name: "ISTIOD_SAN", Meaning: "name expected in the certificate of istiod, and of the CA if that is at the same address"},
	{Name: "JWT_POLICY", Meaning: "first-party-jwt: without a token for istiod, the service account's own is used"},
	{Name: "TOKEN_AUDIENCES", Ignored: true, Meaning: "istiod's; the pod's projected token has its audience already"},
	{Name: "PROV_CERT", Meaning: "directory of a client certificate and roots for istiod and the CA"},
	{Name: "FILE_MOUNTED_CERTS", Meaning: "certificates only from the files of ISTIO_META_TLS_*; no CA"},
	{Name: "OUTPUT_CERTS", Meaning: "directory to which the workload's certificate is written, in a pod for all its users"},
	{Name: "WORKLOAD_IDENTITY_SOCKET_FILE", Meaning: "name of a foreign SDS server's socket in workload-spiffe-uds; another one than 'socket' is waited for, and the CA is not asked"},
	{Name: "SECRET_TTL", Meaning: "lifetime asked of the CA"},
	{Name: "SECRET_GRACE_PERIOD_RATIO", Meaning: "part of the lifetime that is left when a certificate is renewed"},
	{Name: "SECRET_GRACE_PERIOD_RATIO_JITTER", Meaning: "± of that"},
	{Name: "FILE_DEBOUNCE_DURATION", Ignored: true, Quiet: []string{"100ms"}, Meaning: "files that do not fit together are read again until they do; nothing waits"},
	{Name: "WORKLOAD_RSA_KEY_SIZE", Meaning: "RSA keys of this size (default: ECDSA P-256)"},
	{Name: "PKCS8_KEY", Meaning: "PKCS#8 in OUTPUT_CERTS and SDS"},
	{Name: "ECC_SIGNATURE_ALGORITHM", Meaning: "ECDSA, which is the default here"},
	{Name: "ECC_CURVE", Meaning: "P256 or P384"},
	{Name: "ISTIO_META_CERT_SIGNER", Meaning: "CertSigner of the certificate request"},
	{Name: "ISTIO_META_CLUSTER_ID", Meaning: "metadata CLUSTER_ID and the ClusterID header (default Kubernetes)"},
	{Name: "ISTIO_META_DNS_CAPTURE", Ignored: true, Quiet: off, Meaning: "a gateway captures nothing, ISTIO_META_ENABLE_DNS_SERVER starts its DNS server; istiod is told"},
	{Name: "ISTIO_META_ENABLE_DNS_SERVER", Meaning: "a DNS server with the services and hosts that istiod knows"},
	{Name: "ISTIO_META_*", Meaning: "node metadata"},
	{Name: "ISTIO_METAJSON_*", Meaning: "node metadata, several keys in a JSON object"},
	{Name: "DNS_PROXY_ADDR", Meaning: "its address, and node metadata (default localhost:15053)"},
	{Name: "DNS_FORWARD_PARALLEL", Meaning: "it asks the other name servers all at once"},
	{Name: "DNS_FORWARD_TIMEOUT", Meaning: "how long it waits for one of them (default 5s)"},
	{Name: "PROXY_CONFIG_XDS_AGENT", Meaning: "with mounted roots, those that istiod sends (PCDS) count too; with the CA's they always do"},
	{Name: "PEER_METADATA_DISCOVERY", Meaning: "Istio's metadata discovery, as in an ambient mesh; an Envoy that is not Istio's goes without"},
	{Name: "ENVOY_STATUS_PORT", Meaning: "port of the readiness listener"},
	{Name: "ENVOY_PROMETHEUS_PORT", Meaning: "port of the Prometheus listener"},
	{Name: "ENVOY_STATUS_PORT_ENABLE_PROXY_PROTOCOL", Meaning: "a PROXY header may come first on the readiness listener"},
	{Name: "ENVOY_SECURE_METRICS_PORT", Meaning: "port of a listener for Envoy's metrics that wants a certificate of the mesh"},
	{Name: "ENVOY_SECURE_MERGED_METRICS_PORT", Meaning: "the same for the metrics of 15020"},
	{Name: "METRICS_LOCALHOST_ACCESS_ONLY", Meaning: "metrics on the status port only from loopback"},
	{Name: "DISABLE_ENVOY", Meaning: "no Envoy is started; sockets and certificates are served"},
	{Name: "GRPC_XDS_BOOTSTRAP", Ignored: true, Meaning: "for gRPC without a proxy, which a gateway is not"},
	{Name: "ISTIO_BOOTSTRAP", Ignored: true, Meaning: "no bootstrap templates: use ISTIO_BOOTSTRAP_OVERRIDE, which is merged over the bootstrap"},
	{Name: "ISTIO_BOOTSTRAP_OVERRIDE", Meaning: "bootstrap file merged over ours, as Envoy merges"},
	{Name: "MINIMUM_DRAIN_DURATION", Meaning: "with EXIT_ON_ZERO_ACTIVE_CONNECTIONS: how long new connections are accepted after SIGTERM"},
	{Name: "EXIT_ON_ZERO_ACTIVE_CONNECTIONS", Meaning: "the drain ends when nothing is in flight, without a deadline of ours"},
	{Name: "TERMINATION_DRAIN_DURATION_SECONDS", Meaning: "ProxyConfig's terminationDrainDuration, and wins over it"},
	{Name: "ENVOY_SKIP_DEPRECATED_LOGS", Meaning: "Envoy's --skip-deprecated-logs; true unless set to false"},
	{Name: "ISTIO_ENVOY_ENABLE_CORE_DUMP", Ignored: true, Quiet: off, Meaning: "core dumps are the node's to configure; a crash's last words are in the log"},
	{Name: "CLOUD_PLATFORM", Ignored: true, Quiet: []string{"none", "NONE"}, Meaning: "no platform detection: set the label istio-locality and ISTIO_META_ variables"},
	{Name: "COMPLIANCE_POLICY", Ignored: true, Meaning: "TLS of the agent itself is Go's default, at least 1.2: run it with GODEBUG=fips140=only"},
	{Name: "WASM_INSECURE_REGISTRIES", Meaning: "registries without TLS or with any certificate"},
	{Name: "WASM_MODULE_EXPIRY", Meaning: "how long a module that nothing uses stays"},
	{Name: "WASM_PURGE_INTERVAL", Ignored: true, Meaning: "modules are dropped as soon as their time and the store's size say so"},
	{Name: "WASM_HTTP_REQUEST_TIMEOUT", Ignored: true, Meaning: "a pull ends when nothing comes any more, however long it takes"},
	{Name: "WASM_HTTP_REQUEST_MAX_RETRIES", Ignored: true, Meaning: "a pull is tried again until it works"},
	{Name: "CREDENTIAL_FETCHER_TYPE", Meaning: "JWT; another one is told and taken for it"},
	{Name: "CREDENTIAL_IDENTITY_PROVIDER", Ignored: true, Meaning: "as CREDENTIAL_FETCHER_TYPE"},
	{Name: "ISTIO_KUBE_APP_PROBERS", Ignored: true, Meaning: "a gateway has no application beside it"},
	{Name: "ISTIO_PROMETHEUS_ANNOTATIONS", Ignored: true, Meaning: "a gateway has no application beside it"},
	{Name: "GCP_*", Ignored: true, Meaning: "no platform detection"},
	{Name: "ISTIO_DELTA_XDS", Meaning: "false: state of the world instead of delta"},
	{Name: "ISTIO_WASM_MAX_BINARY_SIZE_BYTES", Meaning: "largest module accepted"},
	{Name: "ISTIO_AGENT_ENABLE_WASM_REMOTE_LOAD_CONVERSION", Ignored: true, Quiet: on, Meaning: "remote modules always go through the agent: Envoy would let requests through without the plugin"},
	{Name: "PILOT_AGENT_MERGE_ENVOY_STATS", Ignored: true, Quiet: on, Meaning: "the status port always has Envoy's metrics too"},
	{Name: "GRPC_KEEPALIVE_INTERVAL", Ignored: true, Quiet: []string{"30s"}, Meaning: "istiod is pinged after 30 s of silence"},
	{Name: "GRPC_KEEPALIVE_TIMEOUT", Ignored: true, Quiet: []string{"10s"}, Meaning: "istiod has 10 s to answer a ping"},
	{Name: "ISTIO_GPRC_MAXRECVMSGSIZE", Ignored: true, Meaning: "messages have no limit of their own"},
	{Name: "ISTIO_GPRC_MAXSTREAMS", Ignored: true, Meaning: "only Envoy connects"},
	{Name: "ISTIO_ENABLE_HTTP2_PROBING", Ignored: true, Meaning: "a gateway has no application beside it"},
	{Name: "ENABLE_PROBE_KEEPALIVE_CONNECTIONS", Ignored: true, Meaning: "a gateway has no application beside it"},
	{Name: "REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION", Ignored: true, Meaning: "a gateway has no application beside it"},
	{Name: "KUBERNETES_SERVICE_HOST", Meaning: "every pod has it: OUTPUT_CERTS is then for all its users"},
	{Name: "ISTIO_META_ENABLE_SELF_DISCOVERY", Meaning: "a cluster local_cluster, for zone-aware balancing"},
	{Name: "ISTIO_META_GLOBAL_DOWNSTREAM_MAX_CONNECTIONS", Meaning: "most connections of clients"},
	{Name: "ISTIO_META_LOAD_STATS_CONFIG_JSON", Meaning: "Envoy's load_stats_config"},
	{Name: "ISTIO_DUAL_STACK", Meaning: "the readiness and metrics listeners are on both IP families, in a pod that has both"},
	{Name: "HTTP_STRIP_FRAGMENT_FROM_PATH_UNSAFE_IF_DISABLED", Ignored: true, Quiet: on, Meaning: "Envoy has forgotten this switch; a path with a fragment is not rejected, and loses it"},
}

var (
	off = []string{"false", "0", "f", "F", "False", "FALSE"}
	on  = []string{"true", "1", "t", "T", "True", "TRUE"}
)

// Lookup finds what is known of a variable.
func Lookup(name string) (Variable, bool) {
	var found Variable
	for _, v := range Variables {
		prefix, open := strings.CutSuffix(v.Name, "*")
		if v.Name == name {
			return v, true
		}
		if open && strings.HasPrefix(name, prefix) && found.Name == "" {
			found = v
		}
	}
	if found.Name == "" {
		return lookupOther(name)
	}
	return found, true
}

// warnIgnored tells once of each variable and flag that is set and does nothing here.
func (m *mapping) warnIgnored() {
	for _, name := range slices.Sorted(maps.Keys(m.in.Env)) {
		value := m.in.Env[name]
		v, ok := Lookup(name)
		if !ok || !v.Ignored || value == "" || slices.Contains(v.Quiet, value) {
			continue
		}
		m.warn("%s is ignored: %s", name, v.Meaning)
	}
	args := m.in.Args
	for _, flag := range []struct {
		name, why string
		set       bool
	}{
		{"--stsPort", "there is no token exchange here", args.STSPort != 0},
		{"--tokenManagerPlugin", "there is no token exchange here", args.TokenManagerPlugin != "" && args.TokenManagerPlugin != defaultTokenPlugin},
		{"--templateFile", "there is no bootstrap template here: use ISTIO_BOOTSTRAP_OVERRIDE", args.TemplateFile != ""},
		{"--log_rotate", "the log is on stderr", args.Log.Rotate != ""},
		{"--log_caller", "there is no such option here", args.Log.Caller != ""},
		{"--log_stacktrace_level", "there is no such option here", args.Log.StackLevel != "" && args.Log.StackLevel != defaultStackLevel},
		{"--log_target", "the log is on stderr", !slices.Equal(args.Log.Targets, []string{defaultLogTarget})},
		{"--vklog", "there is no such option here", args.Log.Klog != "" && args.Log.Klog != "0"},
		{"--profiling", "profiles are on the control socket only, whatever it says", !args.Profiling},
	} {
		if flag.set {
			m.warn("%s is ignored: %s", flag.name, flag.why)
		}
	}
	if file := m.proxy.GetCustomConfigFile(); file != "" {
		m.warn("ProxyConfig customConfigFile %s is ignored: use ISTIO_BOOTSTRAP_OVERRIDE, which is merged over the bootstrap", file)
	}
	if file := m.proxy.GetProxyBootstrapTemplatePath(); file != "" {
		m.warn("ProxyConfig proxyBootstrapTemplatePath %s is ignored: there are no bootstrap templates here", file)
	}
}
