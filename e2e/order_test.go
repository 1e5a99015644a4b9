package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/wasmtest"
)

const (
	hunter = "hunter2-hunter2"
	soon   = 20 * time.Second // these tests are about order, not speed: a busy machine compiles a module for seconds
)

// Envoy puts the whole message in front of what is wrong with it.
func TestRejectionShowsNoSecrets(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			cp, a, address, origin := newControlPlane(t), newAgent(t), freeAddress(t), startOrigin(t)
			main := listener("main", address)
			broken := strings.Replace(main, `domains: ["*"]`, fmt.Sprintf("domains: []\n            request_headers_to_add: [{header: {key: authorization, value: %q}}]", hunter), 1)
			if broken == main {
				t.Fatal("the fixture has changed")
			}
			cp.set(broken, strings.Replace(cluster("origin", origin), "connect_timeout: 1s", "connect_timeout: 0s\n  metadata: {filter_metadata: {x: {token: "+hunter+"}}}", 1))
			a.start("--xds-address", cp.address, "--xds-mode", mode)
			a.eventually(soon, "status tells of both rejections", func() error {
				text := a.statusText("-o", "json")
				for _, want := range []string{"ConnectTimeout: value must be greater than 0s", "Domains: value must contain at least 1 item"} {
					if !strings.Contains(text, want) {
						return fmt.Errorf("no %q in status:\n%s", want, text)
					}
				}
				return nil
			})
			_, ready, _, err := get("http://" + a.status + "/readyz?verbose")
			if err != nil || !strings.Contains(ready, "rejected CDS") {
				t.Errorf("readyz: %v, %s", err, ready)
			}
			for where, text := range map[string]string{"status": a.statusText(), "JSON": a.statusText("-o", "json"), "readyz": ready, "log": relayLines(a)} {
				if strings.Contains(text, hunter) {
					t.Errorf("the %s shows a secret:\n%s", where, text)
				}
			}
		})
	}
}

// relayLines are what the agent itself says of a rejection, beside Envoy's own log.
func relayLines(a *agent) string {
	var b strings.Builder
	for line := range strings.Lines(a.log.String()) {
		if strings.Contains(line, "part=relay") || strings.Contains(line, "part=ecds") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// source publishes resources, over a control plane or as files.
type source struct {
	name    string
	start   func(t *testing.T, a *agent, mode string, items ...string)
	publish func(items ...string)
}

func sources(t *testing.T, a *agent) []source {
	t.Helper()
	var cp *controlPlane
	return []source{
		{
			name: "controlplane",
			start: func(t *testing.T, a *agent, mode string, items ...string) {
				cp = newControlPlane(t)
				cp.set(items...)
				a.start("--xds-address", cp.address, "--xds-mode", mode)
			},
			publish: func(items ...string) { cp.set(items...) },
		},
		{
			name: "standalone",
			start: func(_ *testing.T, a *agent, mode string, items ...string) {
				a.conf = filepath.Join(a.dir, "conf")
				a.write("all.yaml", resources(items...))
				a.start("--config-dir", a.conf, "--xds-mode", mode)
			},
			publish: func(items ...string) { a.write("all.yaml", resources(items...)) },
		},
	}
}

func TestRapidPushesEndInTheLast(t *testing.T) {
	t.Parallel()
	reg := startRegistry(t)
	reg.pushBytes("hello:v1", wasmtest.SmallHello("v1"))
	reg.pushBytes("hello:v2", wasmtest.SmallHello("v2"))
	for i := range 2 {
		for _, mode := range modes {
			a := newAgent(t)
			from := sources(t, a)[i]
			t.Run(from.name+"/"+mode, func(t *testing.T) {
				p := plugin{name: "hello", uri: reg.uri("hello:v1"), value: "first"}
				address, origin := freeAddress(t), startOrigin(t)
				items := func() []string {
					return []string{listener("main", address, p.discovered()), cluster("origin", origin), p.extension()}
				}
				from.start(t, a, mode, items()...)
				a.waitReady()
				pid := a.envoyPID()
				for n := range 50 {
					p.value, p.uri = fmt.Sprint("n", n), reg.uri(fmt.Sprint("hello:v", 1+n/5%2))
					from.publish(items()...)
					time.Sleep(40 * time.Millisecond)
				}
				url := "http://" + address + "/"
				took := a.eventually(soon, "the last push is live", func() error { return wantHeader(url, "x-hello", "n49") })
				t.Logf("the last of 50 was live after %v", took)
				for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
					if err := wantHeader(url, "x-hello", "n49"); err != nil {
						t.Fatalf("it did not stay: %v", err)
					}
				}
				if now := a.envoyPID(); now != pid {
					t.Errorf("Envoy was restarted: pid %d, then %d", pid, now)
				}
			})
		}
	}
}

// quickDrain is an Envoy that drains a removed listener for a second, not for minutes: only then does it give up the extension config.
func quickDrain(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "envoy")
	script := `#!/bin/sh
last=
for a; do
  shift
  [ "$last" = --drain-time-s ] && a=1
  last=$a
  set -- "$@" "$a"
done
exec "` + envoyBinary + `" "$@"
`
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// A listener with the plugin comes, goes and comes back before, at and after the moment at which Envoy gives the plugin up.
func TestListenerChurn(t *testing.T) {
	t.Parallel()
	reg := startRegistry(t)
	reg.pushBytes("hello:v1", wasmtest.SmallHello("v1"))
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			cp, a, origin := newControlPlane(t), newAgent(t), startOrigin(t)
			addresses := []string{freeAddress(t), freeAddress(t)}
			p := plugin{name: "hello", uri: reg.uri("hello:v1"), value: "0"}
			set := func(listeners ...string) {
				cp.set(append(listeners, listener("other", addresses[1]), cluster("origin", origin), p.extension())...)
			}
			set(listener("main", addresses[0], p.discovered()))
			a.start("--xds-address", cp.address, "--xds-mode", mode, "--envoy", quickDrain(t))
			a.waitReady()
			url := "http://" + addresses[0] + "/"
			for i, pause := range []time.Duration{0, 300, 900, 1000, 1050, 1100, 1300, 2500} {
				if i%2 == 0 {
					set()
				} else {
					set(listener("main", addresses[0]))
				}
				time.Sleep(pause * time.Millisecond)
				p.value = fmt.Sprint(i + 1)
				set(listener("main", addresses[0], p.discovered()))
				took := a.eventually(soon, fmt.Sprintf("round %d: the listener is back, with the newest plugin", i), func() error {
					return wantHeader(url, "x-hello", p.value)
				})
				t.Logf("round %d, %v away: back after %v", i, pause*time.Millisecond, took)
			}
			set()
			a.eventually(soon, "the plugin is given up", func() error {
				if text := a.statusText("-o", "json"); strings.Contains(text, `"name": "hello"`) {
					return fmt.Errorf("status:\n%s", text)
				}
				return nil
			})
			set(listener("main", addresses[0], p.discovered()))
			a.eventually(soon, "the listener is back", func() error { return wantHeader(url, "x-hello", p.value) })
		})
	}
}

