package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/registrytest"
	"github.com/gateway-agent/gateway-agent/internal/wasmtest"
)

// padded is a plugin that does nothing and is like no other; Envoy compiles it at once.
func padded(word string) []byte {
	e := wasmtest.New(nil)
	e.Custom("padding", []byte(word))
	return e.Bytes()
}

// live says whether the plugin's module is the live one.
func (a *agent) live(name, digest string) error {
	if s := a.plugins()[name]; s.State != "live" || digest != "" && s.DigestLive != digest {
		return fmt.Errorf("status of %s = %+v, want it live with %q", name, s, digest)
	}
	return nil
}

func (a *agent) blob(digest string) string {
	return filepath.Join(a.dir, "data", "wasm", "blobs", "sha256", digest)
}

// TestBlackHoledRegistry: with nothing but the store left, and a registry that takes requests and never answers, what is stored is live at
// once; a damaged module is not, until it can be pulled again.
func TestBlackHoledRegistry(t *testing.T) {
	t.Parallel()
	reg, a := startRegistry(t), newAgent(t)
	code := padded("stored")
	digest := hexSHA256(code)
	reg.pushBytes("stored:v1", code)
	first, second := newPlace(t, plugin{name: "first", uri: reg.uri("stored:v1")}), newPlace(t, plugin{name: "second", uri: reg.uri("stored:v1")})
	cp := startPlaces(t, a, "delta", []place{first}, "--wasm-hold", "2s", "--wasm-retry-max", "1s")
	a.eventually(compiled, "the module is live", func() error { return a.live("first", digest) })
	a.kill()
	keepOnly(t, filepath.Join(a.dir, "data"), "wasm")
	keepOnly(t, filepath.Join(a.dir, "run"))
	reg.proxy.Fail("/", registrytest.Fault{Delay: time.Hour})
	reg.proxy.Forget()

	a.restart()
	a.waitReady()
	if err := a.live("first", digest); err != nil {
		t.Errorf("when ready: %v", err)
	}
	cp.set(itemsOf(t, []place{first, second})...)
	took := a.eventually(5*time.Second, "a plugin that comes now is live", func() error { return a.live("second", digest) })
	t.Logf("live %v after it was published", took)
	if took > time.Second {
		t.Errorf("it took %v, want a second at most", took)
	}
	if asked := reg.proxy.Requests("/"); len(asked) > 0 {
		t.Errorf("the registry was asked: %v", asked)
	}

	a.kill()
	reg.heal()
	reg.fail("/", 503)
	flipByte(t, a.blob(digest))
	a.restart()
	a.waitReady()
	if err := first.refuses(); err != nil {
		t.Errorf("damaged: %v", err)
	}
	if text := a.mustWasm("list"); !strings.Contains(text, "damaged") || !strings.Contains(text, digest[:12]) {
		t.Errorf("wasm list says nothing of the damage:\n%s", text)
	}
	if log := a.log.String(); strings.Contains(log, "Invalid path") {
		t.Error("Envoy was given a file that is not there")
	}
	reg.heal()
	a.eventually(compiled, "it was pulled again", func() error { return a.live("first", digest) })
	got, err := os.ReadFile(a.blob(digest))
	if err != nil || hexSHA256(got) != digest {
		t.Errorf("the module in the store has the digest %s (%v)", hexSHA256(got), err)
	}
}

