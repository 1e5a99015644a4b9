package istio

import (
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"
)

// pod is what a gateway pod has after injection.
type pod struct {
	args    []string
	env     map[string]string
	files   map[string]string // by path under /
	sockets []string
	faces   []Interface
}

func gateway() pod {
	return pod{
		args: []string{
			"--domain", "ingress.svc.cluster.local", "--proxyLogLevel=warning", "--proxyComponentLogLevel=misc:error",
			"--log_output_level=default:info",
		},
		env: map[string]string{
			"PILOT_CERT_PROVIDER": "istiod", "CA_ADDR": "istiod.istio-system.svc:15012", "JWT_POLICY": "third-party-jwt",
			"POD_NAME": "gw-abc", "POD_NAMESPACE": "ingress", "INSTANCE_IP": "10.1.2.3", "HOST_IP": "192.168.0.9", "SERVICE_ACCOUNT": "gw",
			"ISTIO_CPU_LIMIT": "2", "PROXY_CONFIG": "{}\n",
			"ISTIO_META_POD_PORTS":      "[\n    {\"name\":\"http\",\"containerPort\":80,\"protocol\":\"TCP\"}\n]",
			"ISTIO_META_APP_CONTAINERS": "", "ISTIO_META_CLUSTER_ID": "prod", "ISTIO_META_NODE_NAME": "n1",
			"ISTIO_META_INTERCEPTION_MODE": "REDIRECT", "ISTIO_META_WORKLOAD_NAME": "gw", "ISTIO_META_MESH_ID": "mesh",
			"ISTIO_META_OWNER":            "kubernetes://apis/apps/v1/namespaces/ingress/deployments/gw",
			"ISTIO_META_UNPRIVILEGED_POD": "true", "TRUST_DOMAIN": "cluster.local",
		},
		files: map[string]string{
			"/etc/istio/pod/labels":                       "app=\"gw\"\nistio=\"ingress\"\npod-template-hash=\"55\"\nnote=\"a \\\"b\\\"\"\n",
			"/etc/istio/pod/annotations":                  "kubernetes.io/config.source=\"api\"\n",
			"/var/run/secrets/istio/root-cert.pem":        "roots",
			"/var/run/secrets/tokens/istio-token":         "token",
			"/var/run/secrets/workload-spiffe-uds/unused": "",
		},
		faces: []Interface{{Name: "lo", Addresses: addresses("127.0.0.1", "::1")}, {Name: "eth0", Addresses: addresses("10.1.2.3", "fe80::1", "fd00::5")}},
	}
}