func TestTwoListenersShareAPlugin(t *testing.T) {
	t.Parallel()
	reg := startRegistry(t)
	reg.pushBytes("hello:v1", wasmtest.SmallHello("v1"))
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			cp, a, origin := newControlPlane(t), newAgent(t), startOrigin(t)
			addresses := []string{freeAddress(t), freeAddress(t)}
			p := plugin{name: "hello", uri: reg.uri("hello:v1"), value: "both"}
			one, two := listener("one", addresses[0], p.discovered()), listener("two", addresses[1], p.discovered())
			set := func(listeners ...string) { cp.set(append(listeners, cluster("origin", origin), p.extension())...) }
			serves := func(what string, addresses ...string) {
				t.Helper()
				for _, address := range addresses {
					a.eventually(soon, what, func() error { return wantHeader("http://"+address+"/", "x-hello", p.value) })
				}
			}
			set(one, two)
			a.start("--xds-address", cp.address, "--xds-mode", mode, "--envoy", quickDrain(t))
			a.waitReady()
			serves("both serve", addresses...)
			p.value = "changed"
			set(one, two)
			serves("both have the change", addresses...)
			set(two)
			time.Sleep(1500 * time.Millisecond)
			p.value = "alone"
			set(two)
			serves("the one that stayed has the change", addresses[1])
			set(one, two)
			serves("the one that came back has it too", addresses...)
		})
	}
}

// In delta a removal takes the filter away, which refuses requests; in state-of-the-world it cannot be said. Neither lets them through.
func TestPluginRemovedUpstream(t *testing.T) {
	t.Parallel()
	reg := startRegistry(t)
	reg.pushBytes("hello:v1", wasmtest.SmallHello("v1"))
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			cp, a, address, origin := newControlPlane(t), newAgent(t), freeAddress(t), startOrigin(t)
			p := plugin{name: "hello", uri: reg.uri("hello:v1"), value: "there"}
			rest := []string{listener("main", address, p.discovered()), cluster("origin", origin)}
			cp.set(append(rest, p.extension())...)
			a.start("--xds-address", cp.address, "--xds-mode", mode, "--wasm-hold", "2s")
			a.waitReady()
			url := "http://" + address + "/"
			watch := watchFiltered(t, "main", url)
			cp.set(rest...)
			if mode == "delta" {
				a.eventually(soon, "the removal is live", func() error { return wantCode(url, 500) })
			}
			time.Sleep(time.Second)
			p.value = "back"
			cp.set(append(rest, p.extension())...)
			a.eventually(soon, "the plugin is back", func() error { return wantHeader(url, "x-hello", "back") })
			cp.set(rest...)
			time.Sleep(500 * time.Millisecond)
			if err := syscall.Kill(a.envoyPID(), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			a.eventually(soon, "Envoy listens again", func() error { _, _, _, err := get(url); return err })
			time.Sleep(time.Second)
			p.value = "again"
			cp.set(append(rest, p.extension())...)
			a.eventually(soon, "the plugin is back", func() error { return wantHeader(url, "x-hello", "again") })
			time.Sleep(time.Second) // for the watch, which wants to see a request served
			watch.check()
		})
	}
}
