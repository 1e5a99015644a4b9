package istio

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// try maps a changed gateway.
func try(t *testing.T, change func(*pod)) (Settings, []string, error) {
	t.Helper()
	p := gateway()
	change(&p)
	return Map(p.input(t))
}

func must(t *testing.T, change func(*pod)) Settings {
	t.Helper()
	s, _, err := try(t, change)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestProxyConfigLayers(t *testing.T) {
	mesh := func(p *pod) {
		p.files["/etc/istio/config/mesh"] = "rootNamespace: istio-system\ndefaultConfig:\n  discoveryAddress: mesh:1\n  concurrency: 4\n" +
			"  terminationDrainDuration: 20s\n  proxyMetadata: {ISTIO_META_A: mesh, ISTIO_META_B: mesh}\n"
	}
	env := func(p *pod) {
		p.env["PROXY_CONFIG"] = `{"discoveryAddress":"env:2","proxyMetadata":{"ISTIO_META_B":"env"},"proxyStatsMatcher":{"inclusionPrefixes":["p"]}}`
	}
	annotation := func(p *pod) {
		p.files["/etc/istio/pod/annotations"] = `proxy.istio.io/config="discoveryAddress: annotation:3\nproxyAdminPort: 15005\n"`
	}
	s := must(t, func(p *pod) { mesh(p) })
	if s.ControlPlane.Address != "mesh:1" || s.Concurrency != 4 || s.DrainDelay != 20*time.Second {
		t.Errorf("mesh file: %s, concurrency %d, delay %v; want its values", s.ControlPlane.Address, s.Concurrency, s.DrainDelay)
	}
	s = must(t, func(p *pod) { mesh(p); env(p) })
	if s.ControlPlane.Address != "env:2" || s.Metadata["A"] != "mesh" || s.Metadata["B"] != "env" || s.Concurrency != 4 {
		t.Errorf("PROXY_CONFIG over mesh: %s, A=%v B=%v, concurrency %d", s.ControlPlane.Address, s.Metadata["A"], s.Metadata["B"], s.Concurrency)
	}
	if !slices.Contains(s.Statistics.Prefixes, "p") {
		t.Errorf("prefixes %q lack that of proxyStatsMatcher", s.Statistics.Prefixes)
	}
	s = must(t, func(p *pod) { mesh(p); env(p); annotation(p) })
	if s.ControlPlane.Address != "annotation:3" || s.AdminAddress != "127.0.0.1:15005" {
		t.Errorf("annotation over all: %s, admin %s", s.ControlPlane.Address, s.AdminAddress)
	}
	s = must(t, func(p *pod) { mesh(p); p.args = append(p.args, "--concurrency", "9") })
	if s.Concurrency != 9 {
		t.Errorf("--concurrency over ProxyConfig: %d, want 9", s.Concurrency)
	}
	s = must(t, func(p *pod) {
		mesh(p)
		p.env["PROXY_CONFIG"] = "{proxyAdminPort: 0, status_port: 15029, concurrency: null}"
	})
	if s.AdminAddress != "" || s.StatusAddress != ":15029" || s.Concurrency != 4 {
		t.Errorf("zero and null in a layer: admin %q, status %q, concurrency %d", s.AdminAddress, s.StatusAddress, s.Concurrency)
	}
	s = must(t, func(p *pod) { p.env["PROXY_CONFIG"] = "concurrency: 0" })
	if s.Concurrency != 0 {
		t.Errorf("concurrency 0 in ProxyConfig: %d, want 0, not the CPU limit", s.Concurrency)
	}
}

func TestBadInputIsToldOrRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		change     func(*pod)
		fail, warn string
	}{
		"YAML":                  {func(p *pod) { p.env["PROXY_CONFIG"] = "{" }, "the environment variable PROXY_CONFIG is not YAML", ""},
		"type":                  {func(p *pod) { p.env["PROXY_CONFIG"] = "concurrency: many" }, "the environment variable PROXY_CONFIG cannot be read", ""},
		"unknown field":         {func(p *pod) { p.env["PROXY_CONFIG"] = "newField: 1" }, "", "newField"},
		"mesh file":             {func(p *pod) { p.files["/etc/istio/config/mesh"] = "- a" }, "--meshConfig ./etc/istio/config/mesh cannot be read", ""},
		"address":               {func(p *pod) { p.env["PROXY_CONFIG"] = "discoveryAddress: istiod" }, `discoveryAddress "istiod": want HOST:PORT`, ""},
		"ports of the status":   {func(p *pod) { p.env["PROXY_CONFIG"] = "statusPort: 70000" }, "ProxyConfig statusPort 70000", ""},
		"no status":             {func(p *pod) { p.env["PROXY_CONFIG"] = "statusPort: 0" }, "ProxyConfig statusPort 0", ""},
		"port of the admin":     {func(p *pod) { p.env["PROXY_CONFIG"] = "proxyAdminPort: -1" }, "ProxyConfig proxyAdminPort -1", ""},
		"negative drain":        {func(p *pod) { p.env["PROXY_CONFIG"] = "terminationDrainDuration: -5s" }, "ProxyConfig terminationDrainDuration -5s", ""},
		"CA's address":          {func(p *pod) { p.env["CA_ADDR"] = "istiod" }, `CA_ADDR "istiod": want HOST:PORT`, ""},
		"half a certificate":    {func(p *pod) { p.env["FILE_MOUNTED_CERTS"], p.env["ISTIO_META_TLS_CLIENT_KEY"] = "true", "/k" }, "ISTIO_META_TLS_CLIENT_CERT_CHAIN", ""},
		"header's name":         {func(p *pod) { p.env["XDS_HEADER_HOST"] = "secret" }, "", "XDS_HEADER_HOST is ignored"},
		"header's value":        {func(p *pod) { p.env["CA_HEADER_A"] = "secret\n" }, "", "CA_HEADER_A is ignored"},
		"header of the cluster": {func(p *pod) { p.env["XDS_HEADER_CLUSTERID"] = "secret" }, "", "XDS_HEADER_CLUSTERID is ignored: ISTIO_META_CLUSTER_ID"},
		"cluster":               {func(p *pod) { p.env["ISTIO_META_CLUSTER_ID"] = "a\nb" }, "ISTIO_META_CLUSTER_ID", ""},
		"no account":            {func(p *pod) { delete(p.env, "SERVICE_ACCOUNT") }, "", "SERVICE_ACCOUNT is not set, and the token does not tell"},
		"tilde":                 {func(p *pod) { p.args = []string{"--domain", "a~b"} }, "would break the node id", ""},
		"labels":                {func(p *pod) { p.files["/etc/istio/pod/labels"] = "a=\"b\"\nc=d\n" }, "", "./etc/istio/pod/labels: line 2: c has no quoted value"},
		"duration":              {func(p *pod) { p.env["SECRET_TTL"] = "1 day" }, "", `SECRET_TTL="1 day" is not a duration`},
		"negative duration":     {func(p *pod) { p.env["SECRET_TTL"] = "-1h" }, "", "SECRET_TTL"},
		"port":                  {func(p *pod) { p.env["ENVOY_STATUS_PORT"] = "99999" }, "", "ENVOY_STATUS_PORT"},
		"boolean":               {func(p *pod) { p.env["PKCS8_KEY"] = "ja" }, "", `PKCS8_KEY="ja" is not a boolean`},
		"ratio":                 {func(p *pod) { p.env["SECRET_GRACE_PERIOD_RATIO"] = "NaN" }, "", "SECRET_GRACE_PERIOD_RATIO"},
		"boolean metadata":      {func(p *pod) { p.env["ISTIO_META_ENABLE_HBONE"] = "sure" }, "", "ENABLE_HBONE is not a boolean"},
		"ports":                 {func(p *pod) { p.env["ISTIO_META_POD_PORTS"] = "80" }, "", "ISTIO_META_POD_PORTS"},
		"JSON metadata":         {func(p *pod) { p.env["ISTIO_METAJSON_X"] = "[1]" }, "", "ISTIO_METAJSON_X is not a JSON object"},
		"static labels":         {func(p *pod) { p.env["ISTIO_METAJSON_LABELS"] = `{"a":1}` }, "", "ISTIO_METAJSON_LABELS"},
		"no pod":                {func(p *pod) { delete(p.env, "POD_NAME") }, "", "POD_NAME is not set"},
		"IP":                    {func(p *pod) { p.env["INSTANCE_IP"] = "here" }, "", `INSTANCE_IP="here" is not an address`},
		"log level":             {func(p *pod) { p.args = []string{"--proxyLogLevel", "loud"} }, "", `log level "loud"`},
		"scope":                 {func(p *pod) { p.args = []string{"--log_output_level", "ads:debug,default:warn"} }, "", "ads:debug ignored"},
		"buckets":               {func(p *pod) { p.files["/etc/istio/pod/annotations"] = bucketsAnnotation + `="[]"` }, "", bucketsAnnotation},
		"STS":                   {func(p *pod) { p.args = []string{"--stsPort", "15463"} }, "", "--stsPort is ignored"},
		"tracer":                {func(p *pod) { p.env["PROXY_CONFIG"] = "tracing: {stackdriver: {}}" }, "", "tracing.stackdriver is ignored"},
		"tracer's address":      {func(p *pod) { p.env["PROXY_CONFIG"] = "tracing: {zipkin: {address: zipkin}}" }, "", `"zipkin" is ignored: want HOST:PORT`},
		"statsd":                {func(p *pod) { p.env["PROXY_CONFIG"] = "statsdUdpAddress: statsd:8125" }, "", "statsdUdpAddress"},
		"template":              {func(p *pod) { p.env["PROXY_CONFIG"] = "customConfigFile: /x" }, "", "customConfigFile /x is ignored"},
	} {
		t.Run(name, func(t *testing.T) {
			_, warnings, err := try(t, tt.change)
			if text := fmt.Sprint(err); (err == nil) != (tt.fail == "") || !strings.Contains(text, tt.fail) {
				t.Errorf("Map = %v, want an error with %q", err, tt.fail)
			}
			if strings.Contains(fmt.Sprint(err, warnings), "secret") {
				t.Errorf("a header's value is told: %v, %q", err, warnings)
			}
			if tt.warn != "" && (len(warnings) != 1 || !strings.Contains(warnings[0], tt.warn)) {
				t.Errorf("warnings %q, want one with %q", warnings, tt.warn)
			}
		})
	}
}

