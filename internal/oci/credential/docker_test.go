package credential

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/authn"
)

func basic(user, password string) authn.AuthConfig {
	return authn.AuthConfig{Username: user, Password: password}
}

func TestResolveFromFiles(t *testing.T) {
	s := newSite(t)
	s.copy("home/.docker/config.json", "docker-config.json")
	s.copy("run/containers/auth.json", "podman-auth.json")
	s.write("home/.config/containers/auth.json", `{"auths":{"late.example.com":{"username":"late","password":"latepass"}}}`)
	store := New(Config{Env: s.env})
	for _, tc := range []struct {
		host, repository string
		want             authn.AuthConfig
	}{
		{"registry.example.com", "x", basic("user", "pass")},
		{"REGISTRY.example.com", "x", basic("user", "pass")},
		{"registry.example.com", "team", basic("team", "teampass")},
		{"registry.example.com", "team/x", basic("team", "teampass")},
		{"registry.example.com", "teams/x", basic("user", "pass")},
		{"registry.example.com:5000", "x", authn.AuthConfig{}},
		{"evil-registry.example.com", "x", authn.AuthConfig{}},
		{"index.docker.io", "library/x", basic("hubuser", "hubpass")},
		{"registry-1.docker.io", "library/x", basic("hubuser", "hubpass")},
		{"token.example.com", "x", authn.AuthConfig{IdentityToken: "identity"}},
		{"a.azure.example.com", "x", basic("globuser", "globpass")},
		{"a.b.azure.example.com", "x", authn.AuthConfig{}},
		{"quay.io", "team/x", basic("team", "teampass")},
		{"quay.io", "team/private/x", basic("private", "privatepass")},
		{"quay.io", "other", authn.AuthConfig{}},
		{"late.example.com", "x", basic("late", "latepass")},
	} {
		got, err := store.Resolve(t.Context(), tc.host, tc.repository)
		if err != nil || got != tc.want {
			t.Errorf("Resolve(%q, %q) = %v, %v; want %v", tc.host, tc.repository, got, err, tc.want)
		}
	}
	if _, err := store.Resolve(t.Context(), "broken.example.com", "x"); err == nil || !strings.Contains(err.Error(), "config.json") || !strings.Contains(err.Error(), "base64") {
		t.Errorf("Resolve of a broken entry: %v; want an error with the file and what is wrong", err)
	}
	s.write("home/.docker/config.json", `{"auths":{"registry.example.com":{"username":"new","password":"newpass"}}}`)
	if got, err := store.Resolve(t.Context(), "registry.example.com", "x"); err != nil || got != basic("new", "newpass") {
		t.Errorf("Resolve after the file changed = %v, %v", got, err)
	}
}

func TestFilesFromTheEnvironment(t *testing.T) {
	s := newSite(t)
	one := func(user string) string {
		return `{"auths":{"r.example.com":{"username":"` + user + `","password":"p"}}}`
	}
	s.write("home/.docker/config.json", one("home"))
	s.write("docker/config.json", one("docker"))
	s.write("run/containers/auth.json", one("podman"))
	s.write("own.json", one("own"))
	s.write("empty.json", "\n")
	for _, tc := range []struct {
		name string
		env  map[string]string
		want string
	}{
		{"nothing", nil, ""},
		{"HOME", map[string]string{"HOME": s.path("home"), "XDG_RUNTIME_DIR": s.path("run")}, "home"},
		{"DOCKER_CONFIG", map[string]string{"HOME": s.path("home"), "DOCKER_CONFIG": s.path("docker"), "XDG_RUNTIME_DIR": s.path("run")}, "docker"},
		{"podman", map[string]string{"HOME": s.path("absent"), "XDG_RUNTIME_DIR": s.path("run")}, "podman"},
		{"REGISTRY_AUTH_FILE", map[string]string{"HOME": s.path("absent"), "REGISTRY_AUTH_FILE": s.path("own.json"), "XDG_RUNTIME_DIR": s.path("run")}, "own"},
		{"an empty file", map[string]string{"HOME": s.path("absent"), "REGISTRY_AUTH_FILE": s.path("empty.json"), "XDG_RUNTIME_DIR": s.path("run")}, ""},
		{"/dev/null", map[string]string{"HOME": s.path("absent"), "REGISTRY_AUTH_FILE": os.DevNull, "XDG_RUNTIME_DIR": s.path("run")}, ""},
	} {
		got, err := New(Config{Env: tc.env}).Resolve(t.Context(), "r.example.com", "x")
		if err != nil || got.Username != tc.want {
			t.Errorf("%s: Resolve = %v, %v; want user %q", tc.name, got, err, tc.want)
		}
	}
}

