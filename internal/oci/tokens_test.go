package oci

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/gateway-agent/gateway-agent/internal/oci/registries"
	"github.com/gateway-agent/gateway-agent/internal/oci/safehttp"
	"github.com/gateway-agent/gateway-agent/internal/registrytest"
	"github.com/gateway-agent/gateway-agent/internal/testca"
)

// tokenServer is a registry that wants the latest of its own tokens, and its token server.
type tokenServer struct {
	realm    string        // default: its own address
	lifetime int           // of its tokens, in seconds; 0: not said
	reply    string        // instead of a token
	delay    chan struct{} // if not nil: tokens wait for it

	mu      sync.Mutex
	asked   []string // user and scopes, or grant and refresh token
	issued  int
	revoked int // tokens up to this are no longer good
	visits  int // of the registry
}

func (s *tokenServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/token" {
		s.token(w, r)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.visits++
	var n int
	_, _ = fmt.Sscanf(r.Header.Get("Authorization"), "Bearer token-%d", &n)
	if n > s.revoked {
		w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
		_, _ = w.Write([]byte(`{"schemaVersion":2,"layers":[]}`))
		return
	}
	realm := s.realm
	if realm == "" {
		realm = "http://" + r.Host + "/token"
	}
	w.Header().Add("WWW-Authenticate", "Negotiate")
	w.Header().Add("WWW-Authenticate", fmt.Sprintf(`Bearer realm=%q,service="it, \"quoted\"",scope="repository:app:pull"`, realm))
	w.WriteHeader(http.StatusUnauthorized)
}

func (s *tokenServer) token(w http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm()
	user, _, _ := r.BasicAuth()
	if s.delay != nil {
		<-s.delay
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Method == http.MethodPost {
		s.asked = append(s.asked, r.Form.Get("grant_type")+" "+r.Form.Get("refresh_token"))
	} else {
		s.asked = append(s.asked, user+" "+strings.Join(r.Form["scope"], "+")+" "+r.Form.Get("service"))
	}
	if s.reply != "" {
		_, _ = w.Write([]byte(s.reply))
		return
	}
	s.issued++
	_ = json.NewEncoder(w).Encode(map[string]any{"access_token": fmt.Sprintf("token-%d", s.issued), "expires_in": s.lifetime, "refresh_token": "not-ours"})
}

func (s *tokenServer) start(t *testing.T) (host string) {
	t.Helper()
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

func TestTokensAreReused(t *testing.T) {
	s := &tokenServer{}
	host := s.start(t)
	c, repo := New(Config{}), repository(t, host+"/app")
	mine, yours := basic(host, "me", "a"), basic(host, "you", "b")
	pull := func(secret []byte) {
		t.Helper()
		if _, err := read(t, c, repo, secret); err != nil {
			t.Errorf("Manifest = %v", err)
		}
	}
	pull(mine)
	pull(mine)
	if want := `me repository:app:pull it, "quoted"`; len(s.asked) != 1 || s.asked[0] != want || s.visits != 3 {
		t.Errorf("two pulls: token requests %q in %d visits, want one, %q, in 3", s.asked, s.visits, want)
	}
	pull(yours)
	pull(nil)
	if len(s.asked) != 3 || !strings.HasPrefix(s.asked[1], "you ") || !strings.HasPrefix(s.asked[2], " repo") {
		t.Errorf("other callers: token requests %q, want one for each", s.asked)
	}
	s.revoked = s.issued
	pull(mine)
	if len(s.asked) != 4 {
		t.Errorf("after a revocation: %d token requests, want 4", len(s.asked))
	}
}

func TestParallelPullsShareOneToken(t *testing.T) {
	s := &tokenServer{delay: make(chan struct{})}
	host := s.start(t)
	c, repo := New(Config{}), repository(t, host+"/app")
	impatient, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range 20 {
		ctx := t.Context()
		if i%2 == 0 {
			ctx = impatient
		}
		all.Go(func() {
			r, err := c.Open(ctx, repo, nil)
			if err == nil {
				_, err = r.Manifest(ctx, "v1")
			}
			if err != nil && ctx.Err() == nil {
				t.Errorf("Manifest = %v", err)
			}
		})
	}
	cancel() // those who give up do not take the others with them
	close(s.delay)
	all.Wait()
	if s.issued > 2 { // one more where the first who asked was one who gave up
		t.Errorf("%d tokens, want one for all", s.issued)
	}
}

func TestTokenLifetime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSession("x")
		for lifetime, good := range map[time.Duration]time.Duration{
			time.Minute: 45 * time.Second, time.Hour: time.Hour - 30*time.Second, 4 * time.Second: 3 * time.Second,
		} {
			s.keep(&transport.Challenge{}, "Bearer x", lifetime, authn.AuthConfig{})
			time.Sleep(good - time.Millisecond)
			if s.current() == "" {
				t.Errorf("a token for %v is forgotten before %v", lifetime, good)
			}
			time.Sleep(2 * time.Millisecond)
			if s.current() != "" {
				t.Errorf("a token for %v is still used after %v", lifetime, good)
			}
		}
	})
}

