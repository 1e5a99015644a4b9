package e2e

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	httpwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	netwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/wasm/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gateway-agent/gateway-agent/internal/registrytest"
	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

const (
	failOpen   = wasmv3.FailurePolicy_FAIL_OPEN
	failReload = wasmv3.FailurePolicy_FAIL_RELOAD
)

// wasmPlugin is a WasmPlugin of the pod's namespace in the very words in which istiod tells a gateway of it, on a listener of its own.
type wasmPlugin struct {
	name, uri, sha256 string
	old               bool                 // as istiod put it before 2026-04
	unknown           bool                 // the listener names it, and istiod has nothing under that name
	network           bool                 // of layer 4
	policy            wasmv3.FailurePolicy // default FAIL_CLOSED
	value             string               // plugin configuration; "": none, which istiod sends as an empty Any
	env               map[string]string    // besides the version of the resource, which is always there
	host              []string             // variables that it is to see of Envoy's
	address           string
}

// resource is the name by which Envoy asks for it.
func (p *wasmPlugin) resource() string {
	if p.old {
		return "extensions.istio.io/wasmplugin/ingress." + p.name
	}
	return "extensions.istio.io/trafficextension/ingress." + p.name + "~istio-translated-wasmplugin"
}

// place is where it can be seen to work.
func (p *wasmPlugin) place() place {
	return place{plugin: plugin{name: p.resource(), network: p.network, value: p.value}, address: p.address}
}

func (p *wasmPlugin) messages(t *testing.T) []proto.Message {
	t.Helper()
	types := strings.Join([]string{p.place().filterType(), strings.Replace(p.place().filterType(), ".wasm.v3.Wasm", ".rbac.v3.RBAC", 1)}, ", ")
	filter := fmt.Sprintf(`- name: %s
  config_discovery:
    config_source: { ads: {}, initial_fetch_timeout: 0s, resource_api_version: V3 }
    type_urls: [%s]
`, p.resource(), types)
	all := []proto.Message{decodeItem(t, p.place().listener(filter))}
	if !p.unknown {
		all = append(all, p.extension(t))
	}
	return all
}

func (p *wasmPlugin) extension(t *testing.T) proto.Message {
	t.Helper()
	configuration := &anypb.Any{}
	if p.value != "" {
		configuration = boxed(t, wrapperspb.String(p.value))
	}
	env := map[string]string{resourceVersion: ""}
	maps.Copy(env, p.env)
	config := &wasmv3.PluginConfig{
		Name: p.resource()[strings.LastIndex(p.resource(), "/")+1:], Configuration: configuration,
		Vm: &wasmv3.PluginConfig_VmConfig{VmConfig: &wasmv3.VmConfig{
			Runtime: "envoy.wasm.runtime.v8", Code: p.code(), EnvironmentVariables: &wasmv3.EnvironmentVariables{KeyValues: env, HostEnvKeys: p.host},
		}},
	}
	if config.FailurePolicy = p.policy; p.policy == wasmv3.FailurePolicy_UNSPECIFIED {
		config.FailurePolicy = wasmv3.FailurePolicy_FAIL_CLOSED
	}
	var filter proto.Message = &httpwasmv3.Wasm{Config: config}
	if p.network {
		filter = &netwasmv3.Wasm{Config: config}
	}
	return &corev3.TypedExtensionConfig{Name: p.resource(), TypedConfig: boxed(t, filter)}
}

func (p *wasmPlugin) code() *corev3.AsyncDataSource {
	if file, ok := strings.CutPrefix(p.uri, "file://"); ok {
		return &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Local{
			Local: &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: file}},
		}}
	}
	return &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Remote{Remote: &corev3.RemoteDataSource{
		Sha256:  p.sha256,
		HttpUri: &corev3.HttpUri{Uri: p.uri, Timeout: durationpb.New(30 * time.Second), HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: "_"}},
	}}}
}

func boxed(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	box, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return box
}

// wasmPod is a gateway pod with plugins, each on its own listener.
type wasmPod struct {
	*container
	plugins []*wasmPlugin
}

func newWasmPod(t *testing.T) *wasmPod {
	t.Helper()
	c := newContainer(t)
	c.proxy["drainDuration"] = "1s" // so long Envoy keeps what its old listeners use
	c.proxy["terminationDrainDuration"] = "1s"
	c.env["GATEWAY_AGENT_WASM_HOLD"], c.env["GATEWAY_AGENT_WASM_RETRY_MAX"] = "2s", "2s"
	if err := os.Symlink(filepath.Join(c.root, "etc/istio/proxy"), filepath.Join(c.agent.dir, "run")); err != nil {
		t.Fatal(err)
	}
	return &wasmPod{container: c}
}

