package credential

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/authn"
)

// config writes a configuration for one plugin.
func (s *site) config(plugin, extra string) Config {
	s.t.Helper()
	path := s.write("kubelet.yaml", "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- name: "+plugin+
		"\n  matchImages: ['*.example.com', docker.io/library]\n  apiVersion: credentialprovider.kubelet.k8s.io/v1\n"+extra)
	return Config{Env: s.env, KubeletConfig: path, KubeletBinDir: s.path("bin")}
}

const anHour = "  defaultCacheDuration: 1h\n"

func TestPluginIsAskedAsTheKubeletDoes(t *testing.T) {
	s := newSite(t, "plugin-one")
	s.env["REACH"] = forImage
	store := New(s.config("plugin-one", anHour+"  args: [get, -v]\n  env: [{name: REGION, value: north}]\n"))
	for _, tc := range []struct {
		host, repository string
		want             authn.AuthConfig
		call             string
	}{
		{"r.example.com", "team/x", basic("plugin", hidden+"-1"), "r.example.com/team/x credentialprovider.kubelet.k8s.io/v1 get -v north"},
		{"index.docker.io", "library/x", basic("hub", hidden), "docker.io/library/x credentialprovider.kubelet.k8s.io/v1 get -v north"},
	} {
		got, err := store.Resolve(t.Context(), tc.host, tc.repository)
		if err != nil || got != tc.want {
			t.Errorf("Resolve(%q, %q) = %v, %v; want %v", tc.host, tc.repository, got, err, tc.want)
		}
		if calls := s.calls(); len(calls) == 0 || calls[len(calls)-1] != tc.call {
			t.Errorf("Resolve(%q, %q): the plugin was called with %q, want %q", tc.host, tc.repository, calls, tc.call)
		}
	}
	for _, host := range []string{"example.com", "a.r.example.com", "r.example.com:5000", "index.docker.io"} {
		if got, err := store.Resolve(t.Context(), host, "team/x"); err != nil || got != (authn.AuthConfig{}) {
			t.Errorf("Resolve(%q, %q) = %v, %v; want nothing", host, "team/x", got, err)
		}
	}
	if n := len(s.calls()); n != 2 {
		t.Errorf("the plugin ran %d times, want 2: it is not for other images", n)
	}
}

// TestAnswersAreKept has real programs in the bubble, whose clock stands while they run.
func TestAnswersAreKept(t *testing.T) {
	type step struct {
		wait     time.Duration
		host, to string
		runs     int // so far
	}
	for _, tc := range []struct {
		name, reach, duration, config string
		steps                         []step
	}{
		{"two seconds", forRegistry, "2s", anHour, []step{
			{0, "r", "x", 1}, {0, "r", "y", 1}, {2*time.Second - 1, "r", "x", 1}, {1, "r", "x", 2}, {time.Second, "r", "x", 2}, {time.Second, "r", "x", 3},
		}},
		{"for a registry", forRegistry, "1h", anHour, []step{{0, "r", "x", 1}, {0, "r", "y", 1}, {0, "s", "x", 2}, {0, "r", "x", 2}}},
		{"for an image", forImage, "1h", anHour, []step{{0, "r", "x", 1}, {0, "r", "y", 2}, {0, "r", "x", 2}, {0, "r", "y", 2}}},
		{"for all", forAll, "1h", anHour, []step{{0, "r", "x", 1}, {0, "s", "y", 1}}},
		{"not at all", forAll, "0s", anHour, []step{{0, "r", "x", 1}, {0, "r", "x", 2}}},
		{"by default", forAll, "", "  defaultCacheDuration: 5s\n", []step{{0, "r", "x", 1}, {4 * time.Second, "r", "x", 1}, {time.Second, "r", "x", 2}}},
		{"by default not at all", forAll, "", "  defaultCacheDuration: 0s\n", []step{{0, "r", "x", 1}, {0, "r", "x", 2}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSite(t, "plugin-one")
			s.env["REACH"] = tc.reach
			if tc.duration != "" {
				s.env["DURATION"] = tc.duration
			}
			store := New(s.config("plugin-one", tc.config))
			synctest.Test(t, func(t *testing.T) {
				for n, step := range tc.steps {
					time.Sleep(step.wait)
					if _, err := store.Resolve(t.Context(), step.host+".example.com", step.to); err != nil {
						t.Fatal(err)
					}
					if got := len(s.calls()); got != step.runs {
						t.Fatalf("step %d %v: the plugin ran %d times", n, step, got)
					}
				}
			})
		})
	}
}