func TestIdentityToken(t *testing.T) {
	s := &tokenServer{}
	host := s.start(t)
	secret := fmt.Appendf(nil, `{"auths":{%q:{"identitytoken":"refresh-me"}}}`, host)
	if _, err := read(t, New(Config{}), repository(t, host+"/app"), secret); err != nil {
		t.Errorf("Manifest = %v", err)
	}
	if len(s.asked) != 1 || s.asked[0] != "refresh_token refresh-me" {
		t.Errorf("token requests %q, want the refresh token in a form", s.asked)
	}
	raw := fmt.Appendf(nil, `{"auths":{%q:{"registrytoken":"token-7"}}}`, host)
	if _, err := read(t, New(Config{}), repository(t, host+"/app"), raw); err != nil || len(s.asked) != 1 {
		t.Errorf("with a ready token: %v, %d token requests, want no further one", err, len(s.asked))
	}
	s.revoked = 7
	_, err := read(t, New(Config{}), repository(t, host+"/app"), raw)
	wantKind(t, err, Unauthorized, "the registry refused the credentials")
}

func TestBadTokenServers(t *testing.T) {
	for reply, text := range map[string]string{
		`{"refresh_token":"s3cret"}`: "there is no token in its answer",
		`<html>s3cret`:               "for a token: invalid character",
		`{"token":"` + strings.Repeat("s3cret", 20_000) + `"}`: "for a token: ",
	} {
		s := &tokenServer{reply: reply}
		host := s.start(t)
		_, err := read(t, New(Config{}), repository(t, host+"/app"), basic(host, "me", "p4ss"))
		if err == nil || !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "p4ss") {
			t.Errorf("a token server that answers %.40s: %.300v, want an error that says %q and no secrets", reply, err, text)
		}
	}
}

// In clusters the token server has a private address of its own, and a certificate of the same CA.
func TestPrivateRealm(t *testing.T) {
	ca := testca.New(t, "cluster")
	s := &tokenServer{}
	realm := serveTLS(t, ca, s, nil, "10.1.2.3")
	registry := serveTLS(t, ca, s, nil, "10.1.2.4")
	tunnel := registrytest.NewTunnel(t, map[string]string{"10.1.2.3:8443": realm, "10.1.2.4:5000": registry})
	h := safehttp.New(safehttp.Config{Proxy: tunnel.Proxy})
	defer h.CloseIdleConnections()
	c := New(Config{HTTP: h, Registries: places{{Host: "10.1.2.4:5000", RootCAs: roots(ca)}}})
	s.realm = "https://10.1.2.3:8443/token"
	repo, secret := repository(t, "10.1.2.4:5000/app"), basic("10.1.2.4:5000", "me", "p4ss")
	if _, err := read(t, c, repo, secret); err != nil || len(s.asked) != 1 || !strings.HasPrefix(s.asked[0], "me ") {
		t.Errorf("Manifest = %v, token requests %q, want one from me", err, s.asked)
	}
	for realm, text := range map[string]string{
		"https://169.254.169.254/token":                     "link-local address",
		"https://127.0.0.1/token":                           "a loopback address that a remote server led to",
		"https://localhost/token":                           "refused: request through a proxy to localhost",
		"https://0x7f000001/token":                          "refused: request through a proxy to 0x7f000001",
		"https://2852039166/token":                          "refused: request through a proxy to 2852039166",
		"https://metadata.google.internal/computeMetadata/": "refused: request through a proxy to metadata.google.internal",
		"http://10.1.2.3:8443/token":                        "plain HTTP to 10.1.2.3:8443",
		"https:///token":                                    "the registry names a token server that may not be asked",
		"":                                                  "the registry names a token server that may not be asked",
		"https://user:pw@/":                                 "the registry names a token server that may not be asked",
	} {
		s.realm, s.revoked = realm, s.issued
		if realm == "" {
			s.realm = " "
		}
		_, err := read(t, c, repo, secret)
		wantKind(t, err, Broken, text)
		if strings.Contains(err.Error(), "pw") {
			t.Errorf("the error quotes a password: %v", err)
		}
	}
	s.realm = "https://10.1.2.3:8443/token"
	if _, err := read(t, c, repo, secret); err != nil {
		t.Errorf("after the registry was mended: %v", err)
	}
	if len(tunnel.Requests()) != 2 {
		t.Errorf("the proxy saw %q, want none of the forbidden", tunnel.Requests())
	}
}

