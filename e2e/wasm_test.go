package e2e

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/wasmtest"
)

var modes = []string{"delta", "sotw"}

// helloModule builds the sample plugin so that it reports the version.
func helloModule(t *testing.T, version string) string {
	t.Helper()
	return wasmtest.Plugin(t, "hello", "main.version="+version)
}

// gatewayOf starts an agent with one HTTP listener whose plugin is an extension config, in a file of its own.
func gatewayOf(t *testing.T, p plugin, args ...string) (a *agent, url string) {
	t.Helper()
	a = newAgent(t)
	address := freeAddress(t)
	a.startConfig(map[string]string{
		"listener.yaml": resources(listener("main", address, p.discovered()), cluster("origin", startOrigin(t))),
		"plugin.yaml":   resources(p.extension()),
	}, args...)
	return a, "http://" + address + "/"
}

func TestPluginFromRegistryChangesARequest(t *testing.T) {
	t.Parallel()
	reg := startRegistry(t)
	reg.push("hello:v1", helloModule(t, "v1"))
	p := plugin{name: "hello", uri: reg.uri("hello:v1"), value: "changed"}
	for _, mode := range modes {
		t.Run("inline/"+mode, func(t *testing.T) {
			a, address := newAgent(t), freeAddress(t)
			a.startConfig(map[string]string{
				"all.yaml": resources(listener("main", address, p.inline()), cluster("origin", startOrigin(t))),
			}, "--xds-mode", mode)
			if err := wantHeader("http://"+address+"/", "x-hello", "changed"); err != nil {
				t.Error(err)
			}
		})
		t.Run("extension/"+mode, func(t *testing.T) {
			_, url := gatewayOf(t, p, "--xds-mode", mode)
			if err := wantHeader(url, "x-hello", "changed"); err != nil {
				t.Error(err)
			}
		})
		t.Run("controlplane/"+mode, func(t *testing.T) {
			cp, a, address := newControlPlane(t), newAgent(t), freeAddress(t)
			cp.set(listener("main", address, p.discovered()), cluster("origin", startOrigin(t)), p.extension())
			a.start("--xds-address", cp.address, "--xds-mode", mode)
			a.waitReady()
			if err := wantHeader("http://"+address+"/", "x-hello", "changed"); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestUpdateUnderLoad(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			reg := startRegistry(t)
			for _, v := range []string{"v1", "v2"} {
				if mode == "delta" {
					reg.push("hello:"+v, helloModule(t, v))
				} else { // two Envoys that compile for seconds would need all of a small machine
					reg.pushBytes("hello:"+v, wasmtest.SmallHello(v))
				}
			}
			p := plugin{name: "hello", uri: reg.uri("hello:v1"), value: "one"}
			a, url := gatewayOf(t, p, "--xds-mode", mode)
			l := startLoad(t, url, 200)
			start := time.Now()
			time.Sleep(4 * time.Second)

			p.uri = reg.uri("hello:v2")
			a.write("plugin.yaml", resources(p.extension()))
			took := a.eventually(3*time.Second, "v2 answers", func() error { return wantHeader(url, "x-hello-version", "v2") })
			t.Logf("v2 answered %v after the edit", took)

			time.Sleep(2 * time.Second)
			p.value = "two"
			a.write("plugin.yaml", resources(p.extension()))
			took = a.eventually(time.Second, "the new configuration answers", func() error { return wantHeader(url, "x-hello", "two") })
			t.Logf("the new configuration answered %v after the edit", took)

			time.Sleep(20*time.Second - time.Since(start))
			l.wantNoFailure(3000)
		})
	}
}

// brokenUpdates are the ways in which v2 can be bad, each with what status must say and how it is repaired.
var brokenUpdates = []struct {
	name   string
	push   func(t *testing.T, reg *registry)
	sha256 string
	reason string
}{
	{"404", func(*testing.T, *registry) {}, "", "hello:v2"},
	{"truncated", func(t *testing.T, reg *registry) { reg.pushBytes("hello:v2", truncated(t, helloModule(t, "v2"))) }, "", "truncated"},
	{"missing import", func(_ *testing.T, reg *registry) {
		reg.pushBytes("hello:v2", wasmtest.MissingImport("env", "no_such_function"))
	}, "", "no_such_function"},
	{"no ABI marker", func(_ *testing.T, reg *registry) { reg.pushBytes("hello:v2", wasmtest.NoMarker()) }, "", "proxy_abi_version"},
	{"wrong digest", func(t *testing.T, reg *registry) { reg.push("hello:v2", helloModule(t, "other")) }, "v2", "digest"},
}

func truncated(t *testing.T, file string) []byte {
	t.Helper()
	code, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return code[:len(code)/2]
}

func TestBrokenUpdateKeepsTheOldVersion(t *testing.T) {
	t.Parallel()
	for i, broken := range brokenUpdates {
		t.Run(broken.name, func(t *testing.T) {
			t.Parallel()
			mode := modes[i%2]
			reg := startRegistry(t)
			reg.push("hello:v1", helloModule(t, "v1"))
			p := plugin{name: "hello", uri: reg.uri("hello:v1"), value: "kept"}
			a, url := gatewayOf(t, p, "--xds-mode", mode, "--wasm-retry-max", "8s")
			serves := func(version string) func() error {
				return func() error { return wantHeader(url, "x-hello-version", version) }
			}
			if err := serves("v1")(); err != nil {
				t.Fatal(err)
			}

			broken.push(t, reg)
			p.uri = reg.uri("hello:v2")
			if broken.sha256 != "" {
				p.sha256 = wasmDigest(t, helloModule(t, broken.sha256))
			}
			a.write("plugin.yaml", resources(p.extension()))
			a.eventually(5*time.Second, "status gives the reason", func() error {
				if text := a.statusText(); !strings.Contains(text, "degraded") || !strings.Contains(text, broken.reason) {
					return fmt.Errorf("status says nothing of %q:\n%s", broken.reason, text)
				}
				return nil
			})
			if err := serves("v1")(); err != nil {
				t.Fatal(err)
			}

			if err := syscall.Kill(a.envoyPID(), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			a.eventually(15*time.Second, "v1 serves after Envoy was killed", serves("v1"))
			a.kill()
			a.restart()
			a.eventually(20*time.Second, "v1 serves after the agent was killed", serves("v1"))

			reg.push("hello:v2", helloModule(t, "v2"))
			took := a.eventually(20*time.Second, "v2 serves after the repair", serves("v2"))
			t.Logf("v2 answered %v after the repair", took)
			a.eventually(2*time.Second, "status forgets", func() error {
				if text := a.statusText(); strings.Contains(text, "previous version was kept") {
					return fmt.Errorf("status:\n%s", text)
				}
				return nil
			})
		})
	}
}

func TestNeverWorkedFollowsThePolicyThenHeals(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			reg := startRegistry(t)
			for _, repo := range []string{"closed", "open", "neighbour"} {
				reg.pushBytes(repo+":v1", wasmtest.SmallHello("v1"))
			}
			reg.fail("/v2/closed/", 503)
			reg.fail("/v2/open/", 503)
			closed := plugin{name: "closed", uri: reg.uri("closed:v1"), value: "closed", policy: "FAIL_CLOSED"}
			open := plugin{name: "open", uri: reg.uri("open:v1"), value: "open", policy: "FAIL_OPEN"}
			neighbour := plugin{name: "neighbour", uri: reg.uri("neighbour:v1"), value: "neighbour"}
			a, limit, args := newAgent(t), 65*time.Second, []string{"--xds-mode", mode, "--wasm-hold", "3s"}
			if mode == "sotw" { // the other one waits as long as agents do by default
				limit, args = 12*time.Second, append(args, "--wasm-retry-max", "8s")
			}
			addresses := []string{freeAddress(t), freeAddress(t), freeAddress(t)}
			start := time.Now()
			a.startConfig(map[string]string{"all.yaml": resources(
				listener("closed", addresses[0], closed.discovered()),
				listener("open", addresses[1], open.discovered()),
				listener("neighbour", addresses[2], neighbour.discovered()),
				cluster("origin", startOrigin(t)), closed.extension(), open.extension(), neighbour.extension())}, args...)
			for i, want := range []error{wantCode("http://"+addresses[0]+"/", 403), wantCode("http://"+addresses[1]+"/", 200)} {
				if want != nil {
					t.Errorf("policy %d: %v", i, want)
				}
			}
			if err := wantHeader("http://"+addresses[2]+"/", "x-hello", "neighbour"); err != nil {
				t.Error(err)
			}
			time.Sleep(15*time.Second - time.Since(start))
			reg.heal()
			for i, name := range []string{"closed", "open"} {
				took := a.eventually(limit, name+" heals", func() error { return wantHeader("http://"+addresses[i]+"/", "x-hello", name) })
				t.Logf("%s answered %v after the registry was back", name, took)
			}
		})
	}
}

