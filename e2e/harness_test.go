// Package e2e runs the built agent with a real Envoy, a real registry and real plugins. Everything listens on loopback.
package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/testbuffer"
)

// Paths of what the suite runs; TestMain makes sure of them.
var agentBinary, envoyBinary string

func TestMain(m *testing.M) {
	if root := os.Getenv(rootVariable); root != "" {
		becomeContainer(root)
	}
	root, err := filepath.Abs("..")
	if err != nil {
		panic(err)
	}
	agentBinary, envoyBinary = filepath.Join(root, "gateway-agent"), filepath.Join(root, ".tools", "envoy")
	for _, file := range []string{agentBinary, envoyBinary, filepath.Join(root, ".tools", "registry")} {
		if _, err := os.Stat(file); err != nil {
			fmt.Fprintf(os.Stderr, "%v: run 'make e2e'\n", err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// agent is one gateway-agent process with directories and ports of its own.
type agent struct {
	t       *testing.T
	cmd     *exec.Cmd
	args    []string // of the last start
	env     []string // K=V added to its environment
	dir     string   // run and data directories, short: unix sockets live below it
	conf    string   // its --config-dir, when it has one
	status  string   // host:port
	ready   string   // host:port of Envoy's readiness listener
	log     *testbuffer.Buffer
	done    chan struct{}
	exitErr error
}

// newAgent prepares an agent without starting it. Its output is shown when the test fails.
func newAgent(t *testing.T) *agent {
	t.Helper()
	dir, err := os.MkdirTemp("", "gwa")
	if err != nil {
		t.Fatal(err)
	}
	a := &agent{t: t, dir: dir, status: freeAddress(t), ready: freeAddress(t), log: &testbuffer.Buffer{}}
	t.Cleanup(func() {
		a.kill()
		if t.Failed() {
			t.Logf("agent output:\n%s", tail(a.log.String(), 200))
		}
		os.RemoveAll(dir)
	})
	return a
}

func tail(text string, lines int) string {
	all := strings.Split(text, "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// start runs the agent; it can be called again after the process has ended.
func (a *agent) start(args ...string) {
	a.t.Helper()
	common := []string{
		"run", "--data-dir", filepath.Join(a.dir, "data"), "--run-dir", filepath.Join(a.dir, "run"), "--envoy", envoyBinary,
		"--status-address", a.status, "--ready-address", a.ready, "--prometheus-address", "off", "--concurrency", "2",
	}
	a.launch(append([]string{agentBinary}, append(common, args...)...))
}

// restart starts the agent again with the arguments it had last.
func (a *agent) restart() {
	a.t.Helper()
	a.launch(a.args)
}

func (a *agent) launch(args []string) {
	a.t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), a.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	a.args = args
	a.begin(cmd)
}

func (a *agent) begin(cmd *exec.Cmd) {
	a.t.Helper()
	cmd.Stdout, cmd.Stderr = a.log, a.log
	if err := cmd.Start(); err != nil {
		a.t.Fatalf("start %s: %v", cmd, err)
	}
	done := make(chan struct{})
	a.cmd, a.done = cmd, done
	go func() {
		a.exitErr = cmd.Wait()
		close(done)
	}()
}

// startConfig starts the agent on a configuration directory holding the files, and waits until it is ready.
func (a *agent) startConfig(files map[string]string, args ...string) {
	a.t.Helper()
	a.conf = filepath.Join(a.dir, "conf")
	for name, text := range files {
		a.write(name, text)
	}
	a.start(append([]string{"--config-dir", a.conf}, args...)...)
	a.waitReady()
}

// write replaces a file of the configuration directory as an editor does: a new file, renamed.
func (a *agent) write(name, text string) {
	a.t.Helper()
	path := filepath.Join(a.conf, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		a.t.Fatal(err)
	}
	writeFile(a.t, path, []byte(text))
}

func writeFile(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path+".tmp", data, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		t.Fatal(err)
	}
}

func (a *agent) waitReady() {
	a.t.Helper()
	a.eventually(30*time.Second, "the agent is ready", func() error {
		select {
		case <-a.done:
			a.t.Fatalf("the agent ended: %v", a.exitErr)
		default:
		}
		code, body, _, err := get("http://" + a.status + "/healthz/ready")
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("%d %s", code, body)
		}
		return err
	})
}

// signal sends a signal to the agent's process alone.
func (a *agent) signal(sig syscall.Signal) {
	a.t.Helper()
	if err := a.cmd.Process.Signal(sig); err != nil {
		a.t.Fatalf("signal %v: %v", sig, err)
	}
}

// wait returns the agent's exit code, -1 when a signal ended it.
func (a *agent) wait(limit time.Duration) int {
	a.t.Helper()
	select {
	case <-a.done:
	case <-time.After(limit):
		a.t.Fatalf("the agent did not end within %v", limit)
	}
	if exit, ok := errors.AsType[*exec.ExitError](a.exitErr); ok {
		return exit.ExitCode()
	}
	if a.exitErr != nil {
		a.t.Fatal(a.exitErr)
	}
	return 0
}

// kill ends the agent at once, and waits; Envoy goes with it.
func (a *agent) kill() {
	if a.cmd == nil {
		return
	}
	_ = a.cmd.Process.Kill()
	<-a.done
	a.cmd = nil
}

// control asks the control socket.
func (a *agent) control(path string) ([]byte, error) { return a.ask("control.sock", path) }

// admin asks Envoy's admin socket.
func (a *agent) admin(path string) ([]byte, error) { return a.ask("admin.sock", path) }

func (a *agent) ask(socket, path string) ([]byte, error) {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(a.dir, "run", socket))
		},
	}}
	response, err := client.Get("http://" + socket + path)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, response.Status, body)
	}
	return body, err
}

