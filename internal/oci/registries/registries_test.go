package registries

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gateway-agent/gateway-agent/internal/testca"
)

// site is a copy of testdata with the certificates that it names.
func site(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata")); err != nil {
		t.Fatal(err)
	}
	ca := testca.New(t, "ca")
	pair := ca.Issue(t, testca.Leaf{Name: "client"})
	for name, data := range map[string][]byte{
		"tls/ca.pem": ca.PEM, "tls/client.pem": pair.CertPEM, "tls/client-key.pem": pair.KeyPEM,
		"certs.d/docker.io/mirror-ca.crt": ca.PEM, "certs.d/docker.io/client.cert": pair.CertPEM, "certs.d/docker.io/client.key": pair.KeyPEM,
		"certs.d/registry.example.com_5000_/ca.pem":    ca.PEM,
		"certs.d/docker-style.example.com/ca.crt":      ca.PEM,
		"certs.d/docker-style.example.com/client.cert": pair.CertPEM,
		"certs.d/docker-style.example.com/client.key":  pair.KeyPEM,
	} {
		write(t, filepath.Join(dir, name), data)
	}
	return dir
}

func write[T string | []byte](t testing.TB, path string, data T) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
}

func load(t *testing.T, cfg Config) *Registries {
	t.Helper()
	r, err := Load(cfg)
	if err != nil {
		t.Fatalf("Load: %v", err)
	}
	return r
}

// describe writes endpoints down, one line each.
func describe(endpoints []Endpoint) string {
	var b strings.Builder
	for _, e := range endpoints {
		scheme := "https"
		if e.Plain {
			scheme = "http"
		}
		fmt.Fprintf(&b, "%s %s %s", scheme, e.Host, e.Repository)
		if e.SkipVerify {
			b.WriteString(" skip-verify")
		}
		if e.Path != "" {
			b.WriteString(" path=" + e.Path)
		}
		if e.Mirror {
			b.WriteString(" mirror")
		}
		if e.Namespace != "" {
			b.WriteString(" ns=" + e.Namespace)
		}
		if e.RootCAs != nil {
			b.WriteString(" ca")
		}
		if len(e.Certificates) > 0 {
			fmt.Fprintf(&b, " certs=%d", len(e.Certificates))
		}
		for name, values := range e.Header {
			fmt.Fprintf(&b, " %s=%s", name, strings.Join(values, "+"))
		}
		b.WriteString("\n")
	}
	return b.String()
}

