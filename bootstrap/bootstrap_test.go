package bootstrap

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/testing/protocmp"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const envoyBinary = "../.tools/envoy"

func minimal() Config {
	return Config{
		NodeID: "edge-1", NodeCluster: "edge",
		XDSSocket: "/run/gateway-agent/xds.sock", AdminSocket: "/run/gateway-agent/admin.sock",
	}
}

func full() Config {
	c := minimal()
	c.Mode = ModeSotW
	c.NodeMetadata = map[string]any{"zone": "a", "labels": map[string]any{"app": "edge", "tier": nil}, "ports": []any{80, 443}}
	c.StatusAddress = "0.0.0.0:15020"
	c.ReadyAddress = ":15021"
	c.PrometheusAddress = "[::1]:15090"
	c.MaxConnections = 50000
	return c
}

// gateway uses everything.
func gateway() Config {
	c := full()
	c.Mode = ModeDelta
	c.Locality = Locality{"eu", "eu-1", "rack7"}
	c.XDSSocket, c.SDSSocket = "/etc/istio/proxy/XDS", "/var/run/secrets/workload-spiffe-uds/socket"
	c.OtherSDS, c.FilesSDS = "/var/run/secrets/credential-uds/socket", true
	c.AdminSocket, c.AdminAddress = "", "127.0.0.1:15000"
	c.Statistics = Statistics{
		NoDefaultTags: true, Tags: []Tag{{"cluster_name", `^cluster\.((.+?)\.)`}},
		Prefixes: []string{"reporter="}, Suffixes: []string{"rbac.allowed"}, Expressions: []string{`vhost\..*`},
		Buckets: []Buckets{{"cluster", []float64{1, 5, 25}}},
	}
	c.Telemetry = Telemetry{
		Tracer: TracerZipkin, Trace: Remote{Address: "zipkin.example:9411", TLS: &TLS{ServerName: "z", SANs: []string{"z"}}}, Statsd: "127.0.0.1:8125",
		MetricsService:   Remote{Address: "metrics.example:15000", TLS: &TLS{Workload: true, SANs: []string{"spiffe://m"}}},
		AccessLogService: Remote{Address: "10.0.0.8:15000", Keepalive: Keepalive{Probes: 3, Time: 10 * time.Second}},
	}
	c.Runtime = map[string]any{"re2.max_program_size.error_level": "32768", "envoy.reloadable_features.http_reject_path_with_fragment": false}
	c.OutlierLog = "/dev/null"
	c.SecurePrometheusAddress, c.SecureMetricsAddress = "[::1]:15091", "0.0.0.0:15092"
	c.DualStack, c.ReadyProxyProtocol, c.LocalCluster, c.ProfileFile = true, true, true, "/tmp/envoy.prof"
	c.Statistics.Flush, c.Statistics.Eviction, c.Statistics.Lazy = 2*time.Second, 10*time.Second, true
	c.Internal = true
	return c
}

const overlay = `
node: {metadata: {extra: added, zone: replaced}}
admin: {profile_path: /tmp/envoy.prof}
stats_flush_interval: 5s
layered_runtime: {layers: [{name: more, static_layer: {a: 1}}]}
static_resources:
  clusters:
  - name: mine
    connect_timeout: 1s
    load_assignment: {cluster_name: mine}
stats_sinks:
- name: envoy.stat_sinks.dog_statsd
  typed_config: {"@type": type.googleapis.com/envoy.config.metrics.v3.DogStatsdSink, address: {socket_address: {address: 127.0.0.1, port_value: 8125, protocol: UDP}}}
- name: envoy.stat_sinks.hystrix
  typed_config: {"@type": type.googleapis.com/envoy.config.metrics.v3.HystrixSink, num_buckets: 5}
`

