package e2e

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

const gatewayID = "spiffe://cluster.local/ns/ingress/sa/gw"

// pod is a gateway pod after injection: its files below a directory, which stands for / since pilot-agent's paths are relative, its
// environment, an istiod and the istiod's CA.
type pod struct {
	*mesh
	authority   *xdstest.CA
	gateway     gateway
	admin       string
	prometheus  string
	proxyConfig map[string]any
	env         map[string]string
}

func newPod(t *testing.T) *pod {
	t.Helper()
	p := &pod{mesh: newMesh(t, xdstest.IstiodConfig{}), admin: freeAddress(t), prometheus: freeAddress(t)}
	p.authority = xdstest.NewCA(t, xdstest.CAConfig{ID: gatewayID, Tokens: []string{"token-1"}})
	p.authority.SignWith(p.ca)
	p.gateway = gateway{address: freeAddress(t), origin: startOrigin(t), header: "one", secret: "default"}
	p.set(p.items()...)
	p.mount("var/run/secrets/istio/root-cert.pem", p.ca.PEM)
	p.mount("var/run/secrets/tokens/istio-token", []byte("token-1"))
	p.mount("etc/istio/pod/labels", []byte("app=\"gw\"\nistio=\"ingress\"\npod-template-hash=\"1\"\n"))
	p.mount("etc/istio/pod/annotations", []byte("a=\"b\"\n"))
	for _, dir := range []string{"etc/istio/proxy", "var/lib/istio/data", "var/run/secrets/workload-spiffe-uds"} {
		if err := os.MkdirAll(p.path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p.proxyConfig = map[string]any{
		"discoveryAddress": p.istiod.Address, "binaryPath": envoyBinary, "terminationDrainDuration": "2s", "concurrency": 2,
		"statusPort": json.Number(port(p.agent.status)), "proxyAdminPort": json.Number(port(p.admin)),
	}
	p.env = map[string]string{
		"POD_NAME": "gw-abc", "POD_NAMESPACE": "ingress", "SERVICE_ACCOUNT": "gw", "INSTANCE_IP": "127.0.0.1",
		"CA_ADDR": p.authority.Listen(t), "ISTIOD_SAN": istiodName, "TRUST_DOMAIN": "cluster.local", "JWT_POLICY": "third-party-jwt",
		"PILOT_CERT_PROVIDER": "istiod", "ISTIO_META_CLUSTER_ID": "Kubernetes", "ISTIO_META_WORKLOAD_NAME": "gw",
		"ENVOY_STATUS_PORT": port(p.agent.ready), "ENVOY_PROMETHEUS_PORT": port(p.prometheus),
	}
	return p
}

// items are what istiod sends, with the workload's own certificate on the listener, from the SDS server that it knows by a cluster's name.
func (p *pod) items() []string {
	items := p.gateway.items()
	const workload = `{ api_config_source: { api_type: GRPC, transport_api_version: V3, set_node_on_first_message_only: true,
      grpc_services: [{ envoy_grpc: { cluster_name: sds-grpc } }] }, initial_fetch_timeout: 0s, resource_api_version: V3 }`
	items[0] = strings.ReplaceAll(items[0], "{ ads: {}, resource_api_version: V3 } }]", workload+" }]")
	return items
}

func (p *pod) path(name string) string { return filepath.Join(p.agent.dir, name) }

func (p *pod) mount(name string, data []byte) {
	p.t.Helper()
	if err := os.MkdirAll(filepath.Dir(p.path(name)), 0o755); err != nil {
		p.t.Fatal(err)
	}
	writeFile(p.t, p.path(name), data)
}

// launch runs the container's command, which differs from Istio's in the program's name only.
func (p *pod) launch(args ...string) {
	p.t.Helper()
	p.agent.env = p.environ()
	line := []string{
		"sh", "-c", `cd "$0" && exec "$@"`, p.agent.dir, agentBinary, "proxy", "router", "--domain", "ingress.svc.cluster.local",
		"--proxyLogLevel=warning", "--proxyComponentLogLevel=misc:error", "--log_output_level=default:info",
	}
	p.agent.launch(append(line, args...))
}

// environ is the container's environment.
func (p *pod) environ() []string {
	p.t.Helper()
	config, err := json.Marshal(p.proxyConfig)
	if err != nil {
		p.t.Fatal(err)
	}
	all := []string{"PROXY_CONFIG=" + string(config)}
	for name, value := range p.env {
		all = append(all, name+"="+value)
	}
	return all
}

// run runs another of pilot-agent's commands in the pod.
func (p *pod) run(args ...string) (stdout, stderr string, err error) {
	cmd := exec.CommandContext(p.t.Context(), agentBinary, args...)
	cmd.Dir = p.agent.dir
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

func (p *pod) https(path string) (*http.Response, error) {
	pool := x509.NewCertPool()
	pool.AddCert(p.ca.Cert)
	client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, VerifyConnection: func(state tls.ConnectionState) error {
			return checkIdentity(state, pool)
		}},
	}}
	response, err := client.Get("https://" + p.gateway.address + path)
	if err == nil {
		response.Body.Close()
	}
	return response, err
}