func TestEndpoints(t *testing.T) {
	for _, tc := range []struct {
		name     string
		paths    []string
		insecure []string
		host     string
		repo     string
		byDigest bool
		want     string
	}{
		{name: "nothing configured", host: "registry.example.com", repo: "a/b", want: "https registry.example.com a/b\n"},
		{name: "Docker Hub itself", host: "index.docker.io", repo: "library/x", want: "https index.docker.io library/x\n"},
		{name: "Docker Hub by its other name", host: "docker.io", repo: "library/x", want: "https docker.io library/x\n"},
		{name: "insecure", insecure: []string{"R.example.com:5000"}, host: "r.example.com:5000", repo: "x", want: "https r.example.com:5000 x skip-verify\nhttp r.example.com:5000 x\n"},
		{name: "insecure, other port", insecure: []string{"r.example.com"}, host: "r.example.com:5000", repo: "x", want: "https r.example.com:5000 x\n"},
		{name: "all insecure", insecure: []string{"*"}, host: "r.example.com", repo: "x", want: "https r.example.com x skip-verify\nhttp r.example.com x\n"},
		{name: "all insecure, but settings for one", insecure: []string{"*"}, paths: []string{"registries.yaml"}, host: "registry.example.com", repo: "x", want: "https registry.example.com x ca certs=1 X-Team=gateways\n"},
		{
			name: "insecure by name comes before settings", insecure: []string{"registry.example.com"}, paths: []string{"registries.yaml"}, host: "registry.example.com", repo: "x",
			want: "https registry.example.com x skip-verify ca certs=1 X-Team=gateways\nhttp registry.example.com x X-Team=gateways\n",
		},

		{
			name: "own: mirrors with settings of their own", paths: []string{"registries.yaml"}, host: "index.docker.io", repo: "grafana/x",
			want: "http mirror.example.com hub/grafana/x mirror\nhttps second.example.com grafana/x skip-verify mirror\nhttps index.docker.io grafana/x\n",
		},
		{name: "own: longest prefix, by tag", paths: []string{"registries.yaml"}, host: "index.docker.io", repo: "library/x", want: "https index.docker.io library/x\n"},
		{
			name: "own: longest prefix, by digest", paths: []string{"registries.yaml"}, host: "index.docker.io", repo: "library/x", byDigest: true,
			want: "http mirror.example.com official/x mirror\nhttps index.docker.io library/x\n",
		},
		{name: "own: only the mirror", paths: []string{"registries.yaml"}, host: "registry.example.com", repo: "airgapped/a/b", want: "https vault.example.com copies/a/b mirror\n"},
		{name: "own: a longer prefix inherits certificates", paths: []string{"registries.yaml"}, host: "registry.example.com", repo: "other", want: "https registry.example.com other ca certs=1 X-Team=gateways\n"},
		{name: "own: a prefix ends at a slash", paths: []string{"registries.yaml"}, host: "registry.example.com", repo: "airgapped-not", want: "https registry.example.com airgapped-not ca certs=1 X-Team=gateways\n"},

		{
			name: "containerd: by tag only who may resolve", paths: []string{"certs.d"}, host: "index.docker.io", repo: "library/x",
			want: "https mirror.internal.example.com library/x mirror ns=docker.io ca certs=1 X-Team=gateways+edge\n" +
				"https 10.0.0.7:5000 library/x skip-verify mirror ns=docker.io\nhttp 10.0.0.7:5000 library/x mirror ns=docker.io\n" +
				"https registry-1.docker.io library/x\n",
		},
		{
			name: "containerd: by digest", paths: []string{"certs.d"}, host: "index.docker.io", repo: "library/x", byDigest: true,
			want: "https mirror.internal.example.com library/x mirror ns=docker.io ca certs=1 X-Team=gateways+edge\n" +
				"https public-mirror.example.org library/x path=/proxy/hub/v2 mirror ns=docker.io\n" +
				"https 10.0.0.7:5000 library/x skip-verify mirror ns=docker.io\nhttp 10.0.0.7:5000 library/x mirror ns=docker.io\n" +
				"https registry-1.docker.io library/x\n",
		},
		{name: "containerd: directory with a port", paths: []string{"certs.d"}, host: "registry.example.com:5000", repo: "x", want: "https registry.example.com:5000 x ca\n"},
		{
			name: "containerd: the default directory", paths: []string{"certs.d"}, host: "ghcr.io", repo: "x",
			want: "https cache.example.com x path=/v2/all mirror ns=ghcr.io\nhttps ghcr.io x\n",
		},
		{name: "docker: certificate files", paths: []string{"certs.d"}, host: "docker-style.example.com", repo: "x", want: "https docker-style.example.com x ca certs=1\n"},

		{
			name: "podman: by tag", paths: []string{"registries.conf"}, host: "example.com", repo: "foo/image",
			want: "https mirror-1.example.com mirrors/foo/image skip-verify mirror\nhttp mirror-1.example.com mirrors/foo/image mirror\n" +
				"https mirror-2.example.com image mirror\nhttps internal.example.com bar/image mirror\n",
		},
		{
			name: "podman: by digest", paths: []string{"registries.conf"}, host: "example.com", repo: "foo/image", byDigest: true,
			want: "https mirror-0.example.com mirror-for-foo/image mirror\n" +
				"https mirror-1.example.com mirrors/foo/image skip-verify mirror\nhttp mirror-1.example.com mirrors/foo/image mirror\n" +
				"https internal.example.com bar/image mirror\n",
		},
		{name: "podman: outside the prefix", paths: []string{"registries.conf"}, host: "example.com", repo: "food/image", want: "https example.com food/image\n"},
		{name: "podman: mirror by digest only, by tag", paths: []string{"registries.conf"}, host: "index.docker.io", repo: "library/x", want: "https index.docker.io library/x\n"},
		{
			name: "podman: mirror by digest only, by digest", paths: []string{"registries.conf"}, host: "index.docker.io", repo: "library/x", byDigest: true,
			want: "https hub-mirror.example.com library/x mirror\nhttps index.docker.io library/x\n",
		},
		{name: "podman: subdomains", paths: []string{"registries.conf"}, host: "a.b.corp.example.com", repo: "x", want: "https a.b.corp.example.com x skip-verify\nhttp a.b.corp.example.com x\n"},
		{name: "podman: not the domain itself", paths: []string{"registries.conf"}, host: "corp.example.com", repo: "x", want: "https corp.example.com x\n"},
		{name: "podman: beside what is blocked", paths: []string{"registries.conf"}, host: "blocked.example.com", repo: "good", want: "https blocked.example.com good\n"},
		{name: "podman: version 1", paths: []string{"registries-v1.conf"}, host: "plain.example.com:5000", repo: "x", want: "https plain.example.com:5000 x skip-verify\nhttp plain.example.com:5000 x\n"},

		{
			name: "the first path that knows the image decides", paths: []string{"registries.conf", "certs.d"}, host: "index.docker.io", repo: "library/x", byDigest: true,
			want: "https hub-mirror.example.com library/x mirror\nhttps index.docker.io library/x\n",
		},
		{
			name: "certificates come from the path that knows the host", paths: []string{"registries.conf", "certs.d", "registries.yaml"}, host: "docker-style.example.com", repo: "x",
			want: "https docker-style.example.com x ca certs=1\n",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := Config{Insecure: tc.insecure}
			if len(tc.paths) > 0 {
				dir := site(t)
				for _, p := range tc.paths {
					cfg.Paths = append(cfg.Paths, filepath.Join(dir, p))
				}
			}
			got, err := load(t, cfg).Endpoints(tc.host, tc.repo, tc.byDigest)
			if err != nil {
				t.Fatalf("Endpoints(%q, %q, %t): %v", tc.host, tc.repo, tc.byDigest, err)
			}
			if diff := cmp.Diff(tc.want, describe(got)); diff != "" {
				t.Errorf("Endpoints(%q, %q, %t), want -, got +:\n%s", tc.host, tc.repo, tc.byDigest, diff)
			}
		})
	}
}

