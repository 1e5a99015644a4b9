package main

import (
	"bytes"
	stdcmp "cmp"
	"io"
	"log/slog"
	"maps"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/cobra"

	"github.com/gateway-agent/gateway-agent/internal/istio"
)

// istiod answers the first request of a stream even when Envoy has what it asks for, so that one that says nothing is stuck; of other control
// planes nobody knows.
func TestProxyKnowsThatIstiodAnswers(t *testing.T) {
	istiod, _ := mapProxy(t, environment{"POD_NAME": "gw", "POD_NAMESPACE": "ingress", "SERVICE_ACCOUNT": "gw", "INSTANCE_IP": "10.1.2.3"})
	for who, tt := range map[string]struct {
		settings *settings
		want     bool
	}{
		"istiod":  {istiod, true},
		"another": {&settings{xdsAddress: "xds.example:1"}, false},
	} {
		g := &gateway{settings: tt.settings, log: slog.New(slog.DiscardHandler)}
		if err := g.openSource(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer g.upstream.Close()
		if got := g.relayConfig().Answers; got != tt.want {
			t.Errorf("%s always answers: %v, want %v", who, got, tt.want)
		}
	}
}

// mapProxy is what `proxy router` would run with, in this environment.
func mapProxy(t *testing.T, env environment) (*settings, string) {
	t.Helper()
	var out bytes.Buffer
	a := &app{env: env, stdout: &out, stderr: io.Discard}
	call := newProxyCall(&cobra.Command{})
	call.dryRun = true
	if err := a.proxy(t.Context(), call, []string{"router"}); err != nil {
		t.Fatal(err)
	}
	return call.settings, out.String()
}

// Each variable that Istio's contract has and this agent obeys arrives where `run` has it.
func TestEachVariableReachesRun(t *testing.T) {
	values := map[string]string{
		"ISTIO_CPU_LIMIT": "7", "PROXY_CONFIG": `{"concurrency": 3}`, "PILOT_CERT_PROVIDER": "custom", "CA_ADDR": "ca:1",
		"JWT_POLICY": "first-party-jwt", "XDS_AUTH_PLAINTEXT": "true", "FILE_MOUNTED_CERTS": "true", "SECRET_TTL": "1h",
		"SECRET_GRACE_PERIOD_RATIO": "0.2", "SECRET_GRACE_PERIOD_RATIO_JITTER": "0.2", "WORKLOAD_RSA_KEY_SIZE": "4096", "PKCS8_KEY": "true",
		"ECC_CURVE": "P384", "PEER_METADATA_DISCOVERY": "true", "ENVOY_STATUS_PORT": "1", "ENVOY_PROMETHEUS_PORT": "2", "METRICS_LOCALHOST_ACCESS_ONLY": "true",
		"DISABLE_ENVOY": "true", "EXIT_ON_ZERO_ACTIVE_CONNECTIONS": "true", "MINIMUM_DRAIN_DURATION": "17s", "TERMINATION_DRAIN_DURATION_SECONDS": "30",
		"ENVOY_SKIP_DEPRECATED_LOGS": "false", "WASM_MODULE_EXPIRY": "2h", "ISTIO_META_ENABLE_SELF_DISCOVERY": "true", "ISTIO_META_GLOBAL_DOWNSTREAM_MAX_CONNECTIONS": "7",
		"ISTIO_METAJSON_*": `{"X":1}`, "INSTANCE_IP": "10.9.9.9",
		"ISTIO_META_ENABLE_DNS_SERVER": "true", "DNS_PROXY_ADDR": "127.0.0.1:5353", "DNS_FORWARD_PARALLEL": "true", "DNS_FORWARD_TIMEOUT": "2s",
		"ISTIO_DELTA_XDS": "false", "ISTIO_WASM_MAX_BINARY_SIZE_BYTES": "1000000",
	}
	base := environment{
		"POD_NAME": "gw", "POD_NAMESPACE": "ingress", "SERVICE_ACCOUNT": "gw", "INSTANCE_IP": "10.1.2.3",
		"GATEWAY_AGENT_DATA_DIR": "/d", // with defaults of the machine nothing could be compared
	}
	for _, v := range istio.Variables {
		t.Run(v.Name, func(t *testing.T) {
			with := maps.Clone(base)
			switch v.Name {
			case "HOST_IP":
				with["PROXY_CONFIG"] = `{"tracing": {"datadog": {"address": "$(HOST_IP):8126"}}}`
			case "MINIMUM_DRAIN_DURATION":
				with["EXIT_ON_ZERO_ACTIVE_CONNECTIONS"] = "true"
			case "DNS_PROXY_ADDR", "DNS_FORWARD_PARALLEL", "DNS_FORWARD_TIMEOUT":
				with["ISTIO_META_ENABLE_DNS_SERVER"] = "true"
			}
			before, _ := mapProxy(t, with)
			name, open := strings.CutSuffix(v.Name, "*")
			if open {
				name += "Z"
			}
			with = maps.Clone(with)
			with[name] = stdcmp.Or(values[v.Name], "something")
			after, out := mapProxy(t, with)
			before.env, after.env = nil, nil
			if !strings.HasPrefix(v.Name, "ISTIO_META") || !open { // what istiod is told besides does not count
				before.nodeMetaJSON, after.nodeMetaJSON = "", ""
			}
			if same, told := reflect.DeepEqual(before, after), strings.Contains(out, "# "+name); same && !told {
				t.Errorf("%s=%s changes nothing and is not told", name, with[name])
			}
		})
	}
}

// What --dry-run prints is what `proxy` does, but for what it says has no flag.
func TestDryRunIsRun(t *testing.T) {
	base := environment{"POD_NAME": "gw", "POD_NAMESPACE": "ingress", "SERVICE_ACCOUNT": "gw", "INSTANCE_IP": "10.1.2.3", "GATEWAY_AGENT_DATA_DIR": "/d"}
	for name, more := range map[string]environment{
		"usual": {},
		"other places": {
			"PROXY_CONFIG": "{discoveryAddress: 'i:15010', controlPlaneAuthPolicy: NONE, configPath: /c, binaryPath: /e, proxyAdminPort: 1, statusPort: 2, concurrency: 3}",
			"CA_ADDR":      "ca:15010", "ENVOY_STATUS_PORT": "3", "ENVOY_PROMETHEUS_PORT": "4", "ENVOY_SECURE_METRICS_PORT": "5", "ENVOY_SECURE_MERGED_METRICS_PORT": "6",
			"ISTIO_DUAL_STACK": "true", "METRICS_LOCALHOST_ACCESS_ONLY": "true", "DISABLE_ENVOY": "true",
		},
		"telemetry": {"PROXY_CONFIG": "{tracing: {zipkin: {address: 'z:1'}, tlsSettings: {mode: SIMPLE}}, statsdUdpAddress: 's:2', envoyMetricsService: {address: 'm:3'}, " +
			"envoyAccessLogService: {address: 'a:4'}, runtimeValues: {a: '1', \"b'c\": ' $x'}, extraStatTags: [t], proxyStatsMatcher: {inclusionRegexps: ['a b.*', \"it's\"]}, readinessProbe: {httpGet: {port: 1}}}"},
		"identity": {
			"OUTPUT_CERTS": "/out", "WORKLOAD_RSA_KEY_SIZE": "4096", "PKCS8_KEY": "true", "SECRET_TTL": "1h", "SECRET_GRACE_PERIOD_RATIO": "0.2", "SECRET_GRACE_PERIOD_RATIO_JITTER": "0",
			"ISTIO_META_CERT_SIGNER": "s", "XDS_ROOT_CA": "/x", "CA_ROOT_CA": "SYSTEM", "PROV_CERT": "/prov", "PROXY_CONFIG_XDS_AGENT": "true", "KUBERNETES_SERVICE_HOST": "10.0.0.1",
			"WORKLOAD_IDENTITY_SOCKET_FILE": "spire",
		},
		"drain": {"EXIT_ON_ZERO_ACTIVE_CONNECTIONS": "true", "MINIMUM_DRAIN_DURATION": "17s", "PROXY_CONFIG": "drainDuration: 3s"},
		"dns": {
			"ISTIO_META_ENABLE_DNS_SERVER": "true", "DNS_FORWARD_PARALLEL": "true", "DNS_FORWARD_TIMEOUT": "2s", "WASM_INSECURE_REGISTRIES": "a:1,b", "WASM_MODULE_EXPIRY": "2h",
			"ISTIO_WASM_MAX_BINARY_SIZE_BYTES": "1000000", "ISTIO_DELTA_XDS": "false", "PEER_METADATA_DISCOVERY": "true",
		},
	} {
		env := maps.Clone(base)
		maps.Copy(env, more)
		want, line := mapProxy(t, env)
		words, err := exec.Command("sh", "-c", "set -- "+line+"\nfor word; do printf '%s\\0' \"$word\"; done").Output()
		if err != nil {
			t.Fatal(err)
		}
		got := &settings{}
		flags := &cobra.Command{}
		runFlags(flags, got)
		if err := flags.ParseFlags(strings.Split(strings.TrimSuffix(string(words), "\x00"), "\x00")[2:]); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := got.complete(environment{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		withoutFlags(got, want)
		if diff := cmp.Diff(want, got, cmp.Exporter(func(reflect.Type) bool { return true }), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: settings of the line that --dry-run prints (-want +got):\n%s", name, diff)
		}
	}
}

// withoutFlags gives to the fields that no flag sets: unflagged tells of them.
func withoutFlags(to, from *settings) {
	to.xdsTokenOptional, to.xdsTokenPlaintext, to.xdsAnswers, to.denied, to.env = from.xdsTokenOptional, from.xdsTokenPlaintext, from.xdsAnswers, from.denied, from.env
	to.caTokenOptional, to.caTokenPlaintext = from.caTokenOptional, from.caTokenPlaintext
	to.identityFiles, to.identityOpen, to.identityShared, to.identityTrust = from.identityFiles, from.identityOpen, from.identityShared, from.identityTrust
	to.statsBuckets, to.remotes, to.loadReports, to.hostIP = from.statsBuckets, from.remotes, from.loadReports, from.hostIP
	to.istioExtras, to.peerDiscovery, to.reportHealth, to.trustFromPlane = from.istioExtras, from.peerDiscovery, from.reportHealth, from.trustFromPlane
}