func TestSlowModuleDelaysNothingElse(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			reg := startRegistry(t)
			reg.pushBytes("slow:v1", wasmtest.SmallHello("v1"))
			reg.pushBytes("slow:v2", wasmtest.SmallHello("v2"))
			reg.pushBytes("quick:v1", wasmtest.SmallHello("v1"))
			reg.pushBytes("quick:v2", wasmtest.SmallHello("v2"))
			slow := plugin{name: "slow", uri: reg.uri("quick:v1"), value: "a"}
			quick := plugin{name: "quick", uri: reg.uri("quick:v1"), value: "b"}
			a, origin := newAgent(t), startOrigin(t)
			addresses := []string{freeAddress(t), freeAddress(t), freeAddress(t)}
			listeners := resources(listener("slow", addresses[0], slow.discovered()), listener("quick", addresses[1], quick.discovered()), cluster("origin", origin))
			a.startConfig(map[string]string{"listeners.yaml": listeners, "plugins.yaml": resources(slow.extension(), quick.extension())}, "--xds-mode", mode)

			reg.delay("/v2/slow/manifests/v1", 14*time.Second)
			slow.uri, quick.uri = reg.uri("slow:v1"), reg.uri("quick:v2")
			a.write("plugins.yaml", resources(slow.extension(), quick.extension()))
			a.eventually(6*time.Second, "the neighbour's update is live", func() error { return wantHeader("http://"+addresses[1]+"/", "x-hello-version", "v2") })
			a.write("more.yaml", resources(listener("more", addresses[2])))
			a.eventually(2*time.Second, "a new listener is live", func() error { return wantCode("http://"+addresses[2]+"/", 200) })

			slow.uri = reg.uri("slow:v2")
			a.write("plugins.yaml", resources(slow.extension(), quick.extension()))
			a.eventually(5*time.Second, "the newer version overtakes", func() error { return wantHeader("http://"+addresses[0]+"/", "x-hello-version", "v2") })
			time.Sleep(14 * time.Second) // the older pull would have ended by now
			if err := wantHeader("http://"+addresses[0]+"/", "x-hello-version", "v2"); err != nil {
				t.Errorf("the older version came back: %v", err)
			}
		})
	}
}

