package oci

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/gateway-agent/gateway-agent/internal/oci/registries"
)

// keys are this machine's credentials: the same until they are forgotten.
type keys struct {
	mu     sync.Mutex
	n      int  // of the key
	stuck  bool // forgetting brings no others
	failed error
	asked  int
}

func (k *keys) Resolve(ctx context.Context, host, repository string) (authn.AuthConfig, error) {
	auth, _, err := k.Find(ctx, host, repository)
	return auth, err
}

func (k *keys) Find(context.Context, string, string) (authn.AuthConfig, string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked++
	if k.failed != nil {
		return authn.AuthConfig{}, "", k.failed
	}
	return authn.AuthConfig{Username: "me", Password: fmt.Sprintf("key-%d", k.n)}, "/etc/providers.yaml", nil
}

func (k *keys) Forget(string, string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.stuck {
		k.n++
	}
}

// locked is a registry that wants a key, and refuses others with a status. With a token server it wants a token that was given for the key.
type locked struct {
	refusal int
	tokens  bool

	mu      sync.Mutex
	key     string
	asked   int // requests with credentials
	revoked string
}

func (l *locked) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, password, _ := r.BasicAuth()
	sent := r.Header.Get("Authorization")
	if r.URL.Path == "/token" {
		if password != l.key {
			w.WriteHeader(l.refusal)
			return
		}
		l.asked++
		fmt.Fprintf(w, `{"token":"%s-%d","expires_in":3600}`, l.key, l.asked)
		return
	}
	good := password == l.key
	if l.tokens {
		token := strings.TrimPrefix(sent, "Bearer ")
		good = strings.HasPrefix(token, l.key+"-") && token != l.revoked
	} else if sent != "" {
		l.asked++
	}
	switch {
	case good:
		_, _ = w.Write([]byte(`{"schemaVersion":2,"layers":[]}`))
	case sent == "":
		challenge := `Basic realm="x"`
		if l.tokens {
			challenge = `Bearer realm="http://` + r.Host + `/token"`
		}
		w.Header().Set("WWW-Authenticate", challenge)
		w.WriteHeader(http.StatusUnauthorized)
	default:
		w.WriteHeader(l.refusal)
	}
}

// A registry that refuses what was good for longer: it is asked for again, once.
func TestRefusedCredentialsAreAskedForAgain(t *testing.T) {
	for _, refusal := range []int{http.StatusUnauthorized, http.StatusForbidden} {
		for _, tokens := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d, tokens %v", refusal, tokens), func(t *testing.T) {
				l := &locked{refusal: refusal, tokens: tokens, key: "key-0"}
				s := httptest.NewServer(l)
				defer s.Close()
				k := &keys{}
				c, repo := New(Config{Credentials: k}), repository(t, s.Listener.Addr().String()+"/app")
				pull := func() error { _, err := read(t, c, repo, nil); return err }
				if err := pull(); err != nil || k.asked != 1 {
					t.Fatalf("first pull = %v, credentials asked for %d times, want once", err, k.asked)
				}
				l.key = "key-1"
				if err := pull(); err != nil {
					t.Errorf("after the key was replaced: %v", err)
				}
				k.stuck, l.key, k.asked = true, "key-2", 0
				err := pull()
				wantKind(t, err, Unauthorized, "the registry refused the credentials of this machine, from /etc/providers.yaml")
				if k.asked > 2 {
					t.Errorf("credentials that stay wrong were asked for %d times, want twice", k.asked)
				}
				k.asked = 0
				err = func() error { _, err := read(t, c, repo, basic(repo.RegistryStr(), "me", "p4ss")); return err }()
				wantKind(t, err, Unauthorized, "the registry refused the credentials of the pull secret")
				if k.asked != 0 {
					t.Error("this machine's credentials were asked for beside the pull secret's")
				}
			})
		}
	}
}

