package istio

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gateway-agent/gateway-agent/bootstrap"
)

const envoyBinary = "../../.tools/envoy"

// clusterNames are statistics names of clusters as istiods old and new make them, and the labels they should get.
var clusterNames = map[string]string{
	"outbound|80||web.shop.svc.cluster.local;":   "outbound|80||web.shop.svc.cluster.local",
	"outbound|443|v1|api.shop.svc.cluster.local": "outbound|443|v1|api.shop.svc.cluster.local",
	"outbound|443||*.example.com;":               "outbound|443||*.example.com",
	"inbound|8080||;":                            "inbound|8080||",
	"PassthroughCluster;":                        "PassthroughCluster",
	"BlackHoleCluster":                           "BlackHoleCluster",
	"outbound_.80_._.a.b.svc.cluster.local;":     "outbound_.80_._.a.b.svc.cluster.local",
	"outbound|80||old.shop.svc.cluster.local":    "outbound|80||old.shop.svc.cluster.local",
}

var httpNames = map[string]string{"outbound_0.0.0.0_8080;": "outbound_0.0.0.0_8080", "0.0.0.0_8443": "0.0.0.0_8443"}

// TestTagsInEnvoy has a real Envoy make labels out of names.
func TestTagsInEnvoy(t *testing.T) {
	if _, err := os.Stat(envoyBinary); err != nil {
		t.Fatalf("%v: run make tools", err)
	}
	dir, err := os.MkdirTemp("", "tags")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	admin := freeAddress(t)
	config := bootstrap.Config{NodeID: "n", NodeCluster: "c", XDSSocket: filepath.Join(dir, "xds"), AdminAddress: admin}
	s := mapped(t, gateway())
	for _, tag := range s.Statistics.Tags {
		config.Statistics.Tags = append(config.Statistics.Tags, bootstrap.Tag(tag))
	}
	config.Statistics.NoDefaultTags = true
	config.Overlays = []bootstrap.Overlay{{Name: "names", Data: []byte(namesOverlay(t))}}
	b, err := bootstrap.New(config)
	if err != nil {
		t.Fatal(err)
	}
	b.DynamicResources = nil
	text, err := bootstrap.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "bootstrap.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	stats := envoyStats(t, file, admin)
	for name, want := range clusterNames {
		if line := fmt.Sprintf("envoy_cluster_upstream_cx_active{cluster_name=%q} 0", want); !strings.Contains(stats, line) {
			t.Errorf("cluster %s: no line %s", name, line)
		}
	}
	for name, want := range httpNames {
		for _, line := range []string{
			fmt.Sprintf("envoy_http_downstream_rq{response_code_class=%q,http_conn_manager_prefix=%q} 0", "2xx", want),
			fmt.Sprintf("envoy_http_downstream_cx_active{http_conn_manager_prefix=%q} 0", want),
			fmt.Sprintf("envoy_listener_http_downstream_rq{response_code_class=%q,http_conn_manager_listener_prefix=%q,listener_address=", "2xx", want),
		} {
			if !strings.Contains(stats, line) {
				t.Errorf("HTTP %s: no line %s", name, line)
			}
		}
	}
	if !strings.Contains(stats, `envoy_listener_downstream_cx_active{listener_address="127.0.0.1_`) {
		t.Error("no listener has its address as a label")
	}
	if t.Failed() {
		for line := range strings.Lines(stats) {
			if strings.Contains(line, "cx_active{") || strings.Contains(line, "rq{") {
				t.Log(strings.TrimSpace(line))
			}
		}
	}
}

func namesOverlay(t *testing.T) string {
	var b strings.Builder
	b.WriteString("static_resources:\n  clusters:\n")
	n := 0
	for name := range clusterNames {
		n++
		fmt.Fprintf(&b, "  - {name: c%d, alt_stat_name: %q, connect_timeout: 1s}\n", n, name)
	}
	b.WriteString("  listeners:\n")
	for name := range httpNames {
		_, port, _ := net.SplitHostPort(freeAddress(t))
		fmt.Fprintf(&b, `  - name: %q
    address: {socket_address: {address: 127.0.0.1, port_value: %s}}
    filter_chains:
    - filters:
      - name: http
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: %q
          route_config: {name: none}
          http_filters: [{name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]
`, name, port, name)
	}
	return b.String()
}

func envoyStats(t *testing.T, bootstrap, admin string) string {
	t.Helper()
	var out strings.Builder // read after Wait only
	cmd := exec.Command(envoyBinary, "-c", bootstrap, "--disable-hot-restart", "-l", "warning", "--concurrency", "1")
	cmd.Stderr = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(out.String())
		}
	})
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		response, err := http.Get("http://" + admin + "/stats/prometheus")
		if err != nil {
			continue
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err == nil && strings.Contains(string(body), "envoy_server_live 1") || strings.Contains(string(body), "envoy_server_live{} 1") {
			return string(body)
		}
	}
	t.Fatal("envoy does not become live")
	return ""
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}