// add gives the plugin a listener; publish tells istiod of it.
func (c *wasmPod) add(p *wasmPlugin) *wasmPlugin {
	c.t.Helper()
	p.address = freeAddress(c.t)
	c.plugins = append(c.plugins, p)
	return p
}

func (c *wasmPod) remove(p *wasmPlugin) {
	c.plugins = slices.DeleteFunc(c.plugins, func(other *wasmPlugin) bool { return other == p })
}

func (c *wasmPod) publish() {
	c.t.Helper()
	all := []proto.Message{decodeItem(c.t, cluster("origin", c.origin))}
	for _, p := range c.plugins {
		all = append(all, p.messages(c.t)...)
	}
	c.istiod.Set(all...)
}

// state checks what the status says of a plugin.
func (c *wasmPod) state(p *wasmPlugin, state, reason string) error {
	c.t.Helper()
	s := c.agent.plugins()[p.resource()]
	if s.State != state || !strings.Contains(s.Reason, reason) {
		return fmt.Errorf("status of %s = %+v, want %s with %q", p.name, s, state, reason)
	}
	return nil
}

func (c *wasmPod) live(p *wasmPlugin, code []byte) error {
	c.t.Helper()
	return c.agent.live(p.resource(), hexSHA256(code))
}

// dump is Envoy's own account of its configuration.
func (c *wasmPod) dump() string {
	c.t.Helper()
	_, body, _, err := get("http://" + podAdmin + "/config_dump")
	if err != nil {
		c.t.Fatal(err)
	}
	return body
}

// wantClean: none of the words that are between istiod and the agent are where Envoy or anybody else can see them.
func (c *wasmPod) wantClean(passwords ...string) {
	c.t.Helper()
	words := []string{"ISTIO_META_WASM_"}
	if len(passwords) > 0 {
		words = append(words, secretWords(passwords...)[1:]...)
	}
	c.wantNoSecrets(words...)
}

// outcome is what is to become of a plugin.
type outcome struct {
	*wasmPlugin
	state, reason string
	passes        bool
}

// forms are all that istiod says of plugins, or does not say.
func (c *wasmPod) forms(reg, private *registry, code []byte) []outcome {
	t := c.t
	t.Helper()
	manifest := reg.real.Push(t, "good", "v1", registrytest.Compat(t, code))
	private.pushBytes("private:v1", code)
	makeFile(t, filepath.Join(c.volumes, "var/lib/istio/data/own.wasm"), string(code), 0o644)
	c.istiod.SetPullSecret("kubernetes://ingress/good", []byte(private.dockerConfig(registrytest.Password)+"\n"))
	c.istiod.SetPullSecret("kubernetes://ingress/wrong", []byte(private.dockerConfig(wrongPassword)))
	c.istiod.SetPullSecret("kubernetes://ingress/malformed", []byte(`{"auths": {"x": "`+wrongPassword))
	with := func(secret string) map[string]string {
		return map[string]string{pullSecret: "kubernetes://ingress/" + secret}
	}
	good, missing, secret := reg.uri("good:v1"), reg.uri("missing:v1"), private.uri("private:v1")
	serves := func(p *wasmPlugin) outcome { return outcome{p, "live", "", true} }
	fails := func(p *wasmPlugin, reason string, passes bool) outcome { return outcome{p, "policy", reason, passes} }
	all := []outcome{
		serves(&wasmPlugin{name: "plain", uri: good}),
		serves(&wasmPlugin{name: "before-2026", uri: good, old: true}),
		serves(&wasmPlugin{name: "nil", uri: good, sha256: "nil"}),
		serves(&wasmPlugin{name: "module", uri: good, sha256: hexSHA256(code)}),
		serves(&wasmPlugin{name: "manifest", uri: good, sha256: strings.TrimPrefix(manifest, "sha256:")}),
		serves(&wasmPlugin{name: "by-digest", uri: reg.uri("good@" + manifest)}),
		serves(&wasmPlugin{name: "network", uri: good, network: true}),
		serves(&wasmPlugin{name: "network-nil", uri: good, network: true, sha256: "nil", old: true}),
		serves(&wasmPlugin{name: "environment", uri: good, env: map[string]string{"KEPT": "yes"}, host: []string{"POD_NAME", "NOT_THERE"}}),
		serves(&wasmPlugin{name: "file", uri: "file:///var/lib/istio/data/own.wasm"}),
		serves(&wasmPlugin{name: "secret", uri: secret, env: with("good")}),
		serves(&wasmPlugin{name: "always", uri: good, env: map[string]string{pullPolicy: "Always", resourceVersion: "7"}}),
		fails(&wasmPlugin{name: "checksum", uri: good, sha256: strings.Repeat("ab", 32)}, "wrong digest", false),
		fails(&wasmPlugin{name: "no-checksum", uri: good, sha256: "xyz"}, "xyz", false),
		fails(&wasmPlugin{name: "closed", uri: missing}, "404", false),
		fails(&wasmPlugin{name: "open", uri: missing, policy: failOpen}, "404", true),
		fails(&wasmPlugin{name: "reload", uri: missing, policy: failReload}, "404", false),
		fails(&wasmPlugin{name: "network-closed", uri: missing, network: true}, "404", false),
		fails(&wasmPlugin{name: "network-open", uri: missing, network: true, policy: failOpen}, "404", true),
		fails(&wasmPlugin{name: "no-secret", uri: secret}, "no credentials for this registry", false),
		fails(&wasmPlugin{name: "wrong-secret", uri: secret, env: with("wrong")}, "refused the credentials", false),
		fails(&wasmPlugin{name: "bad-secret", uri: secret, env: with("malformed")}, "docker config JSON", false),
		fails(&wasmPlugin{name: "deleted-secret", uri: good, env: with("deleted")}, "empty pull secret", false),
		fails(&wasmPlugin{name: "unknown", unknown: true}, "the control plane has not sent this resource", false),
		fails(&wasmPlugin{name: "unknown-network", unknown: true, network: true}, "the control plane has not sent this resource", false),
	}
	for _, o := range all {
		c.add(o.wasmPlugin)
	}
	return all
}

