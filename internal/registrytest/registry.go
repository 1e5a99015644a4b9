// Package registrytest runs the real distribution registry for tests, fills it with modules in every layout that tools produce, and
// puts a proxy in front of it that fails on demand.
package registrytest

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"golang.org/x/crypto/bcrypt"

	"github.com/gateway-agent/gateway-agent/internal/wasmtest"
)

// User is the account of a registry started with WithAccount.
const User = "puller"

// Password is the password of User, another one in every run. Do not change it.
var Password = rand.Text()

const startTimeout = 30 * time.Second

// Registry is a running distribution registry.
type Registry struct {
	// Addr is its host:port on loopback; it stays the same over Stop and Start.
	Addr string

	dir    string
	config string // everything but the address
	cert   string // PEM files for https; "" for plain HTTP
	key    string
	roots  *x509.CertPool // that hold cert
	auth   authn.Authenticator
	stdin  io.Closer
	done   chan struct{} // closed when the process ended
}

// Option changes what New starts.
type Option func(*Registry, *strings.Builder)

// WithAccount makes the registry private: only User with Password may push and pull.
func WithAccount() Option {
	return func(r *Registry, config *strings.Builder) {
		r.auth = &authn.Basic{Username: User, Password: Password}
		fmt.Fprintf(config, "auth: {htpasswd: {realm: test, path: %q}}\n", filepath.Join(r.dir, "htpasswd"))
	}
}

// WithTokenRealm makes the registry ask for a bearer token from realm; it takes any token.
func WithTokenRealm(realm string) Option {
	return func(r *Registry, config *strings.Builder) {
		r.auth = authn.FromConfig(authn.AuthConfig{RegistryToken: "push"})
		fmt.Fprintf(config, "auth: {silly: {realm: %q, service: test}}\n", realm)
	}
}

// WithTLS makes the registry speak https with the PEM files given.
func WithTLS(cert, key string) Option {
	return func(r *Registry, _ *strings.Builder) { r.cert, r.key = cert, key }
}

// New starts a registry that ends with the test. Its data lives in a directory of the test.
func New(t testing.TB, options ...Option) *Registry {
	t.Helper()
	r := &Registry{dir: t.TempDir(), auth: authn.Anonymous, Addr: "127.0.0.1:0"}
	hash, err := bcrypt.GenerateFromPassword([]byte(Password), bcrypt.MinCost) // the only form that the registry takes
	if err == nil {
		err = os.WriteFile(filepath.Join(r.dir, "htpasswd"), fmt.Appendf(nil, "%s:%s\n", User, hash), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	var config strings.Builder
	for _, option := range options {
		option(r, &config)
	}
	r.config = config.String()
	if r.cert != "" {
		r.roots = readRoots(t, r.cert)
	}
	r.Start(t)
	t.Cleanup(r.Stop)
	return r
}

// Start starts a stopped registry again, on the same address and data.
func (r *Registry) Start(t testing.TB) {
	t.Helper()
	path := filepath.Join(r.dir, "config.yml")
	if err := os.WriteFile(path, []byte(r.yaml()), 0o600); err != nil {
		t.Fatal(err)
	}
	// The shell ends the registry when its standard input does, so that a test that dies leaves no process behind.
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "sh", "-c", `"$0" serve "$1" </dev/null & pid=$!; read -r _; kill -9 $pid; wait`, Binary(t), path)
	cmd.Env = append(os.Environ(), "OTEL_TRACES_EXPORTER=none")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start registry: %v", err)
	}
	r.stdin, r.done = stdin, make(chan struct{})
	listening := make(chan string, 1) // one announcement
	go func() {
		defer close(r.done)
		log := follow(stderr, listening)
		_ = cmd.Wait()
		if !strings.Contains(log, "listening on") {
			listening <- ""
			t.Logf("registry:\n%s", log)
		}
	}()
	select {
	case r.Addr = <-listening:
	case <-time.After(startTimeout):
	}
	if r.Addr == "" {
		t.Fatalf("the registry did not start within %v", startTimeout)
	}
}

var listeningOn = regexp.MustCompile(`listening on (127\.0\.0\.1:\d+)`)

// follow reads the registry's log to its end and announces the address. It returns the first lines.
func follow(log io.Reader, listening chan<- string) string {
	var head strings.Builder
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		if head.Len() < 16<<10 {
			head.WriteString(lines.Text() + "\n")
		}
		if m := listeningOn.FindStringSubmatch(lines.Text()); m != nil {
			listening <- m[1]
		}
	}
	return head.String()
}

func (r *Registry) yaml() string {
	tls := ""
	if r.cert != "" {
		tls = fmt.Sprintf(", tls: {certificate: %q, key: %q}", r.cert, r.key)
	}
	return fmt.Sprintf(`version: 0.1
log: {level: info, accesslog: {disabled: true}}
storage:
  filesystem: {rootdirectory: %q}
  delete: {enabled: true}
http: {addr: %q, secret: test%s}
%s`, filepath.Join(r.dir, "data"), r.Addr, tls, r.config)
}

// Stop ends the registry at once; its data stays. It waits until nothing listens.
func (r *Registry) Stop() {
	_ = r.stdin.Close()
	<-r.done
}

// Binary returns the path of the registry that "make tools" builds.
func Binary(t testing.TB) string {
	t.Helper()
	path := filepath.Join(wasmtest.Root(t), ".tools", "registry")
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("no registry at %s: run make tools", path)
	}
	return path
}