func TestOverlay(t *testing.T) {
	c := gateway()
	c.Overlays = []Overlay{{Name: "a", Data: []byte(overlay)}, {Name: "b", Data: []byte(`{"statsFlushInterval": "1s", "bootstrap_extensions": [{"name": "x", "typed_config":
		{"@type": "type.googleapis.com/istio.Unknown", "number": 5, "inner": {"@type": "type.googleapis.com/also.Unknown", "a": true}}}]}`)}}
	b, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if got := b.GetStatsFlushInterval().AsDuration(); got != time.Second {
		t.Errorf("scalar: %v, want that of the last overlay", got)
	}
	if b.GetAdmin().GetProfilePath() == "" || b.GetAdmin().GetAddress().GetSocketAddress().GetPortValue() != 15000 {
		t.Errorf("message not merged: %v", b.GetAdmin())
	}
	fields := b.GetNode().GetMetadata().GetFields()
	if fields["extra"].GetStringValue() != "added" || fields["zone"].GetStringValue() != "replaced" || fields["labels"] == nil {
		t.Errorf("metadata not merged by key: %v", fields)
	}
	if n := len(b.GetStatsSinks()); n != 4 {
		t.Errorf("%d sinks, want the two of Telemetry and two more", n)
	}
	text := string(marshal(t, c))
	for _, want := range []string{`"type_url": "type.googleapis.com/istio.Unknown"`, `"type_url": "type.googleapis.com/also.Unknown"`, `"number": 5`} {
		if !strings.Contains(text, want) {
			t.Errorf("overlay with unknown messages lacks %s", want)
		}
	}
}

func TestGolden(t *testing.T) {
	for name, c := range map[string]Config{"minimal": minimal(), "full": full(), "gateway": gateway()} {
		t.Run(name, func(t *testing.T) {
			got := marshal(t, c)
			file := filepath.Join("testdata", name+".json")
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("Marshal(New(%s)) differs from %s (-want +got):\n%s", name, file, diff)
			}
		})
	}
}

func TestMarshalIsStableAndLossless(t *testing.T) {
	b, err := New(full())
	if err != nil {
		t.Fatal(err)
	}
	first := marshal(t, full())
	for range 20 {
		if got := marshal(t, full()); !bytes.Equal(got, first) {
			t.Fatalf("Marshal of equal bootstraps differs:\n%s\n%s", first, got)
		}
	}
	var back bootstrapv3.Bootstrap
	if err := protojson.Unmarshal(first, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(b, &back, protocmp.Transform()); diff != "" {
		t.Errorf("bootstrap changed by Marshal (-want +got):\n%s", diff)
	}
}

func TestEnvoyAccepts(t *testing.T) {
	if _, err := os.Stat(envoyBinary); err != nil {
		t.Fatalf("%v: run make tools", err)
	}
	delta := full()
	delta.Mode = ModeDelta
	datadog := minimal()
	datadog.Telemetry = Telemetry{Tracer: TracerDatadog, Trace: Remote{Address: "10.0.0.8:8126"}}
	overlaid := gateway()
	overlaid.Overlays = []Overlay{{Name: "over.yaml", Data: []byte(overlay)}}
	configs := map[string]Config{
		"minimal": minimal(), "full": full(), "full delta": delta, "gateway": gateway(), "datadog": datadog, "overlaid": overlaid,
	}
	for name, c := range configs {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "bootstrap.json")
			if err := os.WriteFile(file, marshal(t, c), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := exec.CommandContext(t.Context(), envoyBinary, "--mode", "validate", "-c", file, "-l", "warning").CombinedOutput()
			if err != nil {
				t.Fatalf("envoy --mode validate: %v\n%s", err, out)
			}
			for line := range strings.Lines(string(out)) {
				// The only way to a tracer that a listener need not name.
				if strings.Contains(line, "eprecated") && !strings.Contains(line, "Bootstrap.tracing'") {
					t.Errorf("envoy --mode validate warns of deprecated fields:\n%s", line)
				}
			}
		})
	}
}