const wrongPassword = "not-the-password"

// TestPodWasm: everything that istiod can say of plugins at once, in a gateway that has just started.
func TestPodWasm(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			if !inSpace(t) {
				return
			}
			reg, private, c := startRegistry(t), startPrivateRegistry(t), newWasmPod(t)
			all := c.forms(reg, private, padded("good"))
			c.publish()
			c.start("--xds-mode=" + mode)
			c.agent.waitReady()
			for _, o := range all {
				c.agent.eventually(compiled, o.name, func() error { return c.state(o.wasmPlugin, o.state, o.reason) })
				check := o.place().refuses
				if o.passes {
					check = o.place().passes
				}
				if err := check(); err != nil {
					t.Errorf("%s: %v", o.name, err)
				}
			}
			c.wantNamed(all)
			dump := c.dump()
			for _, want := range []string{`"KEPT": "yes"`, `"POD_NAME"`, `"NOT_THERE"`} {
				if !strings.Contains(dump, want) {
					t.Errorf("Envoy's configuration lacks %s", want)
				}
			}
			if _, envoy := c.processes(); !strings.Contains(readProc(t, envoy, "environ"), "POD_NAME=gw-abc") {
				t.Error("Envoy has not got the pod's variables, which plugins may ask for")
			}
			c.wantClean(registrytest.Password, wrongPassword)
		})
	}
}

// wantNamed: who asks why the gateway is not as it should be is told of each plugin.
func (c *wasmPod) wantNamed(all []outcome) {
	c.t.Helper()
	code, verbose, _, err := get("http://" + podStatus + "/readyz?verbose")
	if err != nil || code != http.StatusOK {
		c.t.Errorf("/readyz?verbose = %d, %v", code, err)
	}
	text := c.agent.statusText()
	for _, o := range all {
		if o.state != "live" && (!strings.Contains(verbose, o.resource()) || !strings.Contains(text, o.resource())) {
			c.t.Errorf("%s is not in /readyz?verbose, or not in the status:\n%s\n%s", o.name, verbose, text)
		}
	}
}

// TestPodWasmChanges: what istiod changes of plugins that run.
func TestPodWasmChanges(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			if !inSpace(t) {
				return
			}
			reg, private, c := startRegistry(t), startPrivateRegistry(t), newWasmPod(t)
			reg.pushBytes("moving:tag", padded("one"))
			private.pushBytes("private:v1", padded("private"))
			const reference = "kubernetes://ingress/regcred"
			c.istiod.SetPullSecret(reference, []byte(private.dockerConfig(wrongPassword)))
			c.add(&wasmPlugin{name: "kept", uri: reg.uri("moving:tag"), value: "kept"})
			secret := c.add(&wasmPlugin{name: "secret", uri: private.uri("private:v1"), env: map[string]string{pullSecret: reference}})
			moving := c.add(&wasmPlugin{name: "moving", uri: reg.uri("moving:tag"), env: map[string]string{pullPolicy: "Always"}})
			c.publish()
			c.start("--xds-mode=" + mode)
			c.agent.waitReady()
			c.wantSecretFollowed(private, secret, reference)
			c.wantTagFollowed(reg, moving)
			c.wantRemoved(moving)
			c.wantClean(registrytest.Password, wrongPassword)
		})
	}
}

