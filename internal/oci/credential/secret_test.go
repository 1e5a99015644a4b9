package credential

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
)

func TestFromSecret(t *testing.T) {
	const auth = `{"username":"u","password":"p"}`
	for _, tc := range []struct {
		name, secret, host, repository string
		want                           authn.AuthConfig
	}{
		{"dockerconfigjson", `{"auths":{"r.example.com":` + auth + `}}`, "r.example.com", "x", basic("u", "p")},
		{"dockercfg", `{"r.example.com":` + auth + `}`, "r.example.com", "x", basic("u", "p")},
		{"dockercfg beside other things", `{"r.example.com":` + auth + `,"psFormat":"x","HttpHeaders":{"a":"b"}}`, "r.example.com", "x", basic("u", "p")},
		{"URL with a version", `{"auths":{"https://r.example.com/v2/":` + auth + `}}`, "r.example.com", "x", basic("u", "p")},
		{"version without a scheme", `{"auths":{"r.example.com/v1/":` + auth + `}}`, "r.example.com", "x", basic("u", "p")},
		{"a namespace that is called v1", `{"auths":{"r.example.com/v1":` + auth + `}}`, "r.example.com", "x", authn.AuthConfig{}},
		{"Docker Hub", `{"auths":{"https://index.docker.io/v1/":` + auth + `}}`, "index.docker.io", "library/x", basic("u", "p")},
		{"Docker Hub by its API's host", `{"auths":{"docker.io":` + auth + `}}`, "registry-1.docker.io", "library/x", basic("u", "p")},
		{"the longest path", `{"auths":{"r.example.com":{"username":"short","password":"p"},"r.example.com/a/b":` + auth + `,"r.example.com/a":{"username":"middle","password":"p"}}}`, "r.example.com", "a/b/c", basic("u", "p")},
		{"a path is no prefix of a name", `{"auths":{"r.example.com/a":` + auth + `}}`, "r.example.com", "ab", authn.AuthConfig{}},
		{"glob", `{"auths":{"*.example.com":` + auth + `}}`, "r.example.com", "x", basic("u", "p")},
		{"a glob spans no dot", `{"auths":{"*.com":` + auth + `}}`, "r.example.com", "x", authn.AuthConfig{}},
		{"a glob spans no port", `{"auths":{"r.example.*":` + auth + `}}`, "r.example.com:5000", "x", authn.AuthConfig{}},
		{"port", `{"auths":{"r.example.com:5000":` + auth + `}}`, "r.example.com:5000", "x", basic("u", "p")},
		{"other port", `{"auths":{"r.example.com":` + auth + `}}`, "r.example.com:5000", "x", authn.AuthConfig{}},
		{"IPv6", `{"auths":{"[::1]:5000":` + auth + `}}`, "[::1]:5000", "x", basic("u", "p")},
		{"IPv6 is no set of characters", `{"auths":{"[::1]":` + auth + `}}`, "1", "x", authn.AuthConfig{}},
		{"auth", `{"auths":{"r.example.com":{"auth":"dTpwOnE="}}}`, "r.example.com", "x", basic("u", "p:q")},
		{"auth without padding", `{"auths":{"r.example.com":{"auth":"dTpwOnE"}}}`, "r.example.com", "x", basic("u", "p:q")},
		{"identity token", `{"auths":{"r.example.com":{"auth":"PHRva2VuPjo=","identitytoken":"t"}}}`, "r.example.com", "x", authn.AuthConfig{IdentityToken: "t"}},
		{"registry token", `{"auths":{"r.example.com":{"registrytoken":"t"}}}`, "r.example.com", "x", authn.AuthConfig{RegistryToken: "t"}},
		{"an empty entry is passed over", `{"auths":{"r.example.com/a":{},"r.example.com":` + auth + `}}`, "r.example.com", "a", basic("u", "p")},
		{"others' entries may be broken", `{"auths":{"s.example.com":{"auth":"!"},"r.example.com":` + auth + `}}`, "r.example.com", "a", basic("u", "p")},
		{"helpers are never run", `{"credHelpers":{"r.example.com":"x"},"credsStore":"x","auths":{}}`, "r.example.com", "a", authn.AuthConfig{}},
	} {
		got, ok, err := FromSecret([]byte(tc.secret), tc.host, tc.repository)
		if err != nil || got != tc.want || ok != (tc.want != authn.AuthConfig{}) {
			t.Errorf("%s: FromSecret(%s, %q, %q) = %v, %t, %v; want %v", tc.name, tc.secret, tc.host, tc.repository, got, ok, err, tc.want)
		}
	}
	for _, secret := range []string{"", "null0", "[]", hidden, `{"auths":["` + hidden + `"]}`, `{"auths":{"r.example.com":{"auth":"` + hidden + `"}}}`, `{"auths":{"r.example.com":{"auth":7}}}`} {
		if got, ok, err := FromSecret([]byte(secret), "r.example.com", "x"); err == nil || ok || strings.Contains(err.Error(), hidden) {
			t.Errorf("FromSecret(%q) = %v, %t, %v; want an error without the secret", secret, got, ok, err)
		}
	}
}

// addSeeds adds files of testdata.
func addSeeds(f *testing.F, names ...string) {
	f.Helper()
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil || len(data) == 0 {
			f.Fatalf("seed %s: %v", name, err)
		}
		f.Add(data)
	}
}

func FuzzDocker(f *testing.F) {
	addSeeds(f, "docker-config.json", "podman-auth.json", "dockercfg.json")
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, i := range []image{{"registry.example.com", "team/x"}, {"index.docker.io", "library/x"}, {"[::1]:5000", "x"}} {
			auth, ok, err := FromSecret(data, i.host, i.repository)
			if ok != (auth != authn.AuthConfig{}) || ok && err != nil {
				t.Errorf("FromSecret(%q, %v) = %v, %t, %v", data, i, auth, ok, err)
			}
			if config, err := parseDocker(data); err == nil {
				config.helper(i.host)
				if again, ok2, err2 := find(config.Auths, i); ok2 && config.Auths != nil && (!ok || again != auth) {
					t.Errorf("as a file %q has %v, %v for %v; as a secret %v", data, again, err2, i, auth)
				}
			}
		}
	})
}

func FuzzKubelet(f *testing.F) {
	addSeeds(f, "kubelet.yaml", "kubelet.json")
	f.Fuzz(func(t *testing.T, data []byte) {
		config, err := parseKubelet(data)
		for _, p := range config.Providers {
			p.matches(image{"a.dkr.ecr.b.example.com", "x"})
			if err == nil && (p.Name != filepath.Base(p.Name) || p.DefaultCacheDuration == nil) {
				t.Errorf("parseKubelet(%q) accepts %+v", data, p)
			}
		}
	})
}

func FuzzResponse(f *testing.F) {
	addSeeds(f, "response.json")
	day := duration(0)
	p := provider{Name: "p", APIVersion: providerGroup + "v1", DefaultCacheDuration: &day}
	i := image{"123456789012.dkr.ecr.eu-central-1.example.com", "team/x"}
	f.Fuzz(func(t *testing.T, data []byte) {
		a, _, err := p.parse(data, i)
		if (a == nil) != (err != nil) || err == nil && !json.Valid(data) {
			t.Fatalf("parse(%q) = %v, %v", data, a, err)
		}
		if err == nil {
			_, _, _ = find(a.auth, i)
		}
	})
}