func (p *pod) wantServed() {
	p.t.Helper()
	response, err := p.https("/")
	if err != nil || response.StatusCode != http.StatusOK || response.Header.Get("x-route") != "one" {
		p.t.Errorf("GET / = %+v, %v; want 200 from the route", response, err)
	}
}

// TestProxyRouter is a day in the life of a drop-in gateway.
func TestProxyRouter(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	p.launch("--unknownFlag", "value")
	p.agent.waitReady()
	p.wantServed()

	if code, body, _, err := get("http://" + p.agent.ready + "/healthz/ready"); code != http.StatusOK || err != nil {
		t.Errorf("Envoy's readiness listener = %d %s, %v", code, body, err)
	}
	if _, stderr, err := p.run("wait", "--timeoutSeconds=5", "--url", "http://"+p.agent.ready+"/healthz/ready"); err != nil {
		t.Errorf("wait: %v\n%s", err, stderr)
	}
	p.wantBootstrap()
	p.wantMetrics()
	for _, name := range []string{"etc/istio/proxy/XDS", "etc/istio/proxy/envoy-rev.json", "var/run/secrets/workload-spiffe-uds/socket"} {
		if _, err := os.Stat(p.path(name)); err != nil {
			t.Error(err)
		}
	}
	log := p.agent.log.String()
	for _, want := range []string{"--unknownFlag is ignored"} {
		if strings.Count(log, want) != 1 {
			t.Errorf("the log has %q %d times, want once", want, strings.Count(log, want))
		}
	}
	for _, never := range []string{"token-1", "PRIVATE KEY"} {
		if strings.Contains(log, never) {
			t.Errorf("the log has %q", never)
		}
	}
	requests := p.authority.Requests()
	if len(requests) != 1 || !requests[0].Granted || requests[0].Life != 24*time.Hour {
		t.Errorf("requests to the CA: %+v; want one, granted, for a day", requests)
	}
	if n := len(p.istiod.Requests("type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig")); n == 0 {
		t.Error("istiod was not asked whom to trust (PCDS)")
	}
	if code, _, _, err := get("http://" + p.agent.status + "/debug/ndsz"); code != http.StatusNotFound || err != nil {
		t.Errorf("/debug/ndsz = %d, %v; want 404", code, err)
	}
}

// wantBootstrap asks Envoy who it is.
func (p *pod) wantBootstrap() {
	t := p.t
	t.Helper()
	code, body, _, err := get("http://" + p.admin + "/config_dump")
	if err != nil || code != http.StatusOK {
		t.Fatalf("config_dump = %d, %v", code, err)
	}
	for _, want := range []string{
		`"id": "router~127.0.0.1~gw-abc.ingress~ingress.svc.cluster.local"`, `"cluster": "gw.ingress"`, `"sds-grpc"`, `"xds-grpc"`, `"sds-files-grpc"`,
		`"agent"`, `"prometheus_stats"`, `"ENVOY_PROMETHEUS_PORT": ` + port(p.prometheus), `"ISTIO_VERSION"`, `"envoy.resource_monitors.global_downstream_max_connections"`,
		`"a": "b"`, `"app": "gw"`, "envoy.bootstrap.internal_listener",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("Envoy's config_dump lacks %s", want)
		}
	}
	if strings.Contains(body, "pod-template-hash") || strings.Contains(body, "token-1") {
		t.Error("Envoy's config_dump has what it should not")
	}
}