// A token that the registry no longer takes, which some say with 403, is replaced; the credentials are not in question.
func TestRefusedTokenIsReplaced(t *testing.T) {
	l := &locked{refusal: http.StatusForbidden, tokens: true, key: "key-0"}
	s := httptest.NewServer(l)
	defer s.Close()
	c, repo := New(Config{Credentials: &keys{stuck: true}}), repository(t, s.Listener.Addr().String()+"/app")
	for n := range 3 {
		if _, err := read(t, c, repo, nil); err != nil || l.asked != n+1 {
			t.Errorf("pull %d = %v with %d tokens, want %d", n, err, l.asked, n+1)
		}
		l.revoked = fmt.Sprintf("key-0-%d", l.asked)
	}
}

// Parallel requests of one caller, all refused: all of them profit from what the first one brings.
func TestParallelRefusals(t *testing.T) {
	l := &locked{refusal: http.StatusForbidden, key: "key-1"}
	s := httptest.NewServer(l)
	defer s.Close()
	k := &keys{}
	r, err := New(Config{Credentials: k}).Open(t.Context(), repository(t, s.Listener.Addr().String()+"/app"), nil)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			if _, err := r.Manifest(t.Context(), "v1"); err != nil {
				t.Errorf("Manifest = %v", err)
			}
		})
	}
	all.Wait()
	if k.n != 1 || k.asked != 2 {
		t.Errorf("credentials were forgotten %d times and asked for %d times, want 1 and 2", k.n, k.asked)
	}
}

// A helper that is broken does not keep anybody from what is public. Who is refused is told of it.
func TestUnknownCredentials(t *testing.T) {
	status := http.StatusOK
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if status == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(`{"schemaVersion":2,"layers":[]}`))
	}))
	defer s.Close()
	token := &tokenServer{}
	tokens := httptest.NewServer(token)
	defer tokens.Close()
	c := New(Config{Credentials: &keys{failed: errors.New("docker-credential-x is not in PATH")}})
	public := repository(t, tokens.Listener.Addr().String()+"/app")
	if _, err := read(t, c, public, nil); err != nil || len(token.asked) != 1 || !strings.HasPrefix(token.asked[0], " repo") {
		t.Errorf("public pull = %v with token requests %q, want one without credentials", err, token.asked)
	}
	repo := repository(t, s.Listener.Addr().String()+"/app")
	why := "it was asked without credentials, because those of this machine cannot be found out: docker-credential-x is not in PATH"
	for _, tt := range []struct {
		status int
		kind   Kind
		text   string
	}{
		{http.StatusNotFound, NotFound, "404 Not Found (check the repository and the tag)"}, // nobody asked for credentials
		{http.StatusOK, "", ""},
		{http.StatusUnauthorized, Temporary, why},
		{http.StatusNotFound, Temporary, why}, // it may be hidden
		{http.StatusOK, "", ""},
	} {
		status = tt.status
		if _, err := read(t, c, repo, nil); tt.kind != "" {
			wantKind(t, err, tt.kind, http.StatusText(tt.status), tt.text)
		} else if err != nil {
			t.Errorf("public pull = %v", err)
		}
	}
}

// pullOnly is what says places for digests only.
type pullOnly struct{ places }

func (p pullOnly) Endpoints(host, repository string, byDigest bool) ([]registries.Endpoint, error) {
	if !byDigest {
		return nil, errors.New("use a reference with a digest")
	}
	return p.places.Endpoints(host, repository, byDigest)
}

// Mirrors that serve digests only are no reason to refuse a reference with a digest.
func TestPlacesForDigestsOnly(t *testing.T) {
	body := []byte(`{"schemaVersion":2,"layers":[]}`)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body) }))
	defer s.Close()
	c := New(Config{Registries: pullOnly{places{{Host: s.Listener.Addr().String(), Mirror: true}}}})
	r, err := c.Open(t.Context(), repository(t, "registry.test/app"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Manifest(t.Context(), descriptorOf(body).Digest.String()); err != nil {
		t.Errorf("Manifest by digest = %v", err)
	}
	_, err = r.Manifest(t.Context(), "v1")
	wantKind(t, err, Broken, "read manifest registry.test/app:v1: use a reference with a digest")
}
