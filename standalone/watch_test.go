package standalone

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
)

// running starts a source on a directory and stops it at the end of the test.
func running(t *testing.T, cfg Config) *Source {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return s
}

// eventually waits for real files to be noticed.
func eventually(t *testing.T, what string, ok func() bool) time.Duration {
	t.Helper()
	start := time.Now()
	for !ok() {
		if time.Since(start) > 10*time.Second {
			t.Fatalf("%s: not within 10 s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return time.Since(start)
}

func listenerText(name string, port int) string {
	return strings.NewReplacer("name: l1", "name: "+name, "8080", fmt.Sprint(port)).Replace(okListener)
}

func listening(s *Source, name, address string) func() bool {
	return func() bool { return s.Listeners()[name] == address }
}

// TestEdits: each way in which files are replaced is live within a second, and a bad state changes nothing.
func TestEdits(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "a.yaml", listenerText("l1", 1000))
	s := running(t, Config{Dir: dir})
	edits := []struct {
		name string
		do   func(port int)
	}{
		{"written in place", func(port int) { put(t, dir, "a.yaml", listenerText("l1", port)) }},
		{"renamed over", func(port int) {
			put(t, dir, ".a.tmp", listenerText("l1", port))
			if err := os.Rename(filepath.Join(dir, ".a.tmp"), filepath.Join(dir, "a.yaml")); err != nil {
				t.Fatal(err)
			}
		}},
		{"written in pieces", func(port int) {
			f, err := os.Create(filepath.Join(dir, "a.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			for _, line := range strings.SplitAfter(listenerText("l1", port), "\n") {
				fmt.Fprint(f, line)
				time.Sleep(10 * time.Millisecond)
			}
		}},
	}
	for i, edit := range edits {
		edit.do(2000 + i)
		took := eventually(t, edit.name, listening(s, "l1", fmt.Sprintf("127.0.0.1:%d", 2000+i)))
		t.Logf("%s: live after %v", edit.name, took)
		if took > time.Second {
			t.Errorf("%s: live after %v, want within 1 s", edit.name, took)
		}
		if p := s.Problems(); len(p) > 0 {
			t.Errorf("%s: problems %v, want none", edit.name, p)
		}
	}
	before := s.Status()
	bad := map[string]func(){
		"not valid YAML":   func() { put(t, dir, "a.yaml", "static_resources: [\n") },
		"no listener":      func() { put(t, dir, "a.yaml", "static_resources: {}\n") },
		"no listener in":   func() { os.Remove(filepath.Join(dir, "a.yaml")) },
		"cannot be read: ": func() { os.Symlink("/does/not/exist", filepath.Join(dir, "b.yaml")) },
	}
	for reason, do := range bad {
		do()
		eventually(t, reason, func() bool {
			p := s.Problems()
			return len(p) > 0 && strings.Contains(p[0].Reason, reason) && !p[0].Since.IsZero()
		})
		if st := s.Status(); st.Version != before.Version || len(s.Listeners()) != 1 {
			t.Errorf("%s: version %s, listeners %v; want %s and what was there", reason, st.Version, s.Listeners(), before.Version)
		}
		os.Remove(filepath.Join(dir, "b.yaml"))
		put(t, dir, "a.yaml", listenerText("l1", 2002)+"# mended\n")
		eventually(t, "mended", func() bool { return len(s.Problems()) == 0 })
		if v := s.Status().Version; v != before.Version {
			t.Errorf("%s: a comment changed the version from %s to %s", reason, before.Version, v)
		}
		put(t, dir, "a.yaml", listenerText("l1", 2002))
	}
}

// TestPollOnly: a change that no event reports is found by content.
func TestPollOnly(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	put(t, elsewhere, "real.yaml", listenerText("l1", 1000))
	if err := os.Symlink(filepath.Join(elsewhere, "real.yaml"), filepath.Join(dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	s := running(t, Config{Dir: dir})
	put(t, elsewhere, "real.yaml", listenerText("l1", 1001))
	if took := eventually(t, "edit", listening(s, "l1", "127.0.0.1:1001")); took > time.Second {
		t.Errorf("live after %v, want within 1 s", took)
	}
}

// TestConfigMap: the layout in which Kubernetes mounts a ConfigMap, updated as it does.
func TestConfigMap(t *testing.T) {
	dir := t.TempDir()
	mount := func(version string, port int) {
		if err := os.Mkdir(filepath.Join(dir, version), 0o755); err != nil {
			t.Fatal(err)
		}
		put(t, filepath.Join(dir, version), "envoy.yaml", listenerText("l1", port))
		if err := os.Symlink(version, filepath.Join(dir, "..data_tmp")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	mount("..2026_01", 1000)
	if err := os.Symlink("..data/envoy.yaml", filepath.Join(dir, "envoy.yaml")); err != nil {
		t.Fatal(err)
	}
	s := running(t, Config{Dir: dir})
	if st := s.Status(); len(st.Files) != 1 || st.Resources["listeners"] != 1 {
		t.Fatalf("Status() = %+v, want one file and one listener", st)
	}
	mount("..2026_02", 1001)
	eventually(t, "update", listening(s, "l1", "127.0.0.1:1001"))
}

// TestDirectoryGone: what runs is kept when the whole directory goes, and it is found again when it comes back.
func TestDirectoryGone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "edge")
	mk := func(port int) {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		put(t, dir, "a.yaml", listenerText("l1", port))
	}
	mk(1000)
	s := running(t, Config{Dir: dir, Poll: 50 * time.Millisecond})
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	eventually(t, "gone", func() bool {
		p := s.Problems()
		return len(p) == 1 && p[0].Error() == dir+": the configuration directory cannot be read: no such file or directory"
	})
	if len(s.Listeners()) != 1 {
		t.Errorf("Listeners() = %v, want what ran", s.Listeners())
	}
	mk(1001)
	eventually(t, "back", listening(s, "l1", "127.0.0.1:1001"))
	if p := s.Problems(); len(p) > 0 {
		t.Errorf("Problems() = %v, want none", p)
	}
}

// TestFirstLoad: at first, a directory that cannot be served is an error, and nothing is served.
func TestFirstLoad(t *testing.T) {
	for _, tt := range []struct{ dir, want string }{
		{write(t, map[string]string{"a.yaml": "static_resources: {lsteners: [], clsters: []}\n"}), `a.yaml:1: unknown field "lsteners" in static_resources`},
		{t.TempDir(), "no listener in any"},
		{"/does/not/exist", "read configuration directory: open /does/not/exist: no such file or directory"},
	} {
		s, err := New(Config{Dir: tt.dir})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Load(t.Context()); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Load() of %s: %v, want %q in it", tt.dir, err, tt.want)
		}
		if st := s.Status(); len(st.Problems) == 0 || st.Version != "" {
			t.Errorf("Status() = %+v, want a problem and no version", st)
		}
	}
	if _, err := New(Config{}); err == nil {
		t.Error("New without a directory gave no error")
	}
}

// TestSecretsCallback: every accepted load hands over all secrets, before it is served.
func TestSecretsCallback(t *testing.T) {
	dir := write(t, map[string]string{"a.yaml": listenerText("l1", 1000) + "  secrets: [{ name: s1, tls_certificate: { certificate_chain: { filename: x.crt } } }]\n"})
	var mu sync.Mutex
	var got []string
	s := running(t, Config{Dir: dir, Secrets: func(list []*tlsv3.Secret) {
		mu.Lock()
		defer mu.Unlock()
		text := ""
		for _, m := range list {
			text += m.GetName() + " " + m.GetTlsCertificate().GetCertificateChain().GetFilename() + " "
		}
		got = append(got, text)
	}})
	put(t, dir, "a.yaml", listenerText("l1", 1001))
	eventually(t, "edit", listening(s, "l1", "127.0.0.1:1001"))
	mu.Lock()
	defer mu.Unlock()
	if want := "s1 " + filepath.Join(dir, "x.crt") + " "; len(got) != 2 || got[0] != want || got[1] != "" {
		t.Errorf("Secrets got %q, want [%q \"\"]", got, want)
	}
}

func TestMetrics(t *testing.T) {
	dir := write(t, map[string]string{"a.yaml": okListener})
	s := running(t, Config{Dir: dir})
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(s)
	check := func(ok, problems, failed int) {
		t.Helper()
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var got strings.Builder
		for _, f := range families {
			f.Help = nil
			if _, err := expfmt.MetricFamilyToText(&got, f); err != nil {
				t.Fatal(err)
			}
		}
		want := fmt.Sprintf(`# TYPE gateway_agent_config_last_load_ok gauge
gateway_agent_config_last_load_ok %d
# TYPE gateway_agent_config_loads_total counter
gateway_agent_config_loads_total{result="failed"} %d
gateway_agent_config_loads_total{result="ok"} 1
# TYPE gateway_agent_config_problems gauge
gateway_agent_config_problems %d
`, ok, failed, problems)
		if diff := cmp.Diff(want, got.String()); diff != "" {
			t.Errorf("metrics differ (-want +got):\n%s", diff)
		}
	}
	check(1, 0, 0)
	put(t, dir, "b.yaml", "static_resources: { a: [], b: [] }\n")
	eventually(t, "problems", func() bool { return len(s.Problems()) == 2 })
	check(0, 2, 1)
}
