package wasmcache

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gateway-agent/gateway-agent/internal/registrytest"
	"github.com/gateway-agent/gateway-agent/internal/wasmtest"
	"github.com/gateway-agent/gateway-agent/wasmcache/abi"
)

func TestVerdictsAreKept(t *testing.T) {
	r, dir := registrytest.New(t), t.TempDir()
	r.Push(t, "kept", "v1", registrytest.WasmToOCI(core("kept", 100)))
	var checks atomic.Int64
	get := func(host abi.Host, v abi.Verdict, sum string) error {
		s := open(t, dir, counter(&checks, v))
		defer s.Close()
		_, err := s.Get(t.Context(), Request{URL: r.Ref("kept:v1"), Host: host, SHA256: sum})
		return err
	}
	for range 3 {
		if err := get(envoy, abi.Verdict{Outcome: abi.Good}, ""); err != nil {
			t.Fatalf("Get = %v", err)
		}
	}
	if n := checks.Load(); n != 1 {
		t.Errorf("%d checks for one host, want 1", n)
	}
	bad := abi.Verdict{Outcome: abi.Broken, Reason: "imports wasi_snapshot_preview1.sched_yield, not provided by Envoy 1.27.0"}
	for range 2 {
		err := get(mustHost("1.27.0"), bad, hexOf(core("kept", 100)))
		wantError(t, err, true, "module "+r.Ref("kept:v1"), "imports wasi_snapshot_preview1.sched_yield, not provided by Envoy 1.27.0: build it for this Envoy")
	}
	if n := checks.Load(); n != 2 {
		t.Errorf("%d checks for two hosts, want 2", n)
	}
}

// TestNoRuntime: nothing can be done about the module.
func TestNoRuntime(t *testing.T) {
	r := registrytest.New(t)
	r.Push(t, "any", "v1", registrytest.WasmToOCI(core("any", 100)))
	var checks atomic.Int64
	s := open(t, t.TempDir(), counter(&checks, abi.Verdict{Outcome: abi.Broken, Reason: "this Envoy was built without a Wasm runtime"}))
	defer s.Close()
	host := envoy
	host.Wasm = false
	_, err := s.Get(t.Context(), Request{URL: r.Ref("any:v1"), Host: host})
	wantError(t, err, true, "module "+r.Ref("any:v1"), "cannot run: this Envoy was built without a Wasm runtime: run an Envoy that has one")
}

func TestCannotSay(t *testing.T) {
	r, dir := registrytest.New(t), t.TempDir()
	r.Push(t, "unsure", "v1", registrytest.WasmToOCI(core("unsure", 100)))
	var checks atomic.Int64
	unsure := abi.Verdict{Outcome: abi.CannotSay, Reason: "uses memory64", Warnings: []string{"and is large"}}
	req := Request{URL: r.Ref("unsure:v1"), Host: envoy}
	for range 2 {
		s := open(t, dir, counter(&checks, unsure))
		for range 2 {
			m, err := s.Get(t.Context(), req)
			wantModule(t, m, err, core("unsure", 100))
			if m.Warning != "uses memory64; and is large" {
				t.Errorf("Warning = %q", m.Warning)
			}
		}
		s.Close()
	}
	if n := checks.Load(); n != 2 {
		t.Errorf("%d checks, want one per process: the reason may be gone", n)
	}
	s := open(t, dir, counter(&checks, unsure), func(c *Config) { c.Unvouched = UnvouchedRefuse })
	_, err := s.Get(t.Context(), req)
	wantError(t, err, true, "cannot be vouched for: uses memory64: --wasm-unvouched=warn lets it pass")
}

func TestUnknownEnvoyOnlyWarns(t *testing.T) {
	r := registrytest.New(t)
	r.Push(t, "unknown", "v1", registrytest.WasmToOCI(core("unknown", 100)))
	var checks atomic.Int64
	s := open(t, t.TempDir(), counter(&checks, abi.Verdict{Outcome: abi.Broken, Reason: "lacks everything"}))
	m, err := s.Get(t.Context(), Request{URL: r.Ref("unknown:v1")})
	wantModule(t, m, err, core("unknown", 100))
	if m.Warning != "lacks everything" {
		t.Errorf("Warning = %q, want the reason", m.Warning)
	}
}

func TestARepairedTagIsFound(t *testing.T) {
	r := registrytest.New(t)
	bad, fine := core("bad", 100), core("fine", 100)
	r.Push(t, "tag", "v1", registrytest.WasmToOCI(bad))
	p := registrytest.NewProxy(t, r.Addr)
	check := func(_ context.Context, _ abi.Host, path string) abi.Verdict {
		if strings.HasSuffix(path, hexOf(bad)) {
			return abi.Verdict{Outcome: abi.Broken, Reason: "has no ABI marker"}
		}
		return abi.Verdict{Outcome: abi.Good}
	}
	s := open(t, t.TempDir(), func(c *Config) { c.Check = check })
	req := Request{URL: p.Ref("tag:v1"), Host: envoy}
	for range 2 {
		_, err := s.Get(t.Context(), req)
		wantError(t, err, true, "has no ABI marker")
	}
	if n := len(p.Requests("/blobs/")); n != 1 {
		t.Errorf("the broken module was downloaded %d times, want once", n)
	}
	p.Fail("/", registrytest.Fault{Status: 503})
	_, err := s.Get(t.Context(), req)
	wantError(t, err, true, "has no ABI marker", "looking for a repaired one failed", "503")
	p.Repair()
	r.Push(t, "tag", "v1", registrytest.WasmToOCI(fine))
	m, err := s.Get(t.Context(), req)
	wantModule(t, m, err, fine)
}

func TestWithTheRealChecker(t *testing.T) {
	r := registrytest.New(t)
	r.Push(t, "real", "good", registrytest.WasmToOCI(wasmtest.Minimal()))
	r.Push(t, "real", "import", registrytest.WasmToOCI(wasmtest.MissingImport("env", "proxy_teleport")))
	r.Push(t, "real", "marker", registrytest.WasmToOCI(wasmtest.NoMarker()))
	s := open(t, t.TempDir(), func(c *Config) { c.Check = nil })
	m, err := s.Get(t.Context(), Request{URL: r.Ref("real:good"), Host: envoy})
	wantModule(t, m, err, wasmtest.Minimal())
	_, err = s.Get(t.Context(), Request{URL: r.Ref("real:import"), Host: envoy})
	wantError(t, err, true, "module "+r.Ref("real:import"), "env.proxy_teleport", "Envoy 1.40.0")
	_, err = s.Get(t.Context(), Request{URL: r.Ref("real:marker"), Host: envoy})
	wantError(t, err, true, "module "+r.Ref("real:marker"), "not a Proxy-Wasm module")
}
