package oci

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/oci/registries"
	"github.com/gateway-agent/gateway-agent/internal/oci/safehttp"
	"github.com/gateway-agent/gateway-agent/internal/registrytest"
)

// The endpoints of a site: two mirrors of one registry, which has the same content.
type site struct {
	client        *Client
	first, second *registrytest.Proxy
	origin        *registrytest.Proxy
	digest        string
	module        []byte
}

func newSite(t *testing.T, upstream *registrytest.Registry) *site {
	t.Helper()
	s := &site{module: []byte(strings.Repeat("module ", 1000))}
	s.digest = upstream.Push(t, "app", "v1", registrytest.WasmToOCI(s.module))
	s.first, s.second, s.origin = registrytest.NewProxy(t, upstream.Addr), registrytest.NewProxy(t, upstream.Addr), registrytest.NewProxy(t, upstream.Addr)
	s.reset()
	return s
}

// reset forgets what was learnt.
func (s *site) reset() {
	for _, p := range []*registrytest.Proxy{s.first, s.second, s.origin} {
		p.Repair()
		p.Forget()
	}
	s.client = New(Config{Registries: places{{Host: s.first.Addr, Mirror: true, Namespace: "registry.test"}, {Host: s.second.Addr, Mirror: true}, {Host: s.origin.Addr}}})
}

// pull gives the digest, the source and the module that came.
func (s *site) pull(t *testing.T, identifier string) (Manifest, string, error) {
	t.Helper()
	repo, err := s.client.Open(t.Context(), repository(t, s.origin.Addr+"/app"), nil)
	if err != nil {
		t.Fatal(err)
	}
	m, err := repo.Manifest(t.Context(), identifier)
	if err != nil {
		return m, "", err
	}
	rc, err := repo.Blob(t.Context(), descriptorOf(s.module))
	if err != nil {
		return m, "", err
	}
	defer rc.Close()
	body, err := readAll(rc, 1<<20)
	return m, string(body), err
}

func TestMirrors(t *testing.T) {
	s := newSite(t, registrytest.New(t))
	ok := registrytest.Fault{}
	status := func(code int) registrytest.Fault { return registrytest.Fault{Status: code} }
	other := registrytest.Fault{Body: []byte(`{"schemaVersion":2,"layers":[]}`)}
	tests := []struct {
		name          string
		first, second registrytest.Fault
		identifier    string
		want          *registrytest.Proxy
	}{
		{"all well", ok, ok, "v1", s.first},
		{"404", status(404), ok, "v1", s.second},
		{"401", status(401), ok, "v1", s.second},
		{"503", status(503), ok, "v1", s.second},
		{"429", status(429), ok, "v1", s.second},
		{"wrong digest", other, ok, s.digest, s.second},
		{"not a registry", registrytest.Fault{Body: []byte("<html>please log in</html>")}, ok, "v1", s.second},
		{"led away", registrytest.Fault{Status: 302, Header: http.Header{"Location": {"http://169.254.169.254/"}}}, ok, "v1", s.second},
		{"both", status(404), status(500), "v1", s.origin},
		{"broken off", registrytest.Fault{Cut: 10}, ok, "v1", s.second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s.reset()
			s.first.Fail("/manifests/", tt.first)
			s.second.Fail("/manifests/", tt.second)
			m, body, err := s.pull(t, tt.identifier)
			if err != nil || m.Digest.String() != s.digest || m.Source != tt.want.Addr || body != string(s.module) {
				t.Errorf("pull = %s from %s, %d bytes, %v, want %s from %s", m.Digest, m.Source, len(body), err, s.digest, tt.want.Addr)
			}
			if blobs := tt.want.Requests("/blobs/"); len(blobs) != 1 {
				t.Errorf("the place that had the manifest saw %d requests for the blob, want 1", len(blobs))
			}
		})
	}
}