// Nothing where something could be is nothing: empty files come with templates.
func TestEmptyDocuments(t *testing.T) {
	for name, change := range map[string]func(*pod){
		"PROXY_CONFIG": func(p *pod) { p.env["PROXY_CONFIG"] = "null" },
		"comment":      func(p *pod) { p.env["PROXY_CONFIG"] = "# nothing\n---\n" },
		"annotation":   func(p *pod) { p.files["/etc/istio/pod/annotations"] = `proxy.istio.io/config="~"` },
		"mesh file":    func(p *pod) { p.files["/etc/istio/config/mesh"] = "\n" },
		"empty":        func(p *pod) { p.files["/etc/istio/config/mesh"] = "" },
		"no defaults":  func(p *pod) { p.files["/etc/istio/config/mesh"] = "defaultConfig:\n" },
	} {
		s, warnings, err := try(t, change)
		if err != nil || len(warnings) > 0 || s.ControlPlane.Address != must(t, func(*pod) {}).ControlPlane.Address {
			t.Errorf("%s: %v, warnings %q", name, err, warnings)
		}
	}
}

func TestRoles(t *testing.T) {
	for role, want := range map[string]string{"router": "<nil>", "waypoint": "<nil>", "sidecar": "gateways only", "": "gateways only", "x": "unknown role"} {
		in := gateway().input(t)
		in.Role = role
		if _, _, err := Map(in); !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("role %q: %v, want %s", role, err, want)
		}
	}
}

