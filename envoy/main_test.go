package envoy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/testbuffer"
)

const envoyBinary = "../.tools/envoy"

// TestMain turns the test binary into an agent for the tests that kill one.
func TestMain(m *testing.M) {
	if bootstrap := os.Getenv("ENVOY_TEST_AGENT"); bootstrap != "" {
		os.Exit(agent(bootstrap, os.Getenv("ENVOY_TEST_ADMIN")))
	}
	os.Exit(m.Run())
}

// agent runs Envoy until it is killed, and prints Envoy's pid.
func agent(bootstrap, admin string) int {
	s, err := New(Config{Path: envoyBinary, Bootstrap: bootstrap, Admin: admin})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	go func() {
		for s.Status().State != StateLive {
			time.Sleep(5 * time.Millisecond)
		}
		fmt.Println(s.Status().PID)
	}()
	if err := s.Run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// rig is an Envoy configuration on loopback with an upstream of ours.
type rig struct {
	dir       string
	admin     string
	bootstrap string
	web       string // address of the HTTP listener
	tcp       string // address of the TCP listener, which goes to the same upstream
	own       string // address of a listener that counts as the agent's own
}

func newRig(t *testing.T, upstream http.Handler) *rig {
	t.Helper()
	if _, err := os.Stat(envoyBinary); err != nil {
		t.Fatalf("%v: run make tools", err)
	}
	dir, err := os.MkdirTemp("", "envoy") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	r := &rig{dir: dir, admin: filepath.Join(dir, "admin.sock"), bootstrap: filepath.Join(dir, "bootstrap.json")}
	r.web, r.tcp, r.own = freeAddress(t), freeAddress(t), freeAddress(t)
	r.write(t, r.config(serve(t, upstream)))
	return r
}

func (r *rig) write(t *testing.T, bootstrap any) {
	t.Helper()
	text, err := json.Marshal(bootstrap)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(r.bootstrap, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

type object = map[string]any

func (r *rig) config(upstream string) object {
	const types = "type.googleapis.com/envoy.extensions."
	cluster := object{"name": "up", "type": "STATIC", "load_assignment": object{"cluster_name": "up", "endpoints": []object{
		{"lb_endpoints": []object{{"endpoint": object{"address": address(upstream)}}}},
	}}}
	hcm := func(prefix string) object {
		return object{
			"@type": types + "filters.network.http_connection_manager.v3.HttpConnectionManager", "stat_prefix": prefix,
			"upgrade_configs": []object{{"upgrade_type": "websocket"}},
			"route_config": object{"virtual_hosts": []object{{"name": "all", "domains": []string{"*"}, "routes": []object{
				{"match": object{"prefix": "/"}, "route": object{"cluster": "up", "timeout": "0s"}},
			}}}},
			"http_filters": []object{{"name": "router", "typed_config": object{"@type": types + "filters.http.router.v3.Router"}}},
		}
	}
	tcp := object{"@type": types + "filters.network.tcp_proxy.v3.TcpProxy", "stat_prefix": "tcp", "cluster": "up"}
	return object{
		"admin": object{"address": object{"pipe": object{"path": r.admin, "mode": 0o600}}},
		"static_resources": object{
			"clusters":  []object{cluster},
			"listeners": []object{listener("web", r.web, hcm("web.1")), listener("tcp", r.tcp, tcp), listener("gateway_agent_own", r.own, hcm("gateway_agent_own"))},
		},
	}
}

func listener(name, at string, filter object) object {
	return object{
		"name": name, "stat_prefix": name, "address": address(at),
		"filter_chains": []object{{"filters": []object{{"name": name, "typed_config": filter}}}},
	}
}

func address(at string) object {
	host, port, _ := net.SplitHostPort(at)
	return object{"socket_address": object{"address": host, "port_value": json.Number(port)}}
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

func serve(t *testing.T, h http.Handler) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h}
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(l) })
	t.Cleanup(func() { srv.Close(); wg.Wait() })
	return l.Addr().String()
}

// hello answers at once, or after the seconds that the query asks for.
func hello() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if d, err := time.ParseDuration(r.URL.Query().Get("after")); err == nil {
			select {
			case <-time.After(d):
			case <-r.Context().Done():
			}
		}
		io.WriteString(w, "hello")
	})
}

// running is a Supervisor in the middle of Run.
type running struct {
	*Supervisor
	t    *testing.T
	stop context.CancelFunc
	done chan struct{}
	err  error
	logs *testbuffer.Buffer
}

// run starts a Supervisor. The test's end stops it.
func run(t *testing.T, c Config) *running {
	t.Helper()
	logs := &testbuffer.Buffer{}
	if c.Log == nil {
		c.Log = slog.New(slog.NewTextHandler(logs, nil))
	}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &running{Supervisor: s, t: t, stop: stop, done: make(chan struct{}), logs: logs}
	go func() {
		defer close(r.done)
		r.err = s.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		s.Stop()
		<-r.done
		if t.Failed() {
			t.Logf("log:\n%s", logs)
		}
	})
	return r
}

func (r *rig) run(t *testing.T, change func(*Config)) *running {
	t.Helper()
	c := Config{Path: envoyBinary, Bootstrap: r.bootstrap, Admin: r.admin, Concurrency: 2}
	if change != nil {
		change(&c)
	}
	return run(t, c)
}

func (r *running) awaitState(want State) Status {
	r.t.Helper()
	eventually(r.t, 10*time.Second, fmt.Sprintf("state %s", want), func() bool { return r.Status().State == want })
	return r.Status()
}

// await waits for the end of Run.
func (r *running) await(within time.Duration) error {
	r.t.Helper()
	select {
	case <-r.done:
		return r.err
	case <-time.After(within):
		r.t.Fatalf("Run did not return within %v; status %+v", within, r.Status())
		return nil
	}
}

func eventually(t *testing.T, within time.Duration, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for %s in vain", within, what)
		}
	}
}

// get makes one request on a connection of its own.
func get(url string) (string, error) {
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}
	resp, err := c.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %s: %s", resp.Status, body)
	}
	return string(body), err
}

func serving(address string) bool {
	body, err := get("http://" + address + "/")
	return err == nil && body == "hello"
}

// script writes an executable shell script that stands for Envoy.
func script(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "envoy")
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return file
}