func addresses(texts ...string) []netip.Addr {
	var all []netip.Addr
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

func (p pod) input(t *testing.T) Input {
	t.Helper()
	in := Input{Role: "router", Env: p.env, Dir: "/", Interfaces: p.faces}
	flags := pflag.NewFlagSet("proxy", pflag.ContinueOnError)
	in.Args.Flags(flags)
	if err := flags.Parse(p.args); err != nil {
		t.Fatal(err)
	}
	in.ReadFile = func(path string) ([]byte, error) {
		text, ok := p.files[path]
		if !ok {
			return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
		}
		return []byte(text), nil
	}
	in.Answers = func(path string) bool { return slices.Contains(p.sockets, path) }
	return in
}

// mapped wants a mapping without problems and warnings.
func mapped(t *testing.T, p pod) Settings {
	t.Helper()
	s, warnings, err := Map(p.input(t))
	if err != nil || len(warnings) > 0 {
		t.Fatalf("Map = %v, warnings %q; want neither", err, warnings)
	}
	return s
}

// TestGatewayOfTheChart maps what the gateway chart and the injector make, in full.
func TestGatewayOfTheChart(t *testing.T) {
	got := mapped(t, gateway())
	istiod := Server{
		Address: "istiod.istio-system.svc:15012", ServerName: "istiod.istio-system.svc",
		RootFile: "/var/run/secrets/istio/root-cert.pem", TokenFile: "/var/run/secrets/tokens/istio-token",
		Header: map[string]string{"ClusterID": "prod"},
	}
	want := Settings{
		NodeID: "router~10.1.2.3~gw-abc.ingress~ingress.svc.cluster.local", NodeCluster: "gw.ingress",
		ControlPlane: istiod, CA: istiod,
		Workload: Workload{
			TrustDomain: "cluster.local", Namespace: "ingress", ServiceAccount: "gw", TTL: 24 * time.Hour, GraceRatio: 0.5,
			GraceJitter: 0.01, KeyType: "ecdsa", RSABits: 2048, Curve: "P256", CRLFile: "/var/run/secrets/istio/crl/ca-crl.pem",
		},
		RunDir: "/etc/istio/proxy", DataDir: "/var/lib/istio/data", BootstrapFile: "/etc/istio/proxy/envoy-rev.json",
		XDSSocket: "/etc/istio/proxy/XDS", SDSSocket: "/var/run/secrets/workload-spiffe-uds/socket", WorkloadSocket: "/var/run/secrets/workload-spiffe-uds/socket",
		AdminAddress: "127.0.0.1:15000", StatusAddress: ":15020", ReadyAddress: "0.0.0.0:15021", PrometheusAddress: "0.0.0.0:15090",
		Envoy:       "/usr/local/bin/envoy",
		EnvoyArgs:   []string{"--drain-strategy", "immediate", "--file-flush-interval-msec", "1000", "--allow-unknown-static-fields", "--skip-deprecated-logs"},
		Concurrency: 2, EnvoyLogLevel: "warning", ComponentLogLevel: "misc:error", LogLevel: "info", LogFormat: "text",
		MaxConnections: 2147483647, HostIP: "192.168.0.9",
		DrainDelay: 5 * time.Second, DrainTimeout: 10 * time.Second, ListenerDrain: 45 * time.Second,
	}
	ignore := cmpopts.IgnoreFields(Settings{}, "Metadata", "Statistics", "Runtime")
	if diff := cmp.Diff(want, got, ignore); diff != "" {
		t.Errorf("Map differs (-want +got):\n%s", diff)
	}
	metadata := map[string]any{
		"NAME": "gw-abc", "NAMESPACE": "ingress", "SERVICE_ACCOUNT": "gw", "CLUSTER_ID": "prod", "ISTIO_VERSION": Version,
		"INSTANCE_IPS": "10.1.2.3,fd00::5", "ENVOY_STATUS_PORT": 15021, "ENVOY_PROMETHEUS_PORT": 15090,
		"PILOT_SAN": []any{"istiod.istio-system.svc"}, "METADATA_DISCOVERY": "false", "WORKLOAD_IDENTITY_SOCKET_FILE": "socket", "ENVOY_SKIP_DEPRECATED_LOGS": "true",
		"POD_PORTS":      `[{"name":"http","containerPort":80,"protocol":"TCP"}]`,
		"APP_CONTAINERS": "", "NODE_NAME": "n1", "INTERCEPTION_MODE": "REDIRECT", "WORKLOAD_NAME": "gw", "MESH_ID": "mesh",
		"OWNER": "kubernetes://apis/apps/v1/namespaces/ingress/deployments/gw", "UNPRIVILEGED_POD": "true",
		"LABELS":      map[string]any{"app": "gw", "istio": "ingress", "note": `a "b"`},
		"ANNOTATIONS": map[string]any{"kubernetes.io/config.source": "api"},
		"PROXY_CONFIG": map[string]any{
			"configPath": "./etc/istio/proxy", "binaryPath": "/usr/local/bin/envoy", "serviceCluster": "istio-proxy", "drainDuration": "45s",
			"terminationDrainDuration": "5s", "discoveryAddress": "istiod.istio-system.svc:15012", "proxyAdminPort": 15000.0,
			"statusPort": 15020.0, "controlPlaneAuthPolicy": "MUTUAL_TLS", "statNameLength": 189.0, "concurrency": 2.0,
		},
	}
	if diff := cmp.Diff(metadata, got.Metadata); diff != "" {
		t.Errorf("metadata differs (-want +got):\n%s", diff)
	}
}

// TestVariablesOfTheContract: every name in the contract is in the table.
func TestVariablesOfTheContract(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "variables.txt"))
	if err != nil {
		t.Fatal(err)
	}
	names := strings.Fields(string(data))
	if len(names) < 63 {
		t.Fatalf("testdata/variables.txt has %d names, want the whole contract", len(names))
	}
	for _, name := range names {
		exact := slices.ContainsFunc(Variables, func(v Variable) bool { return v.Name == name })
		if _, ok := Lookup(name); !ok || !exact {
			t.Errorf("%s is not in the table", name)
		}
	}
	seen := map[string]bool{}
	for _, v := range Variables {
		if v.Meaning == "" || seen[v.Name] || !v.Ignored && len(v.Quiet) > 0 {
			t.Errorf("%s: no meaning, twice in the table, or obeyed and quiet", v.Name)
		}
		seen[v.Name] = true
	}
}