func TestRootsOfIstiodAndCA(t *testing.T) {
	set := func(name, value string) func(*pod) { return func(p *pod) { p.env[name] = value } }
	legacy := func(p *pod) { p.files["/etc/certs/root-cert.pem"] = "x" }
	mounted := func(p *pod) {
		p.env["FILE_MOUNTED_CERTS"], p.env["ISTIO_META_TLS_CLIENT_ROOT_CERT"] = "true", "/m/root.pem"
	}
	const istio = "/var/run/secrets/istio/root-cert.pem"
	for name, tt := range map[string]struct {
		changes []func(*pod)
		xds, ca string
	}{
		"default":      {nil, istio, istio},
		"legacy":       {[]func(*pod){legacy}, "/etc/certs/root-cert.pem", istio},
		"custom":       {[]func(*pod){legacy, set("PILOT_CERT_PROVIDER", "custom")}, "/etc/certs/root-cert.pem", "/etc/certs/root-cert.pem"},
		"provisioned":  {[]func(*pod){set("PROV_CERT", "/p")}, "/p/root-cert.pem", "/p/root-cert.pem"},
		"mounted":      {[]func(*pod){mounted}, "/m/root.pem", ""},
		"legacy first": {[]func(*pod){legacy, set("PROV_CERT", "/p")}, "/etc/certs/root-cert.pem", "/p/root-cert.pem"},
		"chosen":       {[]func(*pod){legacy, set("XDS_ROOT_CA", "/x.pem"), set("CA_ROOT_CA", "/c.pem")}, "/x.pem", "/c.pem"},
		"system":       {[]func(*pod){legacy, set("XDS_ROOT_CA", "SYSTEM"), set("CA_ROOT_CA", "SYSTEM")}, "", ""},
		"relative":     {[]func(*pod){set("XDS_ROOT_CA", "x.pem")}, "/x.pem", istio},
	} {
		s := must(t, func(p *pod) {
			for _, change := range tt.changes {
				change(p)
			}
		})
		if s.ControlPlane.RootFile != tt.xds || s.CA.RootFile != tt.ca {
			t.Errorf("%s: roots %q and %q, want %q and %q", name, s.ControlPlane.RootFile, s.CA.RootFile, tt.xds, tt.ca)
		}
	}
}

