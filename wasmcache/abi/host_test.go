package abi

import (
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/google/go-cmp/cmp"

	"github.com/gateway-agent/gateway-agent/internal/wasmtest"
)

// node is what an Envoy with the given runtimes says of itself.
func node(major, minor, patch uint32, runtimes ...string) *corev3.Node {
	n := &corev3.Node{
		UserAgentName: "envoy",
		UserAgentVersionType: &corev3.Node_UserAgentBuildVersion{UserAgentBuildVersion: &corev3.BuildVersion{
			Version: &typev3.SemanticVersion{MajorNumber: major, MinorNumber: minor, Patch: patch},
		}},
		Extensions: []*corev3.Extension{{Name: "envoy.filters.http.wasm", Category: "envoy.filters.http"}},
	}
	for _, r := range runtimes {
		n.Extensions = append(n.Extensions, &corev3.Extension{Name: r, Category: "envoy.wasm.runtime"})
	}
	return n
}

func TestHostOf(t *testing.T) {
	const v8, null = "envoy.wasm.runtime.v8", "envoy.wasm.runtime.null"
	other := node(1, 40, 0, v8)
	other.UserAgentName = "grpc-go"
	bare := node(1, 36, 4)
	bare.Extensions = nil
	for name, tt := range map[string]struct {
		node *corev3.Node
		want Host
	}{
		"nothing":         {nil, Host{}},
		"empty":           {&corev3.Node{}, Host{}},
		"another client":  {other, Host{}},
		"1.27":            {node(1, 27, 0, null, v8), Host{Version: "1.27.0", Known: true, Wasm: true, WASI: 15}},
		"1.36":            {node(1, 36, 4, null, v8), Host{Version: "1.36.4", Known: true, Wasm: true, WASI: 18}},
		"1.38 without V8": {node(1, 38, 3, null), Host{Version: "1.38.3", Known: true, WASI: 18}},
		"1.39":            {node(1, 39, 3, null, v8), Host{Version: "1.39.3", Known: true, Wasm: true, WASI: 45}},
		"1.40":            {node(1, 40, 0, null, v8), Host{Version: "1.40.0", Known: true, Wasm: true, WASI: 45}},
		"newer":           {node(1, 41, 0, null, v8), Host{Version: "1.41.0", Known: true, Wasm: true, WASI: 45, Newer: true}},
		"2.0":             {node(2, 0, 0, null, v8), Host{Version: "2.0.0", Known: true, Wasm: true, WASI: 45, Newer: true}},
		"no extensions":   {bare, Host{Version: "1.36.4", Known: true, Wasm: true, WASI: 18}},
	} {
		if diff := cmp.Diff(tt.want, HostOf(tt.node)); diff != "" {
			t.Errorf("HostOf(%s): -want +got\n%s", name, diff)
		}
	}
}

func TestHostForVersion(t *testing.T) {
	for version, want := range map[string]string{
		"1.40.0": "envoy-1.40.0-wasi45-wasm=true", "v1.36.4": "envoy-1.36.4-wasi18-wasm=true", "1.27": "envoy-1.27.0-wasi15-wasm=true",
	} {
		if host, ok := HostForVersion(version); !ok || host.Key() != want {
			t.Errorf("HostForVersion(%q): %q, %t, want %q", version, host.Key(), ok, want)
		}
	}
	for _, version := range []string{"", "1", "latest", "1.x", "1.2.3.4", "1.40.0-dev", "-1.2.3", "1.70000.0"} {
		if host, ok := HostForVersion(version); ok {
			t.Errorf("HostForVersion(%q): %v, want none", version, host)
		}
	}
	if got := (Host{}).Key(); got != "unknown" {
		t.Errorf("Host{}.Key(): %q, want unknown", got)
	}
}

