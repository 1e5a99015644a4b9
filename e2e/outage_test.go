package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/wasmtest"
)

func TestChangesWhileTheRegistryIsDown(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			reg, a := startRegistry(t), newAgent(t)
			reg.push("hello:v1", helloModule(t, "v1"))
			reg.push("hello:v2", helloModule(t, "v2"))
			p := newPlace(t, plugin{name: "hello", uri: reg.uri("hello:v1"), value: "one"})
			origin := cluster("origin", startOrigin(t))
			cp := newControlPlane(t)
			set := func() { cp.set(append(p.xds(), origin)...) }
			set()
			a.start("--xds-address", cp.address, "--xds-mode", mode, "--wasm-retry-max", "2s")
			a.waitReady()
			if err := p.serves(); err != nil {
				t.Fatal(err)
			}

			reg.fail("/v2/", 503)
			p.value = "two"
			set()
			took := a.eventually(time.Second, "the new configuration is live", p.serves)
			t.Logf("a new configuration was live %v after it was set, with the registry down", took)

			l := startLoad(t, "http://"+p.address+"/", 50)
			old := p
			p.uri, p.value = reg.uri("hello:v2"), "three"
			set()
			a.eventually(5*time.Second, "status tells why the old version serves", func() error {
				if s := a.plugins()["hello"]; s.State != "degraded" || !strings.Contains(s.Reason, "503") || !strings.Contains(s.Reason, reg.uri("hello:v2")) {
					return fmt.Errorf("status = %+v", s)
				}
				return nil
			})
			if err := old.serves(); err != nil {
				t.Errorf("module and configuration must stay together: %v", err)
			}
			// Back to what is in the store, and forth. The server says nothing new before it was answered, which takes the agent a second.
			p = old
			p.value = "four"
			set()
			a.eventually(2*time.Second, "the module in the store is live with its new configuration", p.serves)
			if s := a.plugins()["hello"]; s.State != "live" || s.Reason != "" {
				t.Errorf("status = %+v, want live", s)
			}
			p.uri, p.value = reg.uri("hello:v2"), "five"
			set()
			reg.heal()
			a.eventually(compiled, "the new module is live once the registry is back", p.serves)
			if err := wantHeader("http://"+p.address+"/", "x-hello-version", "v2"); err != nil {
				t.Error(err)
			}
			l.wantNoFailure(100)
		})
	}
}

func TestResourceThatIsNeverSent(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			reg, a := startRegistry(t), newAgent(t)
			reg.pushBytes("hello:v1", wasmtest.SmallHello("v1"))
			reg.push("netcount:v1", wasmtest.Plugin(t, "netcount"))
			late := newPlace(t, plugin{name: "late", uri: reg.uri("hello:v1"), value: "at last"})
			lateWasm := newPlace(t, plugin{name: "late-wasm", uri: reg.uri("hello:v1"), value: "at last"}, wasmType)
			lateNetwork := newPlace(t, plugin{name: "late-network", uri: reg.uri("netcount:v1"), value: "at last", network: true})
			lates := []place{late, lateWasm, lateNetwork}
			neighbour := newPlace(t, plugin{name: "neighbour", uri: reg.uri("hello:v1"), value: "here"})
			items := append(neighbour.xds(), cluster("origin", startOrigin(t)))
			for _, p := range lates {
				items = append(items, p.listener(p.discovered(p.types...)))
			}
			cp := newControlPlane(t)
			cp.set(items...)
			start := time.Now()
			a.start("--xds-address", cp.address, "--xds-mode", mode, "--wasm-hold", "2s")
			a.waitReady()
			t.Logf("ready after %v", time.Since(start))
			for _, p := range lates {
				if err := p.refuses(); err != nil {
					t.Errorf("%s: %v", p.name, err)
				}
				if s := a.plugins()[p.name]; s.State != "policy" || !strings.Contains(s.Reason, "the control plane has not sent this resource") {
					t.Errorf("status of %s = %+v, want the policy and why", p.name, s)
				}
			}
			if err := neighbour.serves(); err != nil {
				t.Error(err)
			}
			for _, p := range lates {
				items = append(items, p.extension())
			}
			cp.set(items...)
			for _, p := range lates {
				a.eventually(compiled, p.name+" works once it was sent", p.serves)
			}
		})
	}
}
