package oci

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gateway-agent/gateway-agent/internal/registrytest"
)

func TestPasswords(t *testing.T) {
	r := registrytest.New(t, registrytest.WithAccount())
	digest := r.Push(t, "team/private", "v1", registrytest.WasmToOCI([]byte("module")))
	repo := repository(t, r.Addr+"/team/private")
	old := fmt.Sprintf(`{%q:{"username":%q,"password":%q}}`, r.Addr, registrytest.User, registrytest.Password)
	helper := fmt.Sprintf(`{"auths":{},"credHelpers":{%q:"evil"},"credsStore":"evil"}`, r.Addr)
	tests := []struct {
		name   string
		secret []byte
		kind   Kind
		text   string
	}{
		{"right", basic(r.Addr, registrytest.User, registrytest.Password), "", ""},
		{"as a URL", basic("http://"+r.Addr+"/v2/", registrytest.User, registrytest.Password), "", ""},
		{"for a path", basic(r.Addr+"/team", registrytest.User, registrytest.Password), "", ""},
		{"old format", []byte(old), "", ""},
		{"none", nil, Unauthorized, "no credentials for this registry"},
		{"other host", basic("other.test", registrytest.User, registrytest.Password), Unauthorized, "no credentials for this registry"},
		{"other path", basic(r.Addr+"/te", registrytest.User, registrytest.Password), Unauthorized, "no credentials"},
		{"wrong", basic(r.Addr, registrytest.User, "x"), Unauthorized, "the registry refused the credentials"},
		{"garbage", []byte("{"), Broken, "the pull secret cannot be parsed"},
		{"programs are not run", []byte(helper), Unauthorized, "no credentials"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := read(t, New(Config{}), repo, tt.secret)
			if tt.kind != "" {
				wantKind(t, err, tt.kind, tt.text)
				return
			}
			if err != nil || got.Digest.String() != digest {
				t.Errorf("Manifest = %v, %v, want %s", got.Digest, err, digest)
			}
		})
	}
}

// tokens is a token server that gives a token for the right password only.
func tokens(t *testing.T, saw *[]string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		*saw = append(*saw, user+" "+r.URL.Query().Get("scope"))
		if user != registrytest.User || password != registrytest.Password {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"token": "issued", "expires_in": 60})
	}))
	t.Cleanup(s.Close)
	// The library refuses a realm on another private address, but not by name.
	return strings.Replace(s.URL, "127.0.0.1", "localhost", 1) + "/token"
}

func TestTokens(t *testing.T) {
	var saw []string
	r := registrytest.New(t, registrytest.WithTokenRealm(tokens(t, &saw)))
	digest := r.Push(t, "tok", "v1", registrytest.WasmToOCI([]byte("module")))
	p := registrytest.NewProxy(t, r.Addr)
	repo := repository(t, p.Addr+"/tok")
	c := New(Config{})
	got, err := read(t, c, repo, basic(p.Addr, registrytest.User, registrytest.Password))
	if err != nil || got.Digest.String() != digest {
		t.Fatalf("Manifest = %v, %v, want %s", got.Digest, err, digest)
	}
	if len(saw) != 1 || saw[0] != registrytest.User+" repository:tok:pull" {
		t.Errorf("the token server saw %q, want one request for this repository", saw)
	}
	for _, r := range p.Requests("/v2/") {
		if strings.HasPrefix(r.Authorization, "Basic") {
			t.Errorf("the password was sent to the registry: %+v", r)
		}
	}
	_, err = read(t, c, repo, basic(p.Addr, registrytest.User, "wrong"))
	wantKind(t, err, Unauthorized, "the registry refused the credentials")
	_, err = read(t, c, repo, nil)
	wantKind(t, err, Unauthorized, "no credentials")
}

func TestHostileRealms(t *testing.T) {
	for realm, text := range map[string]string{
		"http://169.254.169.254/token":  "ask 169.254.169.254 for a token: refused: connection to 169.254.169.254, a link-local address",
		"http://registry.example.test/": "plain HTTP to registry.example.test",
		"file:///etc/passwd":            "token server that may not be asked",
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+realm+`",service="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		}))
		_, err := read(t, New(Config{}), repository(t, s.Listener.Addr().String()+"/x"), basic(s.Listener.Addr().String(), "u", "p4ss"))
		if err == nil || !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "p4ss") {
			t.Errorf("realm %s = %v, want an error that says %q", realm, err, text)
		}
		s.Close()
	}
}

func TestBlobRedirectCarriesNoToken(t *testing.T) {
	r := registrytest.New(t, registrytest.WithAccount())
	module := []byte("module")
	r.Push(t, "redir", "v1", registrytest.WasmToOCI(module))
	var saw string
	storage := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		saw = r.Header.Get("Authorization")
		_, _ = w.Write(module)
	}))
	defer storage.Close()
	p := registrytest.NewProxy(t, r.Addr)
	p.Fail("/blobs/", registrytest.Fault{Status: http.StatusTemporaryRedirect, Header: http.Header{
		"Location": {strings.Replace(storage.URL, "127.0.0.1", "localhost", 1) + "/x?X-Signature=secret"},
	}})
	if body, err := blob(t, p.Addr, module); err != nil || body != string(module) || saw != "" {
		t.Errorf("Blob = %q, %v; storage saw Authorization %q, want the module and none", body, err, saw)
	}
	p.Fail("/blobs/", registrytest.Fault{Status: http.StatusFound, Header: http.Header{"Location": {"https://169.254.169.254/latest"}}})
	_, err := blob(t, p.Addr, module)
	wantKind(t, err, Broken, "169.254.169.254, a link-local address")
}

func blob(t *testing.T, addr string, module []byte) (string, error) {
	t.Helper()
	c := New(Config{})
	repo, err := c.Open(t.Context(), repository(t, addr+"/redir"), basic(addr, registrytest.User, registrytest.Password))
	if err != nil {
		return "", err
	}
	rc, err := repo.Blob(t.Context(), descriptorOf(module))
	if err != nil {
		return "", err
	}
	defer rc.Close()
	body, err := readAll(rc, 1<<20)
	return string(body), err
}
