package wasmcache

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/registrytest"
	"github.com/gateway-agent/gateway-agent/wasmcache/abi"
	"github.com/gateway-agent/gateway-agent/wasmcache/fetch"
)

var envoy = mustHost("1.40.0")

func mustHost(version string) abi.Host {
	h, ok := abi.HostForVersion(version)
	if !ok {
		panic("no host for " + version)
	}
	return h
}

// core returns a module of n bytes that differs by name. Only its header is that of a module.
func core(name string, n int) []byte {
	b := make([]byte, max(n, 8+len(name)))
	copy(b, "\x00asm\x01\x00\x00\x00"+name)
	return b
}

func hexOf(module []byte) string {
	return strings.TrimPrefix(registrytest.Digest(module), "sha256:")
}

func good(context.Context, abi.Host, string) abi.Verdict { return abi.Verdict{Outcome: abi.Good} }

// open opens a store that trusts every module, unless change says otherwise.
func open(t testing.TB, dir string, change ...func(*Config)) *Store {
	t.Helper()
	client := fetch.New(fetch.Config{})
	t.Cleanup(client.Close)
	cfg := Config{Dir: dir, Fetch: client, Check: good, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	for _, c := range change {
		c(&cfg)
	}
	s, err := Open(cfg)
	if err != nil {
		t.Fatalf("Open = %v", err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// wantModule checks what Get returned, file included.
func wantModule(t *testing.T, m Module, err error, content []byte) {
	t.Helper()
	if err != nil {
		t.Fatalf("Get = %v, want module %s", err, hexOf(content))
	}
	got, err := os.ReadFile(m.Path)
	if err != nil || string(got) != string(content) || m.Digest != hexOf(content) || m.Size != int64(len(content)) {
		t.Fatalf("Get = %+v with %d bytes (%v), want %s with %d bytes", m, len(got), err, hexOf(content), len(content))
	}
}

func wantError(t *testing.T, err error, permanent bool, texts ...string) {
	t.Helper()
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Permanent() != permanent {
		t.Errorf("Get = %v, want an *Error with Permanent %v", err, permanent)
		return
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("Get = %v, want it to say %q", err, text)
		}
	}
}

func TestPulledOnceThenServedOffline(t *testing.T) {
	r, dir := registrytest.New(t), filepath.Join(t.TempDir(), "store")
	module := core("hello", 3000)
	manifest := r.Push(t, "hello", "v1", registrytest.Compat(t, module))
	s := open(t, dir)
	m, err := s.Get(t.Context(), Request{URL: r.Ref("hello:v1"), Host: envoy})
	wantModule(t, m, err, module)
	if m.ManifestDigest != manifest || m.Ref != r.Ref("hello:v1") || m.Path != filepath.Join(dir, "blobs", "sha256", m.Digest) {
		t.Errorf("Get = %+v, want manifest %s", m, manifest)
	}
	r.Stop()
	for range 2 { // the same process, then a new one
		for _, sum := range []string{"", hexOf(module), strings.TrimPrefix(manifest, "sha256:")} {
			again, err := s.Get(t.Context(), Request{URL: r.Ref("hello:v1"), SHA256: sum, Host: envoy})
			wantModule(t, again, err, module)
		}
		s.Close()
		s = open(t, dir)
	}
	_, err = s.Get(t.Context(), Request{URL: r.Ref("hello:v2")})
	wantError(t, err, false, "connection refused")
	_, err = s.Get(t.Context(), Request{URL: r.Ref("hello:v1"), SHA256: strings.Repeat("ab", 32)})
	wantError(t, err, false, "connection refused")
}

func TestEnvoyOfAnotherUserCanRead(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s := open(t, dir)
	src := filepath.Join(t.TempDir(), "m.wasm")
	if err := os.WriteFile(src, core("mode", 100), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := s.Get(t.Context(), Request{URL: "file://" + src})
	wantModule(t, m, err, core("mode", 100))
	for path, want := range map[string]fs.FileMode{
		m.Path: 0o644, filepath.Dir(m.Path): 0o755, filepath.Join(dir, "blobs"): 0o755, dir: 0o755,
		filepath.Join(dir, "refs"): 0o700, filepath.Join(dir, "tmp"): 0o700,
	} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("mode of %s = %v, %v, want %v", path, info.Mode(), err, want)
		}
	}
}

func TestTagsAndAlways(t *testing.T) {
	r, dir := registrytest.New(t), t.TempDir()
	one, two := core("one", 100), core("two", 100)
	r.Push(t, "tag", "v1", registrytest.WasmToOCI(one))
	s := open(t, dir)
	req := func(resource, version string, always bool) Request {
		return Request{URL: r.Ref("tag:v1"), Resource: resource, ResourceVersion: version, Always: always}
	}
	get := func(want []byte, req Request) {
		t.Helper()
		m, err := s.Get(t.Context(), req)
		wantModule(t, m, err, want)
	}
	get(one, req("a", "1", true))
	r.Push(t, "tag", "v1", registrytest.WasmToOCI(two))
	get(one, req("a", "1", true))  // nothing changed for this resource
	get(one, req("a", "2", false)) // IfNotPresent
	get(two, req("a", "2", true))
	get(two, req("b", "2", true)) // another resource asks for itself
	get(two, req("", "", true))   // the command line: asks each time
	r.Stop()
	s.Close()
	s = open(t, dir)
	get(two, req("a", "2", true)) // also after a restart
	get(two, req("b", "2", true))
	get(two, req("", "", false))
	for _, changed := range []Request{req("a", "3", true), req("c", "2", true), req("", "", true)} {
		_, err := s.Get(t.Context(), changed)
		wantError(t, err, false, "connection refused")
	}
	get(one, Request{URL: r.Ref("tag:v1"), SHA256: hexOf(one)}) // seen earlier under this tag
}

func TestResourcesThatShareAPullAreAllRemembered(t *testing.T) {
	r, dir := registrytest.New(t), t.TempDir()
	module := core("shared", 100)
	r.Push(t, "shared", "v1", registrytest.WasmToOCI(module))
	p := registrytest.NewProxy(t, r.Addr)
	p.Fail("/blobs/", registrytest.Fault{Delay: 200 * time.Millisecond})
	s := open(t, dir)
	ref := func(name string) Request {
		return Request{URL: p.Ref("shared:v1"), Always: true, Resource: name, ResourceVersion: "7"}
	}
	errs := make(chan error, 5) // one per Get
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		go func() { _, err := s.Get(t.Context(), ref(name)); errs <- err }()
	}
	for range 5 {
		if err := <-errs; err != nil {
			t.Fatalf("Get = %v", err)
		}
	}
	if n := len(p.Requests("/blobs/")); n != 1 {
		t.Errorf("%d downloads, want 1", n)
	}
	p.Fail("/", registrytest.Fault{Status: 503})
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		m, err := s.Get(t.Context(), ref(name))
		wantModule(t, m, err, module)
	}
}