func TestReachingIstiod(t *testing.T) {
	s := must(t, func(p *pod) {
		p.env["PROXY_CONFIG"] = "{discoveryAddress: 'localhost:15012', controlPlaneAuthPolicy: NONE}"
	})
	if s.ControlPlane.ServerName != istiodName || !s.ControlPlane.Plaintext {
		t.Errorf("localhost without TLS: %+v", s.ControlPlane)
	}
	s = must(t, func(p *pod) {
		p.env["ISTIOD_SAN"], p.env["CA_ADDR"] = "name", "ca:15010"
		p.env["XDS_HEADER_X-A"], p.env["CA_HEADER_X-B"], p.env["JWT_POLICY"] = "1", "2", "first-party-jwt"
		delete(p.env, "ISTIO_META_CLUSTER_ID")
	})
	want := map[string]string{"ClusterID": "Kubernetes", "X-A": "1"}
	if diff := cmp.Diff(want, s.ControlPlane.Header); diff != "" || s.ControlPlane.ServerName != "name" {
		t.Errorf("control plane %+v: %s", s.ControlPlane, diff)
	}
	if s.CA.Header["X-B"] != "2" || s.CA.Header["X-A"] != "" || !s.CA.Plaintext || s.CA.Address != "ca:15010" || s.CA.ServerName != "ca" {
		t.Errorf("CA %+v", s.CA)
	}
	if s.CA.TokenFile != "/var/run/secrets/tokens/istio-token" || s.ControlPlane.TokenFile != s.CA.TokenFile {
		t.Errorf("first-party-jwt: token %s, want istiod's, which is there", s.CA.TokenFile)
	}
	s = must(t, func(p *pod) {
		p.env["JWT_POLICY"], p.env["ISTIOD_SAN"] = "first-party-jwt", "name"
		delete(p.files, "/var/run/secrets/tokens/istio-token")
	})
	if s.CA.TokenFile != "/var/run/secrets/kubernetes.io/serviceaccount/token" || s.CA.ServerName != "name" {
		t.Errorf("first-party-jwt without a token for istiod: %+v, want the service account's token; the CA's name is istiod's", s.CA)
	}
	s = must(t, func(p *pod) { p.env["PROV_CERT"] = "/p" })
	if s.CA.CertFile != "/p/cert-chain.pem" || s.ControlPlane.KeyFile != "/p/key.pem" {
		t.Errorf("PROV_CERT: %+v", s.CA)
	}
}

