// Command demo runs gateway-agent on examples/edge with all that the example needs on this machine: a registry holding a plugin,
// an origin server and a development certificate. It shows that the plugin changed real requests.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gateway-agent/gateway-agent/sds"
)

const (
	registryAddress = "127.0.0.1:10055"
	originAddress   = "127.0.0.1:10080"
	statusURL       = "http://127.0.0.1:15020/healthz/ready"
	exampleDir      = "examples/edge"
	workDir         = ".demo"
)

var shown = []struct{ url, want string }{
	{"http://127.0.0.1:10000/", "from the inline plugin"},
	{"https://127.0.0.1:10443/", "from plugins.yaml"},
}

func main() {
	once := flag.Bool("once", false, "check everything, then exit: 0 when all was so")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	d := &demo{once: *once}
	err := d.run(ctx)
	if err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// demo holds what was started, to be stopped in reverse.
type demo struct {
	once    bool
	cleanup []func() error
	runDir  string
}

func (d *demo) run(ctx context.Context) (err error) {
	defer func() {
		for i := len(d.cleanup) - 1; i >= 0; i-- {
			err = errors.Join(err, d.cleanup[i]())
		}
	}()
	steps := []struct {
		name string
		do   func(context.Context) error
	}{
		{"plugin: compile testdata/plugins/hello, versions v1 and v2", d.buildPlugins},
		{"registry: start on " + registryAddress + " and push hello:v1 and hello:v2", d.startRegistry},
		{"origin: start on " + originAddress, d.startOrigin},
		{"certificate: self-signed, in " + exampleDir + "/certs", d.makeCertificate},
		{"agent: gateway-agent run --config-dir " + exampleDir, d.startAgent},
	}
	if err := portsFree(); err != nil {
		return err
	}
	for _, step := range steps {
		fmt.Println("•", step.name)
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	fmt.Println()
	for _, s := range shown {
		if err := show(ctx, s.url, s.want); err != nil {
			return err
		}
	}
	if d.once {
		return d.status(ctx)
	}
	d.explain()
	<-ctx.Done()
	fmt.Println("\nstopping: the agent drains Envoy, then everything ends")
	return nil
}

func portsFree() error {
	for _, address := range []string{registryAddress, originAddress, "127.0.0.1:10000", "127.0.0.1:10443", "127.0.0.1:15020"} {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			return fmt.Errorf("the demo needs %s: %w", address, err)
		}
		listener.Close()
	}
	return nil
}

func plugin(version string) string { return filepath.Join(workDir, "hello-"+version+".wasm") }

func (d *demo) buildPlugins(ctx context.Context) error {
	// A tag is taken from the store when it is there: the demo starts without what an earlier one left.
	if err := errors.Join(os.RemoveAll(workDir), os.MkdirAll(workDir, 0o755)); err != nil {
		return err
	}
	for _, version := range []string{"v1", "v2"} {
		out, err := filepath.Abs(plugin(version))
		if err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildmode=c-shared",
			"-ldflags=-s -w -X main.version="+version, "-o", out, "./testdata/plugins/hello")
		cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
		if text, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, text)
		}
	}
	return nil
}

func (d *demo) startRegistry(ctx context.Context) error {
	root, err := filepath.Abs(filepath.Join(workDir, "registry"))
	if err != nil {
		return err
	}
	config := filepath.Join(workDir, "registry.yml")
	text := fmt.Sprintf("version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %q}}\nhttp: {addr: %q}\n", root, registryAddress)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return err
	}
	if err := d.start("registry", ".tools/registry", "serve", config); err != nil {
		return err
	}
	if err := waitFor(ctx, "http://"+registryAddress+"/v2/"); err != nil {
		return err
	}
	for _, version := range []string{"v1", "v2"} {
		if err := push(ctx, plugin(version), registryAddress+"/hello:"+version); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) startOrigin(context.Context) error {
	listener, err := net.Listen("tcp", originAddress)
	if err != nil {
		return err
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "origin says: %s %s\n", r.Method, r.URL.Path)
	})}
	go func() { _ = server.Serve(listener) }()
	d.cleanup = append(d.cleanup, server.Close)
	return nil
}

func (d *demo) makeCertificate(context.Context) error {
	_, _, err := sds.SelfSigned(filepath.Join(exampleDir, "certs"), []string{"localhost", "127.0.0.1"})
	return err
}

func (d *demo) startAgent(ctx context.Context) (err error) {
	// A unix socket's path is short: the checkout's may be too long for the run directory.
	if d.runDir, err = os.MkdirTemp("", "gateway-agent-demo"); err != nil {
		return err
	}
	d.cleanup = append(d.cleanup, func() error { return os.RemoveAll(d.runDir) })
	err = d.start("agent", "./gateway-agent", "run", "--config-dir", exampleDir, "--data-dir", filepath.Join(workDir, "data"),
		"--run-dir", d.runDir, "--envoy", ".tools/envoy")
	if err != nil {
		return err
	}
	return waitFor(ctx, statusURL)
}

// start runs a program with its output in .demo, to be ended by SIGTERM.
func (d *demo) start(name string, args ...string) error {
	logFile, err := os.Create(filepath.Join(workDir, name+".log"))
	if err != nil {
		return err
	}
	cmd := exec.Command(args[0], args[1:]...) //nolint:noctx // ended by SIGTERM below, so that it can drain
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	d.cleanup = append(d.cleanup, func() error {
		defer logFile.Close()
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil && name == "agent" {
			return fmt.Errorf("%s: %w; see %s", name, err, logFile.Name())
		}
		return nil
	})
	return nil
}

func waitFor(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		status, body, _, err := get(ctx, url)
		if err == nil && status == http.StatusOK {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s did not answer 200 in 30 s (last: %d %s%v); the logs are in %s", url, status, body, errText(err), workDir)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// get trusts any certificate: the demo's is self-signed.
func get(ctx context.Context, url string) (int, string, http.Header, error) {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, "", nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	return response.StatusCode, strings.TrimSpace(string(body)), response.Header, err
}

func show(ctx context.Context, url, want string) error {
	status, body, header, err := get(ctx, url)
	if err != nil {
		return err
	}
	fmt.Printf("GET %-26s %d  x-hello: %s  x-hello-version: %s  (%s)\n", url, status, header.Get("x-hello"), header.Get("x-hello-version"), body)
	if status != http.StatusOK || header.Get("x-hello") != want {
		return fmt.Errorf("%s: want 200 and x-hello: %s", url, want)
	}
	return nil
}

func (d *demo) status(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "./gateway-agent", "status", "--run-dir", d.runDir)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	fmt.Println()
	return cmd.Run()
}

func (d *demo) explain() {
	fmt.Printf(`
The plugin came from the registry as oci://%s/hello:v1, was checked, and Envoy loaded it from a local file.

  try     curl -i http://127.0.0.1:10000/        curl -ik https://127.0.0.1:10443/
  why     ./gateway-agent status --run-dir %s
  edit    %s/envoy.yaml: change x-hello's value, or hello:v1 to hello:v2; or break it, and look at status
  stop    Ctrl-C
`, registryAddress, d.runDir, exampleDir)
}