func TestStatusAddressIsDialled(t *testing.T) {
	for in, want := range map[string]string{
		"127.0.0.1:15020": "127.0.0.1", "localhost:15020": "127.0.0.1", ":15020": "127.0.0.1", "0.0.0.0:15020": "127.0.0.1",
		"[::]:15020": "::1", "[::1]:15020": "::1", "10.0.0.7:15020": "10.0.0.7", "[::ffff:10.0.0.7]:15020": "10.0.0.7",
	} {
		a, err := dialAddress("status address", in)
		if err != nil || a.GetSocketAddress().GetAddress() != want || a.GetSocketAddress().GetPortValue() != 15020 {
			t.Errorf("dialAddress(%q) = %v, %v; want %s port 15020", in, a, err, want)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	long := "/" + strings.Repeat("d", 100) + "/xds.sock"
	tests := map[string]struct {
		change func(*Config)
		want   string
	}{
		"no id":             {func(c *Config) { c.NodeID = "" }, "--node-id"},
		"no cluster":        {func(c *Config) { c.NodeCluster = "" }, "--node-cluster"},
		"id not UTF-8":      {func(c *Config) { c.NodeID = "a\xff" }, "not valid UTF-8"},
		"metadata":          {func(c *Config) { c.NodeMetadata = map[string]any{"f": func() {}} }, "--node-metadata"},
		"metadata UTF-8":    {func(c *Config) { c.NodeMetadata = map[string]any{"a": "\xff"} }, "--node-metadata"},
		"two admins":        {func(c *Config) { c.AdminAddress = "127.0.0.1:15000" }, "give one"},
		"admin address":     {func(c *Config) { c.AdminSocket, c.AdminAddress = "", "somewhere" }, "--admin-address"},
		"admin clashes":     {func(c *Config) { c.AdminSocket, c.AdminAddress, c.StatusAddress = "", "127.0.0.1:1", ":1" }, "overlap"},
		"SDS socket":        {func(c *Config) { c.SDSSocket = "x" }, "SDS socket: path x is relative"},
		"tracer":            {func(c *Config) { c.Telemetry.Tracer = "jaeger" }, `"jaeger" (--tracing)`},
		"tracer's address":  {func(c *Config) { c.Telemetry = Telemetry{Tracer: TracerZipkin, Trace: Remote{Address: "z"}} }, "want HOST:PORT"},
		"no tracer address": {func(c *Config) { c.Telemetry.Tracer = TracerZipkin }, "no address"},
		"statsd":            {func(c *Config) { c.Telemetry.Statsd = "statsd.example:8125" }, "--statsd"},
		"tag":               {func(c *Config) { c.Statistics.Tags = []Tag{{"", "x"}} }, "--stats-tag"},
		"expression":        {func(c *Config) { c.Statistics.Expressions = []string{"("} }, "--stats-regexp"},
		"buckets":           {func(c *Config) { c.Statistics.Buckets = []Buckets{{"x", []float64{2, 1}}} }, "do not increase"},
		"runtime":           {func(c *Config) { c.Runtime = map[string]any{"a": func() {}} }, "--runtime"},
		"overlay":           {func(c *Config) { c.Overlays = []Overlay{{Name: "o.yaml", Data: []byte("nodes: {}")}} }, `overlay o.yaml: proto`},
		"overlay's YAML":    {func(c *Config) { c.Overlays = []Overlay{{Name: "o.yaml", Data: []byte("{")}} }, "overlay o.yaml"},
		"overlay a list":    {func(c *Config) { c.Overlays = []Overlay{{Name: "o.yaml", Data: []byte("[]")}} }, "want an object"},
		"overlay invalid":   {func(c *Config) { c.Overlays = []Overlay{{Name: "o.yaml", Data: []byte("stats_flush_interval: 0s")}} }, "StatsFlushInterval"},
		"overlay's cluster": {func(c *Config) {
			c.Overlays = []Overlay{{Name: "o.yaml", Data: []byte("static_resources: {clusters: [{name: xds-grpc}]}")}}
		}, "cluster xds-grpc is there already"},
		"no socket":         {func(c *Config) { c.XDSSocket = "" }, "xDS socket: no path"},
		"relative socket":   {func(c *Config) { c.AdminSocket = "run/admin.sock" }, "run/admin.sock is relative"},
		"long socket":       {func(c *Config) { c.XDSSocket = long }, long + " has 110 bytes, a unix socket allows 107: choose a shorter --run-dir"},
		"zero byte":         {func(c *Config) { c.XDSSocket = "/run/\x00" }, "not a usable file name"},
		"same sockets":      {func(c *Config) { c.AdminSocket = c.XDSSocket }, "are the same path"},
		"mode":              {func(c *Config) { c.Mode = "rest" }, `"rest" (--xds-mode)`},
		"limit":             {func(c *Config) { c.MaxConnections = -1 }, "connection limit -1"},
		"status":            {func(c *Config) { c.StatusAddress = "15020" }, `status address "15020": want IP:port`},
		"host name":         {func(c *Config) { c.StatusAddress = "agent.example:15020" }, "want IP:port"},
		"port 0":            {func(c *Config) { c.ReadyAddress = "127.0.0.1:0" }, "choose a port"},
		"port too high":     {func(c *Config) { c.ReadyAddress = "127.0.0.1:70000" }, "want IP:port"},
		"zone":              {func(c *Config) { c.PrometheusAddress = "[fe80::1%eth0]:1" }, "want IP:port"},
		"nobody answers":    {func(c *Config) { c.ReadyAddress = ":15021" }, "--status-address"},
		"clash":             {func(c *Config) { c.StatusAddress, c.ReadyAddress = "127.0.0.1:1", ":1" }, "overlap"},
		"clash among own":   {func(c *Config) { c.PrometheusAddress, c.StatusAddress = "[::1]:2", "[::1]:2" }, "overlap"},
		"secure clash":      {func(c *Config) { c.SecurePrometheusAddress, c.ReadyAddress = ":3", "127.0.0.1:3" }, "secure Prometheus address :3 overlap"},
		"secure metrics":    {func(c *Config) { c.SecureMetricsAddress = ":3" }, "the secure metrics listener needs"},
		"secure address":    {func(c *Config) { c.SecureMetricsAddress = "x:3" }, `secure metrics address "x:3"`},
		"flush":             {func(c *Config) { c.Statistics.Flush = 5 * time.Minute }, "--stats-flush-interval"},
		"eviction":          {func(c *Config) { c.Statistics.Eviction = 7 * time.Second }, "want a multiple of the flush interval 5s"},
		"localhost clashes": {func(c *Config) { c.PrometheusAddress, c.StatusAddress = "localhost:2", "127.0.0.1:2" }, "overlap"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := minimal()
			tt.change(&c)
			b, err := New(c)
			if err == nil || !strings.Contains(err.Error(), tt.want) || b != nil {
				t.Errorf("New = %v, %v; want nil and an error with %q", b, err, tt.want)
			}
		})
	}
}

func TestNewSaysAllProblemsAtOnce(t *testing.T) {
	_, err := New(Config{Mode: "x", ReadyAddress: "nowhere", MaxConnections: -2})
	for _, want := range []string{"--node-id", "--node-cluster", "xDS socket", "admin socket", "--xds-mode", `"nowhere"`, "connection limit -2"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New(many problems) = %v; want it to mention %q", err, want)
		}
	}
}