func TestRestartWithTheRegistryDown(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			reg := startRegistry(t)
			reg.pushBytes("hello:v1", wasmtest.SmallHello("v1"))
			a, url := gatewayOf(t, plugin{name: "hello", uri: reg.uri("hello:v1"), value: "stored"}, "--xds-mode", mode)
			reg.stop()
			a.kill()
			a.restart()
			a.waitReady()
			if err := wantHeader(url, "x-hello", "stored"); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestPluginThatEnvoyRejects(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			reg := startRegistry(t)
			reg.pushBytes("hello:v1", wasmtest.SmallHello("v1"))
			good := plugin{name: "hello", uri: reg.uri("hello:v1"), value: "good"}
			bad := good
			bad.value = `{"fail_configure": true}`
			never := bad
			never.name = "never"
			a, origin := newAgent(t), startOrigin(t)
			addresses := []string{freeAddress(t), freeAddress(t), freeAddress(t)}
			listeners := []string{listener("main", addresses[0], good.discovered()), listener("never", addresses[1], never.discovered()), cluster("origin", origin)}
			a.startConfig(map[string]string{"listeners.yaml": resources(listeners...), "plugins.yaml": resources(good.extension(), never.extension())}, "--xds-mode", mode)
			// State-of-the-world: Envoy takes a rejection for the failure of every name that waits, and answers 500 there until its own
			// configuration comes.
			a.eventually(5*time.Second, "the good one serves", func() error { return wantHeader("http://"+addresses[0]+"/", "x-hello", "good") })
			a.eventually(5*time.Second, "the one that Envoy refuses leaves its policy", func() error { return wantCode("http://"+addresses[1]+"/", 403) })

			a.write("plugins.yaml", resources(bad.extension(), never.extension()))
			a.eventually(5*time.Second, "status tells of the rejection", func() error {
				if text, s := a.statusText(), a.plugins()["hello"]; s.State != "rejected" || !strings.Contains(text, "Unable to create Wasm plugin") {
					return fmt.Errorf("hello is %s, status:\n%s", s.State, text)
				}
				return nil
			})
			// Envoy refuses every update of a listener that names a rejected resource, until something else was accepted.
			listeners[0] = strings.Replace(listeners[0], "stat_prefix: main", "stat_prefix: main2", 1)
			a.write("listeners.yaml", resources(append(listeners, listener("more", addresses[2], good.discovered()))...))
			a.eventually(3*time.Second, "the next listener update is accepted", func() error { return wantHeader("http://"+addresses[2]+"/", "x-hello", "good") })
			if err := wantHeader("http://"+addresses[0]+"/", "x-hello", "good"); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestKillersNeverReachEnvoy(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			killersNeverReachEnvoy(t, mode)
		})
	}
}