// TestEachVariableDoesSomething: one that is not ignored changes the settings or is told, one that is gives one warning with its name.
func TestEachVariableDoesSomething(t *testing.T) {
	values := map[string]string{
		"ISTIO_CPU_LIMIT": "7", "PROXY_CONFIG": `{"concurrency": 3}`, "CA_PROVIDER": "GoogleCA", "PILOT_CERT_PROVIDER": "custom",
		"JWT_POLICY": "first-party-jwt", "XDS_AUTH_PLAINTEXT": "true", "FILE_MOUNTED_CERTS": "true", "SECRET_TTL": "1h",
		"SECRET_GRACE_PERIOD_RATIO": "0.2", "SECRET_GRACE_PERIOD_RATIO_JITTER": "0.2", "WORKLOAD_RSA_KEY_SIZE": "4096", "PKCS8_KEY": "true",
		"ECC_SIGNATURE_ALGORITHM": "EdDSA", "ECC_CURVE": "P384", "PEER_METADATA_DISCOVERY": "true", "ENVOY_STATUS_PORT": "1", "ENVOY_PROMETHEUS_PORT": "2",
		"METRICS_LOCALHOST_ACCESS_ONLY": "true", "DISABLE_ENVOY": "true", "EXIT_ON_ZERO_ACTIVE_CONNECTIONS": "true",
		"TERMINATION_DRAIN_DURATION_SECONDS": "30", "ENVOY_SKIP_DEPRECATED_LOGS": "false", "WASM_MODULE_EXPIRY": "2h", "CREDENTIAL_FETCHER_TYPE": "Mock",
		"ISTIO_META_ENABLE_SELF_DISCOVERY": "true", "ISTIO_METAJSON_*": `{"X":1}`, "INSTANCE_IP": "10.9.9.9", "CA_ADDR": "ca:1", "ISTIO_DELTA_XDS": "false", "ISTIO_WASM_MAX_BINARY_SIZE_BYTES": "1000000",
		"ISTIO_META_ENABLE_DNS_SERVER": "true", "DNS_PROXY_ADDR": "127.0.0.1:5353", "DNS_FORWARD_PARALLEL": "true", "DNS_FORWARD_TIMEOUT": "2s",
	}
	with := map[string]string{ // means something only beside another one
		"MINIMUM_DRAIN_DURATION": "EXIT_ON_ZERO_ACTIVE_CONNECTIONS",
		"DNS_PROXY_ADDR":         enableDNS, "DNS_FORWARD_PARALLEL": enableDNS, "DNS_FORWARD_TIMEOUT": enableDNS,
	}
	for _, v := range Variables {
		t.Run(v.Name, func(t *testing.T) {
			name, _ := strings.CutSuffix(v.Name, "*")
			if name != v.Name {
				name += "Z"
			}
			value := values[v.Name]
			switch {
			case value == "" && strings.HasSuffix(name, "DURATION"):
				value = "17s"
			case value == "":
				value = "something"
			}
			plain := gateway()
			plain.files["/etc/istio/config/mesh"] = "defaultConfig: {tracing: {datadog: {address: '$(HOST_IP):8126'}}}"
			if partner := with[v.Name]; partner != "" {
				plain.env[partner] = "true"
			}
			changed := plain
			changed.env = maps.Clone(plain.env)
			changed.env[name] = value
			before, _, err := Map(plain.input(t))
			if err != nil {
				t.Fatal(err)
			}
			after, warnings, err := Map(changed.input(t))
			if err != nil {
				t.Fatal(err)
			}
			told := 0
			for _, w := range warnings {
				if strings.Contains(w, name) {
					told++
				}
			}
			same := cmp.Equal(before, after)
			switch {
			case v.Ignored && told != 1:
				t.Errorf("%s=%s: %d warnings with its name in %q, want 1", name, value, told, warnings)
			case !v.Ignored && same && told == 0:
				t.Errorf("%s=%s changes nothing and is not told", name, value)
			}
			for _, quiet := range v.Quiet {
				changed.env[name] = quiet
				if _, warnings, _ := Map(changed.input(t)); len(warnings) > 0 {
					t.Errorf("%s=%s: warnings %q, want none", name, quiet, warnings)
				}
			}
		})
	}
}