func TestPlacesOfTheIdentity(t *testing.T) {
	const uds = "/var/run/secrets/workload-spiffe-uds/"
	for name, want := range map[string]string{"": uds + "socket", "spire.sock": uds + "spire.sock", "../../x": uds + "x"} {
		s := must(t, func(p *pod) { p.env["WORKLOAD_IDENTITY_SOCKET_FILE"] = name })
		if must := name != ""; s.WorkloadSocketMust != must {
			t.Errorf("WORKLOAD_IDENTITY_SOCKET_FILE=%q: nobody else may serve: %v, want %v", name, s.WorkloadSocketMust, must)
		}
		if s.WorkloadSocket != want || s.SDSSocket != uds+"socket" || s.CA.Address == "" {
			t.Errorf("WORKLOAD_IDENTITY_SOCKET_FILE=%q: somebody else's %s, ours %s, CA %q; want %s", name, s.WorkloadSocket, s.SDSSocket, s.CA.Address, want)
		}
	}
	s := must(t, func(p *pod) { p.env["FILE_MOUNTED_CERTS"] = "true" })
	if s.WorkloadSocket != "" || s.CA.Address != "" {
		t.Errorf("FILE_MOUNTED_CERTS: socket %q, CA %q; want none", s.WorkloadSocket, s.CA.Address)
	}
	s = must(t, func(p *pod) { p.sockets = []string{"/var/run/secrets/credential-uds/socket"} })
	if s.Metadata["credential"] != "true" || s.CredentialSocket == "" {
		t.Errorf("credential socket: %q, metadata %v", s.CredentialSocket, s.Metadata["credential"])
	}
}

func TestLife(t *testing.T) {
	for name, tt := range map[string]struct {
		change         func(*pod)
		delay, timeout time.Duration
	}{
		"ProxyConfig": {func(p *pod) { p.env["PROXY_CONFIG"] = "terminationDrainDuration: 25s" }, 25 * time.Second, 30 * time.Second},
		"at once":     {func(p *pod) { p.env["PROXY_CONFIG"] = "terminationDrainDuration: 0s" }, 0, 0},
		"short":       {func(p *pod) { p.env["PROXY_CONFIG"] = "terminationDrainDuration: 0.5s" }, 500 * time.Millisecond, 2500 * time.Millisecond},
		"middling":    {func(p *pod) { p.env["PROXY_CONFIG"] = "terminationDrainDuration: 3s" }, 3 * time.Second, 6 * time.Second},
		"variable":    {func(p *pod) { p.env["TERMINATION_DRAIN_DURATION_SECONDS"] = "60" }, time.Minute, 65 * time.Second},
		"on zero":     {func(p *pod) { p.env["EXIT_ON_ZERO_ACTIVE_CONNECTIONS"] = "true" }, 5 * time.Second, time.Hour},
		"on zero, minimum": {func(p *pod) {
			p.env["EXIT_ON_ZERO_ACTIVE_CONNECTIONS"], p.env["MINIMUM_DRAIN_DURATION"] = "true", "12s"
		}, 12 * time.Second, time.Hour},
		"minimum alone": {func(p *pod) { p.env["MINIMUM_DRAIN_DURATION"] = "12s" }, 5 * time.Second, 10 * time.Second},
	} {
		s := must(t, tt.change)
		if s.DrainDelay != tt.delay || s.DrainTimeout != tt.timeout {
			t.Errorf("%s: delay %v, timeout %v; want %v, %v", name, s.DrainDelay, s.DrainTimeout, tt.delay, tt.timeout)
		}
	}
}