func TestSocketPathOfExactlyTheLimit(t *testing.T) {
	c := minimal()
	c.XDSSocket = "/" + strings.Repeat("x", maxSocketPath-1)
	if _, err := New(c); err != nil {
		t.Errorf("New with a socket path of %d bytes: %v", len(c.XDSSocket), err)
	}
}

func marshal(t *testing.T, c Config) []byte {
	t.Helper()
	b, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	out, err := Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestTolerantOverlay(t *testing.T) {
	var told []string
	c := full()
	c.Overlays = []Overlay{{
		Name: "o.yaml",
		Data: []byte(`{new_field: 1, header_prefix: x-mine, static_resources: {listeners: [{name: gateway_agent_readiness}, {name: other,
			address: {socket_address: {address: "::1", port_value: 15090}}}, {name: mine}]}}`),
		Tolerate: func(err error) { told = append(told, err.Error()) },
	}}
	b, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(b.GetStaticResources().GetListeners()); n != 3 || b.GetHeaderPrefix() != "x-mine" {
		t.Errorf("%d listeners, header prefix %q; want our two, one more, and the prefix", n, b.GetHeaderPrefix())
	}
	if len(told) != 3 || !strings.Contains(told[0], "new_field") || !strings.Contains(told[1], "listener gateway_agent_readiness") || !strings.Contains(told[2], "listener other") {
		t.Errorf("told %q, want the field and two listeners", told)
	}
	c.Overlays[0].Data = []byte("stats_flush_interval: soon")
	if _, err := New(c); err == nil || !strings.Contains(err.Error(), "overlay o.yaml") {
		t.Errorf("a value that cannot be: %v, want an error that names the file", err)
	}
}
