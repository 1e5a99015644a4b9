package oci

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/gateway-agent/gateway-agent/internal/oci/safehttp"
	"github.com/gateway-agent/gateway-agent/internal/registrytest"
	"github.com/gateway-agent/gateway-agent/internal/testca"
)

func imageOf(t *testing.T, module []byte) (v1.Image, string) {
	t.Helper()
	img, err := mutate.AppendLayers(mutate.MediaType(empty.Image, types.OCIManifestSchema1), static.NewLayer(module, "application/wasm"))
	if err != nil {
		t.Fatal(err)
	}
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return img, digest.String()
}

func reference(t *testing.T, s string) name.Reference {
	t.Helper()
	ref, err := ParseReference(s)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// progress collects what Push tells.
type progress struct{ done, total, calls int64 }

func (p *progress) note(done, total int64) { p.done, p.total, p.calls = done, total, p.calls+1 }

func TestPush(t *testing.T) {
	r := registrytest.New(t, registrytest.WithAccount())
	front := registrytest.NewProxy(t, r.Addr)
	ca := testca.New(t, "ours")
	host := serveTLS(t, ca, front, nil, "127.0.0.1")
	module := largeBlob(2 << 20)
	img, digest := imageOf(t, module)
	mirror := registrytest.NewProxy(t, r.Addr)
	c := New(Config{Registries: places{{Host: mirror.Addr, Plain: true, Mirror: true}, {Host: host, RootCAs: roots(ca)}}})
	secret := basic(host, registrytest.User, registrytest.Password)
	var p progress
	got, err := c.Push(t.Context(), reference(t, host+"/team/app:v1"), secret, img, p.note)
	if err != nil || got.String() != digest {
		t.Fatalf("Push = %s, %v, want %s", got, err, digest)
	}
	if p.done != p.total || p.total < int64(len(module)) || p.calls < 3 {
		t.Errorf("progress ended at %d of %d after %d calls, want all of at least %d bytes", p.done, p.total, p.calls, len(module))
	}
	if len(mirror.Requests("")) != 0 {
		t.Errorf("the mirror saw %+v, want nothing", mirror.Requests(""))
	}
	back := New(Config{Registries: places{{Host: host, RootCAs: roots(ca)}}})
	if m, err := read(t, back, repository(t, host+"/team/app"), secret); err != nil || m.Digest.String() != digest {
		t.Errorf("read back = %s, %v, want %s", m.Digest, err, digest)
	}
	front.Forget()
	if got, err := c.Push(t.Context(), reference(t, host+"/team/app:v2"), secret, img, nil); err != nil || got.String() != digest {
		t.Errorf("second Push = %s, %v, want %s", got, err, digest)
	}
	for _, r := range front.Requests("") {
		if r.Method == http.MethodPost || r.Method == http.MethodPatch {
			t.Errorf("the second push uploads again: %+v", r)
		}
	}
}

func TestPushIndex(t *testing.T) {
	r := registrytest.New(t)
	img, child := imageOf(t, []byte("module"))
	index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: img})
	want, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	c := New(Config{})
	got, err := c.Push(t.Context(), reference(t, r.Addr+"/app:v1"), nil, index, nil)
	if err != nil || got != want {
		t.Fatalf("Push = %s, %v, want %s", got, err, want)
	}
	repo, err := c.Open(t.Context(), repository(t, r.Addr+"/app"), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, digest := range []string{want.String(), child} {
		if _, err := repo.Manifest(t.Context(), digest); err != nil {
			t.Errorf("Manifest = %v", err)
		}
	}
}

func TestPushErrors(t *testing.T) {
	r := registrytest.New(t, registrytest.WithAccount())
	img, digest := imageOf(t, []byte("module"))
	tests := []struct {
		name   string
		ref    string
		secret []byte
		places places
		kind   Kind
		text   string
	}{
		{"no credentials", r.Addr + "/app:v1", nil, nil, Unauthorized, " to " + r.Addr + ": 401 Unauthorized (no credentials for this registry: log in with docker login " + r.Addr + ")"},
		{"wrong credentials", r.Addr + "/app:v1", basic(r.Addr, "me", "p4ss"), nil, Unauthorized, "(the registry refused the credentials of the pull secret; log in with docker login " + r.Addr + " as somebody who may push to app)"},
		{"bad secret", r.Addr + "/app:v1", []byte("p4ss"), nil, Broken, "the pull secret cannot be parsed"},
		{"another digest", r.Addr + "/app@sha256:" + strings.Repeat("0", 64), nil, nil, Broken, "the image has the digest " + digest + " (push it by a tag)"},
		{"only mirrors", "registry.test/app:v1", nil, places{{Host: r.Addr, Mirror: true}}, Broken, "only mirrors are configured for it"},
		{"down", "127.0.0.1:1/app:v1", nil, nil, Temporary, "push 127.0.0.1:1/app:v1: "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := Config{}
			if tt.places != nil {
				cfg.Registries = tt.places
			}
			_, err := New(cfg).Push(t.Context(), reference(t, tt.ref), tt.secret, img, func(int64, int64) {})
			wantKind(t, err, tt.kind, tt.text)
			if strings.Contains(err.Error(), "p4ss") {
				t.Errorf("the error quotes the password: %v", err)
			}
		})
	}
}