func TestMirrorRequests(t *testing.T) {
	var got []string
	mirror := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r.URL.String()+" "+r.Header.Get("X-Site"))
		w.WriteHeader(http.StatusNotFound)
	}))
	defer mirror.Close()
	host := mirror.Listener.Addr().String()
	c := New(Config{Registries: places{
		{Host: host, Mirror: true, Namespace: "registry.test", Header: http.Header{"X-Site": {"7"}}},
		{Host: host, Mirror: true, Path: "/v2/proxy", Repository: "hub/app"},
	}})
	_, err := read(t, c, repository(t, "registry.test/app"), nil)
	wantKind(t, err, NotFound, "read manifest registry.test/app:v1: none of 2 places has it: mirror "+host+": 404 Not Found (check the repository and the tag); mirror "+host)
	want := "/v2/app/manifests/v1?ns=registry.test 7, /v2/proxy/hub/app/manifests/v1 "
	if strings.Join(got, ", ") != want {
		t.Errorf("requests = %q, want %q", got, want)
	}
}

// R19: the registry cannot be resolved, the mirror serves; and a mirror that cannot be resolved is passed over, then asked last.
func TestUnresolvable(t *testing.T) {
	s := newSite(t, registrytest.New(t))
	s.client = New(Config{Registries: places{{Host: s.first.Addr, Mirror: true}, {Host: "registry.invalid"}}})
	if m, _, err := s.pull(t, "v1"); err != nil || m.Source != s.first.Addr {
		t.Errorf("pull = from %s, %v, want it from the mirror", m.Source, err)
	}
	s.first.Fail("/manifests/", registrytest.Fault{Status: http.StatusNotFound})
	_, _, err := s.pull(t, "v1")
	wantKind(t, err, Temporary, "mirror "+s.first.Addr+": 404 Not Found", "; registry.invalid: ", "lookup registry.invalid")
	s.reset()
	s.client = New(Config{Registries: places{{Host: "mirror.invalid", Mirror: true}, {Host: s.origin.Addr}}})
	for range 2 {
		if m, _, err := s.pull(t, "v1"); err != nil || m.Source != s.origin.Addr {
			t.Errorf("pull = from %s, %v, want it from the registry", m.Source, err)
		}
	}
	for _, repo := range []string{"app", "another"} {
		r, err := s.client.Open(t.Context(), repository(t, s.origin.Addr+"/"+repo), nil)
		if err != nil {
			t.Fatal(err)
		}
		targets, err := r.places(pullActions, false)
		if err != nil || r.order(targets, "v1")[0].endpoint.Host != s.origin.Addr {
			t.Errorf("%s: the mirror that cannot be resolved is still asked first (%v)", repo, err)
		}
	}
}

func TestFailureKeepsHTTPSFirst(t *testing.T) {
	c := New(Config{Registries: places{{Host: "a.test", SkipVerify: true}, {Host: "a.test", Plain: true}, {Host: "b.test"}}})
	r, err := c.Open(t.Context(), repository(t, "a.test/app"), nil)
	if err != nil {
		t.Fatal(err)
	}
	targets, err := r.places(pullActions, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []Kind{NotFound, Temporary, Broken} {
		r.learn("a.test", "v1", &Error{Kind: kind, Err: errors.New("failed")})
		if got := r.order(targets, "v1"); got[0] != targets[2] || got[1] != targets[0] || got[2] != targets[1] {
			t.Errorf("after a failure that is %s: %v, want the other host, then https, then plain HTTP", kind, got)
		}
	}
}

func TestAvoidedForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(Config{})
		c.avoid("x", downTime)
		time.Sleep(downTime - time.Second)
		if !c.isAvoided("x") {
			t.Error("not avoided before the time is over")
		}
		time.Sleep(2 * time.Second)
		if c.isAvoided("x") {
			t.Error("still avoided after the time is over")
		}
	})
}

