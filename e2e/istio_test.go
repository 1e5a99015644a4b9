package e2e

import (
	"encoding/base64"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/gateway-agent/gateway-agent/internal/registrytest"
	"github.com/gateway-agent/gateway-agent/internal/wasmtest"
)

// The variables with which istiod tells an agent how to get a module.
const (
	pullSecret      = "ISTIO_META_WASM_IMAGE_PULL_SECRET"
	pullPolicy      = "ISTIO_META_WASM_IMAGE_PULL_POLICY"
	resourceVersion = "ISTIO_META_WASM_PLUGIN_RESOURCE_VERSION"
)

// startPrivateRegistry takes only registrytest.User.
func startPrivateRegistry(t *testing.T) *registry {
	t.Helper()
	r := registrytest.New(t, registrytest.WithAccount())
	return &registry{t: t, real: r, proxy: registrytest.NewProxy(t, r.Addr)}
}

func basicAuth(password string) string {
	return base64.StdEncoding.EncodeToString([]byte(registrytest.User + ":" + password))
}

// dockerConfig is the content of a Kubernetes pull secret, or of ~/.docker/config.json.
func (r *registry) dockerConfig(password string) string {
	return fmt.Sprintf(`{"auths":{"%s":{"username":"%s","password":"%s","auth":"%s"}}}`, r.proxy.Addr, registrytest.User, password, basicAuth(password))
}

// transcript collects what Envoy's side says to the control plane.
type transcript struct {
	mu   sync.Mutex
	text strings.Builder
}

type transcriber struct {
	grpc.ServerStream
	to *transcript
}

func (s transcriber) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	switch m := m.(type) {
	case *discoveryv3.DiscoveryRequest:
		s.to.add(prototext.Format(m))
	case *discoveryv3.DeltaDiscoveryRequest:
		s.to.add(prototext.Format(m))
	}
	return err
}

func (c *transcript) add(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.text.WriteString(text)
}

func (c *transcript) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.String()
}

func (c *transcript) option() grpc.ServerOption {
	return grpc.StreamInterceptor(func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		return next(srv, transcriber{s, c})
	})
}

// wantNoTrace looks for the words wherever the agent and its Envoy show or keep something.
func (a *agent) wantNoTrace(toControlPlane *transcript, words ...string) {
	a.t.Helper()
	places := map[string]string{"status": a.statusText(), "status -o json": a.statusText("-o", "json"), "the control plane's requests": toControlPlane.String()}
	for _, path := range []string{"/config_dump", "/config_dump?resource=ecds_filters", "/server_info", "/stats"} {
		body, err := a.admin(path)
		if err != nil || len(body) == 0 {
			a.t.Fatalf("Envoy's %s: %d bytes, %v", path, len(body), err)
		}
		places["Envoy's "+path] = string(body)
	}
	for _, path := range []string{"/debug/xds", "/debug/wasm", "/debug/sds", "/status", "/debug/pprof/goroutine?debug=2"} {
		body, err := a.control(path)
		if err != nil {
			a.t.Fatal(err)
		}
		places[path] = string(body)
	}
	maps.Copy(places, filesBelow(a.t, a.dir))
	_, metrics, _, err := get("http://" + a.status + "/metrics")
	if err != nil {
		a.t.Fatal(err)
	}
	places["/metrics"], places["the log"] = metrics, a.log.String()
	for place, text := range places {
		for _, word := range words {
			if i := strings.Index(text, word); i >= 0 {
				a.t.Errorf("%s has %q: …%s…", place, word, text[max(0, i-100):min(len(text), i+len(word)+100)])
			}
		}
	}
}