func TestAnotherConfigurationIsAnotherPlugin(t *testing.T) {
	s := newSite(t, "plugin-one")
	s.env["REACH"] = forAll
	store := New(s.config("plugin-one", anHour))
	for n, extra := range []string{"", "", "  args: [other]\n"} {
		s.config("plugin-one", anHour+extra)
		if _, err := store.Resolve(t.Context(), "r.example.com", "x"); err != nil {
			t.Fatal(err)
		}
		if got, want := len(s.calls()), []int{1, 1, 2}[n]; got != want {
			t.Errorf("with %q the plugin ran %d times, want %d", extra, got, want)
		}
	}
}

func TestFailingPlugins(t *testing.T) {
	s := newSite(t, "plugin-version", "plugin-reach", "plugin-badtime", "plugin-garbage", "plugin-fail", "plugin-empty")
	s.env["REACH"] = forAll
	for plugin, want := range map[string]string{
		"plugin-version": "set the provider's apiVersion to what the plugin speaks",
		"plugin-reach":   "none of Image, Registry and Global",
		"plugin-badtime": "something else than a CredentialProviderResponse",
		"plugin-garbage": "something else than a CredentialProviderResponse",
		"plugin-fail":    "the credential provider plugin for r.example.com/x: plugin-fail failed (exit status 1): no instance profile",
		"plugin-empty":   "",
		"plugin-absent":  `the provider "plugin-absent"`,
	} {
		log := &bytes.Buffer{}
		cfg := s.config(plugin, anHour)
		cfg.Log = slog.New(slog.NewTextHandler(log, nil))
		got, err := New(cfg).Resolve(t.Context(), "r.example.com", "x")
		if got != (authn.AuthConfig{}) || (err == nil) != (want == "") || !strings.Contains(errText(err), want) {
			t.Errorf("%s: Resolve = %v, %v; want an error with %q", plugin, got, err, want)
		}
		if strings.Contains(errText(err)+log.String(), hidden) {
			t.Errorf("%s: the error or the log has the secret: %v\n%s", plugin, err, log)
		}
	}
}

func TestPluginThatNeedsAPodIsLeftOut(t *testing.T) {
	s, log := newSite(t, "plugin-two"), &bytes.Buffer{}
	s.copy("kubelet.json", "kubelet.json")
	store := New(Config{Env: s.env, KubeletConfig: s.path("kubelet.json"), KubeletBinDir: s.path("bin"), Log: slog.New(slog.NewTextHandler(log, nil))})
	got, err := store.Resolve(t.Context(), "gcr.example.com", "x")
	if err != nil || got != (authn.AuthConfig{}) || len(s.calls()) != 0 || !strings.Contains(log.String(), "plugin-two") {
		t.Errorf("Resolve = %v, %v after %d runs; want nothing and a warning:\n%s", got, err, len(s.calls()), log)
	}
}

func TestConcurrentImagesOfOneRegistryShareOneRun(t *testing.T) {
	s := newSite(t, "plugin-gate")
	s.env["REACH"] = forRegistry
	m := s.meeting()
	store := New(s.config("plugin-gate", anHour))
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Go(func() {
			if got, err := store.Resolve(t.Context(), "r.example.com", fmt.Sprintf("x%d", n)); err != nil || got != basic("plugin", hidden+"-1") {
				t.Errorf("Resolve = %v, %v", got, err)
			}
		})
	}
	c := m.guests(1)["plugin-gate"]
	waitFor(t, &store.plugins, 8)
	release(t, c)
	wg.Wait()
}