func keepOnly(t *testing.T, dir string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !slices.Contains(names, e.Name()) {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func flipByte(t *testing.T, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)-1] ^= 1
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestCollectorSparesWhatEnvoyUses rebuilds listeners while modules come, expire after a second and exceed the store's size: Envoy never
// misses a file, and what nothing uses goes.
func TestCollectorSparesWhatEnvoyUses(t *testing.T) {
	t.Parallel()
	const rounds = 25
	reg, a, cp, origin := startRegistry(t), newAgent(t), newControlPlane(t), startOrigin(t)
	kept := newPlace(t, plugin{name: "kept", uri: reg.uri("kept:v1")})
	moving := newPlace(t, plugin{name: "moving"})
	reg.pushBytes("kept:v1", padded("kept"))
	digests := make([]string, rounds)
	set := func(i int) {
		code := padded(fmt.Sprint("moving", i))
		digests[i] = hexSHA256(code)
		moving.uri = reg.uri(fmt.Sprint("moving:v", i))
		reg.pushBytes(fmt.Sprint("moving:v", i), code)
		rebuilt := strings.Replace(kept.xds()[0], "stat_prefix: kept", fmt.Sprintf("stat_prefix: kept%d", i), 1)
		cp.set(append(moving.xds(), rebuilt, kept.extension(), cluster("origin", origin))...)
	}
	set(0)
	a.start("--xds-address", cp.address, "--xds-mode", "delta", "--envoy", quickDrain(t), "--wasm-expiry", "1s", "--wasm-store-size", "300")
	a.waitReady()
	for i := range rounds - 1 {
		time.Sleep(300 * time.Millisecond)
		set(i + 1) // its download starts a collection
		a.eventually(soon, "the module of the round is live", func() error { return a.live("moving", digests[i+1]) })
		if err := kept.passes(); err != nil {
			t.Errorf("round %d: %v", i, err)
		}
	}
	if _, err := os.Stat(a.blob(hexSHA256(padded("kept")))); err != nil {
		t.Errorf("the module that is in use all the time: %v", err)
	}
	left := 0
	for _, digest := range digests[:rounds-10] { // of 3 s ago and more
		if _, err := os.Stat(a.blob(digest)); err == nil {
			left++
		}
	}
	if left > 0 {
		t.Errorf("%d of %d modules that nothing uses are still there", left, rounds-10)
	}
	a.wantStats(map[string]string{
		"listener_manager.lds.update_rejected": "0", "listener_manager.listener_create_failure": "0",
		"extension_config_discovery.http_filter.kept.config_fail": "0", "extension_config_discovery.http_filter.moving.config_fail": "0",
	})
}

// wantStats compares statistics of Envoy.
func (a *agent) wantStats(want map[string]string) {
	a.t.Helper()
	body, err := a.admin("/stats")
	if err != nil {
		a.t.Fatal(err)
	}
	got := map[string]string{}
	for line := range strings.Lines(string(body)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		got[name] = value
	}
	for name, value := range want {
		if got[name] != value {
			a.t.Errorf("Envoy's %s = %q, want %s", name, got[name], value)
		}
	}
}

// TestAgentsShareAStore: two agents with one store are killed and start again without the registry; each has its own plugin's configuration.
func TestAgentsShareAStore(t *testing.T) {
	t.Parallel()
	reg, store := startRegistry(t), t.TempDir()
	reg.pushBytes("hello:v1", wasmtest.SmallHello("v1"))
	agents, places := []*agent{newAgent(t), newAgent(t)}, []place{}
	for i, a := range agents {
		p := newPlace(t, plugin{name: "hello", uri: reg.uri("hello:v1"), value: fmt.Sprint("agent ", i)})
		places = append(places, p)
		startPlaces(t, a, modes[i], []place{p}, "--wasm-dir", store)
	}
	for i, a := range agents {
		a.eventually(compiled, "the plugin serves", places[i].serves)
	}
	if got := len(reg.proxy.Requests("/blobs/")); got == 0 || got > 2 { // the layer, and perhaps a configuration
		t.Errorf("%d blobs were asked for, want the module once", got)
	}
	for _, a := range agents {
		a.signal(syscall.SIGKILL)
	}
	reg.stop()
	for i, a := range agents {
		<-a.done
		a.restart()
		a.waitReady()
		a.eventually(compiled, "the plugin serves without the registry", places[i].serves)
	}
	if text := agents[0].mustWasm("prune", "--all", "--yes", "--wasm-dir", store); !strings.Contains(text, "nothing to remove") {
		t.Errorf("prune took what agents use:\n%s", text)
	}
}

// TestSecondAgentInADataDirectory: what one agent keeps of a plugin does not stand in for another agent's plugin of the same name.
func TestSecondAgentInADataDirectory(t *testing.T) {
	t.Parallel()
	reg, first, second := startRegistry(t), newAgent(t), newAgent(t)
	reg.pushBytes("hello:v1", wasmtest.SmallHello("v1"))
	mine := newPlace(t, plugin{name: "guard", uri: reg.uri("hello:v1"), value: "mine"})
	other := newPlace(t, plugin{name: "guard", uri: reg.uri("missing:v1"), value: "other"})
	data := filepath.Join(first.dir, "data")
	startPlaces(t, first, "delta", []place{mine})
	first.eventually(compiled, "the first one's plugin serves", mine.serves)
	first.eventually(soon, "it is kept", func() error {
		_, err := os.Stat(filepath.Join(data, "plugins.json"))
		return err
	})
	kept := filesBelow(t, data)[filepath.Join(data, "plugins.json")]
	startPlaces(t, second, "delta", []place{other}, "--data-dir", data)
	if err := other.refuses(); err != nil {
		t.Error(err)
	}
	if log := second.log.String(); !strings.Contains(log, "another agent uses this data directory") || !strings.Contains(log, "--wasm-dir") {
		t.Errorf("the second one says nothing of the first:\n%s", log)
	}
	second.signal(syscall.SIGTERM)
	if code := second.wait(30 * time.Second); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if now := filesBelow(t, data)[filepath.Join(data, "plugins.json")]; now != kept {
		t.Errorf("the second one wrote over what the first keeps:\n%s\nbefore:\n%s", now, kept)
	}
	first.kill()
	first.restart()
	first.waitReady()
	first.eventually(compiled, "the first one's plugin serves after a restart", mine.serves)
	if strings.Contains(first.log.String(), "another agent uses") {
		t.Error("an agent that is gone still has the directory")
	}
}
