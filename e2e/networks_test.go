package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/registrytest"
	"github.com/gateway-agent/gateway-agent/internal/testca"
	"github.com/gateway-agent/gateway-agent/internal/wasmtest"
)

// mirrorForms are the three ways to write that a registry, which cannot be resolved, has an empty mirror and then a real one.
var mirrorForms = map[string]func(dir, empty, full string) (files map[string]string, path string){
	"own file": func(dir, empty, full string) (map[string]string, string) {
		return map[string]string{"registries.yaml": fmt.Sprintf("registry.invalid:\n  mirrors: [%q, %q]\n", empty, full)}, "registries.yaml"
	},
	"containerd": func(dir, empty, full string) (map[string]string, string) {
		var text strings.Builder
		text.WriteString("server = \"https://registry.invalid\"\n")
		for _, host := range []string{empty, full} {
			fmt.Fprintf(&text, "[host.\"http://%s\"]\n  capabilities = [\"pull\", \"resolve\"]\n", host)
		}
		return map[string]string{"certs.d/registry.invalid/hosts.toml": text.String()}, "certs.d"
	},
	"containers": func(dir, empty, full string) (map[string]string, string) {
		var text strings.Builder
		text.WriteString("[[registry]]\nlocation = \"registry.invalid\"\n")
		for _, host := range []string{empty, full} {
			fmt.Fprintf(&text, "[[registry.mirror]]\nlocation = %q\ninsecure = true\n", host)
		}
		return map[string]string{"registries.conf": text.String()}, "registries.conf"
	},
}

func writeFiles(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		writeFile(t, path, []byte(text))
	}
}

func TestMirrors(t *testing.T) {
	t.Parallel()
	empty, full := registrytest.New(t), startRegistry(t)
	full.pushBytes("team/hello:v1", wasmtest.SmallHello("v1"))
	for name, form := range mirrorForms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			files, path := form(dir, empty.Addr, full.proxy.Addr)
			writeFiles(t, dir, files)
			p := newPlace(t, plugin{name: "mirrored", uri: "oci://registry.invalid/team/hello:v1", value: "from the mirror"})
			a := newAgent(t)
			startPlaces(t, a, "delta", []place{p}, "--registry-config", filepath.Join(dir, path))
			a.eventually(compiled, "the mirror's module serves", p.serves)
		})
	}
}

// TestLyingMirror: what a digest names is the original's bytes, whoever sends them.
func TestLyingMirror(t *testing.T) {
	t.Parallel()
	reg, a, dir := startRegistry(t), newAgent(t), t.TempDir()
	reg.push("team/hello:v1", helloModule(t, "v1"))
	code, err := os.ReadFile(helloModule(t, "v1"))
	if err != nil {
		t.Fatal(err)
	}
	digest := reg.real.Push(t, "team/hello", "v1", registrytest.Compat(t, code))
	reg.proxy.Fail("/manifests/"+digest, registrytest.Fault{Flip: 100})
	writeFiles(t, dir, map[string]string{"registries.yaml": fmt.Sprintf("registry.invalid:\n  mirrors: [%q]\n", reg.proxy.Addr)})
	p := newPlace(t, plugin{name: "mirrored", uri: "oci://registry.invalid/team/hello@" + digest, value: "genuine"})
	startPlaces(t, a, "delta", []place{p}, "--registry-config", filepath.Join(dir, "registries.yaml"), "--wasm-retry-max", "1s", "--wasm-hold", "2s")
	if err := p.refuses(); err != nil {
		t.Error(err)
	}
	if s := a.plugins()["mirrored"]; !strings.Contains(s.Reason, reg.proxy.Addr) || !strings.Contains(s.Reason, "registry.invalid") || !strings.Contains(s.Reason, "digest") {
		t.Errorf("reason = %q, want both endpoints and the digest", s.Reason)
	}
	reg.heal()
	a.eventually(compiled, "the honest mirror's module serves", p.serves)
}