func TestLocalFilesAreReadAgain(t *testing.T) {
	s, path := open(t, t.TempDir()), filepath.Join(t.TempDir(), "m.wasm")
	for _, name := range []string{"one", "two"} {
		if err := os.WriteFile(path, core(name, 50), 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := s.Get(t.Context(), Request{URL: "file://" + path})
		wantModule(t, m, err, core(name, 50))
	}
}

func TestBadRequests(t *testing.T) {
	s := open(t, t.TempDir())
	for url, text := range map[string]string{
		"":                          "it has no scheme: write oci://",
		"registry.test/x:v1":        "it has no scheme",
		"ftp://x/y":                 "scheme ftp is not known",
		"oci://":                    "not an image reference",
		"oci://x/UPPER:v1":          "not an image reference",
		"oci://x/y@sha256:short":    "not an image reference",
		"file://relative":           "the path must be absolute",
		"http://":                   "not a URL with a host",
		"http://x/" + long(10_000):  "longer than 8192 bytes",
		"http://u:p@\x7f/bad%zz?s=": "not a URL",
	} {
		_, err := s.Get(t.Context(), Request{URL: url})
		wantError(t, err, true, text)
		if err != nil && strings.Contains(err.Error(), "u:p@") {
			t.Errorf("error %v has credentials in it", err)
		}
	}
	_, err := s.Get(t.Context(), Request{URL: "oci://x/y:v1", SHA256: "zz"})
	wantError(t, err, true, `sha256 of oci://x/y:v1: "zz" is not a SHA-256`)
}

func long(n int) string { return strings.Repeat("x", n) }

func TestFailuresAndRepair(t *testing.T) {
	r := registrytest.New(t)
	module := core("repair", 100_000)
	r.Push(t, "repair", "v1", registrytest.Compat(t, module))
	p := registrytest.NewProxy(t, r.Addr)
	tests := []struct {
		name      string
		part      string
		fault     registrytest.Fault
		permanent bool
		text      string
	}{
		{"503", "/manifests/", registrytest.Fault{Status: 503}, false, "503 Service Unavailable"},
		{"429", "/manifests/", registrytest.Fault{Status: 429, Header: map[string][]string{"Retry-After": {"5"}}}, false, "retry after 5s"},
		{"401", "/manifests/", registrytest.Fault{Status: 401}, true, "401 Unauthorized"},
		{"404", "/manifests/", registrytest.Fault{Status: 404}, true, "check the repository and the tag"},
		{"blob 404", "/blobs/", registrytest.Fault{Status: 404}, true, "404 Not Found"},
		{"flipped", "/blobs/", registrytest.Fault{Flip: 20}, true, "its bytes have the digest"},
		{"cut", "/blobs/", registrytest.Fault{Cut: 20}, false, "the connection ended after"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir)
			p.Fail(tt.part, tt.fault)
			_, err := s.Get(t.Context(), Request{URL: p.Ref("repair:v1")})
			wantError(t, err, tt.permanent, tt.text, p.Ref("repair:v1"))
			if e, ok := errors.AsType[*Error](err); ok && tt.name == "429" && e.RetryAfter() != 5*time.Second {
				t.Errorf("RetryAfter = %v, want 5s", e.RetryAfter())
			}
			if left, _ := os.ReadDir(filepath.Join(dir, "tmp")); len(left) != 0 {
				t.Errorf("%d files left in tmp", len(left))
			}
			p.Repair()
			m, err := s.Get(t.Context(), Request{URL: p.Ref("repair:v1")})
			wantModule(t, m, err, module)
		})
	}
}

func TestAnUpdateThatFailsLeavesTheOldOne(t *testing.T) {
	r := registrytest.New(t)
	one, two := core("one", 100), core("two", 100)
	r.Push(t, "upd", "v1", registrytest.WasmToOCI(one))
	p := registrytest.NewProxy(t, r.Addr)
	s := open(t, t.TempDir())
	always := Request{URL: p.Ref("upd:v1"), Always: true}
	m, err := s.Get(t.Context(), always)
	wantModule(t, m, err, one)
	r.Push(t, "upd", "v1", registrytest.WasmToOCI(two))
	p.Fail("/blobs/", registrytest.Fault{Status: 500})
	_, err = s.Get(t.Context(), always)
	wantError(t, err, false, "500")
	m, err = s.Get(t.Context(), Request{URL: p.Ref("upd:v1")})
	wantModule(t, m, err, one)
	p.Repair()
	m, err = s.Get(t.Context(), always)
	wantModule(t, m, err, two)
}

// counter counts the calls of a Check.
func counter(n *atomic.Int64, v abi.Verdict) func(*Config) {
	return func(c *Config) {
		c.Check = func(context.Context, abi.Host, string) abi.Verdict {
			n.Add(1)
			return v
		}
	}
}
