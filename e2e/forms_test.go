package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	_ "github.com/cncf/xds/go/udpa/type/v1"
	_ "github.com/cncf/xds/go/xds/type/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/echo/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/wasm/v3"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/gateway-agent/gateway-agent/internal/registrytest"
	"github.com/gateway-agent/gateway-agent/internal/wasmtest"
)

const (
	udpaStructType = "type.googleapis.com/udpa.type.v1.TypedStruct"
	xdsStructType  = "type.googleapis.com/xds.type.v3.TypedStruct"
)

// place is a plugin with a listener of its own.
type place struct {
	plugin
	address string
	types   []string // of its config_discovery; nil: Wasm and RBAC
}

func newPlace(t *testing.T, p plugin, types ...string) place {
	t.Helper()
	return place{plugin: p, address: freeAddress(t), types: types}
}

// listener has the filter given in front of the upstream: of HTTP, or of an echo for a network plugin.
func (p place) listener(filter string) string {
	if p.network {
		return echoListener(p.name, p.address, filter)
	}
	return listener(p.name, p.address, filter)
}

// xds is the place for a control plane.
func (p place) xds() []string { return []string{p.listener(p.discovered(p.types...)), p.extension()} }

// serves says whether the plugin works: it shows its configuration.
func (p place) serves() error {
	if !p.network {
		return wantHeader("http://"+p.address+"/", "x-hello", p.value)
	}
	got, err := echo(p.address)
	if err == nil && (!strings.HasPrefix(got, p.value+" ") || !strings.HasSuffix(got, ": ping")) {
		err = fmt.Errorf("echo at %s = %q, want %q", p.address, got, p.value+" <number>: ping")
	}
	return err
}

// passes says whether traffic goes through without the plugin.
func (p place) passes() error {
	if p.network {
		got, err := echo(p.address)
		if err == nil && got != "ping" {
			err = fmt.Errorf("echo at %s = %q, want ping", p.address, got)
		}
		return err
	}
	code, body, header, err := get("http://" + p.address + "/")
	if err == nil && (code != http.StatusOK || body != "origin" || header.Get("x-hello-version") != "") {
		err = fmt.Errorf("GET %s = %d %q %v, want the origin's answer without the plugin", p.address, code, body, header)
	}
	return err
}

// refuses says whether no traffic goes through, because a filter is there that lets none.
func (p place) refuses() error {
	if !p.network {
		return wantCode("http://"+p.address+"/", http.StatusForbidden)
	}
	got, err := echo(p.address)
	if err == nil {
		return fmt.Errorf("echo at %s = %q, want a closed connection", p.address, got)
	}
	if errors.Is(err, errClosed) {
		return nil
	}
	return err
}

var errClosed = errors.New("closed without an answer")

// echo sends a word and returns what comes back until nothing more does.
func echo(address string) (string, error) {
	conn, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := conn.Write([]byte("ping")); err != nil {
		return "", fmt.Errorf("%w: %w", errClosed, err)
	}
	got, buf := "", make([]byte, 1024)
	for !strings.HasSuffix(got, "ping") {
		n, err := conn.Read(buf)
		got += string(buf[:n])
		if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
			return got, fmt.Errorf("%s: neither an answer nor an end after %q: %w", address, got, err)
		}
		if err != nil && got == "" { // EOF or a reset
			return "", fmt.Errorf("%w: %w", errClosed, err)
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return got, err
		}
		if err != nil {
			break
		}
	}
	return got, nil
}

// startPlaces starts an agent behind a control plane that serves the places, and waits until it is ready.
func startPlaces(t *testing.T, a *agent, mode string, places []place, args ...string) *controlPlane {
	t.Helper()
	cp := newControlPlane(t)
	cp.set(itemsOf(t, places)...)
	a.start(append([]string{"--xds-address", cp.address, "--xds-mode", mode}, args...)...)
	a.waitReady()
	return cp
}