// filesBelow reads the run and the data directory.
func filesBelow(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		files[path] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// secretWords must not be seen anywhere. The password that is wrong is as secret as the right one: it opens something else, perhaps.
func secretWords(passwords ...string) []string {
	words := []string{"ISTIO_META_", `"auths"`, `\"auths\"`}
	for _, p := range passwords {
		words = append(words, p, basicAuth(p))
	}
	return words
}

func TestPullSecret(t *testing.T) {
	t.Parallel()
	const wrong = "wrong-password"
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			reg, a, seen := startPrivateRegistry(t), newAgent(t), &transcript{}
			a.env = []string{"DOCKER_CONFIG=" + t.TempDir()} // without credentials
			reg.pushBytes("private:v1", wasmtest.SmallHello("v1"))
			reg.pushBytes("private:v2", wasmtest.SmallHello("v2"))
			with := func(name, uri string, env map[string]string) place {
				return newPlace(t, plugin{name: name, value: "I am " + name, uri: reg.uri(uri), env: env})
			}
			env := func(secret string) map[string]string {
				return map[string]string{pullSecret: secret, pullPolicy: "IfNotPresent", resourceVersion: "1", "KEPT": "yes"}
			}
			right := with("right", "private:v1", env(reg.dockerConfig(registrytest.Password)))
			others := map[string]struct {
				place
				reason string
			}{
				"empty":     {with("empty", "private:v1", env("")), "empty pull secret"},
				"wrong":     {with("wrong", "private:v1", env(reg.dockerConfig(wrong))), "refused the credentials"},
				"malformed": {with("malformed", "private:v1", env(`{"auths": {"x": "`+wrong)), "docker config JSON"},
				"none":      {with("none", "private:v1", nil), "no credentials for this registry"},
			}
			places := []place{right}
			for _, o := range others {
				places = append(places, o.place)
			}
			origin := cluster("origin", startOrigin(t))
			items := func() []string {
				items := []string{origin}
				for _, p := range places {
					items = append(items, p.xds()...)
				}
				return items
			}
			cp := newControlPlane(t, seen.option())
			cp.set(items()...)
			a.start("--xds-address", cp.address, "--xds-mode", mode, "--log-level", "debug", "--wasm-retry-max", "2s")
			a.waitReady()
			if err := right.serves(); err != nil {
				t.Error(err)
			}
			for name, o := range others {
				if err := o.refuses(); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				if s := a.plugins()[name]; s.State != "policy" || !strings.Contains(s.Reason, o.reason) || s.URL != reg.uri("private:v1") {
					t.Errorf("status of %s = %+v, want the policy because of %q", name, s, o.reason)
				}
			}
			a.wantNoTrace(seen, secretWords(registrytest.Password, wrong)...)

			// The Secret is corrected, nothing else is.
			places[0].uri = reg.uri("private:v2")
			for i := range places[1:] {
				places[i+1].env = env(reg.dockerConfig(registrytest.Password))
			}
			cp.set(items()...)
			for _, p := range places {
				a.eventually(compiled, p.name+" works with the right secret", p.serves)
			}
			a.eventually(compiled, "the update is pulled with the secret too", func() error {
				return wantHeader("http://"+right.address+"/", "x-hello-version", "v2")
			})
			a.wantNoTrace(seen, secretWords(registrytest.Password, wrong)...)

			// A module in the store is not for those who may not pull it.
			late := with("late", "private:v1", nil)
			places = append(places, late)
			cp.set(items()...)
			a.eventually(5*time.Second, "the policy answers for who has no credentials", late.refuses)

			a.kill()
			a.restart()
			a.waitReady()
			for _, p := range places[:len(places)-1] {
				if err := p.serves(); err != nil {
					t.Errorf("after a restart: %v", err)
				}
			}
			a.wantNoTrace(seen, secretWords(registrytest.Password, wrong)...)
			if kept := filesBelow(t, a.dir)[filepath.Join(a.dir, "data", "plugins.json")]; !strings.Contains(kept, "right") {
				t.Error("the accepted plugins are not on disk, where no secret was found")
			}
			if dump, err := a.admin("/config_dump?resource=ecds_filters"); err != nil || !strings.Contains(string(dump), `"KEPT"`) {
				t.Errorf("Envoy's extension configs, where no secret was found, have no environment at all (%v)", err)
			}
		})
	}
}