func TestNodeWithoutHelp(t *testing.T) {
	s := must(t, func(p *pod) {
		p.env = map[string]string{"POD_NAME": "a", "POD_NAMESPACE": "b"}
		p.files, p.faces, p.args = map[string]string{}, nil, nil
	})
	if s.NodeID != "router~127.0.0.1~a.b~b.svc.cluster.local" || s.NodeCluster != "istio-proxy.b" || s.Metadata["CLUSTER_ID"] != "Kubernetes" {
		t.Errorf("bare pod: %s, %s, %v", s.NodeID, s.NodeCluster, s.Metadata["CLUSTER_ID"])
	}
	s = must(t, func(p *pod) { p.env["INSTANCE_IP"], p.faces = "fd00::7", nil })
	if s.StatusAddress != "[::]:15020" || s.AdminAddress != "[::1]:15000" || !slices.Contains(s.EnvoyArgs, "v6") {
		t.Errorf("IPv6 pod: status %s, admin %s, args %q", s.StatusAddress, s.AdminAddress, s.EnvoyArgs)
	}
	s = must(t, func(p *pod) {
		p.files["/etc/istio/pod/annotations"] = `traffic.sidecar.istio.io/excludeInterfaces="net1"`
		p.faces = append(p.faces, Interface{Name: "net1", Addresses: addresses("10.200.0.1")}, Interface{Name: "net2", Addresses: addresses("10.201.0.1")})
	})
	if s.Metadata["INSTANCE_IPS"] != "10.1.2.3,fd00::5,10.201.0.1" {
		t.Errorf("INSTANCE_IPS %v", s.Metadata["INSTANCE_IPS"])
	}
	s = must(t, func(p *pod) { p.files["/etc/istio/pod/labels"] = `istio-locality="eu.eu-1.rack7"` })
	if diff := cmp.Diff(Locality{"eu", "eu-1", "rack7"}, s.Locality); diff != "" {
		t.Error(diff)
	}
}

func TestNodeCluster(t *testing.T) {
	for config, want := range map[string]string{
		"serviceCluster: edge":                             "edge",
		"tracingServiceName: CANONICAL_NAME_ONLY":          "canon",
		"tracingServiceName: CANONICAL_NAME_AND_NAMESPACE": "canon.ingress",
		"tracingServiceName: APP_LABEL_AND_NAMESPACE":      "gw.ingress",
		"{}": "gw.ingress",
		"{serviceCluster: istio-proxy, discoveryAddress: a:1}": "gw.ingress",
	} {
		s := must(t, func(p *pod) {
			p.env["PROXY_CONFIG"] = config
			p.files["/etc/istio/pod/labels"] = "app=\"gw\"\nservice.istio.io/canonical-name=\"canon\"\n"
		})
		if s.NodeCluster != want {
			t.Errorf("%s: node cluster %s, want %s", config, s.NodeCluster, want)
		}
	}
}

func TestMetadataTypes(t *testing.T) {
	s := must(t, func(p *pod) {
		p.env["ISTIO_META_DNS_CAPTURE"], p.env["ISTIO_META_ENABLE_HBONE"] = "0", "1"
		p.env["ISTIO_METAJSON_MORE"] = `{"NUMBER": 5, "LIST": ["a"], "INSTANCE_IPS": ["no"], "ENVOY_STATUS_PORT": "no"}`
		p.env["ISTIO_METAJSON_LABELS"] = `{"static": "1", "app": "other"}`
		p.env["ISTIO_META_ISTIO_VERSION"] = "1.29.0"
	})
	for key, want := range map[string]any{
		"DNS_CAPTURE": "false", "ENABLE_HBONE": "true", "NUMBER": 5.0, "LIST": []any{"a"}, "ENVOY_STATUS_PORT": 15021,
		"STATIC_LABELS": map[string]any{"static": "1", "app": "other"}, "ISTIO_VERSION": "1.29.0",
		"LABELS": map[string]any{"static": "1", "app": "gw", "istio": "ingress", "note": `a "b"`},
	} {
		if diff := cmp.Diff(want, s.Metadata[key]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", key, diff)
		}
	}
}