func itemsOf(t *testing.T, places []place) []string {
	t.Helper()
	items := []string{cluster("origin", startOrigin(t))}
	for _, p := range places {
		items = append(items, p.xds()...)
	}
	return items
}

// serveFile is a web server with one file.
func serveFile(t *testing.T, path, file string) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, file) })
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL + path
}

// compiled bounds what needs a module that Envoy has not compiled yet: a second of CPU time for each, on machines that are busy.
const compiled = 30 * time.Second

// everyForm is a working plugin in each form that is understood. Each HTTP plugin shows its own name.
func everyForm(t *testing.T, reg *registry) []place {
	t.Helper()
	hello, netcount := helloModule(t, "v1"), wasmtest.Plugin(t, "netcount")
	code, err := os.ReadFile(hello)
	if err != nil {
		t.Fatal(err)
	}
	reg.push("hello:v1", hello)
	reg.push("netcount:v1", netcount)
	manifest := reg.real.Push(t, "pinned", "v1", registrytest.Compat(t, code))
	reg.real.Push(t, "docker", "v1", registrytest.Docker(t, code))
	reg.real.Push(t, "solo", "v1", registrytest.Solo(code))
	reg.real.Push(t, "cncf", "v1", registrytest.CNCF(code))
	index := reg.real.PushIndex(t, "index", "v1",
		registrytest.Entry{
			Image:    registrytest.Image{Layers: []registrytest.Layer{{MediaType: "application/vnd.in-toto+json", Body: []byte("{}")}}},
			Platform: &v1.Platform{OS: "unknown", Architecture: "unknown"}, Annotations: map[string]string{"vnd.docker.reference.type": "attestation-manifest"},
		},
		registrytest.Entry{Image: registrytest.Compat(t, code), Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}})
	uri, net := reg.uri("hello:v1"), reg.uri("netcount:v1")

	var places []place
	for name, p := range map[string]plugin{
		"http":            {uri: uri},
		"http-in-udpa":    {uri: uri, wrapper: udpaStructType},
		"http-in-xds":     {uri: uri, wrapper: xdsStructType},
		"network":         {uri: net, network: true},
		"network-in-udpa": {uri: net, network: true, wrapper: udpaStructType},
		"network-in-xds":  {uri: net, network: true, wrapper: xdsStructType},
		"fail-reload":     {uri: uri, policy: "FAIL_RELOAD"},
		"fail-open":       {uri: uri, failOpen: true},
		"local":           {local: hello},
		"local-in-xds":    {local: hello, wrapper: xdsStructType},
		"local-network":   {local: netcount, network: true},
		"web":             {uri: serveFile(t, "/dir/hello.wasm", hello), sha256: wasmDigest(t, hello)},
		"manifest-digest": {uri: reg.uri("pinned@" + manifest)},
		"index-digest":    {uri: reg.uri("index:v1@" + index)},
		"sha256":          {uri: uri, sha256: wasmDigest(t, hello)},
		"docker":          {uri: reg.uri("docker:v1")},
		"solo":            {uri: reg.uri("solo:v1")},
		"cncf":            {uri: reg.uri("cncf:v1")},
		"index":           {uri: reg.uri("index:v1")},
		"environment":     {uri: uri, env: map[string]string{"KEPT": "yes"}},
	} {
		p.name, p.value = name, "I am "+name
		if p.network {
			p.value = "netcount" // plugins of the same code share a virtual machine, and this one has one word for all
		}
		places = append(places, newPlace(t, p))
	}
	return places
}

