package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/gateway-agent/gateway-agent/internal/registrytest"
	"github.com/gateway-agent/gateway-agent/internal/testca"
	"github.com/gateway-agent/gateway-agent/internal/wasmtest"
)

// moduleRig gives each script a real registry behind a proxy of its own ($REGISTRY), which can fail, and a private one with a certificate
// that only $CA vouches for ($PRIVATE, the docker configuration $AUTH). Modules are in $WORK/mod.
type moduleRig struct {
	plain, private *registrytest.Registry
	ca             string
}

func newModuleRig(t *testing.T) *moduleRig {
	dir := t.TempDir()
	authority := testca.New(t, "registry CA")
	pair := authority.Issue(t, testca.Leaf{})
	files := map[string][]byte{"ca.pem": authority.PEM, "tls.crt": pair.CertPEM, "tls.key": pair.KeyPEM}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return &moduleRig{
		plain:   registrytest.New(t),
		private: registrytest.New(t, registrytest.WithAccount(), registrytest.WithTLS(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))),
		ca:      filepath.Join(dir, "ca.pem"),
	}
}

type proxyKey struct{}

func (m *moduleRig) setup(t *testing.T, env *testscript.Env) error {
	proxy := registrytest.NewProxy(t, m.plain.Addr)
	env.Values[proxyKey{}] = proxy
	_, port, _ := net.SplitHostPort(m.private.Addr)
	login := base64.StdEncoding.EncodeToString([]byte(registrytest.User + ":" + registrytest.Password))
	auth := filepath.Join(env.WorkDir, "auth")
	env.Setenv("REGISTRY", proxy.Addr)
	env.Setenv("PRIVATE", net.JoinHostPort("localhost", port))
	env.Setenv("CA", m.ca)
	env.Setenv("AUTH", auth)
	second := wasmtest.New(nil)
	second.Custom("producers", []byte("\x01\x08language\x01\x04Rust\x042021"))
	for name, data := range map[string][]byte{
		"auth/config.json": fmt.Appendf(nil, `{"auths": {"localhost:%s": {"auth": %q}}}`, port, login),
		"mod/one.wasm":     wasmtest.Minimal(), "mod/two.wasm": second.Bytes(), "mod/broken.wasm": wasmtest.NoMalloc(), "mod/cut.wasm": wasmtest.Truncated(),
	} {
		path := filepath.Join(env.WorkDir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// commands are `agent [code=N] ARGS`, which runs the command line inside the test, for speed and for the race detector: paths must be
// absolute; `envsubst FILE`, which puts variables into a file, and those for the registry: `registry down|up`, `registry hang`, which lets
// blobs begin and never end, `registry await PART`, until a request has PART in its path, `registry saw N PART`, and `registry forget`.
func (m *moduleRig) commands() map[string]func(*testscript.TestScript, bool, []string) {
	return map[string]func(*testscript.TestScript, bool, []string){"agent": agent, "envsubst": envsubst, "registry": func(ts *testscript.TestScript, _ bool, args []string) {
		proxy := ts.Value(proxyKey{}).(*registrytest.Proxy)
		switch {
		case len(args) == 1 && args[0] == "down":
			proxy.Fail("/", registrytest.Fault{Status: 503})
		case len(args) == 1 && args[0] == "hang":
			proxy.Fail("/blobs/", registrytest.Fault{Hang: true, Cut: 1})
		case len(args) == 2 && args[0] == "await":
			for deadline := time.Now().Add(time.Minute); len(proxy.Requests(args[1])) == 0; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(deadline) {
					ts.Fatalf("no request with %q in its path", args[1])
				}
			}
		case len(args) == 1 && args[0] == "up":
			proxy.Repair()
		case len(args) == 1 && args[0] == "forget":
			proxy.Forget()
		case len(args) == 3 && args[0] == "saw":
			if got := proxy.Requests(args[2]); strconv.Itoa(len(got)) != args[1] {
				ts.Fatalf("the registry saw %v with %q in the path, want %s of them", got, args[2], args[1])
			}
		default:
			ts.Fatalf("usage: registry down|up|hang|forget|await PART|saw N PART")
		}
	}}
}

func agent(ts *testscript.TestScript, fails bool, args []string) {
	var env []string
	for _, name := range []string{"HOME", "PATH", "DOCKER_CONFIG", "HTTPS_PROXY", "HTTP_PROXY", "GATEWAY_AGENT_DATA_DIR"} {
		env = append(env, name+"="+ts.Getenv(name))
	}
	want := "0"
	if fails {
		want = "1"
	}
	if code, ok := strings.CutPrefix(args[0], "code="); ok {
		args, want = args[1:], code
	}
	if got := strconv.Itoa(run(context.Background(), args, env, ts.Stdout(), ts.Stderr())); got != want {
		ts.Fatalf("exit code %s, want %s", got, want)
	}
}

func envsubst(ts *testscript.TestScript, _ bool, files []string) {
	for _, file := range files {
		ts.Check(os.WriteFile(ts.MkAbs(file), []byte(os.Expand(ts.ReadFile(file), ts.Getenv)), 0o600))
	}
}
