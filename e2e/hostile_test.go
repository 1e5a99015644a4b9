package e2e

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/gateway-agent/gateway-agent/internal/registrytest"
	"github.com/gateway-agent/gateway-agent/internal/wasmtest"
)

const maxModule = 8 << 20 // --wasm-max-size of the hostile tests

// attack is a repository that means harm, under the tag v1.
type attack struct {
	name   string
	image  func(t *testing.T, good []byte) registrytest.Image // default: a good one
	fault  func(reg *registry)                                // on the way from the registry
	serve  func(w http.ResponseWriter, r *http.Request) bool  // instead of the registry; false: let it pass
	reason []string                                           // what status must say, besides the reference
}

// layered is an image with one layer.
func layered(mediaType types.MediaType, body []byte) registrytest.Image {
	return registrytest.Image{Layers: []registrytest.Layer{{MediaType: mediaType, Body: body}}}
}

// bomb is a gzip stream that begins with head and goes on with gibibytes of zeros; it is small.
func bomb(t *testing.T, head []byte, gibibytes int) []byte {
	t.Helper()
	var chunk bytes.Buffer
	w, _ := gzip.NewWriterLevel(&chunk, gzip.BestCompression)
	zeros := make([]byte, 1<<20)
	for range 64 {
		_, _ = w.Write(zeros)
	}
	_ = w.Close()
	return append(registrytest.Gzip(t, head), bytes.Repeat(chunk.Bytes(), 16*gibibytes)...)
}

func endless(w http.ResponseWriter, r *http.Request, head []byte) {
	_, _ = w.Write(head)
	for chunk := bytes.Repeat([]byte{' '}, 64<<10); r.Context().Err() == nil; {
		if _, err := w.Write(chunk); err != nil {
			return
		}
	}
}

// oversized is a valid module with a custom section that makes it larger than the limit, and hard to compress away.
func oversized() []byte {
	padding := make([]byte, maxModule+1)
	e := wasmtest.New(nil)
	e.Custom("padding", padding)
	return e.Bytes()
}