// statusText is what `gateway-agent status` prints.
func (a *agent) statusText(args ...string) string {
	a.t.Helper()
	cmd := exec.CommandContext(a.t.Context(), agentBinary, append([]string{"status", "--run-dir", filepath.Join(a.dir, "run")}, args...)...)
	out, err := cmd.CombinedOutput()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		a.t.Fatal(err)
	}
	return string(out)
}

// statusJSON decodes `gateway-agent status -o json`.
func (a *agent) statusJSON(into any) {
	a.t.Helper()
	text := a.statusText("-o", "json")
	if err := json.Unmarshal([]byte(text), into); err != nil {
		a.t.Fatalf("status -o json: %v in %s", err, text)
	}
}

// envoyPID is the process that the agent runs now.
func (a *agent) envoyPID() int {
	a.t.Helper()
	var doc struct {
		Envoy struct {
			PID int `json:"pid"`
		} `json:"envoy"`
	}
	a.statusJSON(&doc)
	if doc.Envoy.PID == 0 {
		a.t.Fatal("status has no envoy.pid")
	}
	return doc.Envoy.PID
}

// eventually waits until check returns nil.
func (a *agent) eventually(limit time.Duration, what string, check func() error) time.Duration {
	a.t.Helper()
	return eventually(a.t, limit, what, check)
}

func eventually(t *testing.T, limit time.Duration, what string, check func() error) time.Duration {
	t.Helper()
	start := time.Now()
	for {
		err := check()
		if err == nil {
			return time.Since(start)
		}
		if time.Since(start) > limit {
			t.Fatalf("not within %v: %s: %v", limit, what, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

var client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// get asks once, over a connection of its own.
func get(url string) (int, string, http.Header, error) {
	response, err := client.Get(url)
	if err != nil {
		return 0, "", nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, strings.TrimSpace(string(body)), response.Header, err
}

// wantHeader checks one response: status 200 with the header's value.
func wantHeader(url, header, want string) error {
	code, body, headers, err := get(url)
	if err != nil {
		return err
	}
	if code != http.StatusOK || headers.Get(header) != want {
		return fmt.Errorf("GET %s = %d, %s %q, body %.200q; want 200, %q", url, code, header, headers.Get(header), body, want)
	}
	return nil
}

func wantCode(url string, want int) error {
	code, body, _, err := get(url)
	if err != nil {
		return err
	}
	if code != want {
		return fmt.Errorf("GET %s = %d, body %.200q; want %d", url, code, body, want)
	}
	return nil
}

var usedPorts sync.Map

// freeAddress is a loopback address nobody listens on, below the ephemeral range so that no client's port takes it.
func freeAddress(t *testing.T) string {
	t.Helper()
	for port := 20000 + os.Getpid()%5000; port < 32000; port++ {
		if _, used := usedPorts.LoadOrStore(port, true); used {
			continue
		}
		address := fmt.Sprintf("127.0.0.1:%d", port)
		listener, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		listener.Close()
		return address
	}
	t.Fatal("no free port")
	return ""
}

func port(address string) string {
	_, port, _ := net.SplitHostPort(address)
	return port
}