func killersNeverReachEnvoy(t *testing.T, mode string) {
	t.Helper()
	killers := map[string][]byte{
		"start": wasmtest.HostCallInStart(), "memory": wasmtest.NoMemory(), "tag": wasmtest.TagImport(),
	}
	reg := startRegistry(t)
	reg.pushBytes("hello:v1", wasmtest.SmallHello("v1"))
	good := plugin{name: "good", uri: reg.uri("hello:v1"), value: "good"}
	address := freeAddress(t)
	items := []string{listener("good", address, good.discovered()), good.extension(), cluster("origin", startOrigin(t))}
	var killed []string
	for name, code := range killers {
		reg.pushBytes("killer-"+name+":v1", code)
		p := plugin{name: "killer-" + name, uri: reg.uri("killer-" + name + ":v1"), value: "x"}
		at := freeAddress(t)
		killed = append(killed, at)
		items = append(items, listener(p.name, at, p.discovered()), p.extension())
	}
	a := newAgent(t)
	a.startConfig(map[string]string{"all.yaml": resources(items...)}, "--xds-mode", mode)
	pid := a.envoyPID()
	if err := wantHeader("http://"+address+"/", "x-hello", "good"); err != nil {
		t.Error(err)
	}
	for _, at := range killed {
		if err := wantCode("http://"+at+"/", 403); err != nil {
			t.Errorf("a refused module must leave its policy: %v", err)
		}
	}
	if now := a.envoyPID(); now != pid {
		t.Errorf("Envoy was restarted: pid %d, then %d", pid, now)
	}
}

func TestLongPluginStartIsNoHang(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			longPluginStartIsNoHang(t, mode)
		})
	}
}

func longPluginStartIsNoHang(t *testing.T, mode string) {
	t.Helper()
	reg := startRegistry(t)
	reg.push("hello:v1", helloModule(t, "v1"))
	p := plugin{name: "hello", uri: reg.uri("hello:v1"), value: "quick"}
	a, url := gatewayOf(t, p, "--xds-mode", mode)
	pid := a.envoyPID()
	l := startLoad(t, url, 50)
	p.value = `{"value": "late", "start_delay_ms": 20000}`
	a.write("plugin.yaml", resources(p.extension()))
	deadline := time.Now().Add(45 * time.Second)
	for wantHeader(url, "x-hello", "late") != nil && time.Now().Before(deadline) {
		if err := wantCode("http://"+a.status+"/healthz/ready", 200); err != nil {
			t.Fatalf("readiness flapped: %v", err)
		}
		time.Sleep(200 * time.Millisecond)
	}
	if err := wantHeader(url, "x-hello", "late"); err != nil {
		t.Error(err)
	}
	l.wantNoFailure(500)
	if now := a.envoyPID(); now != pid {
		t.Errorf("Envoy was restarted: pid %d, then %d", pid, now)
	}
}