func attacks() []attack {
	wasmHead := []byte("\x00asm\x01\x00\x00\x00")
	component := append([]byte("\x00asm\x0d\x00\x01\x00"), make([]byte, 64)...)
	const raiseLimit = "raise --wasm-max-size"
	return []attack{
		{
			name: "tar-bomb", reason: []string{raiseLimit},
			image: func(t *testing.T, _ []byte) registrytest.Image {
				head := registrytest.Tar(t, registrytest.File{Name: "plugin.wasm", Body: make([]byte, maxModule)})[:512]
				return layered(types.OCILayer, bomb(t, append(head, wasmHead...), 4))
			},
		},
		{
			name: "wasm-bomb", reason: []string{raiseLimit},
			image: func(t *testing.T, _ []byte) registrytest.Image {
				return layered(registrytest.Wasm, bomb(t, wasmHead, 4))
			},
		},
		{
			name: "says-less", reason: []string{"bytes, the manifest says 100: push the image again"},
			image: func(_ *testing.T, good []byte) registrytest.Image {
				return registrytest.Image{Layers: []registrytest.Layer{{MediaType: registrytest.Wasm, Body: good, Size: 100}}}
			},
		},
		{
			name: "says-more", reason: []string{"more than the limit", raiseLimit},
			image: func(_ *testing.T, good []byte) registrytest.Image {
				return registrytest.Image{Layers: []registrytest.Layer{{MediaType: registrytest.Wasm, Body: good, Size: 1 << 40}}}
			},
		},
		{
			name: "endless-blob", reason: []string{"bytes that the manifest says", "push the image again"},
			serve: func(w http.ResponseWriter, r *http.Request) bool {
				if strings.Contains(r.URL.Path, "/blobs/") {
					endless(w, r, wasmHead)
					return true
				}
				return false
			},
		},
		{
			name: "endless-manifest", reason: []string{"read manifest", "larger than", "check that the URL names an image"},
			serve: func(w http.ResponseWriter, r *http.Request) bool {
				if strings.Contains(r.URL.Path, "/manifests/") {
					endless(w, r, []byte("{"))
					return true
				}
				return false
			},
		},
		{
			name: "huge-manifest", reason: []string{"read manifest", "larger than", "check that the URL names an image"},
			serve: func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.Contains(r.URL.Path, "/manifests/") {
					return false
				}
				w.Header().Set("Content-Length", strconv.Itoa(64<<20))
				w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
				_, _ = w.Write([]byte(`{"schemaVersion":2,"layers":[`))
				for range 64<<10 - 1 {
					if _, err := w.Write(bytes.Repeat([]byte("{},\n"), 256)); err != nil {
						break
					}
				}
				return true
			},
		},
		{
			name: "truncated", reason: []string{"ended after", "tries to go on", "look at the registry"},
			fault: func(reg *registry) { reg.proxy.Fail("/v2/truncated/blobs/", registrytest.Fault{Cut: 300_000}) },
		},
		{
			name: "flipped", reason: []string{"digest", "push the image again"},
			fault: func(reg *registry) { reg.proxy.Fail("/v2/flipped/blobs/", registrytest.Fault{Flip: 300_000}) },
		},
		{
			name: "link-local", reason: []string{"169.254.169.254", "link-local", "where the server redirects"},
			fault: func(reg *registry) {
				reg.proxy.Fail("/v2/link-local/blobs/", registrytest.Fault{Status: 307, Header: http.Header{"Location": {"http://169.254.169.254/latest/meta-data/"}}})
			},
		},
		{
			name: "redirect-loop", reason: []string{"more than 10 redirects", "check where the server redirects"},
			fault: func(reg *registry) {
				reg.proxy.Fail("/v2/redirect-loop/blobs/", registrytest.Fault{Status: 307, Header: http.Header{"Location": {"/v2/redirect-loop/blobs/again"}}})
			},
		},
		{
			name: "component", reason: []string{"WebAssembly component", "wasip1"},
			image: func(*testing.T, []byte) registrytest.Image { return registrytest.CNCF(component) },
		},
		{
			name: "oversized", reason: []string{raiseLimit},
			image: func(t *testing.T, _ []byte) registrytest.Image { return registrytest.Compat(t, oversized()) },
		},
		{
			name: "oversized-raw", reason: []string{raiseLimit},
			image: func(*testing.T, []byte) registrytest.Image { return registrytest.Solo(oversized()) },
		},
		{
			name: "no-wasm", reason: []string{"not a Wasm module", "check that the reference"},
			image: func(*testing.T, []byte) registrytest.Image {
				return registrytest.CNCF(bytes.Repeat([]byte("#!/bin/sh\n"), 1000))
			},
		},
	}
}

// hostileFront serves the attacks in front of a registry, until it is told to stop.
func hostileFront(t *testing.T, reg *registry, all []attack) (address string, repair func()) {
	t.Helper()
	var repaired atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, a := range all {
			if a.serve != nil && strings.HasPrefix(r.URL.Path, "/v2/"+a.name+"/") && !repaired.Load() && a.serve(w, r) {
				return
			}
		}
		reg.proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	return server.Listener.Addr().String(), func() {
		repaired.Store(true)
		reg.heal()
	}
}