func TestConcurrentImagesWithAnswersOfTheirOwn(t *testing.T) {
	s := newSite(t, "plugin-one")
	s.env["REACH"] = forImage
	store := New(s.config("plugin-one", anHour))
	var wg sync.WaitGroup
	for n := range 6 {
		wg.Go(func() {
			if got, err := store.Resolve(t.Context(), "r.example.com", fmt.Sprintf("x%d", n%3)); err != nil || got.Username != "plugin" {
				t.Errorf("Resolve = %v, %v", got, err)
			}
		})
	}
	wg.Wait()
	asked := map[string]int{}
	for _, call := range s.calls() {
		asked[strings.Fields(call)[0]]++
	}
	if want := map[string]int{"r.example.com/x0": 1, "r.example.com/x1": 1, "r.example.com/x2": 1}; !cmp.Equal(asked, want) {
		t.Errorf("the plugin was asked %v, want %v", asked, want)
	}
}

func TestCheck(t *testing.T) {
	s := newSite(t, "plugin-one", "plugin-two")
	s.copy("good.d/10-one.yaml", "kubelet.yaml")
	s.copy("good.d/20-two.json", "kubelet.json")
	s.copy("twice.d/10-one.yaml", "kubelet.yaml")
	s.copy("twice.d/20-one.yml", "kubelet.yaml")
	s.write("empty.d/README", "")
	s.write("kind.yaml", "apiVersion: v1\nkind: Pod\n")
	s.write("bad.yaml", "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n"+
		"- {name: ../x, apiVersion: v1, env: [{name: a=b, value: "+hidden+"}]}\n")
	s.write("syntax.yaml", "kind: a\nb: {"+hidden+"\n")
	s.write("type.yaml", "providers: "+hidden+"\n")
	s.write("time.yaml", "providers: [{defaultCacheDuration: "+hidden+"}]\n")
	for _, tc := range []struct {
		path, bin string
		want      []string
	}{
		{"", "", nil},
		{"good.d", "bin", nil},
		{"good.d", "", []string{"--image-credential-provider-bin-dir"}},
		{"good.d", "absent", []string{`the provider "plugin-one"`, `the provider "plugin-two"`}},
		{"twice.d", "bin", []string{`"plugin-one" is there twice`}},
		{"empty.d", "bin", []string{"has no .yaml or .json file"}},
		{"absent.yaml", "bin", []string{"no such file"}},
		{"kind.yaml", "bin", []string{`it is "Pod" of "v1"`, "it has no providers"}},
		{"bad.yaml", "bin", []string{"the name must be", "the apiVersion is", "no matchImages", "defaultCacheDuration", "no usable name"}},
		{"syntax.yaml", "bin", []string{"it is not YAML"}},
		{"type.yaml", "bin", []string{"providers must be a"}},
		{"time.yaml", "bin", []string{"defaultCacheDuration must be a string as"}},
	} {
		cfg := Config{Env: s.env}
		if tc.path != "" {
			cfg.KubeletConfig = s.path(tc.path)
		}
		if tc.bin != "" {
			cfg.KubeletBinDir = s.path(tc.bin)
		}
		err := New(cfg).Check()
		if (err == nil) != (tc.want == nil) {
			t.Errorf("Check of %s: %v; want an error with %q", tc.path, err, tc.want)
		}
		for _, want := range tc.want {
			if !strings.Contains(errText(err), want) {
				t.Errorf("Check of %s: %v; want %q in it", tc.path, err, want)
			}
		}
		if strings.Contains(errText(err), hidden) {
			t.Errorf("Check of %s quotes a secret: %v", tc.path, err)
		}
	}
	if len(s.calls()) != 0 {
		t.Error("Check ran a plugin")
	}
	if err := os.Chmod(s.path("good.d/10-one.yaml"), 0o666); err != nil {
		t.Fatal(err)
	}
	log := &bytes.Buffer{}
	if err := New(Config{KubeletConfig: s.path("good.d"), KubeletBinDir: s.path("bin"), Log: slog.New(slog.NewTextHandler(log, nil))}).Check(); err != nil || !strings.Contains(log.String(), "everybody can write it") {
		t.Errorf("Check of a file that everybody can write: %v, log\n%s", err, log)
	}
}