func TestEndpointsRefuses(t *testing.T) {
	dir := site(t)
	for _, tc := range []struct{ path, host, repo, want string }{
		{"registries.conf", "blocked.example.com", "bad/x", "blocked.example.com/bad/x is blocked in"},
		{"registries-v1.conf", "untrusted.example.com", "x", "is blocked in"},
		{"registries.yaml", "very.evil.example.com", "x", "is blocked in"},
		{"certs.d", "../../etc", "x", "is not a host"},
		{"certs.d", "a/b", "x", "is not a host"},
		{"certs.d", "..", "x", "is not a host"},
		{"certs.d", "", "x", "is not a host"},
		{"certs.d", "_default", "x", "is not a host"},
	} {
		got, err := load(t, Config{Paths: []string{filepath.Join(dir, tc.path)}}).Endpoints(tc.host, tc.repo, false)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: Endpoints(%q, %q) = %v, %v; want an error with %q", tc.path, tc.host, tc.repo, got, err, tc.want)
		}
	}
}

func TestNoHostMayResolve(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "r.example.com", "hosts.toml"), "server = \"https://m.example.com\"\ncapabilities = [\"pull\"]\n")
	r := load(t, Config{Paths: []string{dir}})
	if _, err := r.Endpoints("r.example.com", "x", false); err == nil || !strings.Contains(err.Error(), `"resolve"`) || !strings.Contains(err.Error(), "digest") {
		t.Errorf("by tag: %v; want an error that names the capability and the remedy", err)
	}
	got, err := r.Endpoints("r.example.com", "x", true)
	if want := "https m.example.com x mirror ns=r.example.com\n"; err != nil || describe(got) != want {
		t.Errorf("by digest: %q, %v; want %q", describe(got), err, want)
	}
}

