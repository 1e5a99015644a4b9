package credential

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
)

// What a registry refuses is asked for again before its time is over, but not all the time.
func TestForget(t *testing.T) {
	for _, reach := range []string{forImage, forRegistry, forAll} {
		t.Run(reach, func(t *testing.T) {
			s := newSite(t, "plugin-one")
			s.env["REACH"] = reach
			store := New(s.config("plugin-one", anHour))
			synctest.Test(t, func(t *testing.T) {
				for n, step := range []struct {
					wait   time.Duration
					forget string
					runs   int
				}{
					{0, "", 1}, {freshTime - 1, "r.example.com", 1}, {1, "else.test", 1}, {0, "r.example.com", 2}, {0, "r.example.com", 2}, {freshTime, "r.example.com", 3},
				} {
					time.Sleep(step.wait)
					if step.forget != "" {
						store.Forget(step.forget, "x")
					}
					if _, err := store.Resolve(t.Context(), "r.example.com", "x"); err != nil {
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

func TestFindSaysWhere(t *testing.T) {
	s := newSite(t, "plugin-one")
	s.env["REACH"] = forAll
	file := s.write("home/.docker/config.json", `{"auths":{"hub.test":{"username":"me","password":"`+hidden+`"}}}`)
	cfg := s.config("plugin-one", anHour)
	store := New(cfg)
	for host, want := range map[string]string{"hub.test": file, "r.example.com": cfg.KubeletConfig, "other.test": ""} {
		if auth, from, err := store.Find(t.Context(), host, "x"); err != nil || from != want || (auth == authn.AuthConfig{}) != (want == "") {
			t.Errorf("Find(%s) = from %q, %v, want %q", host, from, err, want)
		}
	}
}

// A helper that is not installed: what the file holds itself still counts, the failure is told once, and comes back for those who need it.
func TestMissingHelper(t *testing.T) {
	s, log := newSite(t), &bytes.Buffer{}
	s.write("home/.docker/config.json", `{"credsStore":"absent","auths":{"own.test":{"username":"me","password":"`+hidden+`"},"empty.test":{}}}`)
	store := New(Config{Env: s.env, Log: slog.New(slog.NewTextHandler(log, nil))})
	for range 3 {
		if auth, err := store.Resolve(t.Context(), "own.test", "x"); err != nil || auth != basic("me", hidden) {
			t.Errorf("Resolve = %v, %v, want what the file holds", auth, err)
		}
		for _, host := range []string{"empty.test", "public.test"} {
			auth, err := store.Resolve(t.Context(), host, "x")
			if auth != (authn.AuthConfig{}) || !strings.Contains(errText(err), "docker-credential-absent is not in PATH") {
				t.Errorf("Resolve(%s) = %v, %v, want nothing, and why", host, auth, err)
			}
		}
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 || strings.Contains(log.String(), hidden) {
		t.Errorf("%d warnings, want one:\n%s", n, log)
	}
}
