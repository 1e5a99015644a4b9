package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"

	"github.com/gateway-agent/gateway-agent/internal/testbuffer"
)

// Names of statistics as the istiod of this pilot-agent makes them.
var (
	statClusters = []string{
		"outbound|80||web.shop.svc.cluster.local;", "outbound|443|v1|api.shop.svc.cluster.local;", "outbound|443||*.example.com;", "inbound|8080||;",
		"PassthroughCluster;", "BlackHoleCluster;", "outbound_.80_._.a.b.svc.cluster.local;",
	}
	statListeners = []string{"outbound_0.0.0.0_8080;", "outbound_0.0.0.0_8443;", "inbound_0.0.0.0_80;"}
)

// TestLabelsAsPilotAgents has a real Envoy make labels of these names with the expressions of pilot-agent and with ours.
func TestLabelsAsPilotAgents(t *testing.T) {
	if !inSpace(t) {
		return
	}
	c := newContainer(t)
	withRealAgent(t, c)
	ours := c.program
	theirs := labelled(t, c.bootstrapOf([]string{realAgent}))
	mine := labelled(t, c.bootstrapOf(ours))
	if len(theirs) < 300 {
		t.Errorf("only %d statistics", len(theirs))
	}
	for _, line := range theirs {
		if !slices.Contains(mine, line) {
			t.Errorf("only pilot-agent has %s", line)
		}
	}
	for _, line := range mine {
		if !slices.Contains(theirs, line) {
			t.Errorf("only we have %s", line)
		}
	}
}

// labelled are the statistics that Envoy has of the names with a bootstrap's expressions, without values.
func labelled(t *testing.T, b *bootstrapv3.Bootstrap) (all []string) {
	t.Helper()
	var static strings.Builder
	static.WriteString("static_resources:\n  clusters:\n")
	for i, name := range statClusters {
		fmt.Fprintf(&static, "  - {name: c%d, alt_stat_name: %q, connect_timeout: 1s}\n", i, name)
	}
	static.WriteString("  listeners:\n")
	for i, name := range statListeners {
		fmt.Fprintf(&static, `  - name: h%d
    address: {socket_address: {address: 127.0.0.1, port_value: %d}}
    filter_chains: [{filters: [{name: http, typed_config: {
      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager, stat_prefix: %q,
      route_config: {name: none}, http_filters: [{name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]}}]}]
  - name: t%[1]d
    address: {socket_address: {address: 127.0.0.1, port_value: %[4]d}}
    filter_chains: [{filters: [{name: tcp, typed_config: {
      "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: %[5]q, cluster: c0}}]}]
`, i, 17000+i, name, 17100+i, strings.TrimRight(statClusters[i], ";"))
	}
	static.WriteString("admin: {address: {socket_address: {address: 127.0.0.1, port_value: 17200}}}\nnode: {id: a, cluster: b}\n")
	document, err := yaml.YAMLToJSON([]byte(static.String()))
	if err != nil {
		t.Fatal(err)
	}
	plain := &bootstrapv3.Bootstrap{}
	if err := protojson.Unmarshal(document, plain); err != nil {
		t.Fatal(err)
	}
	plain.StatsConfig = b.GetStatsConfig()
	plain.StatsConfig.StatsMatcher = nil // all of them
	for line := range strings.Lines(metricsOf(t, plain, "127.0.0.1:17200")) {
		if i := strings.LastIndexByte(line, ' '); i > 0 && !strings.HasPrefix(line, "#") && !strings.Contains(line, "le=") && !differentOnPurpose(line) {
			all = append(all, line[:i])
		}
	}
	return all
}

// differentOnPurpose: pilot-agent leaves the names of HTTP listeners in these metrics' own names. Those of threads come late.
func differentOnPurpose(line string) bool {
	return strings.HasPrefix(line, "envoy_listener_http_") || strings.Contains(line, "watchdog")
}

// metricsOf starts an Envoy until it says what it counts.
func metricsOf(t *testing.T, b *bootstrapv3.Bootstrap, admin string) (metrics string) {
	t.Helper()
	data, err := protojson.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "bootstrap.json")
	writeFile(t, file, data)
	out := &testbuffer.Buffer{}
	cmd := exec.Command(envoyBinary, "-c", file, "--disable-hot-restart", "-l", "error", "--concurrency", "2")
	cmd.Stderr = out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	eventually(t, 20*time.Second, "envoy is live", func() error {
		response, err := http.Get("http://" + admin + "/stats/prometheus")
		if err != nil {
			return fmt.Errorf("%w, %s", err, tail(out.String(), 5))
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if metrics = string(body); err == nil && !strings.Contains(metrics, "envoy_server_live{} 1") {
			err = fmt.Errorf("not live: %.200s", metrics)
		}
		return err
	})
	return metrics
}
