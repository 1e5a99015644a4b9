package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// plainGateway is an agent that serves one listener without plugins.
func plainGateway(t *testing.T, args ...string) (a *agent, url string) {
	t.Helper()
	a = newAgent(t)
	address := freeAddress(t)
	a.startConfig(map[string]string{"all.yaml": resources(listener("main", address), cluster("origin", startOrigin(t)))}, args...)
	return a, "http://" + address + "/"
}

func TestEnvoyKilledServesAgain(t *testing.T) {
	reg := startRegistry(t)
	reg.push("hello:v1", helloModule(t, "v1"))
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			a, url := gatewayOf(t, plugin{name: "hello", uri: reg.uri("hello:v1"), value: "back"}, "--xds-mode", mode)
			for range 3 {
				pid := a.envoyPID()
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				waitGone(t, pid, time.Second)
				took := a.eventually(3*time.Second, "the plugin serves again", func() error { return wantHeader(url, "x-hello", "back") })
				t.Logf("serving again after %v", took)
			}
		})
	}
}

// waitGone waits until no process has the pid, or only a zombie does.
func waitGone(t *testing.T, pid int, limit time.Duration) {
	t.Helper()
	eventually(t, limit, fmt.Sprintf("process %d is gone", pid), func() error {
		stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		if err != nil {
			return nil
		}
		if _, state, ok := strings.Cut(string(stat), ") "); ok && strings.HasPrefix(state, "Z") {
			return nil
		}
		return fmt.Errorf("it lives: %.60s", stat)
	})
}

func TestAgentKilledTakesEnvoyAlong(t *testing.T) {
	t.Parallel()
	a, url := plainGateway(t)
	pid := a.envoyPID()
	if err := wantCode(url, 200); err != nil {
		t.Fatal(err)
	}
	a.signal(syscall.SIGKILL)
	waitGone(t, pid, time.Second)
}

func TestSIGTERMLetsRequestsFinish(t *testing.T) {
	t.Parallel()
	a, url := plainGateway(t, "--drain-delay", "1s", "--drain-timeout", "20s")
	l := startLoad(t, url, 100)
	type answer struct {
		code int
		err  error
		took time.Duration
	}
	slow := make(chan answer, 1) // one answer
	go func() {
		start := time.Now()
		response, err := (&http.Client{Timeout: 30 * time.Second}).Post(url+"slow/5s", "text/plain", nil)
		if err != nil {
			slow <- answer{err: err}
			return
		}
		defer response.Body.Close()
		_, err = io.ReadAll(response.Body)
		slow <- answer{response.StatusCode, err, time.Since(start)}
	}()
	time.Sleep(time.Second)
	a.signal(syscall.SIGTERM)
	time.Sleep(300 * time.Millisecond)
	if err := wantCode("http://"+a.status+"/healthz/ready", 503); err != nil {
		t.Errorf("readiness while draining: %v", err)
	}
	l.wantNoFailure(100) // the load balancer has noticed: it stops before the listeners close
	if got := <-slow; got.err != nil || got.code != 200 || got.took < 4*time.Second {
		t.Errorf("the request in flight got %+v, want 200 after 5 s", got)
	}
	if code := a.wait(15 * time.Second); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

func TestKeepAliveClientsAreToldBeforeTheListenersClose(t *testing.T) {
	t.Parallel()
	a, url := plainGateway(t, "--drain-delay", "2s")
	conn, err := net.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ask := func() string {
		fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		buf := make([]byte, 4096)
		n, err := conn.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		return strings.ToLower(string(buf[:n]))
	}
	if first := ask(); !strings.Contains(first, "200 ok") || strings.Contains(first, "connection: close") {
		t.Fatalf("before the drain: %s", first)
	}
	a.signal(syscall.SIGTERM)
	time.Sleep(500 * time.Millisecond)
	if second := ask(); !strings.Contains(second, "200 ok") || !strings.Contains(second, "connection: close") {
		t.Errorf("while draining: %s\nwant 200 with Connection: close", second)
	}
	if code := a.wait(15 * time.Second); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

func TestDrainTimeoutEndsARequestThatDoesNot(t *testing.T) {
	t.Parallel()
	a, url := plainGateway(t, "--drain-timeout", "2s")
	go func() { _, _, _, _ = get(url + "slow/60s") }()
	time.Sleep(500 * time.Millisecond)
	start := time.Now()
	a.signal(syscall.SIGTERM)
	if code := a.wait(10 * time.Second); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if took := time.Since(start); took < 1500*time.Millisecond {
		t.Errorf("ended after %v: the request had until the deadline", took)
	}
}

func TestStartCrashLoopEndsWithEnvoysLastWords(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	a := newAgent(t)
	a.ready = taken.Addr().String() // a static listener: Envoy cannot start without its port
	a.conf = filepath.Join(a.dir, "conf")
	a.write("all.yaml", resources(listener("main", freeAddress(t)), cluster("origin", startOrigin(t))))
	a.start("--config-dir", a.conf)
	if code := a.wait(60 * time.Second); code == 0 {
		t.Error("exit code 0, want another")
	}
	lastLine := tail(strings.TrimSpace(a.log.String()), 6)
	if !strings.Contains(lastLine, "Address already in use") {
		t.Errorf("the last lines do not say why Envoy died:\n%s", lastLine)
	}
}

func TestEnvoyNoneServesEverythingElse(t *testing.T) {
	t.Parallel()
	a := newAgent(t)
	a.conf = filepath.Join(a.dir, "conf")
	a.write("all.yaml", resources(listener("main", freeAddress(t)), cluster("origin", startOrigin(t))))
	a.start("--config-dir", a.conf, "--envoy=none")
	a.eventually(10*time.Second, "the agent is alive", func() error { return wantCode("http://"+a.status+"/healthz/live", 200) })
	for _, name := range []string{"xds.sock", "control.sock", "bootstrap.json"} {
		if _, err := os.Stat(filepath.Join(a.dir, "run", name)); err != nil {
			t.Error(err)
		}
	}
	a.signal(syscall.SIGTERM)
	if code := a.wait(5 * time.Second); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

func TestSecondAgentInTheSameRunDirIsRefused(t *testing.T) {
	t.Parallel()
	a, url := plainGateway(t)
	other := newAgent(t)
	other.start("--config-dir", a.conf, "--run-dir", filepath.Join(a.dir, "run"))
	if code := other.wait(10 * time.Second); code != 1 || !strings.Contains(other.log.String(), "another gateway-agent runs there") {
		t.Errorf("exit code %d, output %s", code, other.log)
	}
	if err := wantCode(url, 200); err != nil {
		t.Errorf("the first one suffered: %v", err)
	}
}