// TestPrivateCA: a registry with a certificate of the site's own authority.
func TestPrivateCA(t *testing.T) {
	t.Parallel()
	ca, dir := testca.New(t, "site"), t.TempDir()
	cert, key := ca.Issue(t, testca.Leaf{Hosts: []string{"127.0.0.1"}}).Write(t, dir)
	if err := os.WriteFile(filepath.Join(dir, "ca.pem"), ca.PEM, 0o644); err != nil {
		t.Fatal(err)
	}
	reg := registrytest.New(t, registrytest.WithTLS(cert, key))
	code, err := os.ReadFile(helloModule(t, "v1"))
	if err != nil {
		t.Fatal(err)
	}
	reg.Push(t, "hello", "v1", registrytest.Compat(t, code))
	writeFiles(t, dir, map[string]string{"registries.yaml": fmt.Sprintf("%q:\n  ca: ca.pem\n", reg.Addr)})
	for _, test := range []struct {
		name string
		args []string
		env  []string
	}{
		{"ca in the registry configuration", []string{"--registry-config", filepath.Join(dir, "registries.yaml")}, nil},
		{"SSL_CERT_FILE", nil, []string{"SSL_CERT_FILE=" + filepath.Join(dir, "ca.pem")}},
		{"insecure registry", []string{"--insecure-registry", reg.Addr}, nil},
		{"nothing", nil, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			a := newAgent(t)
			a.env = test.env
			out, errs, code := a.pull(append(test.args, "oci://"+reg.Addr+"/hello:v1")...)
			if test.name != "nothing" {
				if code != 0 {
					t.Errorf("wasm pull: exit code %d, stdout %q, stderr %q", code, out, errs)
				}
				return
			}
			if code != 1 || !strings.Contains(errs, reg.Addr) || !strings.Contains(errs, "ca") || strings.Count(strings.TrimSpace(errs), "\n") > 0 {
				t.Errorf("wasm pull without the CA: exit code %d, stderr %q; want one line with the registry and the remedy", code, errs)
			}
		})
	}
}

// TestPlainRegistryNeedsAsking: a registry without TLS elsewhere than on loopback gets neither a request nor a password.
func TestPlainRegistryNeedsAsking(t *testing.T) {
	t.Parallel()
	reg, a, dir := startPrivateRegistry(t), newAgent(t), t.TempDir()
	reg.pushBytes("hello:v1", wasmtest.SmallHello("v1"))
	_, port, _ := net.SplitHostPort(reg.proxy.Addr)
	address := net.JoinHostPort("plain.internal", port)
	config := strings.ReplaceAll(reg.dockerConfig(registrytest.Password), reg.proxy.Addr, address)
	writeFile(t, filepath.Join(dir, "config.json"), []byte(config))
	writeFiles(t, dir, map[string]string{"registries.yaml": fmt.Sprintf("%q:\n  mirrors: [%q]\n  mirrors-only: true\n%q:\n  plain-http: true\n", "asked.internal", reg.proxy.Addr, reg.proxy.Addr)})
	a.env = []string{"DOCKER_CONFIG=" + dir}
	reg.proxy.Forget()
	if _, errs, code := a.pull("oci://" + address + "/hello:v1"); code != 1 || !strings.Contains(errs, "plain.internal") {
		t.Errorf("unasked: exit code %d, stderr %q", code, errs)
	}
	for _, r := range reg.proxy.Requests("/") {
		t.Errorf("unasked, it saw %s %s with Authorization %q", r.Method, r.Path, r.Authorization)
	}
	writeFile(t, filepath.Join(dir, "config.json"), []byte(reg.dockerConfig(registrytest.Password)))
	if out, errs, code := a.pull("--registry-config", filepath.Join(dir, "registries.yaml"), "oci://asked.internal/hello:v1"); code != 0 {
		t.Errorf("asked for: exit code %d, stdout %q, stderr %q", code, out, errs)
	}
}

