package wasmcache

import (
	"encoding/base64"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gateway-agent/gateway-agent/internal/registrytest"
)

func secretFor(host, user, password string) []byte {
	auth := base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
	return fmt.Appendf(nil, `{"auths":{%q:{"auth":%q}}}`, host, auth)
}

func TestPrivateModulesNeedTheRegistrysYes(t *testing.T) {
	r, dir := registrytest.New(t, registrytest.WithAccount()), t.TempDir()
	module := core("private", 3000)
	r.Push(t, "private", "v1", registrytest.Compat(t, module))
	s := open(t, dir)
	right, wrong := secretFor(r.Addr, registrytest.User, registrytest.Password), secretFor(r.Addr, registrytest.User, "guess")
	get := func(secret []byte) (Module, error) {
		return s.Get(t.Context(), Request{URL: r.Ref("private:v1"), PullSecret: secret})
	}
	_, err := get(nil)
	wantError(t, err, true, "no credentials for this registry: give the resource a pull secret")
	m, err := get(right)
	wantModule(t, m, err, module)
	_, err = get(nil)
	wantError(t, err, true, "no credentials")
	_, err = get(wrong)
	wantError(t, err, true, "the registry refused the credentials")
	_, err = get([]byte(`not JSON with a password`))
	wantError(t, err, true, "the pull secret cannot be parsed")
	if strings.Contains(err.Error(), "password") {
		t.Errorf("error %v quotes the secret", err)
	}

	r.Stop()
	s.Close()
	s = open(t, dir)
	m, err = get(right)
	wantModule(t, m, err, module)
	for _, secret := range [][]byte{nil, wrong, secretFor(r.Addr, "other", registrytest.Password)} {
		_, err = get(secret)
		wantError(t, err, false, "connection refused")
	}
	wantNoSecret(t, dir, right)
}

// wantNoSecret looks for the secret and its parts in every file of the store.
func wantNoSecret(t *testing.T, dir string, secret []byte) {
	t.Helper()
	needles := []string{string(secret), registrytest.Password, base64.StdEncoding.EncodeToString([]byte(registrytest.User + ":" + registrytest.Password))}
	files := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files++
		body, err := os.ReadFile(path)
		for _, needle := range needles {
			if strings.Contains(string(body), needle) {
				t.Errorf("%s holds a secret", path)
			}
		}
		return err
	})
	if err != nil || files < 3 {
		t.Errorf("looked at %d files, %v", files, err)
	}
}

func TestPublicModulesAreServedToAnybodyAccepted(t *testing.T) {
	r := registrytest.New(t)
	module := core("public", 100)
	r.Push(t, "public", "v1", registrytest.WasmToOCI(module))
	p := registrytest.NewProxy(t, r.Addr)
	s := open(t, t.TempDir())
	secret := secretFor("registry.example", "a", "b") // for another registry
	for _, who := range [][]byte{nil, secret, nil, secret} {
		m, err := s.Get(t.Context(), Request{URL: p.Ref("public:v1"), PullSecret: who})
		wantModule(t, m, err, module)
	}
	if got := len(p.Requests("/manifests/")); got != 2 {
		t.Errorf("%d manifests read, want one per caller", got)
	}
	if got := len(p.Requests("/blobs/")); got != 1 {
		t.Errorf("%d downloads, want 1", got)
	}
}

func TestGrantsAreSalted(t *testing.T) {
	a, b := newGrant([]byte("secret")), newGrant([]byte("secret"))
	if a == b || !a.isFor([]byte("secret")) || a.isFor([]byte("other")) || a.isFor(nil) {
		t.Errorf("grants %v and %v: want different ones, for this secret only", a, b)
	}
	if own := newGrant(nil); !own.isFor(nil) || own.isFor([]byte("secret")) {
		t.Errorf("grant %v: want one for no secret only", own)
	}
	if damaged := (grant{Hash: a.Hash}); damaged.isFor(nil) || damaged.isFor([]byte("secret")) {
		t.Errorf("grant %v: want one for nobody", damaged)
	}
}