// A mirror with a wrong blob is found out at its end, when the bytes are given out; the next try asks elsewhere.
func TestWrongBlobAtMirror(t *testing.T) {
	s := newSite(t, registrytest.New(t))
	s.first.Fail("/blobs/", registrytest.Fault{Flip: 100})
	_, _, err := s.pull(t, "v1")
	wantKind(t, err, Temporary, "its bytes have the digest sha256:", "the next try asks another of the places")
	if e, _ := errors.AsType[*Error](err); e == nil || !e.Elsewhere {
		t.Errorf("error = %+v, want Elsewhere", e)
	}
	if m, body, err := s.pull(t, "v1"); err != nil || body != string(s.module) || len(s.second.Requests("/blobs/")) != 1 {
		t.Errorf("second pull = from %s, %d bytes, %v, want the blob from the second mirror", m.Source, len(body), err)
	}
	s.second.Fail("/blobs/", registrytest.Fault{Flip: 100})
	s.origin.Fail("/blobs/", registrytest.Fault{Flip: 100})
	_, _, err = s.pull(t, "v1")
	wantKind(t, err, Temporary)
	_, _, err = s.pull(t, "v1")
	wantKind(t, err, Broken, "push the image again")
}

func TestKindOfSeveral(t *testing.T) {
	mirror, origin := &target{endpoint: registries.Endpoint{Mirror: true}}, &target{}
	for _, tt := range []struct {
		mirror, origin, want Kind
	}{
		{NotFound, NotFound, NotFound},
		{Temporary, NotFound, Temporary}, // the mirror may have it when it is back
		{NotFound, Temporary, Temporary},
		{Temporary, Unauthorized, Unauthorized}, // who may see a module is for the registry to say
		{Unauthorized, Temporary, Temporary},
		{Broken, NotFound, NotFound},
		{RateLimited, Broken, RateLimited},
	} {
		got := kindOf([]failure{{target: mirror, err: &Error{Kind: tt.mirror}}, {target: origin, err: &Error{Kind: tt.origin}}})
		if got != tt.want {
			t.Errorf("mirror %s, registry %s: kind %s, want %s", tt.mirror, tt.origin, got, tt.want)
		}
	}
}

func TestRateLimitIsToldOn(t *testing.T) {
	s := newSite(t, registrytest.New(t))
	for p, after := range map[*registrytest.Proxy]string{s.first: "5", s.second: "20", s.origin: "7"} {
		p.Fail("/manifests/", registrytest.Fault{Status: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {after}}})
	}
	_, _, err := s.pull(t, "v1")
	wantKind(t, err, RateLimited, s.second.Addr+" answered 429 Too Many Requests, retry after 20s")
	if e, _ := errors.AsType[*Error](err); e == nil || e.RetryAfter() != 20*time.Second {
		t.Errorf("error = %+v, want the longest wait", e)
	}
}