// A server hiccup in the middle of an upload is not the end of it.
func TestPushRetriesAStep(t *testing.T) {
	r := registrytest.New(t)
	front := registrytest.NewProxy(t, r.Addr)
	front.Fail("/uploads/", registrytest.Fault{Status: http.StatusServiceUnavailable, Times: 1})
	img, digest := imageOf(t, []byte("module"))
	if got, err := New(Config{}).Push(t.Context(), reference(t, front.Addr+"/app:v1"), nil, img, nil); err != nil || got.String() != digest {
		t.Errorf("Push = %s, %v, want %s", got, err, digest)
	}
}

// failingRegistry takes pushes until the step at, which it refuses with a status; with none it does not even read it.
func failingRegistry(t *testing.T, at string, status int) (host string) {
	t.Helper()
	done := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		what := r.Method + " " + strings.Split(r.URL.Path, "/")[3]
		switch {
		case what == at && status != 0:
			w.WriteHeader(status)
		case what == at:
			<-done
		case r.Method == http.MethodHead:
			w.WriteHeader(http.StatusNotFound)
		case r.Method == http.MethodPost:
			w.Header().Set("Location", "/v2/app/blobs/uploads/1")
			w.WriteHeader(http.StatusAccepted)
		case r.Method == http.MethodPatch:
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("Location", "/v2/app/blobs/uploads/1")
			w.WriteHeader(http.StatusAccepted)
		default:
			w.WriteHeader(http.StatusCreated)
		}
	}))
	t.Cleanup(func() { close(done); s.Close() })
	return s.Listener.Addr().String()
}

// Errors name the blob or the manifest, the registry, and a remedy; an upload that nobody reads ends.
func TestPushNamesWhatFailed(t *testing.T) {
	module := largeBlob(32 << 20)
	img, _ := imageOf(t, module)
	blob := ": upload blob sha256:"
	for _, tt := range []struct {
		name, at string
		status   int
		kind     Kind
		texts    []string
	}{
		{"stalled", "PATCH blobs", 0, Temporary, []string{blob + strings.TrimPrefix(registrytest.Digest(module), "sha256:"), "upload stalled: ", "look at the server, and at what is between"}},
		{"no such repository", "POST blobs", http.StatusNotFound, NotFound, []string{blob, "some registries want it to be created first"}},
		{"too large", "PATCH blobs", http.StatusRequestEntityTooLarge, Broken, []string{blob, "413 Request Entity Too Large", "has a limit for the size of a request"}},
		{"not asked who", "PUT manifests", http.StatusForbidden, Unauthorized, []string{": put manifest v1 to ", "403 Forbidden", "without asking for credentials", "docker login "}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			host := failingRegistry(t, tt.at, tt.status)
			h := safehttp.New(safehttp.Config{StallTime: 300 * time.Millisecond})
			defer h.CloseIdleConnections()
			_, err := New(Config{HTTP: h}).Push(t.Context(), reference(t, host+"/app:v1"), nil, img, func(int64, int64) {})
			wantKind(t, err, tt.kind, append(tt.texts, "push "+host+"/app:v1: ", host)...)
		})
	}
}

// The scopes of the token are those of a push, and a registry that leads an upload away does not get credentials there.
func TestPushTokensAndLocations(t *testing.T) {
	tokens := &tokenServer{}
	var mu sync.Mutex
	var stolen []string
	thief := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		stolen = append(stolen, r.Header.Get("Authorization"))
		w.WriteHeader(http.StatusForbidden)
	}))
	defer thief.Close()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/token" || r.Header.Get("Authorization") == "":
			tokens.ServeHTTP(w, r)
		case r.Method == http.MethodPost:
			w.Header().Set("Location", strings.Replace(thief.URL, "127.0.0.1", "localhost", 1)+"/upload")
			w.WriteHeader(http.StatusAccepted)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer s.Close()
	host := s.Listener.Addr().String()
	img, _ := imageOf(t, []byte("module"))
	_, err := New(Config{}).Push(t.Context(), reference(t, host+"/app:v1"), basic(host, "me", "p4ss"), img, nil)
	wantKind(t, err, Unauthorized, "403 Forbidden")
	if len(tokens.asked) != 1 || tokens.asked[0] != `me repository:app:pull+repository:app:pull,push it, "quoted"` {
		t.Errorf("token requests %q, want one to push", tokens.asked)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(stolen) == 0 || strings.Join(stolen, "") != "" {
		t.Errorf("the other host saw %q, want requests without credentials", stolen)
	}
}

var _ remote.Taggable = v1.Image(nil)
