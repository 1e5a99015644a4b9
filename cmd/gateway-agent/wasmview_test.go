package main

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gateway-agent/gateway-agent/ecds"
	"github.com/gateway-agent/gateway-agent/wasmcache"
	"github.com/gateway-agent/gateway-agent/wasmcache/abi"
)

// The screens of `wasm list` and `wasm inspect`.
func TestModuleScreens(t *testing.T) {
	now := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	list := listing{
		Store: wasmcache.Status{
			Dir: "/var/lib/gateway-agent/wasm", Bytes: 5 << 20,
			Modules: []wasmcache.ModuleStatus{
				{Digest: sumA, Size: 3 << 20, LastUsed: ago(time.Minute), Pinned: true, Refs: []string{"oci://ghcr.io/acme/waf:latest", "oci://ghcr.io/acme/waf:v3"}},
				{Digest: sumB, Size: 2 << 20, LastUsed: ago(80 * time.Hour), Preloaded: true, Refs: []string{"https://example.org/plugin.wasm"}, Verdicts: []wasmcache.VerdictStatus{
					{Host: "Envoy 1.40.0", Outcome: "good"}, {Host: "Envoy 1.32.0", Outcome: "broken", Reason: "imports wasi_snapshot_preview1.sched_yield, which Envoy 1.32.0 does not provide"},
				}},
			},
			Quarantine: []wasmcache.QuarantineStatus{{Digest: sumC, Reason: "its content has another digest", Since: ago(time.Hour)}},
			Pulls:      []wasmcache.PullStatus{{Ref: "oci://ghcr.io/acme/new:v1", Since: ago(3 * time.Second)}},
		},
		Plugins: []ecds.ResourceStatus{
			{Name: "waf", State: ecds.StateLive, DigestLive: sumA, URL: "oci://ghcr.io/acme/waf:v3"},
			{Name: "jwt", State: ecds.StateDegraded, DigestLive: sumB, URL: "oci://ghcr.io/acme/jwt:v2", Reason: "404 Not Found", NextRetry: now.Add(40 * time.Second), Attempts: 4},
		},
	}
	var out strings.Builder
	renderListing(&out, list, now, false)
	golden(t, "modules", out.String())

	out.Reset()
	renderInspection(&out, &inspection{
		Ref: "oci://ghcr.io/acme/waf:v3", Digest: "sha256:" + sumA, Note: "the store has another one under this reference: sha256:" + sumB,
		Image: &imageInfo{
			Manifest: "sha256:" + sumC, Index: "sha256:" + sumB, MediaType: "application/vnd.oci.image.manifest.v1+json", Source: "mirror.example.org",
			Annotations: map[string]string{"org.opencontainers.image.title": "waf", "a\x1b[31m": "b\nc"},
			Layers:      []layerInfo{{MediaType: "application/vnd.oci.image.layer.v1.tar+gzip", Digest: "sha256:" + sumB, Size: 900 << 10, Title: "plugin.wasm", Module: true}},
		},
		Verdict: &verdictInfo{Host: "Envoy 1.32.0", Outcome: "broken", Reason: "imports x.y, which Envoy 1.32.0 does not provide", Warnings: []string{"exports no callback"}},
		Module: &abi.Description{
			Size: 3 << 20, ABI: "0.2.1", Name: "waf", Functions: 812, Start: true, Features: "tail calls",
			Memories:  []abi.MemoryInfo{{Min: 17, Max: 256}},
			Imports:   manyImports(),
			Exports:   []abi.ExportInfo{{Name: "memory", Kind: "memory"}, {Name: "proxy_on_request_headers", Kind: "function"}},
			Sections:  []abi.SectionInfo{{Name: "type", Size: 90}, {Name: "code", Size: 2 << 20}, {Name: ".debug_info", Custom: true, Size: 1 << 20}},
			Producers: []abi.ProducerInfo{{Field: "language", Name: "Rust"}, {Field: "processed-by", Name: "rustc", Version: "1.80.0"}},
		},
	}, false)
	golden(t, "inspect", out.String())
	out.Reset()
	renderInspection(&out, &inspection{File: "x.wasm", Verdict: &verdictInfo{Outcome: "broken"}, Module: &abi.Description{Fault: "the code section ends too early", Cut: true}}, true)
	if text := out.String(); !strings.Contains(text, "\x1b[31mbroken\x1b[0m") || !strings.Contains(text, "not a Proxy-Wasm module") || strings.Contains(text, "note") {
		t.Errorf("on a terminal a broken module is red, got %q", text)
	}
}

func manyImports() []abi.ImportInfo {
	imports := []abi.ImportInfo{{Module: "x", Name: "memory", Kind: "memory"}}
	for _, name := range []string{"log", "get_buffer_bytes", "set_buffer_bytes", "get_header_map_pairs", "set_header_map_pairs", "get_property", "send_local_response"} {
		imports = append(imports, abi.ImportInfo{Module: "env", Name: "proxy_" + name, Kind: "function"})
	}
	return imports
}

// `wasm list` shows the plugins of the agent that runs in --run-dir.
func TestListAsksTheRunningAgent(t *testing.T) {
	dir, err := os.MkdirTemp("", "ga") // unix socket paths are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	listener, err := net.Listen("unix", filepath.Join(dir, "control.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/debug/wasm" {
			_ = json.NewEncoder(w).Encode(map[string]any{"plugins": []ecds.ResourceStatus{{Name: "waf", State: ecds.StatePolicy, Reason: "404 Not Found"}}, "store": 1})
		}
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close(); <-done })
	var out, errs strings.Builder
	code := run(context.WithoutCancel(t.Context()), []string{"wasm", "list", "--data-dir", filepath.Join(dir, "data"), "--run-dir", dir}, nil, &out, &errs)
	if code != 0 || !strings.Contains(out.String(), "waf  policy") || !strings.Contains(out.String(), "404 Not Found") {
		t.Errorf("list = %d, %q, %q, want the plugin and its reason", code, out.String(), errs.String())
	}
}

func TestSizesForPeople(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 5 << 20: "5.0 MiB", 3 << 29: "1.5 GiB"} {
		if got := size(n); got != want {
			t.Errorf("size(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestReferencesWithoutAScheme(t *testing.T) {
	for ref, want := range map[string]string{
		"ghcr.io/acme/waf:v3": "oci://ghcr.io/acme/waf:v3", "localhost:5000/waf": "oci://localhost:5000/waf", "localhost/waf": "oci://localhost/waf",
		"oci://x/y": "oci://x/y", "https://x/y": "https://x/y", "waf:v3": "waf:v3", "acme/waf:v3": "acme/waf:v3",
	} {
		if got := withScheme(ref); got != want {
			t.Errorf("withScheme(%q) = %q, want %q", ref, got, want)
		}
	}
}

// Every command says how it is used, what it prints for scripts, and its exit codes.
func TestModuleCommandsTeach(t *testing.T) {
	for _, command := range []string{"pull", "list", "inspect", "push", "export", "import", "verify", "prune"} {
		var out, errs strings.Builder
		if code := run(t.Context(), []string{"wasm", command, "--help"}, nil, &out, &errs); code != 0 {
			t.Errorf("wasm %s --help = %d, %s", command, code, errs.String())
		}
		for _, want := range []string{"\nExit codes: 0 ", "-o, --output", "-q, --quiet", "Examples:\n  gateway-agent wasm "} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("wasm %s --help lacks %q", command, want)
			}
		}
	}
}