func TestTelemetry(t *testing.T) {
	s := must(t, func(p *pod) {
		p.env["PROXY_CONFIG"] = `
tracing:
  zipkin: {address: "zipkin.istio-system:9411"}
  tlsSettings: {mode: SIMPLE, caCertificates: ca.pem, sni: z}
statsdUdpAddress: "$(HOST_IP):8125"
envoyMetricsService: {address: "metrics:15000", tlsSettings: {mode: ISTIO_MUTUAL}, tcpKeepalive: {probes: 3, time: 10s}}
envoyAccessLogService: {address: "logs:15000", tlsSettings: {mode: MUTUAL, clientCertificate: /c, privateKey: /k, caCertificates: /r}}
extraStatTags: [one, two]
runtimeValues: {re2.max_program_size.error_level: "", a: "true", b: "5"}
readinessProbe: {httpGet: {port: 80}}
`
	})
	want := Telemetry{
		Tracer: "zipkin", Trace: Remote{Address: "zipkin.istio-system:9411", TLS: &TLS{ServerName: "z", RootFile: "/ca.pem"}},
		Statsd:           "192.168.0.9:8125",
		MetricsService:   Remote{Address: "metrics:15000", TLS: &TLS{Workload: true}, Keepalive: Keepalive{Probes: 3, Time: 10 * time.Second}},
		AccessLogService: Remote{Address: "logs:15000", TLS: &TLS{RootFile: "/r", CertFile: "/c", KeyFile: "/k"}},
	}
	if diff := cmp.Diff(want, s.Telemetry); diff != "" {
		t.Errorf("telemetry (-want +got):\n%s", diff)
	}
	runtime := map[string]any{
		"a": true, "b": "5", "envoy.reloadable_features.http_reject_path_with_fragment": false,
		"envoy.reloadable_features.fixed_heap_use_allocated": true, "envoy.reloadable_features.coalesce_lb_rebuilds_on_batch_update": false,
	}
	if diff := cmp.Diff(runtime, s.Runtime); diff != "" {
		t.Errorf("runtime (-want +got):\n%s", diff)
	}
	if n := len(s.Statistics.Tags); s.Statistics.Tags[n-1].Name != "two" || s.Statistics.Tags[n-2].Name != "one" || !s.ReportHealth {
		t.Errorf("tags %v, report health %v", s.Statistics.Tags, s.ReportHealth)
	}
}

func TestStatisticsAnnotations(t *testing.T) {
	s := must(t, func(p *pod) {
		p.env["PROXY_CONFIG"] = "proxyStatsMatcher: {inclusionPrefixes: [config], inclusionSuffixes: [s], inclusionRegexps: [r]}"
		p.files["/etc/istio/pod/annotations"] = prefixesAnnotation + `="one,http.{pod_ip}_"` + "\n" + extraTagsAnnotation + `="x"` + "\n" +
			bucketsAnnotation + `="{\"b\":[1,2.5],\"a\":[3]}"`
	})
	for _, want := range []string{"one", "http.10.1.2.3_", "http.fd00::5_", "cluster_manager"} {
		if !slices.Contains(s.Statistics.Prefixes, want) {
			t.Errorf("prefixes %q lack %s", s.Statistics.Prefixes, want)
		}
	}
	if slices.Contains(s.Statistics.Prefixes, "config") || !slices.Contains(s.Statistics.Suffixes, "s") || !slices.Contains(s.Statistics.Expressions, "r") {
		t.Errorf("annotation replaces only its own part: %+v", s.Statistics)
	}
	if diff := cmp.Diff([]Buckets{{"a", []float64{3}}, {"b", []float64{1, 2.5}}}, s.Statistics.Buckets); diff != "" {
		t.Error(diff)
	}
}

func FuzzMap(f *testing.F) {
	f.Add("concurrency: 2", "a=\"b\"\n", `{"x":1}`, "warning,misc:error")
	f.Add("tracing: {zipkin: {address: '$(HOST_IP):1'}}", "istio-locality=\"a.b\"", `[]`, ",:,")
	f.Fuzz(func(t *testing.T, config, labels, meta, level string) {
		p := gateway()
		p.env["PROXY_CONFIG"], p.env["ISTIO_METAJSON_X"], p.env["ISTIO_META_POD_PORTS"] = config, meta, meta
		p.files["/etc/istio/pod/labels"], p.files["/etc/istio/pod/annotations"] = labels, labels
		in := p.input(t)
		in.Args.ProxyLogLevel, in.Args.Log.OutputLevel = level, level
		s, _, err := Map(in)
		if err == nil && strings.Count(s.NodeID, "~") != 3 {
			t.Errorf("node id %q has not four parts", s.NodeID)
		}
	})
}
