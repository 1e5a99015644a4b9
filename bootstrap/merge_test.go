package bootstrap

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/testing/protocmp"
	"sigs.k8s.io/yaml"
)

// overlays have something of each kind that merging could treat in another way.
var overlays = map[string]string{
	"kinds": `
node: {metadata: {extra: [1, null], labels: {only: this}, zone: ""}, locality: {zone: z2}, user_agent_name: x}
admin: {profile_path: "", ignore_global_conn_limit: false, access_log: []}
stats_flush_interval: 1.5s
stats_config: {use_all_default_tags: true, stats_matcher: {reject_all: true}, stats_tags: [{tag_name: x, fixed_value: z}]}
layered_runtime: {layers: [{name: more, static_layer: {a: {b: 1}}}]}
watchdog: {miss_timeout: 2s}
static_resources:
  clusters:
  - &c
    name: mine
    connect_timeout: 1s
    load_assignment: {cluster_name: mine}
  - {<<: *c, name: other}
  listeners:
  - name: gateway_agent_readiness
    address: {socket_address: {address: 127.0.0.9, port_value: 1}}
  - name: mine
    address: {socket_address: {address: 127.0.0.1, port_value: LISTENER}}
    filter_chains: [{filters: [{name: http, typed_config: {
      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager, stat_prefix: m, route_config: {name: none},
      http_filters: [{name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]}}]}]
tracing: null
header_prefix: x-mine
`,
	"JSON": `{"statsFlushInterval": "2s", "overload_manager": {"refresh_interval": "0.250s", "resource_monitors": []},
		"clusterManager": {"outlierDetection": {"eventLogPath": "/dev/null"}}, "neverHeardOf": {"a": 1},
		"static_resources": {"clusters": [{"name": "c", "connect_timeout": "1s", "per_connection_buffer_limit_bytes": "7", "alsoNot": 1}]},
		"layered_runtime": {"layers": [{"name": "x", "static_layer": {"n": 2, "s": "1", "b": true}}]}}`,
}

// TestMergesAsEnvoy: an overlay over our bootstrap gives what Envoy makes of both.
func TestMergesAsEnvoy(t *testing.T) {
	for name, text := range overlays {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, err := os.MkdirTemp("", "merge")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			_, port, _ := net.SplitHostPort(freeAddress(t))
			text := strings.ReplaceAll(text, "LISTENER", port)
			c := full()
			c.XDSSocket, c.AdminSocket = filepath.Join(dir, "xds.sock"), filepath.Join(dir, "admin.sock")
			c.StatusAddress, c.ReadyAddress, c.PrometheusAddress = freeAddress(t), freeAddress(t), freeAddress(t)
			c.Telemetry = Telemetry{Tracer: TracerZipkin, Trace: Remote{Address: "127.0.0.1:1"}}
			plain := c
			plain.DualStack = false
			c.Overlays = []Overlay{{Name: name, Data: []byte(text), Tolerate: func(err error) { t.Log(err) }}}

			document, err := yaml.YAMLToJSON([]byte(text)) // pilot-agent's way to Envoy
			if err != nil {
				t.Fatal(err)
			}
			want := startedWith(t, plain, "--config-yaml", string(document), "--allow-unknown-static-fields")
			got := startedWith(t, c)
			if name == "kinds" { // Envoy keeps what it passes over
				listeners := want.GetStaticResources().GetListeners()
				want.StaticResources.Listeners = append(listeners[:len(listeners)-2], listeners[len(listeners)-1])
			}
			if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
				t.Errorf("our merge differs (-Envoy's +ours):\n%s", diff)
			}
		})
	}
}

// startedWith is the bootstrap that a real Envoy says it has.
func startedWith(t *testing.T, c Config, args ...string) *bootstrapv3.Bootstrap {
	t.Helper()
	file := filepath.Join(filepath.Dir(c.AdminSocket), "bootstrap.json")
	if err := os.WriteFile(file, marshal(t, c), 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder // read after Wait only
	cmd := exec.Command(envoyBinary, append([]string{"-c", file, "--disable-hot-restart", "-l", "critical", "--concurrency", "1"}, args...)...)
	cmd.Stderr = &out
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v: run make tools", err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(out.String())
		}
	}()
	dump := &adminv3.BootstrapConfigDump{}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		text, err := askSocket(t, c.AdminSocket, "/config_dump")
		if err == nil {
			var all adminv3.ConfigDump
			if err = (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(text), &all); err == nil && len(all.GetConfigs()) > 0 {
				if err := all.GetConfigs()[0].UnmarshalTo(dump); err != nil {
					t.Fatal(err)
				}
				b := dump.GetBootstrap()
				b.Node.UserAgentVersionType, b.Node.Extensions = nil, nil // what Envoy says of itself
				return b
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("envoy does not say what it has: %v", err)
		}
	}
}