// wantMetrics scrapes as Prometheus does in a mesh.
func (p *pod) wantMetrics() {
	t := p.t
	t.Helper()
	for _, tt := range []struct {
		url         string
		want, never []string
	}{
		{"http://" + p.agent.status + "/stats/prometheus", []string{
			"istio_agent_startup_duration_seconds ", `istio_agent_cert_expiry_seconds{resource_name="default"} `, "istio_agent_process_open_fds",
			`istio_build{component="agent",`, "gateway_agent_build_info", "envoy_server_live", `envoy_cluster_upstream_cx_active{cluster_name="xds-grpc"} `,
			"istio_agent_go_goroutines", `istio_agent_num_outgoing_requests{request_type="csr"} 1`,
		}, []string{"envoy_cluster_name"}},
		{"http://" + p.agent.status + "/stats/prometheus?filter=server.live", []string{"envoy_server_live"}, []string{"envoy_cluster_upstream"}},
		{"http://" + p.prometheus + "/stats/prometheus", []string{"envoy_server_live"}, []string{"istio_agent_"}},
	} {
		code, body, _, err := get(tt.url)
		if err != nil || code != http.StatusOK {
			t.Errorf("%s = %d, %v", tt.url, code, err)
		}
		for _, want := range tt.want {
			if !strings.Contains(body, want) {
				t.Errorf("%s lacks %s", tt.url, want)
			}
		}
		for _, never := range tt.never {
			if strings.Contains(body, never) {
				t.Errorf("%s has %s", tt.url, never)
			}
		}
	}
}

// TestProxyRequest: istioctl reads the whole output as JSON.
func TestProxyRequest(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	p.proxyConfig["proxyAdminPort"] = 0 // the port is the host's here; without one the admin is on a socket
	p.launch()
	p.agent.waitReady()
	stdout, stderr, err := p.run("request", "GET", "config_dump", "--run-dir", "etc/istio/proxy")
	if err != nil || stderr != "" || !json.Valid([]byte(stdout)) || !strings.Contains(stdout, "router~") {
		t.Errorf("request GET config_dump: %v, stderr %q, %d bytes, JSON: %v", err, stderr, len(stdout), json.Valid([]byte(stdout)))
	}
	if stdout, _, err := p.run("request", "POST", "/logging?level=warning", "--run-dir", "etc/istio/proxy"); err != nil || !strings.Contains(stdout, "active loggers") {
		t.Errorf("request POST: %v, %s", err, stdout)
	}
	if stdout, _, err := p.run("request", "GET", "/nope", "--run-dir", "etc/istio/proxy"); err != nil || !strings.HasPrefix(stdout, "invalid path") {
		t.Errorf("request GET /nope: %v, %s; want Envoy's answer, as pilot-agent gives it", err, stdout)
	}
	for _, args := range [][]string{{"GET", "/quitquitquit"}, {"GET", "config_dump", "--debug-port=22"}} {
		if stdout, stderr, err := p.run(append([]string{"request", "--run-dir", "etc/istio/proxy"}, args...)...); err == nil || stdout != "" || stderr == "" {
			t.Errorf("request %q: %v, stdout %q, stderr %q; want a failure, and nothing on stdout", args, err, stdout, stderr)
		}
	}
}