func TestHostileRegistry(t *testing.T) {
	t.Parallel()
	reg, a, all := startRegistry(t), newAgent(t), attacks()
	good := helloModule(t, "v1")
	code, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	reg.push("good:v1", good)
	front, repair := hostileFront(t, reg, all)
	served := newPlace(t, plugin{name: "good", uri: reg.uri("good:v1"), value: "good"})
	places := []place{served}
	for _, attack := range all {
		image := registrytest.CNCF(code)
		if attack.image != nil {
			image = attack.image(t, code)
		}
		reg.real.Push(t, attack.name, "v1", image)
		if attack.fault != nil {
			attack.fault(reg)
		}
		places = append(places, newPlace(t, plugin{name: attack.name, uri: "oci://" + front + "/" + attack.name + ":v1", value: attack.name}))
	}
	startPlaces(t, a, "delta", places, "--wasm-max-size", "8MiB", "--wasm-retry-max", "2s")
	l := startLoad(t, "http://"+served.address+"/", 20)
	time.Sleep(5 * time.Second) // some rounds of retries

	states := a.plugins()
	for i, attack := range all {
		s, ref := states[attack.name], places[i+1].uri
		if s.State != "policy" || !strings.Contains(s.Reason, ref) {
			t.Errorf("%s: status = %+v, want the policy, with a reason that names %s", attack.name, s, ref)
		}
		for _, want := range attack.reason {
			if !strings.Contains(s.Reason, want) {
				t.Errorf("%s: the reason is %q, want it to say %q", attack.name, s.Reason, want)
			}
		}
		if err := places[i+1].refuses(); err != nil {
			t.Errorf("%s: %v", attack.name, err)
		}
	}
	if err := served.serves(); err != nil {
		t.Error(err)
	}
	a.wantBlobs(wasmDigest(t, good))
	a.wantMemoryBelow(200 << 20)

	for _, attack := range all {
		reg.real.Push(t, attack.name, "v1", registrytest.CNCF(code))
	}
	repair()
	for _, p := range places[1:] {
		a.eventually(compiled, p.name+" works once the registry is repaired", p.serves)
	}
	l.wantNoFailure(100)
	a.wantBlobs(wasmDigest(t, good))
	a.wantMemoryBelow(200 << 20)
}

// TestHangingDownload: a registry that stops in the middle of a module costs neither the neighbours nor the policy.
func TestHangingDownload(t *testing.T) {
	t.Parallel()
	reg, a := startRegistry(t), newAgent(t)
	reg.push("good:v1", helloModule(t, "v1"))
	reg.push("hangs:v1", helloModule(t, "v2"))
	reg.proxy.Fail("/v2/hangs/blobs/", registrytest.Fault{Hang: true, Cut: 10_000})
	good := newPlace(t, plugin{name: "good", uri: reg.uri("good:v1"), value: "good"})
	hangs := newPlace(t, plugin{name: "hangs", uri: reg.uri("hangs:v1"), value: "at last"})
	startPlaces(t, a, "sotw", []place{good, hangs}, "--wasm-hold", "1s", "--wasm-retry-max", "2s")
	if err := hangs.refuses(); err != nil {
		t.Error(err)
	}
	if s := a.plugins()["hangs"]; s.State != "policy" || !strings.Contains(s.Reason, "still being pulled") || s.URL != reg.uri("hangs:v1") {
		t.Errorf("status while it hangs = %+v, want the policy, because it is still being pulled", s)
	}
	a.eventually(45*time.Second, "status tells of the stalled download", func() error {
		if s := a.plugins()["hangs"]; !strings.Contains(s.Reason, "download stalled") || !strings.Contains(s.Reason, reg.uri("hangs:v1")) {
			return fmt.Errorf("status = %+v", s)
		}
		return good.serves()
	})
	a.wantBlobs(wasmDigest(t, helloModule(t, "v1")))
	reg.heal()
	a.eventually(45*time.Second, "the plugin works once the registry is repaired", hangs.serves)
}

// wantBlobs looks at the modules in the store.
func (a *agent) wantBlobs(digests ...string) {
	a.t.Helper()
	entries, err := os.ReadDir(filepath.Join(a.dir, "data", "wasm", "blobs", "sha256"))
	if err != nil {
		a.t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if fmt.Sprint(got) != fmt.Sprint(digests) {
		a.t.Errorf("the store has the modules %v, want %v", got, digests)
	}
}

// wantMemoryBelow looks at the most memory that the agent ever had resident.
func (a *agent) wantMemoryBelow(limit int) {
	a.t.Helper()
	kib := a.memory("VmHWM")
	if kib<<10 > limit {
		a.t.Errorf("the agent had %d KiB resident, want at most %d", kib, limit>>10)
	}
	a.t.Logf("the agent had at most %d MiB resident", kib>>10)
}

// memory reads a figure of the agent's process, in KiB.
func (a *agent) memory(figure string) int {
	a.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.cmd.Process.Pid))
	if err != nil {
		a.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), figure+":")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		a.t.Fatalf("no %s in %s", figure, text)
	}
	kib, err := strconv.Atoi(fields[0])
	if err != nil {
		a.t.Fatal(err)
	}
	return kib
}
