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
		serves(&wasmPlugin{name: "network-secret", uri: secret, env: with("good"), network: true}),
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