// TestProxyEnds: the ways in which a gateway is told to end, and what becomes of requests.
func TestProxyEnds(t *testing.T) {
	t.Parallel()
	post := func(p *pod, path string) int {
		response, err := http.Post("http://"+p.agent.status+path, "", http.NoBody)
		if err != nil {
			p.t.Fatal(err)
		}
		response.Body.Close()
		return response.StatusCode
	}
	for name, tt := range map[string]struct {
		change   func(*pod)
		end      func(*pod)
		accepts  time.Duration // at least so long after the end began
		min, max time.Duration // from then to the exit, with a request of 3 s in flight from the beginning
	}{
		"SIGTERM": {nil, func(p *pod) { p.agent.signal(syscall.SIGTERM) }, 1500 * time.Millisecond, 2500 * time.Millisecond, 5 * time.Second},
		"quitquitquit": {nil, func(p *pod) {
			if code := post(p, "/quitquitquit"); code != http.StatusOK {
				p.t.Errorf("POST /quitquitquit = %d", code)
			}
		}, 1500 * time.Millisecond, 2500 * time.Millisecond, 5 * time.Second},
		"on zero": {func(p *pod) {
			p.env["EXIT_ON_ZERO_ACTIVE_CONNECTIONS"], p.env["MINIMUM_DRAIN_DURATION"] = "true", "1s"
			p.proxyConfig["terminationDrainDuration"] = "100s"
		}, func(p *pod) { p.agent.signal(syscall.SIGTERM) }, 500 * time.Millisecond, 2500 * time.Millisecond, 5 * time.Second},
		"drain first": {nil, func(p *pod) {
			if code := post(p, "/drain"); code != http.StatusOK {
				p.t.Errorf("POST /drain = %d", code)
			}
			if code, _, _, _ := get("http://" + p.agent.status + "/healthz/ready"); code != http.StatusServiceUnavailable {
				p.t.Errorf("ready after /drain: %d, want 503", code)
			}
			time.Sleep(time.Second)
			p.wantServed()
			p.agent.signal(syscall.SIGTERM)
		}, 500 * time.Millisecond, 1500 * time.Millisecond, 4 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPod(t)
			if tt.change != nil {
				tt.change(p)
			}
			p.launch()
			p.agent.waitReady()
			slow := make(chan error, 1) // one result
			go func() {
				response, err := p.https("/slow/3s")
				if err == nil && response.StatusCode != http.StatusOK {
					err = fmt.Errorf("status %s", response.Status)
				}
				slow <- err
			}()
			time.Sleep(300 * time.Millisecond)
			tt.end(p)
			began := time.Now()
			for time.Since(began) < tt.accepts {
				p.wantServed()
				time.Sleep(50 * time.Millisecond)
			}
			if err := <-slow; err != nil {
				t.Errorf("the request in flight: %v", err)
			}
			if code := p.agent.wait(20 * time.Second); code != 0 {
				t.Errorf("exit code %d, want 0", code)
			}
			if took := time.Since(began); took < tt.min || took > tt.max {
				t.Errorf("the agent ended after %v, want %v to %v", took, tt.min, tt.max)
			}
		})
	}
}