type byHost map[string]places

func (b byHost) Endpoints(host, repository string, byDigest bool) ([]registries.Endpoint, error) {
	return append(b[host], registries.Endpoint{Host: host, Key: host}).Endpoints(host, repository, byDigest)
}

// The operator's settings for a token server, or for where blobs are kept, count when a registry leads there.
func TestSettingsOfOtherHosts(t *testing.T) {
	ca, other := testca.New(t, "registry"), testca.New(t, "tokens")
	s := &tokenServer{realm: "https://tokens.test/token"}
	realm := serveTLS(t, other, s, func(c *tls.Config) { c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, roots(other) }, "tokens.test")
	registry := serveTLS(t, ca, s, nil, "registry.test")
	tunnel := registrytest.NewTunnel(t, map[string]string{"tokens.test:443": realm, "registry.test:443": registry})
	h := safehttp.New(safehttp.Config{Proxy: tunnel.Proxy})
	defer h.CloseIdleConnections()
	own := places{{Host: "registry.test", RootCAs: roots(ca)}}
	repo := repository(t, "registry.test/app")
	_, err := read(t, New(Config{HTTP: h, Registries: byHost{"registry.test": own}}), repo, nil)
	wantKind(t, err, Broken, "ask tokens.test for a token: ", "unknown CA")
	tokens := places{{Host: "tokens.test", RootCAs: roots(other), Certificates: clientCertificate(t, other)}}
	if _, err := read(t, New(Config{HTTP: h, Registries: byHost{"registry.test": own, "tokens.test": tokens}}), repo, nil); err != nil {
		t.Errorf("Manifest = %v", err)
	}
}

type counting struct {
	mu    sync.Mutex
	hosts []string
	auth  authn.AuthConfig
	err   error
}

func (c *counting) Resolve(_ context.Context, host, repository string) (authn.AuthConfig, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hosts = append(c.hosts, host+"/"+repository)
	return c.auth, c.err
}

// This machine's credentials are asked for when a registry wants some, once in a pull, after the pull secret.
func TestMachineCredentials(t *testing.T) {
	r := registrytest.New(t, registrytest.WithAccount())
	r.Push(t, "team/app", "v1", registrytest.WasmToOCI([]byte("module")))
	creds := &counting{auth: authn.AuthConfig{Username: registrytest.User, Password: registrytest.Password}}
	c, repo := New(Config{Credentials: creds}), repository(t, r.Addr+"/team/app")
	for pulls := range 2 {
		opened, err := c.Open(t.Context(), repo, basic("other.test", "x", "y"))
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if _, err := opened.Manifest(t.Context(), "v1"); err != nil {
				t.Errorf("Manifest = %v", err)
			}
		}
		if len(creds.hosts) != pulls+1 || creds.hosts[0] != r.Addr+"/team/app" {
			t.Errorf("credentials were asked for %q, want once in a pull", creds.hosts)
		}
	}
	if _, err := read(t, c, repo, basic(r.Addr, registrytest.User, registrytest.Password)); err != nil || len(creds.hosts) != 2 {
		t.Errorf("with a pull secret: %v, asked %d times, want no further time", err, len(creds.hosts))
	}
	public := registrytest.New(t)
	public.Push(t, "app", "v1", registrytest.WasmToOCI([]byte("module")))
	if _, err := read(t, c, repository(t, public.Addr+"/app"), nil); err != nil || len(creds.hosts) != 2 {
		t.Errorf("from a public registry: %v, asked %d times, want no further time", err, len(creds.hosts))
	}
	creds.err = fmt.Errorf("docker-credential-x: not found")
	_, err := read(t, c, repo, nil)
	wantKind(t, err, Temporary, "401 Unauthorized", "those of this machine cannot be found out: docker-credential-x: not found")
}
