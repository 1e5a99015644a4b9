package wasmcache

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/registrytest"
)

// Four processes want the same fifty modules at the same time: each module is downloaded once.
func TestProcessesShareDownloads(t *testing.T) {
	const processes, modules = 4, 50
	r, dir := registrytest.New(t), t.TempDir()
	var urls, want []string
	for i := range modules {
		body := core(fmt.Sprint("shared", i), 20_000)
		r.Push(t, "shared", fmt.Sprint("v", i), registrytest.WasmToOCI(body))
		want = append(want, hexOf(body))
	}
	p := registrytest.NewProxy(t, r.Addr)
	p.Fail("/blobs/", registrytest.Fault{Delay: 5 * time.Millisecond}) // so that they meet
	for i := range modules {
		urls = append(urls, p.Ref(fmt.Sprint("shared:v", i)))
	}
	var children []*child
	for range processes {
		children = append(children, startChild(t, childConfig{Dir: dir, Agent: true}))
	}
	var wg sync.WaitGroup
	for i, c := range children {
		wg.Go(func() {
			rotated := append(append([]string{"get"}, urls[i:]...), urls[:i]...)
			if got := c.do(rotated...); got != strings.Join(append(append([]string{}, want[i:]...), want[:i]...), " ") {
				t.Errorf("process %d got %s, want all modules", i, got)
			}
		})
	}
	wg.Wait()
	gets := map[string]int{}
	for _, req := range p.Requests("/blobs/") {
		gets[req.Method+" "+req.Path]++
	}
	for i, digest := range want {
		if n := gets["GET /v2/shared/blobs/sha256:"+digest]; n != 1 {
			t.Errorf("module %d was downloaded %d times, want once", i, n)
		}
	}
	s := open(t, dir)
	r.Stop()
	for i, url := range urls { // no reference was lost
		m, err := s.Get(t.Context(), Request{URL: url})
		if err != nil || m.Digest != want[i] {
			t.Errorf("Get(%s) = %+v, %v", url, m, err)
		}
	}
	for _, sub := range []string{"tmp", "locks"} {
		if left, _ := os.ReadDir(filepath.Join(dir, sub)); len(left) != 0 {
			t.Errorf("%d files left in %s", len(left), sub)
		}
	}
}

// Different processes learn different things of one reference at the same time.
func TestNoChangeOfARecordIsLost(t *testing.T) {
	dir := t.TempDir()
	const stores, rounds = 4, 20
	var wg sync.WaitGroup
	for i := range stores { // each with files and locks of its own, as a process has
		s := open(t, dir, func(c *Config) { c.Fetch, c.Log = inline{size: 100}, nil })
		wg.Go(func() {
			for j := range rounds {
				req := Request{URL: "oci://r.test/m:v1", Always: true, Resource: fmt.Sprint(i, "-", j), ResourceVersion: "1", PullSecret: fmt.Append(nil, i, "-", j%10)}
				if _, err := s.Get(t.Context(), req); err != nil {
					t.Errorf("Get = %v", err)
				}
			}
		})
	}
	wg.Wait()
	s := open(t, dir)
	a, err := newAsk(Request{URL: "oci://r.test/m:v1"})
	if err != nil {
		t.Fatal(err)
	}
	if r := s.record(a.ref); len(r.Resources) != stores*rounds || len(r.Grants) != stores*10 || len(r.Versions) != 1 {
		t.Errorf("%d resources, %d grants and %d versions were noted, want %d, %d and 1", len(r.Resources), len(r.Grants), len(r.Versions), stores*rounds, stores*10)
	}
}

func TestWhatAnyProcessUsesIsNotCollected(t *testing.T) {
	dir := t.TempDir()
	agent := startChild(t, childConfig{Dir: dir, Agent: true, Inline: 1000})
	digests := strings.Fields(agent.do("get", "oci://r.test/a:v1", "oci://r.test/b:v1"))
	agent.do("pin", digests[0])
	s := open(t, dir, func(c *Config) { c.Fetch = inline{size: 1000} })
	// The agent was just given b: it may be about to pin it.
	if removed, err := s.Prune(PruneOptions{All: true}); err != nil || len(removed) != 0 {
		t.Fatalf("Prune = %+v, %v, want nothing removed", removed, err)
	}
	for _, m := range s.Status().Modules {
		if !m.Pinned {
			t.Errorf("Status says that nobody uses %s", m.Digest)
		}
	}
	// A second agent, to which b is not fresh.
	other := startChild(t, childConfig{Dir: dir, Agent: true, Inline: 1000})
	other.do("pin", digests[1])
	agent.kill()
	if got := other.do("prune"); got != "1 <nil>" {
		t.Errorf("Prune in the other agent removed %s, want 1: the module of the dead one", got)
	}
	if removed, err := s.Prune(PruneOptions{All: true}); err != nil || len(removed) != 0 {
		t.Errorf("Prune = %+v, %v, want the other agent's module left", removed, err)
	}
	if err := other.cmd.Process.Signal(syscall.SIGSTOP); err != nil { // it is not dead
		t.Fatal(err)
	}
	if removed, err := s.Prune(PruneOptions{All: true}); err != nil || len(removed) != 0 {
		t.Errorf("Prune = %+v, %v, want the stopped agent's module left", removed, err)
	}
	other.kill()
	if removed, err := s.Prune(PruneOptions{All: true}); err != nil || len(removed) != 1 || removed[0].Digest != digests[1] {
		t.Errorf("Prune = %+v, %v, want %s removed", removed, err, digests[1])
	}
}

// A process that is stopped in the middle of a download delays others, but not for ever.
func TestAStoppedDownloaderIsOvertaken(t *testing.T) {
	t.Parallel() // it waits for the patience of a lock
	dir := t.TempDir()
	stopped := startChild(t, childConfig{Dir: dir, Inline: 1000, Slow: time.Hour})
	stopped.send("get", "oci://r.test/slow:v1")
	var log bytes.Buffer
	s := open(t, dir, func(c *Config) { c.Fetch, c.Log = inline{size: 1000}, slog.New(slog.NewTextHandler(&log, nil)) })
	for len(s.names(lockDir)) == 0 || len(s.names(tmpDir)) == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := stopped.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if m := mustGet(t, s, "oci://r.test/other:v1"); !stored(m) {
		t.Error("another module is held up")
	}
	start := time.Now()
	mustGet(t, s, "oci://r.test/slow:v1")
	if d := time.Since(start); d < patience || d > patience+10*time.Second {
		t.Errorf("it took %v, want a little more than %v", d, patience)
	}
	if want := fmt.Sprintf("process %d on ", stopped.cmd.Process.Pid); !strings.Contains(log.String(), want) || !strings.Contains(log.String(), "let it continue, or end it") {
		t.Errorf("the log does not say %q and what to do:\n%s", want, &log)
	}
	if len(s.names(tmpDir)) == 0 {
		t.Error("the download of the stopped process was removed")
	}
	stopped.kill()
	s.collect(nil)
	if left := append(s.names(tmpDir), s.names(lockDir)...); len(left) != 0 {
		t.Errorf("%v is left of a process that was killed", left)
	}
}