// TestProxyCrash: Envoy's death is not the pod's, unless it shall be, and then it is told.
func TestProxyCrash(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	p.launch("--on-crash=exit")
	p.agent.waitReady()
	if err := syscall.Kill(p.agent.envoyPIDIn("etc/istio/proxy"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if code := p.agent.wait(10 * time.Second); code != 1 || !strings.Contains(p.agent.log.String(), "killed by SIGKILL") {
		t.Errorf("--on-crash=exit: exit code %d; want 1, and the signal in the log", code)
	}

	p.launch()
	p.agent.waitReady()
	pid := p.agent.envoyPIDIn("etc/istio/proxy")
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.agent.eventually(10*time.Second, "another Envoy serves", func() error {
		if p.agent.envoyPIDIn("etc/istio/proxy") == pid {
			return fmt.Errorf("still %d", pid)
		}
		_, err := p.https("/")
		return err
	})
}

// envoyPIDIn asks the agent in another run directory.
func (a *agent) envoyPIDIn(runDir string) int {
	var status struct{ Envoy struct{ PID int } }
	out, _ := exec.Command(agentBinary, "status", "-o", "json", "--run-dir", filepath.Join(a.dir, runDir)).Output()
	_ = json.Unmarshal(out, &status)
	return status.Envoy.PID
}

// TestProxyOverride: a bootstrap override reaches Envoy, and one that cannot be is refused before Envoy starts.
func TestProxyOverride(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	p.env["ISTIO_BOOTSTRAP_OVERRIDE"] = "etc/istio/custom-bootstrap/custom_bootstrap.json"
	p.mount(p.env["ISTIO_BOOTSTRAP_OVERRIDE"], []byte(`{"stats_flush_interval":"3s","static_resources":{"clusters":[{"name":"mine","connect_timeout":"1s"}]}}`))
	p.launch()
	p.agent.waitReady()
	if _, body, _, err := get("http://" + p.admin + "/config_dump"); err != nil || !strings.Contains(body, `"stats_flush_interval": "3s"`) || !strings.Contains(body, `"mine"`) {
		t.Errorf("the override is not in Envoy's config_dump: %v", err)
	}
	p.agent.kill()
	p.mount(p.env["ISTIO_BOOTSTRAP_OVERRIDE"], []byte(`{"static_resources":{"clusters":[{"name":"sds-grpc"}]}}`))
	p.launch()
	if code := p.agent.wait(10 * time.Second); code != 1 || !strings.Contains(p.agent.log.String(), "cluster sds-grpc is there already") {
		t.Errorf("an override that takes sds-grpc: exit code %d; want 1 and the reason", code)
	}
}

// TestReadinessDoesNotFlap: a thousand questions a second, counters set to zero, the control plane gone, an admin that does not answer.
func TestReadinessDoesNotFlap(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	p.launch("--ready-min-listeners=1")
	p.agent.waitReady()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4}, Timeout: 5 * time.Second}
	ask := func() (int, time.Duration) {
		began := time.Now()
		response, err := client.Get("http://" + p.agent.status + "/healthz/ready")
		if err != nil {
			return 0, time.Since(began)
		}
		response.Body.Close()
		return response.StatusCode, time.Since(began)
	}
	var latencies []time.Duration
	probe := func(d time.Duration) {
		ticker := time.NewTicker(time.Millisecond)
		defer ticker.Stop()
		for end := time.Now().Add(d); time.Now().Before(end); <-ticker.C {
			code, took := ask()
			if code != http.StatusOK {
				t.Fatalf("readiness = %d", code)
			}
			latencies = append(latencies, took)
		}
	}
	probe(time.Second)
	if response, err := http.Post("http://"+p.admin+"/reset_counters", "", http.NoBody); err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("reset_counters: %v", err)
	}
	p.istiod.Stop()
	probe(2 * time.Second)
	pid := p.agent.envoyPIDIn("etc/istio/proxy")
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	probe(3 * time.Second)
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	probe(time.Second)
	slices.Sort(latencies)
	if p99 := latencies[len(latencies)*99/100]; p99 > 50*time.Millisecond {
		t.Errorf("99 of 100 of %d answers within %v, want 50 ms", len(latencies), p99)
	}
}

// TestNotReadyWithoutListeners: accepted is not enough when there must be listeners.
func TestNotReadyWithoutListeners(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	p.launch("--ready-min-listeners=2")
	p.agent.eventually(20*time.Second, "not ready for want of listeners", func() error {
		code, body, _, err := get("http://" + p.agent.status + "/healthz/ready")
		if err == nil && (code != http.StatusServiceUnavailable || !strings.HasPrefix(body, "listeners:")) {
			err = fmt.Errorf("%d %s", code, body)
		}
		return err
	})
	time.Sleep(time.Second)
	if code, _, _, _ := get("http://" + p.agent.status + "/healthz/ready"); code != http.StatusServiceUnavailable {
		t.Errorf("ready with one listener of two")
	}
	extra := gateway{address: freeAddress(t), origin: p.gateway.origin}
	p.set(append(p.items(), extra.items()[:2]...)...)
	p.agent.waitReady()
}

func readProc(t *testing.T, pid int, name string) string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