// TestKubeletCredentialProvider: a cloud's credentials come from the plugins that the kubelet uses, and are asked for again when they expire.
func TestKubeletCredentialProvider(t *testing.T) {
	t.Parallel()
	reg, a, dir, seen := startPrivateRegistry(t), newAgent(t), t.TempDir(), &transcript{}
	reg.pushBytes("private:v1", wasmtest.SmallHello("v1"))
	reg.pushBytes("private:v2", wasmtest.SmallHello("v2"))
	calls := filepath.Join(dir, "calls")
	writeFiles(t, dir, map[string]string{
		"providers.yaml": fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
  - name: cloud
    matchImages: ["127.0.0.1:*", %q]
    defaultCacheDuration: 1h
    apiVersion: credentialprovider.kubelet.k8s.io/v1
`, reg.proxy.Addr),
		"bin/cloud": fmt.Sprintf("#!/bin/sh\ncat > /dev/null\necho call >> %s\ncat %s\n", calls, filepath.Join(dir, "answer.json")),
		"answer.json": fmt.Sprintf(`{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1","cacheKeyType":"Registry",
 "cacheDuration":"2s","auth":{%q:{"username":%q,"password":%q}}}`, reg.proxy.Addr, registrytest.User, registrytest.Password),
	})
	if err := os.Chmod(filepath.Join(dir, "bin/cloud"), 0o755); err != nil {
		t.Fatal(err)
	}
	a.env = []string{"DOCKER_CONFIG=" + t.TempDir()}
	p := newPlace(t, plugin{name: "private", uri: reg.uri("private:v1"), value: "mine"})
	cp := startPlaces(t, a, "delta", []place{p}, "--log-level", "debug",
		"--image-credential-provider-config", filepath.Join(dir, "providers.yaml"), "--image-credential-provider-bin-dir", filepath.Join(dir, "bin"))
	a.eventually(compiled, "the module pulled with the provider's credentials serves", p.serves)
	first := time.Now()
	time.Sleep(time.Until(first.Add(2100 * time.Millisecond))) // the credentials expire
	p.uri = reg.uri("private:v2")
	cp.set(itemsOf(t, []place{p})...)
	a.eventually(compiled, "the second module, pulled with fresh credentials", func() error {
		return wantHeader("http://"+p.address+"/", "x-hello-version", "v2")
	})
	data, err := os.ReadFile(calls)
	if n := strings.Count(string(data), "call\n"); n != 2 || err != nil {
		t.Errorf("the provider was run %d times (%v), want twice", n, err)
	}
	a.wantNoTrace(seen, secretWords(registrytest.Password)...)
}

// reloads is how often Envoy took a configuration of the plugin.
func (a *agent) reloads(name string) string {
	a.t.Helper()
	body, err := a.admin("/stats?filter=extension_config_discovery.http_filter." + name + ".config_reload$")
	if err != nil || len(body) == 0 {
		a.t.Fatalf("Envoy's config_reload of %s: %q, %v", name, body, err)
	}
	return strings.TrimSpace(string(body))
}

// TestRefresh: a tag that moves is noticed, one that does not changes nothing.
func TestRefresh(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			const interval = time.Second
			reg, a := startRegistry(t), newAgent(t)
			reg.pushBytes("moving:tag", wasmtest.SmallHello("v1"))
			p := newPlace(t, plugin{name: "moving", uri: reg.uri("moving:tag"), value: "moved"})
			startPlaces(t, a, mode, []place{p}, "--wasm-refresh", interval.String())
			version := func(want string) error { return wantHeader("http://"+p.address+"/", "x-hello-version", want) }
			a.eventually(compiled, "the first module", func() error { return version("v1") })

			before := a.reloads("moving")
			reg.proxy.Forget()
			a.eventually(10*time.Second, "the registry is asked several times about the tag", func() error {
				if n := len(reg.proxy.Requests("/manifests/tag")); n < 4 {
					return fmt.Errorf("%d requests", n)
				}
				return nil
			})
			if after := a.reloads("moving"); after != before {
				t.Errorf("an unchanged tag: Envoy's %s became %s", before, after)
			}
			if n := len(reg.proxy.Requests("/blobs/")); n > 0 {
				t.Errorf("an unchanged tag: %d blobs were asked for", n)
			}
			reg.pushBytes("moving:tag", wasmtest.SmallHello("v2"))
			took := a.eventually(compiled, "the moved tag is live", func() error { return version("v2") })
			t.Logf("live after %v", took)
		})
	}
}

// mustWasm runs a command on the agent's store and wants it to succeed.
func (a *agent) mustWasm(command string, args ...string) string {
	a.t.Helper()
	cmd := exec.CommandContext(a.t.Context(), agentBinary, append([]string{"wasm", command, "--data-dir", filepath.Join(a.dir, "data")}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		a.t.Fatalf("wasm %s %s: %v\n%s", command, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestSiteWithoutNetwork carries modules on a file: pull with a lockfile here, import there, run with the lockfile and no registry.
func TestSiteWithoutNetwork(t *testing.T) {
	t.Parallel()
	reg, here, there, dir := startRegistry(t), newAgent(t), newAgent(t), t.TempDir()
	reg.pushBytes("hello:v1", wasmtest.SmallHello("v1"))
	lockfile, archive := filepath.Join(dir, "modules.lock"), filepath.Join(dir, "modules.tar")
	here.mustWasm("pull", "--lockfile", lockfile, reg.uri("hello:v1"))
	here.mustWasm("export", "--lockfile", lockfile, "--to", archive)
	reg.stop()
	reg.proxy.Forget()
	there.mustWasm("import", archive)

	address := freeAddress(t)
	p := plugin{name: "hello", uri: reg.uri("hello:v1"), value: "carried"}
	there.startConfig(map[string]string{"all.yaml": resources(listener("main", address, p.inline()), cluster("origin", startOrigin(t)))}, "--lockfile", lockfile)
	if err := wantHeader("http://"+address+"/", "x-hello", "carried"); err != nil {
		t.Error(err)
	}
	if asked := reg.proxy.Requests("/"); len(asked) > 0 {
		t.Errorf("the registry was asked: %v", asked)
	}
}