func TestBrokenFiles(t *testing.T) {
	s := newSite(t)
	fifo := s.path("dir")
	if err := os.Mkdir(fifo, 0o755); err != nil {
		t.Fatal(err)
	}
	good := s.path("run/containers/auth.json")
	for name, tc := range map[string]struct{ text, want string }{
		"syntax":     {"{\n\"auths\": {\"r\": " + hidden + "}}", "line 2: it is not JSON"},
		"type":       {"{\"auths\":\n\n[\"" + hidden + "\"]}", "line 3: here must be a map"},
		"cut":        {`{"auths": {"r.example.com": {"auth": "` + hidden, "it is not JSON"},
		"entry":      {`{"auths": {"r.example.com": {"auth": "` + hidden + `"}}}`, "base64"},
		"entry type": {`{"auths": {"r.example.com": {"username": ["` + hidden + `"]}}}`, "r.example.com"},
		"helper":     {`{"credHelpers": {"r.example.com": "../` + "evil" + `"}}`, "has a path in its name"},
		"no helper":  {`{"credsStore": "absent"}`, "docker-credential-absent is not in PATH"},
	} {
		log := &bytes.Buffer{}
		store := New(Config{Env: s.env, Log: slog.New(slog.NewTextHandler(log, nil))})
		path := s.write("home/.docker/config.json", tc.text)
		_, err := store.Resolve(t.Context(), "r.example.com", "x")
		if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v; want an error with %q and the file", name, err, tc.want)
		}
		s.write("run/containers/auth.json", `{"auths":{"r.example.com":{"username":"u","password":"p"}}}`)
		for range 2 {
			if got, err := store.Resolve(t.Context(), "r.example.com", "x"); err != nil || got != basic("u", "p") {
				t.Errorf("%s: with another source Resolve = %v, %v; want its answer", name, got, err)
			}
		}
		if n := strings.Count(log.String(), path); n == 0 || n > 2 || strings.Contains(log.String()+errText(err), hidden) {
			t.Errorf("%s: want one warning and no secret, have the error %v and the log\n%s", name, err, log)
		}
		if err := os.Remove(good); err != nil {
			t.Fatal(err)
		}
	}
	s.env["REGISTRY_AUTH_FILE"] = fifo
	if err := os.Remove(s.path("home/.docker/config.json")); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Config{Env: s.env}).Resolve(t.Context(), "r.example.com", "x"); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a directory: %v", err)
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestExposedFileIsReported(t *testing.T) {
	s, log := newSite(t), &bytes.Buffer{}
	s.copy("home/.docker/config.json", "docker-config.json")
	store := New(Config{Env: s.env, Log: slog.New(slog.NewTextHandler(log, nil))})
	resolve := func() {
		t.Helper()
		if _, err := store.Resolve(t.Context(), "registry.example.com", "x"); err != nil {
			t.Fatal(err)
		}
	}
	resolve()
	if log.Len() > 0 {
		t.Errorf("a file of mode 0600 is reported: %s", log)
	}
	if err := os.Chmod(s.path("home/.docker/config.json"), 0o644); err != nil {
		t.Fatal(err)
	}
	resolve()
	resolve()
	if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "everybody can read it") {
		t.Errorf("a file of mode 0644, want one warning:\n%s", log)
	}
}

func TestHelpers(t *testing.T) {
	s := newSite(t, "docker-credential-good", "docker-credential-token", "docker-credential-none")
	s.write("home/.docker/config.json", `{
		"credsStore": "none",
		"credHelpers": {"good.example.com": "good", "https://token.example.com": "token", "docker.io": "good", "off.example.com": ""},
		"auths": {"good.example.com": {"username": "not", "password": "asked"}, "none.example.com": {"username": "u", "password": "p"}}}`)
	store := New(Config{Env: s.env})
	for _, tc := range []struct {
		host  string
		want  authn.AuthConfig
		stdin string
	}{
		{"good.example.com", basic("user", hidden+"-1"), "get good.example.com"},
		{"token.example.com", authn.AuthConfig{IdentityToken: hidden + "-2"}, "get token.example.com"},
		{"index.docker.io", basic("user", hidden+"-3"), "get https://index.docker.io/v1/"},
		{"none.example.com", basic("u", "p"), "get none.example.com"},
		{"unknown.example.com", authn.AuthConfig{}, "get unknown.example.com"},
		{"good.example.com", basic("user", hidden+"-6"), "get good.example.com"}, // asked again: it does not say how long its answer counts
	} {
		got, err := store.Resolve(t.Context(), tc.host, "x")
		if err != nil || got != tc.want {
			t.Errorf("Resolve(%q) = %v, %v; want %v", tc.host, got, err, tc.want)
		}
		if calls := s.calls(); calls[len(calls)-1] != tc.stdin {
			t.Errorf("Resolve(%q): the helper was called with %q, want %q", tc.host, calls[len(calls)-1], tc.stdin)
		}
	}
}

