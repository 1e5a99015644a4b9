package bootstrap

import (
	"context"
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
)

// TestOwnListeners asks a real Envoy with our static part: what the two listeners pass on, and that they pass nothing else.
func TestOwnListeners(t *testing.T) {
	if _, err := os.Stat(envoyBinary); err != nil {
		t.Fatalf("%v: run make tools", err)
	}
	agent := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintf(w, "not ready: %s %s", r.Method, r.URL)
	})}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go agent.Serve(l)
	t.Cleanup(func() { agent.Close() })

	c := startEnvoy(t, l.Addr().String())
	tests := []struct {
		method, url string
		status      int
		body        string
	}{
		{"GET", c.ReadyAddress + "/healthz/ready", 503, "not ready: GET /healthz/ready"},
		{"GET", c.ReadyAddress + "/healthz/ready?verbose", 503, "not ready: GET /healthz/ready?verbose"},
		{"POST", c.ReadyAddress + "/healthz/ready", 404, ""},
		{"GET", c.ReadyAddress + "/debug/pprof", 404, ""},
		{"GET", c.ReadyAddress + "/healthz/ready/../../quitquitquit", 404, ""},
		{"GET", c.PrometheusAddress + "/stats/prometheus", 200, "envoy_server_live"},
		{"GET", c.PrometheusAddress + "/stats/prometheus?usedonly&filter=live", 200, "envoy_server_live"},
		{"POST", c.PrometheusAddress + "/quitquitquit", 404, ""},
		{"POST", c.PrometheusAddress + "/stats/prometheus", 404, ""},
		{"GET", c.PrometheusAddress + "/config_dump", 404, ""},
		{"GET", c.PrometheusAddress + "/stats/prometheus/../../certs", 404, ""},
	}
	for _, tt := range tests {
		status, body := ask(t, tt.method, "http://"+tt.url)
		if status != tt.status || !strings.Contains(body, tt.body) {
			t.Errorf("%s %s = %d %.80q; want %d and %q", tt.method, tt.url, status, body, tt.status, tt.body)
		}
	}
	// Our listeners are not limited: a second client still gets through with a limit of one.
	for range 3 {
		held, err := net.Dial("tcp", c.ReadyAddress)
		if err != nil {
			t.Fatal(err)
		}
		defer held.Close()
	}
	if status, _ := ask(t, "GET", "http://"+c.ReadyAddress+"/healthz/ready"); status != 503 {
		t.Errorf("readiness at the connection limit = %d, want the agent's 503", status)
	}
}

// startEnvoy runs Envoy on a full bootstrap, without the part that would wait for an agent.
func startEnvoy(t *testing.T, agent string) Config {
	t.Helper()
	dir, err := os.MkdirTemp("", "boot")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := full()
	c.XDSSocket, c.AdminSocket = filepath.Join(dir, "xds.sock"), filepath.Join(dir, "admin.sock")
	c.StatusAddress, c.ReadyAddress, c.PrometheusAddress = agent, freeAddress(t), freeAddress(t)
	c.MaxConnections = 1
	b, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	b.DynamicResources = nil
	text, err := Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "bootstrap.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder // read after Wait only
	cmd := exec.Command(envoyBinary, "-c", file, "--disable-hot-restart", "-l", "warning")
	cmd.Stderr = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Log(out.String())
		}
	})
	awaitListening(t, c.ReadyAddress)
	if info, err := os.Stat(c.AdminSocket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("admin socket: %v, %v; want mode 0600", info, err)
	}
	return c
}

func awaitListening(t *testing.T, address string) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("envoy does not listen: %v", err)
		}
	}
}

func ask(t *testing.T, method, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// askSocket asks Envoy's admin.
func askSocket(t *testing.T, socket, path string) (string, error) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	response, err := client.Get("http://admin" + path)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}