// TestPluginThatEnvoyRejectsKeepsItsSecret: Envoy's words about a plugin that it does not take may hold its environment.
func TestPluginThatEnvoyRejectsKeepsItsSecret(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			reg, a, seen := startPrivateRegistry(t), newAgent(t), &transcript{}
			reg.pushBytes("private:v1", wasmtest.SmallHello("v1"))
			env := map[string]string{pullSecret: reg.dockerConfig(registrytest.Password), resourceVersion: "1"}
			p := newPlace(t, plugin{name: "rejected", uri: reg.uri("private:v1"), value: `{"fail_configure": true}`, env: env})
			cp := newControlPlane(t, seen.option())
			cp.set(itemsOf(t, []place{p})...)
			a.start("--xds-address", cp.address, "--xds-mode", mode, "--log-level", "debug")
			a.waitReady()
			a.eventually(5*time.Second, "the policy follows Envoy's rejection", p.refuses)
			if s := a.plugins()["rejected"]; s.State != "rejected" || !strings.Contains(s.Reason, "Unable to create Wasm plugin") {
				t.Errorf("status = %+v, want rejected with Envoy's words", s)
			}
			a.eventually(5*time.Second, "the control plane is told of the rejection", func() error {
				if text := seen.String(); !strings.Contains(text, "Unable to create Wasm plugin") {
					return fmt.Errorf("its requests:\n%s", tail(text, 40))
				}
				return nil
			})
			a.wantNoTrace(seen, secretWords(registrytest.Password)...)
		})
	}
}

func TestPullPolicyAlways(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			reg, a, seen := startRegistry(t), newAgent(t), &transcript{}
			reg.pushBytes("moving:tag", wasmtest.SmallHello("v1"))
			always := newPlace(t, plugin{name: "always", uri: reg.uri("moving:tag"), value: "always", env: map[string]string{pullPolicy: "Always", resourceVersion: "1"}})
			present := newPlace(t, plugin{name: "present", uri: reg.uri("moving:tag"), value: "present", env: map[string]string{pullPolicy: "IfNotPresent", resourceVersion: "1"}})
			origin := cluster("origin", startOrigin(t))
			set := func(cp *controlPlane) { cp.set(append(append([]string{origin}, always.xds()...), present.xds()...)...) }
			cp := newControlPlane(t, seen.option())
			set(cp)
			a.start("--xds-address", cp.address, "--xds-mode", mode, "--log-level", "debug")
			a.waitReady()
			version := func(p place, want string) error { return wantHeader("http://"+p.address+"/", "x-hello-version", want) }
			for _, p := range []place{always, present} {
				if err := version(p, "v1"); err != nil {
					t.Error(err)
				}
			}

			reg.pushBytes("moving:tag", wasmtest.SmallHello("v2"))
			reg.proxy.Forget()
			always.value, present.value = "changed", "changed" // the same version of the resource: the registry is not asked
			set(cp)
			for _, p := range []place{always, present} {
				a.eventually(5*time.Second, "the configuration is live", p.serves)
				if err := version(p, "v1"); err != nil {
					t.Error(err)
				}
			}
			if asked := reg.proxy.Requests("/manifests/"); len(asked) > 0 {
				t.Errorf("the registry was asked %d times with an unchanged resource version", len(asked))
			}

			always.env[resourceVersion], present.env[resourceVersion] = "2", "2"
			set(cp)
			a.eventually(compiled, "Always picks up the moved tag", func() error { return version(always, "v2") })
			if err := version(present, "v1"); err != nil {
				t.Errorf("IfNotPresent: %v", err)
			}
			a.wantNoTrace(seen, "ISTIO_META_")
		})
	}
}

func TestDockerConfig(t *testing.T) {
	t.Parallel()
	reg, a, dir := startPrivateRegistry(t), newAgent(t), t.TempDir()
	reg.pushBytes("private:v1", wasmtest.SmallHello("v1"))
	config := filepath.Join(dir, "config.json")
	writeFile(t, config, []byte(reg.dockerConfig("outdated-password")))
	a.env = []string{"DOCKER_CONFIG=" + dir}
	p := newPlace(t, plugin{name: "private", uri: reg.uri("private:v1"), value: "mine"})
	startPlaces(t, a, "delta", []place{p}, "--wasm-retry-max", "2s", "--log-level", "debug")
	if err := p.refuses(); err != nil {
		t.Error(err)
	}
	if s := a.plugins()["private"]; s.State != "policy" || !strings.Contains(s.Reason, "refused the credentials") {
		t.Errorf("status = %+v, want the policy and the reason", s)
	}
	writeFile(t, config, []byte(reg.dockerConfig(registrytest.Password))) // docker login
	a.eventually(compiled, "the plugin works after docker login", p.serves)
	a.wantNoTrace(&transcript{}, secretWords(registrytest.Password, "outdated-password")...)
}
