package sds_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
)

// envoyRig is a real Envoy in a directory of its own: sds.sock (ours), admin.sock, plain.sock (an HTTP listener that
// answers 200) and <secret>.sock (TLS listeners).
type envoyRig struct {
	dir  string
	log  string
	exit chan struct{} // closed when the process has ended
}

func newRig(t *testing.T) *envoyRig {
	t.Helper()
	dir, err := os.MkdirTemp("", "sds") // t.TempDir is too long for a unix socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return &envoyRig{dir: dir, log: filepath.Join(dir, "envoy.log"), exit: make(chan struct{})}
}

func (r *envoyRig) path(name string) string { return filepath.Join(r.dir, name) }

// serve answers SDS for this Envoy until the test ends.
func (r *envoyRig) serve(t *testing.T, register func(grpc.ServiceRegistrar)) {
	t.Helper()
	l, err := net.Listen("unix", r.path("sds.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	register(server)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { server.Stop(); <-done })
}

// start runs Envoy with the static listeners given; api is GRPC or DELTA_GRPC.
func (r *envoyRig) start(t *testing.T, api string, listeners ...string) {
	t.Helper()
	bin, err := filepath.Abs("../.tools/envoy")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(bin); err != nil {
		t.Fatalf("no Envoy at %s: run make tools", bin)
	}
	config := r.path("bootstrap.yaml")
	if err := os.WriteFile(config, []byte(r.bootstrap(api, listeners)), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(r.log)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command(bin, "-c", config, "--disable-hot-restart", "--concurrency", "2", "-l", "info")
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { defer close(r.exit); _ = cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Signal(syscall.SIGKILL); <-r.exit; r.showLog(t) })
}

func (r *envoyRig) showLog(t *testing.T) {
	if !t.Failed() {
		return
	}
	data, _ := os.ReadFile(r.log)
	lines := strings.Split(string(data), "\n")
	t.Logf("Envoy's last lines:\n%s", strings.Join(lines[max(0, len(lines)-25):], "\n"))
}

func (r *envoyRig) bootstrap(api string, listeners []string) string {
	return fmt.Sprintf(`
node: {id: rig, cluster: rig}
admin: {address: {pipe: {path: %[1]s/admin.sock, mode: 0600}}}
static_resources:
  listeners: [%[2]s]
  clusters:
  - name: sds-grpc
    connect_timeout: 1s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment:
      cluster_name: sds-grpc
      endpoints: [{lb_endpoints: [{endpoint: {address: {pipe: {path: %[1]s/sds.sock}}}}]}]
`, r.dir, strings.ReplaceAll(strings.Join(listeners, ","), "$API", api))
}

// plain is a listener without TLS on <name>.sock.
func (r *envoyRig) plain(name string) string { return r.listener(name, "") }

// tls is a listener on <name>.sock that serves the certificate secret and, if root is given, asks clients for one.
func (r *envoyRig) tls(name, secret, root string) string {
	validation := ""
	if root != "" {
		validation = fmt.Sprintf(`validation_context_sds_secret_config: %s,`, sdsConfig(root))
	}
	return r.listener(name, fmt.Sprintf(`
    transport_socket: {name: tls, typed_config: {"@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext,
      require_client_certificate: %t,
      common_tls_context: {%s tls_certificate_sds_secret_configs: [%s]}}},`, root != "", validation, sdsConfig(secret)))
}

func sdsConfig(name string) string {
	return fmt.Sprintf(`{name: %q, sds_config: {resource_api_version: V3, api_config_source: {api_type: $API, transport_api_version: V3,
      set_node_on_first_message_only: true, grpc_services: [{envoy_grpc: {cluster_name: sds-grpc,
      retry_policy: {retry_back_off: {base_interval: 0.05s, max_interval: 0.5s}}}}]}}}`, name)
}

func (r *envoyRig) listener(name, socket string) string {
	return fmt.Sprintf(`{name: %[1]s, address: {pipe: {path: %[2]s/%[1]s.sock}}, filter_chains: [{%[3]s
    filters: [{name: hcm, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager,
      stat_prefix: %[1]s, route_config: {virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, direct_response: {status: 200, body: {inline_string: ok}}}]}]},
      http_filters: [{name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]}}]}]}`,
		name, r.dir, socket)
}

// get asks the listener on <name>.sock for / and returns the status.
func (r *envoyRig) get(ctx context.Context, name, path string) (int, string, error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", r.path(name+".sock"))
	}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://rig"+path, nil)
	if err != nil {
		return 0, "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

// served waits until the listener on <name>.sock answers, at most for limit, and says how long that took.
func (r *envoyRig) served(t *testing.T, name string, limit time.Duration) (time.Duration, bool) {
	t.Helper()
	start := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for ctx.Err() == nil {
		if code, _, err := r.get(ctx, name, "/"); err == nil && code == http.StatusOK {
			return time.Since(start), true
		}
		select {
		case <-r.exit:
			t.Fatal("Envoy ended")
		case <-time.After(10 * time.Millisecond):
		}
	}
	return time.Since(start), false
}

// handshake makes one TLS connection to <name>.sock.
func (r *envoyRig) handshake(ctx context.Context, name string, config *tls.Config) (tls.ConnectionState, error) {
	conn, err := r.dialTLS(ctx, name, config)
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer conn.Close()
	return conn.ConnectionState(), nil
}

func (r *envoyRig) dialTLS(ctx context.Context, name string, config *tls.Config) (*tls.Conn, error) {
	raw, err := (&net.Dialer{}).DialContext(ctx, "unix", r.path(name+".sock"))
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, err
	}
	return conn, nil
}

func inlineBytes(data []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: data}}
}
