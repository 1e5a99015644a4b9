package status

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
)

// startEnvoy runs a real Envoy with clusters and an HTTP listener, and returns how to ask its admin and its listener.
func startEnvoy(t *testing.T, clusters int) (admin, listener *http.Client) {
	t.Helper()
	bin, err := filepath.Abs("../.tools/envoy")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(bin); err != nil {
		t.Fatalf("no Envoy at %s: run make tools", bin)
	}
	dir, err := os.MkdirTemp("", "status") // t.TempDir is too long for a unix socket's path
	if err != nil {
		t.Fatal(err)
	}
	var list strings.Builder
	for i := range clusters {
		fmt.Fprintf(&list, "  - {name: \"cluster_%d|outbound|\\\"odd\\\\name\\\"\", connect_timeout: 1s, type: STATIC}\n", i)
	}
	config := fmt.Sprintf(`
admin: {address: {pipe: {path: %[1]s/admin.sock}}}
static_resources:
  listeners:
  - name: web
    address: {pipe: {path: %[1]s/web.sock}}
    filter_chains: [{filters: [{name: hcm, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager,
      stat_prefix: web-site.main, route_config: {virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, direct_response: {status: 200}}]}]},
      http_filters: [{name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]}}]}]
  clusters:
%[2]s`, dir, list.String())
	if err := os.WriteFile(dir+"/envoy.yaml", []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin, "-c", dir+"/envoy.yaml", "--disable-hot-restart", "--concurrency", "1", "-l", "warning")
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = os.RemoveAll(dir)
	})
	admin, listener = unixClient(dir+"/admin.sock"), unixClient(dir+"/web.sock")
	for start := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		response, err := listener.Get("http://web/")
		if err == nil {
			response.Body.Close()
			return admin, listener
		}
		if time.Since(start) > 20*time.Second {
			t.Fatalf("Envoy does not serve: %v", err)
		}
	}
}

func unixClient(path string) *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}}
}

func envoyText(ctx context.Context, admin *http.Client) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://admin/stats/prometheus", nil)
	if err != nil {
		return nil, err
	}
	response, err := admin.Do(request)
	if err != nil {
		return nil, err
	}
	return response.Body, nil
}

// What a real Envoy says is passed on complete, next to the agent's metrics, as an exposition that a Prometheus parser takes.
func TestRealEnvoy(t *testing.T) {
	const clusters, requests = 300, 20
	admin, listener := startEnvoy(t, clusters)
	for range requests {
		response, err := listener.Get("http://web/")
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
	}
	body, err := envoyText(t.Context(), admin)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(body)
	body.Close()
	if err != nil {
		t.Fatal(err)
	}
	want, err := parse(raw)
	if err != nil {
		t.Fatalf("Envoy's own exposition is not valid: %v", err)
	}

	c := testConfig("")
	c.EnvoyMetrics = func(ctx context.Context, _ url.Values) (io.ReadCloser, error) { return envoyText(ctx, admin) }
	got := scrape(t, c)
	for name, family := range want {
		if len(got[name].GetMetric()) < len(family.GetMetric()) || got[name].GetType() != family.GetType() {
			t.Errorf("%s: %d metrics of type %s, Envoy has %d of type %s", name, len(got[name].GetMetric()), got[name].GetType(), len(family.GetMetric()), family.GetType())
		}
	}
	if values(got["gateway_agent_up"])[""] != 1 || values(got[envoyScrapeOK])[""] != 1 || values(got[envoyScrapeDropped])[""] != 0 {
		t.Error("the agent's metrics are missing, or something of Envoy's was dropped")
	}
	if n := len(got["envoy_cluster_upstream_cx_total"].GetMetric()); n != clusters {
		t.Errorf("%d clusters, want %d", n, clusters)
	}
	seen := map[dto.MetricType]int{}
	for _, f := range want {
		seen[f.GetType()]++
	}
	if seen[dto.MetricType_HISTOGRAM] == 0 || seen[dto.MetricType_COUNTER] == 0 || seen[dto.MetricType_GAUGE] == 0 {
		t.Errorf("families by type %v: this Envoy does not show what the test is for", seen)
	}
	t.Logf("%d bytes, families by type %v", len(raw), seen)
}
