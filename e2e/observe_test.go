package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

func TestStatusPages(t *testing.T) {
	t.Parallel()
	reg := startRegistry(t)
	reg.push("hello:v1", helloModule(t, "v1"))
	a, _ := gatewayOf(t, plugin{name: "hello", uri: reg.uri("hello:v1"), value: "x"})
	base := "http://" + a.status

	_, text, _, err := get(base + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text + "\n"))
	if err != nil {
		t.Fatalf("/metrics is not an exposition: %v", err)
	}
	for _, name := range []string{"gateway_agent_build_info", "gateway_agent_xds_connected", "gateway_agent_wasm_resources", "gateway_agent_envoy_up", "envoy_server_live", "go_goroutines"} {
		if families[name] == nil {
			t.Errorf("/metrics lacks %s", name)
		}
	}
	for path, want := range map[string]string{
		"/healthz/ready": "ok", "/healthz/live": "ok", "/readyz?verbose": "[+] configuration accepted ok",
	} {
		if code, body, _, err := get(base + path); err != nil || code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("GET %s = %d %q, %v; want %q", path, code, body, err, want)
		}
	}
	for path, want := range map[string]string{
		"/debug/xds": `"protocol": "delta"`, "/debug/wasm": `"state": "live"`, "/debug/sds": "[", "/debug/config": `"version"`,
		"/debug/pprof/goroutine?debug=1": "goroutine profile", "/loglevel": `"level": "info"`, "/status": `"ready": true`,
	} {
		if body, err := a.control(path); err != nil || !strings.Contains(string(body), want) {
			t.Errorf("control socket %s = %.300q, %v; want %q", path, body, err, want)
		}
	}
	if err := wantCode("http://127.0.0.1:"+port(a.ready)+"/healthz/ready", 200); err != nil {
		t.Errorf("readiness through Envoy: %v", err)
	}
}

// TestIdleMemory: the agent has a small place beside Envoy.
func TestIdleMemory(t *testing.T) {
	t.Parallel()
	a, _ := plainGateway(t)
	const limit = 40 << 10 // KiB
	a.eventually(10*time.Second, "an idle agent is small", func() error {
		if kib := a.memory("VmRSS"); kib > limit {
			return fmt.Errorf("%d KiB resident, %d of them anonymous; want at most %d", kib, a.memory("RssAnon"), limit)
		}
		return nil
	})
	t.Logf("%d KiB resident", a.memory("VmRSS"))
}

func TestReadinessFollowsEnvoy(t *testing.T) {
	t.Parallel()
	a, _ := plainGateway(t)
	pid := a.envoyPID()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// A stalled Envoy is not a dead one: readiness answers at once and stays.
	for range 20 {
		start := time.Now()
		if err := wantCode("http://"+a.status+"/healthz/ready", 200); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > 500*time.Millisecond {
			t.Errorf("readiness took %v with a stalled Envoy", took)
		}
		time.Sleep(100 * time.Millisecond)
	}
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	a.eventually(5*time.Second, "readiness fails, then comes back with a new process", func() error {
		if err := wantCode("http://"+a.status+"/healthz/ready", 200); err != nil {
			return err
		}
		if now := a.envoyPID(); now == pid {
			return wantCode("http://"+a.status+"/healthz/ready", 503)
		}
		return nil
	})
}