func TestFailingHelpers(t *testing.T) {
	s := newSite(t, "docker-credential-fail", "docker-credential-garbage", "docker-credential-huge", "docker-credential-stuck")
	for helper, tc := range map[string]struct {
		timeout time.Duration
		want    string
	}{
		"fail":    {0, "docker-credential-fail failed (exit status 3): AccessDenied for role x, had …; to see more: echo r.example.com | docker-credential-fail get"},
		"garbage": {0, "docker-credential-garbage answered something else than credentials in JSON"},
		"huge":    {0, "docker-credential-huge was stopped: it answered more than 256 KiB"},
		"stuck":   {200 * time.Millisecond, "docker-credential-stuck was stopped after 200ms: it took too long"},
	} {
		t.Run(helper, func(t *testing.T) {
			log := &bytes.Buffer{}
			store := New(Config{Env: s.env, HelperTimeout: tc.timeout, Log: slog.New(slog.NewTextHandler(log, nil))})
			s.write("home/.docker/config.json", `{"credsStore": "`+helper+`"}`)
			got, err := store.Resolve(t.Context(), "r.example.com", "x")
			if err == nil || got != (authn.AuthConfig{}) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Resolve = %v, %v; want an error with %q", got, err, tc.want)
			}
			if strings.Contains(errText(err)+log.String(), hidden) {
				t.Errorf("the error or the log has the secret: %v\n%s", err, log)
			}
		})
	}
}

// TestGivingUpKillsHelperAndItsChildren sees the end of the processes at the other end of their connections.
func TestGivingUpKillsHelperAndItsChildren(t *testing.T) {
	s := newSite(t, "docker-credential-hang", "docker-credential-child")
	s.write("home/.docker/config.json", `{"credsStore": "hang"}`)
	m := s.meeting()
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("nobody wants it any more")
	done := make(chan error)
	go func() {
		_, err := New(Config{Env: s.env}).Resolve(ctx, "r.example.com", "x")
		done <- err
	}()
	guests := m.guests(2)
	cancel(gone)
	if err := <-done; !errors.Is(err, gone) {
		t.Errorf("Resolve: %v; want the context's cause", err)
	}
	for name, c := range guests {
		ended(t, name, c)
	}
}

func TestAnswerOfHelperThatLeavesAChild(t *testing.T) {
	s := newSite(t, "docker-credential-orphan", "docker-credential-child")
	s.write("home/.docker/config.json", `{"credsStore": "orphan"}`)
	m := s.meeting()
	done := make(chan error)
	go func() {
		got, err := New(Config{Env: s.env}).Resolve(t.Context(), "r.example.com", "x")
		if err == nil && got != basic("user", hidden+"-1") {
			err = fmt.Errorf("it returned %v", got)
		}
		done <- err
	}()
	guests := m.guests(2)
	release(t, guests["docker-credential-orphan"])
	if err := <-done; err != nil {
		t.Errorf("Resolve: %v; want what the helper said", err)
	}
	ended(t, "the child", guests["docker-credential-child"])
}

func TestConcurrentCallsShareOneRun(t *testing.T) {
	s := newSite(t, "docker-credential-gate")
	s.write("home/.docker/config.json", `{"credsStore": "gate"}`)
	m := s.meeting()
	store := New(Config{Env: s.env})
	const callers = 8
	var wg sync.WaitGroup
	var mu sync.Mutex
	got := map[authn.AuthConfig]int{}
	for range callers {
		wg.Go(func() {
			auth, err := store.Resolve(t.Context(), "r.example.com", "x")
			if err != nil {
				t.Errorf("Resolve: %v", err)
			}
			mu.Lock()
			defer mu.Unlock()
			got[auth]++
		})
	}
	impatient, cancel := context.WithCancel(t.Context())
	cancel()
	c := m.guests(1)["docker-credential-gate"]
	if _, err := store.Resolve(impatient, "r.example.com", "x"); !errors.Is(err, context.Canceled) {
		t.Errorf("Resolve with an ended context: %v", err)
	}
	waitFor(t, &store.helpers, callers)
	release(t, c)
	wg.Wait()
	if want := map[authn.AuthConfig]int{basic("user", hidden+"-1"): callers}; !cmp.Equal(got, want) || len(s.calls()) != 1 {
		t.Errorf("the callers got %v with %d runs; want one run for all", got, len(s.calls()))
	}
}

func TestComplaintHasNoSecrets(t *testing.T) {
	for _, tc := range []struct{ stderr, secret, want string }{
		{"", "", ""},
		{"first\nAccessDenied: role x\n", "", "AccessDenied: role x"},
		{"+ login hunter2-very-secret", `{"Secret":"hunter2-very-secret"}`, "+ login …"},
		{"env PASS was hunter2-very-secret", "PASS=hunter2-very-secret", "env … was …"},
		{"curl -H 'Authorization: Bearer hunter2-very-secret' failed", "", "curl -H 'Authorization: Bearer …' failed"},
		{`{"access_token": "hunter2-very-secret", "x": 1}`, "", `{"access_token": "…", "x": 1}`},
		{"password=hunter2-very-secret rejected", "", "password=… rejected"},
		{"bell\a and \xff escape\x1b[31m", "", "bell  and   escape [31m"},
		{strings.Repeat("x", 300), "", strings.Repeat("x", 200) + "…"},
	} {
		if got := complaint(tc.stderr, []string{tc.secret}); got != tc.want {
			t.Errorf("complaint(%q, %q) = %q, want %q", tc.stderr, tc.secret, got, tc.want)
		}
	}
}