// A caller that gives up is not told of the other places, and the one that let it wait is asked last from then on.
func TestDeadline(t *testing.T) {
	s := newSite(t, registrytest.New(t))
	s.first.Fail("/manifests/", registrytest.Fault{Delay: time.Minute})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	repo, err := s.client.Open(ctx, repository(t, s.origin.Addr+"/app"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := repo.Manifest(ctx, "v1"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Manifest = %v, want the deadline", err)
	}
	if len(s.second.Requests("")) != 0 {
		t.Error("the second mirror was asked for one who had gone")
	}
	if m, _, err := s.pull(t, "v1"); err != nil || m.Source != s.second.Addr {
		t.Errorf("pull = from %s, %v, want it from the second mirror", m.Source, err)
	}
}

func TestDigest(t *testing.T) {
	s := newSite(t, registrytest.New(t))
	digest := func() (string, error) {
		repo, err := s.client.Open(t.Context(), repository(t, s.origin.Addr+"/app"), nil)
		if err != nil {
			t.Fatal(err)
		}
		h, err := repo.Digest(t.Context(), "v1")
		return h.String(), err
	}
	if got, err := digest(); err != nil || got != s.digest {
		t.Errorf("Digest = %s, %v, want %s", got, err, s.digest)
	}
	if seen := s.first.Requests(""); len(seen) != 1 || seen[0].Method != http.MethodHead {
		t.Errorf("requests = %+v, want one HEAD", seen)
	}
	s.first.Fail("/manifests/", registrytest.Fault{Status: http.StatusNotFound})
	if got, err := digest(); err != nil || got != s.digest || len(s.second.Requests("")) != 1 {
		t.Errorf("Digest = %s, %v, want it from the second mirror", got, err)
	}
	s.reset()
	s.first.Fail("/manifests/", registrytest.Fault{Status: http.StatusMethodNotAllowed, Times: 1})
	if got, err := digest(); err != nil || got != s.digest || len(s.first.Requests("")) != 2 {
		t.Errorf("Digest without HEAD = %s, %v, want it by GET", got, err)
	}
	for _, p := range []*registrytest.Proxy{s.first, s.second, s.origin} {
		p.Fail("/manifests/", registrytest.Fault{Status: http.StatusNotFound})
	}
	_, err := digest()
	wantKind(t, err, NotFound, "ask for the digest of manifest "+s.origin.Addr+"/app:v1: none of 3 places has it")
}

type blocked struct{}

func (blocked) Endpoints(string, string, bool) ([]registries.Endpoint, error) {
	return nil, errors.New("registry.test is blocked in /etc/containers/registries.conf")
}

func TestBlocked(t *testing.T) {
	_, err := read(t, New(Config{Registries: blocked{}}), repository(t, "registry.test/x"), nil)
	wantKind(t, err, Broken, "read manifest registry.test/x:v1: registry.test is blocked in /etc")
	_, err = read(t, New(Config{Registries: places{}}), repository(t, "registry.test/x"), nil)
	wantKind(t, err, Broken, "check the files given with --registry-config")
}

// Subdomains and other ports are other hosts.
func TestRedirectsCarryNothingAway(t *testing.T) {
	r := registrytest.New(t)
	module := []byte("module")
	r.Push(t, "app", "v1", registrytest.WasmToOCI(module))
	var saw []string
	note := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		saw = append(saw, r.Host+" "+r.Header.Get("Authorization")+r.Header.Get("X-Site"))
		_, _ = w.Write(module)
	})
	storage := httptest.NewServer(note)
	defer storage.Close()
	front := registrytest.NewProxy(t, r.Addr)
	asking := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, _, ok := r.BasicAuth(); !ok {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		front.ServeHTTP(w, r)
	})
	registry := httptest.NewServer(asking)
	defer registry.Close()
	tunnel := registrytest.NewTunnel(t, map[string]string{
		"registry.test:80": registry.Listener.Addr().String(), "registry.test:8080": storage.Listener.Addr().String(),
		"sub.registry.test:80": storage.Listener.Addr().String(),
	})
	h := safehttp.New(safehttp.Config{Proxy: tunnel.Proxy})
	defer h.CloseIdleConnections()
	for _, to := range []string{"registry.test:8080", "sub.registry.test"} {
		front.Fail("/blobs/", registrytest.Fault{Status: http.StatusTemporaryRedirect, Header: http.Header{"Location": {"http://" + to + "/x"}}})
		c := New(Config{HTTP: h, Registries: places{{Host: "registry.test", Plain: true, Header: http.Header{"X-Site": {"7"}}}}})
		repo, err := c.Open(t.Context(), repository(t, "registry.test/app"), basic("registry.test", "me", "p4ss"))
		if err != nil {
			t.Fatal(err)
		}
		rc, err := repo.Blob(t.Context(), descriptorOf(module))
		if err != nil {
			t.Fatal(err)
		}
		rc.Close()
		if got := saw[len(saw)-1]; got != to+" " {
			t.Errorf("redirected to %s, it saw %q, want no credentials", to, got)
		}
	}
}