// TestReasons has the exact words that people read.
func TestReasons(t *testing.T) {
	v := func(version string) Host {
		host, ok := HostForVersion(version)
		if !ok {
			t.Fatalf("HostForVersion(%q): not ok", version)
		}
		return host
	}
	readfile := wasmtest.PluginBytes(t, "readfile")
	yield := wasmtest.Importing("wasi_snapshot_preview1", "sched_yield", ">i")
	abort := wasmtest.MissingImport("env", "abort")
	late := wasmtest.Importing("wasi_unstable", "fd_sync", "i>i")
	for name, tt := range map[string]struct {
		host    Host
		module  []byte
		outcome Outcome
		reason  string
		warning string
	}{
		"good":             {v("1.40.0"), readfile, Good, "", ""},
		"os.ReadFile":      {v("1.36.4"), readfile, Broken, "imports wasi_snapshot_preview1.fd_filestat_get and wasi_snapshot_preview1.path_filestat_get, which Envoy 1.36.4 does not provide; Envoy 1.39 and newer do", ""},
		"os.ReadFile ?":    {Host{}, readfile, Good, "", "imports wasi_snapshot_preview1.fd_filestat_get and wasi_snapshot_preview1.path_filestat_get; Envoy 1.39 and newer do"},
		"sched_yield old":  {v("1.27.0"), yield, Broken, "imports wasi_snapshot_preview1.sched_yield, which Envoy 1.27.0 does not provide; Envoy 1.33 and newer do", ""},
		"sched_yield":      {v("1.36.4"), yield, Good, "", ""},
		"sched_yield ?":    {Host{}, yield, Good, "", ""},
		"late, old name":   {v("1.37.0"), late, Broken, "imports wasi_unstable.fd_sync, which Envoy 1.37.0 does not provide; Envoy 1.39 and newer do", ""},
		"abort":            {v("1.40.0"), abort, Broken, "imports env.abort, which Envoy 1.40.0 does not provide", ""},
		"abort, newer":     {v("1.41.0"), abort, CannotSay, "imports env.abort, which no Envoy up to 1.40 provides", ""},
		"abort ?":          {Host{}, abort, CannotSay, "imports env.abort, which no Envoy up to 1.40 provides", ""},
		"no runtime":       {HostOf(node(1, 38, 3, "envoy.wasm.runtime.null")), readfile, Broken, "this Envoy was built without a Wasm runtime", ""},
		"no marker":        {v("1.40.0"), wasmtest.NoMarker(), Broken, "exports none of the functions proxy_abi_version_0_1_0, proxy_abi_version_0_2_0 and proxy_abi_version_0_2_1, so it is not a Proxy-Wasm module", ""},
		"no malloc":        {v("1.40.0"), wasmtest.NoMalloc(), Broken, "exports neither malloc nor proxy_on_memory_allocate, which Envoy needs to pass data", ""},
		"wrong callback":   {v("1.40.0"), wasmtest.WrongCallback(), Broken, "exports proxy_on_configure as (i32)->(i32), but Envoy calls (i32,i32)->(i32)", ""},
		"wrong import":     {v("1.40.0"), wasmtest.MissingImport("env", "proxy_log"), Broken, "imports env.proxy_log as ()->(), but Envoy has (i32,i32,i32)->(i32)", ""},
		"host call":        {Host{}, wasmtest.HostCallInStart(), Broken, "calls env.proxy_log in its start section, which ends Envoy; export _initialize instead", ""},
		"no memory":        {Host{}, wasmtest.NoMemory(), Broken, "neither exports nor imports a memory; Envoy dies when env.proxy_log is called", ""},
		"tag":              {Host{}, wasmtest.TagImport(), Broken, "imports the tag env.tag, which ends Envoy", ""},
		"global":           {Host{}, wasmtest.GlobalImport(), Broken, "imports the global env.__memory_base, and Envoy provides no globals", ""},
		"memory":           {Host{}, wasmtest.HugeMemory(), Broken, "memory 0 needs 16385 pages; Envoy allows 16384", ""},
		"truncated":        {Host{}, wasmtest.Truncated(), Broken, "the code section ends too early: the module is truncated or corrupt", ""},
		"unknown op":       {v("1.40.0"), body("", 0xe0, 0).module, Broken, "the code section has an instruction 0xe0", ""},
		"unknown op newer": {v("1.41.0"), body("", 0xe0, 0).module, CannotSay, "the code section has an instruction 0xe0, which no Envoy up to 1.40 reads", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := check(t, tt.host, tt.module)
			if got.Outcome != tt.outcome || got.Reason != tt.reason {
				t.Errorf("Check: %s\n got %q\nwant %s\n     %q", got.Outcome, got.Reason, tt.outcome, tt.reason)
			}
			if tt.warning != "" && strings.Join(got.Warnings, "\n") != tt.warning {
				t.Errorf("Check: warnings %q, want %q", got.Warnings, tt.warning)
			}
		})
	}
}