func TestEveryForm(t *testing.T) {
	t.Parallel()
	check := func(t *testing.T, a *agent, places []place) {
		for _, p := range places {
			t.Run(p.name, func(t *testing.T) { eventually(t, compiled, "it works", p.serves) })
		}
		dump, err := a.admin("/config_dump?resource=ecds_filters")
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"FAIL_RELOAD", `"fail_open": true`, `"KEPT": "yes"`} {
			if !strings.Contains(string(dump), want) {
				t.Errorf("Envoy's extension configs lack %s, which was in what the agent got", want)
			}
		}
	}
	for _, mode := range modes {
		t.Run("controlplane/"+mode, func(t *testing.T) {
			t.Parallel()
			places, a := everyForm(t, startRegistry(t)), newAgent(t)
			startPlaces(t, a, mode, places)
			check(t, a, places)
		})
	}
	t.Run("standalone", func(t *testing.T) {
		t.Parallel()
		places, a := everyForm(t, startRegistry(t)), newAgent(t)
		inline := []string{cluster("origin", startOrigin(t))}
		for _, p := range places {
			inline = append(inline, p.listener(p.inline()))
		}
		a.startConfig(map[string]string{"all.yaml": resources(inline...)})
		check(t, a, places)
	})
}

// TestPolicyOfEveryKind has plugins without a module. Where the listener takes nothing but Wasm, a built-in module stands in.
func TestPolicyOfEveryKind(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			reg, a := startRegistry(t), newAgent(t)
			http, network := reg.uri("hello:v1"), reg.uri("netcount:v1")
			named := func(name string, p plugin, types ...string) place {
				p.name, p.value = name, "it works"
				return newPlace(t, p, types...)
			}
			closed := []place{
				named("closed", plugin{uri: http}),
				named("reload", plugin{uri: http, policy: "FAIL_RELOAD"}),
				named("closed-struct", plugin{uri: http, policy: "FAIL_CLOSED", wrapper: xdsStructType}),
				named("closed-wasm", plugin{uri: http}, wasmType),
				named("net-closed", plugin{uri: network, network: true}),
				named("net-closed-wasm", plugin{uri: network, network: true}, netWasmType),
				named("net-closed-struct", plugin{uri: network, network: true, wrapper: udpaStructType}, netWasmType),
			}
			open := []place{
				named("open", plugin{uri: http, policy: "FAIL_OPEN"}),
				named("deprecated", plugin{uri: http, failOpen: true}),
				named("open-struct", plugin{uri: http, policy: "FAIL_OPEN", wrapper: udpaStructType}),
				named("open-wasm", plugin{uri: http, policy: "FAIL_OPEN"}, wasmType),
				named("net-open", plugin{uri: network, network: true, policy: "FAIL_OPEN"}),
				named("net-open-wasm", plugin{uri: network, network: true, policy: "FAIL_OPEN"}, netWasmType),
			}
			all := append(append([]place{}, closed...), open...)
			startPlaces(t, a, mode, all, "--wasm-retry-max", "2s")
			for _, p := range closed {
				if err := p.refuses(); err != nil {
					t.Errorf("%s: %v", p.name, err)
				}
			}
			for _, p := range open {
				if err := p.passes(); err != nil {
					t.Errorf("%s: %v", p.name, err)
				}
			}
			for name, s := range a.plugins() {
				if s.State != "policy" || !strings.Contains(s.Reason, "404") || !strings.Contains(s.Reason, ":v1") {
					t.Errorf("status of %s = %+v, want the policy because of a 404 for :v1", name, s)
				}
			}

			reg.push("hello:v1", helloModule(t, "v1"))
			reg.push("netcount:v1", wasmtest.Plugin(t, "netcount"))
			for _, p := range all {
				a.eventually(compiled, p.name+" works once it is published", p.serves)
			}
		})
	}
}

// pluginStatus is one plugin in `status -o json`.
type pluginStatus struct {
	Name       string `json:"name"`
	State      string `json:"state"`
	Reason     string `json:"reason"`
	URL        string `json:"url"`
	DigestLive string `json:"digest_live"`
	EnvoyError string `json:"envoy_error"`
}

// plugins are the plugins in `status -o json` by name.
func (a *agent) plugins() map[string]pluginStatus {
	a.t.Helper()
	var doc struct {
		Plugins []pluginStatus `json:"plugins"`
	}
	a.statusJSON(&doc)
	all := map[string]pluginStatus{}
	for _, p := range doc.Plugins {
		all[p.Name] = p
	}
	return all
}