func TestLoadReportsEverything(t *testing.T) {
	dir := t.TempDir()
	const secret = "s3cr3t-value"
	files := map[string]string{
		"own.yaml": "registry.example.com:\n  cs: ca.pem\n  plain-http: maybe\n  ca: missing.pem\nregistry.example.com/x:\n  mirrors: [https://m.example.com]\n" +
			"bad_host!:\n  blocked: true\nplain.example.com:\n  plain-http: true\nplain.example.com/tls:\n  skip-verify: true\nkeyless.example.com:\n  key: k.pem\n" +
			"h.example.com:\n  header:\n    Authorization: [" + secret + "]\n  mirrors-only: true\n",
		"broken.yaml":                      "a.example.com: {header: {Authorization: *" + secret + "}}\n",
		"two.yaml":                         "a.example.com: {}\n---\nb.example.com: {blocked: true}\n",
		"list.yaml":                        "- a.example.com\n",
		"r.conf":                           "[[registry]]\nlocation = 'a.example.com'\nblocked = 'yes'\n",
		"s.conf":                           "[[registry]]\nlocation = 'https://a.example.com'\n[[registry]]\nprefix = 'b.example.com/x:evil'\nblocked = true\n[[registry]]\nlocation = 'c.example.com'\n[[registry.mirror]]\nlocation = 'm.example.com'\npull-from-mirror = 'never'\n[[registry]]\n",
		"certs.d/x.example.com/hosts.toml": "[host.\"https://user:" + secret + "@m.example.com\"]\n[host.\"ftp://m.example.com\"]\n[host.\"https://n.example.com\"]\ncapabilities = [\"fly\"]\nproxy = \"http://u:" + secret + "@p\"\nca = 7\n",
		"certs.d/y.example.com/hosts.toml": "[header]\nAuthorization = " + secret + "\n",
		"certs.d/z.example.com/hosts.toml": "ca = \"missing.pem\"\nclient = [[\"a\", \"b\", \"c\"]]\n",
		"conf.d/10-site.conf":              "",
		"hosts.toml":                       "",
	}
	for name, text := range files {
		write(t, filepath.Join(dir, name), text)
	}
	cfg := Config{Insecure: []string{"http://x"}}
	for _, name := range []string{"own.yaml", "broken.yaml", "two.yaml", "list.yaml", "r.conf", "s.conf", "certs.d", "conf.d", "hosts.toml", "absent"} {
		cfg.Paths = append(cfg.Paths, filepath.Join(dir, name))
	}
	_, err := Load(cfg)
	if err == nil {
		t.Fatal("Load accepts it")
	}
	text := strings.ReplaceAll(err.Error(), dir+"/", "")
	for _, want := range []string{
		`--insecure-registry: "http://x" is not a host`,
		`own.yaml:2: the key "cs" is not known`, `own.yaml:3: plain-http must be true or false`, `missing.pem`, `own.yaml:6: the mirror must be written without a scheme`,
		`own.yaml:7: the prefix "bad_host!" cannot be used`, `own.yaml:11: "plain.example.com/tls": with plain-http there is no TLS`, `own.yaml:14: a key needs a cert`,
		`own.yaml:17: the header Authorization has no usable value`, `own.yaml:15: "h.example.com": mirrors-only needs mirrors`,
		"broken.yaml: an alias", "two.yaml: it must be one YAML document", "list.yaml:1: here must be a mapping",
		"r.conf:3: ", `s.conf: [[registry]] 1 ("https://a.example.com"): the prefix cannot be used: it must have no scheme`, "without tag and digest",
		`pull-from-mirror is "never"`, "neither prefix nor location",
		`x.example.com/hosts.toml: [host."…@m.example.com"]: the address holds a user`, "begins with ftp", `the capability "fly" is not known`, "proxy is not supported here", "ca: it must be a string",
		"y.example.com/hosts.toml:2: ", "z.example.com/hosts.toml: client: it must be",
		"name a registries.conf by itself", "hosts.toml is read from its directory", "absent: no such file",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the error lacks %q", want)
		}
	}
	if strings.Contains(text, secret) {
		t.Error("the error quotes a secret")
	}
	if t.Failed() {
		t.Log(text)
	}
}

func TestUnknownKeysOfOthersAreLoggedOnly(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "r.conf")
	write(t, path, "unqualified-search-registries = ['a']\nnew-key = 1\n[[registry]]\nlocation = 'a.example.com'\nblocket = true\n[aliases]\nx = 'y/z'\n")
	var log strings.Builder
	r := load(t, Config{Paths: []string{path}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	got, err := r.Endpoints("a.example.com", "x", false)
	if want := "https a.example.com x\n"; err != nil || describe(got) != want {
		t.Errorf("Endpoints = %q, %v; want %q", describe(got), err, want)
	}
	if n := strings.Count(log.String(), "\n"); n != 2 || !strings.Contains(log.String(), "key=new-key") || !strings.Contains(log.String(), "line=5") {
		t.Errorf("log:\n%s\nwant new-key and line 5, nothing else", log.String())
	}
}