// wantSecretFollowed changes the Secret alone: from a wrong one to the right one, to none, and back.
func (c *wasmPod) wantSecretFollowed(private *registry, p *wasmPlugin, reference string) {
	t, live := c.t, func() error { return c.live(p, padded("private")) }
	t.Helper()
	c.agent.eventually(soon, "the wrong secret is told", func() error { return c.state(p, "policy", "refused the credentials") })
	right := []byte(private.dockerConfig(registrytest.Password))
	c.istiod.SetPullSecret(reference, right)
	t.Logf("live %v after the Secret was right", c.agent.eventually(soon, "the right secret is used", live))
	if err := p.place().passes(); err != nil {
		t.Error(err)
	}
	c.istiod.SetPullSecret(reference, nil)
	c.agent.eventually(soon, "a Secret that is gone is told", func() error { return c.state(p, "degraded", "empty pull secret") })
	if err := p.place().passes(); err != nil {
		t.Errorf("what worked is to stay: %v", err)
	}
	c.istiod.SetPullSecret(reference, append(right, '\n'))
	c.agent.eventually(soon, "the right secret is used again", live)
}

// wantTagFollowed moves a tag that is to be pulled Always: istiod says when, by the version of the resource.
func (c *wasmPod) wantTagFollowed(reg *registry, p *wasmPlugin) {
	t := c.t
	t.Helper()
	c.agent.eventually(soon, "the tag is pulled", func() error { return c.live(p, padded("one")) })
	reg.pushBytes("moving:tag", padded("two"))
	reg.proxy.Forget()
	p.value = "of the same version"
	c.publish()
	c.wantInDump(p.value)
	if err := c.live(p, padded("one")); err != nil {
		t.Errorf("with the same version, which is none: %v", err)
	}
	if asked := reg.proxy.Requests("/"); len(asked) > 0 {
		t.Errorf("the registry was asked though the version has not changed: %v", asked)
	}
	p.env[resourceVersion] = "8"
	c.publish()
	c.agent.eventually(soon, "the moved tag is live", func() error { return c.live(p, padded("two")) })
	reg.proxy.Forget()
	p.env[resourceVersion] = "9"
	c.publish()
	c.agent.eventually(soon, "the registry is asked once more", func() error {
		if n := len(reg.proxy.Requests("/manifests/")); n != 1 {
			return fmt.Errorf("%d requests", n)
		}
		return nil
	})
	if err := c.live(c.plugins[0], padded("one")); err != nil {
		t.Errorf("who did not say Always: %v", err)
	}
}

func (c *wasmPod) wantInDump(text string) {
	c.t.Helper()
	c.agent.eventually(soon, text+" is in Envoy's configuration", func() error {
		if dump := c.dump(); !strings.Contains(dump, text) {
			return fmt.Errorf("it is not, in %d bytes", len(dump))
		}
		return nil
	})
}

// wantRemoved deletes a plugin, of which istiod says nothing but in the listeners.
func (c *wasmPod) wantRemoved(p *wasmPlugin) {
	t := c.t
	t.Helper()
	c.remove(p)
	c.publish()
	c.agent.eventually(soon, "Envoy and the agent have forgotten the plugin", func() error {
		if _, there := c.agent.plugins()[p.resource()]; there {
			return fmt.Errorf("it is in the status")
		}
		if strings.Contains(c.dump(), p.resource()) {
			return fmt.Errorf("it is in Envoy's configuration")
		}
		return nil
	})
	c.agent.eventually(soon, "istiod is told", func() error {
		all := c.istiod.Requests(xdstest.ECDS)
		last := all[len(all)-1]
		if slices.Contains(last.Unnames, p.resource()) || len(last.Names) > 0 && !slices.Contains(last.Names, p.resource()) {
			return nil
		}
		return fmt.Errorf("the last request was %v", last)
	})
	if err := c.plugins[0].place().passes(); err != nil {
		t.Errorf("another plugin: %v", err)
	}
}
