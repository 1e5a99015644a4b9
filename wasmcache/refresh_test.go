package wasmcache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/oci"
	"github.com/gateway-agent/gateway-agent/internal/registrytest"
)

// refreshing is a store with a tag in use, and what its OnChange was told.
type refreshing struct {
	*Store
	tags *tags
	mu   sync.Mutex
	told []string
	pins []string
}

func (r *refreshing) changed() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	told := slices.Compact(r.told) // nobody acted on the first one
	r.told = nil
	return told
}

func (r *refreshing) use(t *testing.T, resource string) Module {
	t.Helper()
	m, err := r.Get(t.Context(), Request{URL: tag, Resource: resource, PullSecret: theSecret})
	if err != nil {
		t.Fatalf("Get = %v", err)
	}
	r.pin(m)
	return m
}

func (r *refreshing) pin(m Module) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pins = append(r.pins, m.Digest)
}

func withRefresh(t *testing.T, test func(t *testing.T, r *refreshing)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &refreshing{tags: &tags{}}
		r.tags.set(tag, "one")
		r.Store = open(t, t.TempDir(), func(c *Config) {
			c.Fetch, c.Refresh = r.tags, 5*time.Minute
			c.OnChange = func(url string) {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.told = append(r.told, url)
			}
			c.Pins = func() []string {
				r.mu.Lock()
				defer r.mu.Unlock()
				return slices.Clone(r.pins)
			}
		})
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = r.Run(ctx) })
		test(t, r)
		stop()
		wg.Wait()
	})
}

func TestATagThatMovesIsPulledAgain(t *testing.T) {
	withRefresh(t, func(t *testing.T, r *refreshing) {
		one := r.use(t, "a")
		r.use(t, "b") // the same tag and caller: one question for both
		time.Sleep(time.Hour)
		synctest.Wait()
		if told := r.changed(); len(told) != 0 {
			t.Errorf("OnChange was told %q although nothing changed", told)
		}
		if heads, resolves := r.tags.asked(); heads < 12 || heads > 17 || resolves != 1 {
			t.Errorf("%d questions and %d pulls in an hour, want one in each 3m45s to 5m, and one pull", heads, resolves)
		}
		r.tags.set(tag, "two")
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if told := r.changed(); !slices.Equal(told, []string{tag}) {
			t.Fatalf("within 5m OnChange was told %q, want %s once", told, tag)
		}
		two := r.use(t, "a")
		if two.Digest == one.Digest || r.use(t, "b").Digest != two.Digest {
			t.Error("Get still returns the old module")
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if told := r.changed(); len(told) != 0 {
			t.Errorf("after the update OnChange was told %q", told)
		}
		r.tags.set(tag, "one") // taken back
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if r.use(t, "a").Digest != one.Digest || len(r.changed()) != 1 {
			t.Error("a tag that moved back is not followed")
		}
	})
}

func TestATagWhoseNewModuleCannotBeHad(t *testing.T) {
	withRefresh(t, func(t *testing.T, r *refreshing) {
		one := r.use(t, "a")
		r.tags.set(tag, "two")
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		r.tags.fail(errors.New("down"), false)
		m := r.use(t, "a")
		if m.Digest != one.Digest || !strings.Contains(m.Warning, "an older module is used, because the newer one of "+tag+" cannot be had: down") {
			t.Errorf("Get = %+v, want the old one with a warning", m)
		}
		time.Sleep(time.Minute)
		r.tags.fail(nil, false)
		r.changed()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if len(r.changed()) != 1 {
			t.Error("OnChange was not told again")
		}
		if r.use(t, "a").Digest == one.Digest {
			t.Error("the new module does not come when the registry is back")
		}
	})
}

func TestRefreshAsksOnlyForWhatIsUsed(t *testing.T) {
	withRefresh(t, func(t *testing.T, r *refreshing) {
		m := r.use(t, "a")
		for _, req := range []Request{
			{URL: tag}, // a command
			{URL: tag, Resource: "s", SHA256: m.Digest},                           // fixed
			{URL: "oci://r.test/m@sha256:" + hexOf([]byte("one")), Resource: "d"}, // fixed
			{URL: "https://r.test/m.wasm", Resource: "h"},                         // no image
		} {
			_, _ = r.Get(t.Context(), req)
		}
		if n := r.watching.Len(); n != 1 {
			t.Errorf("%d tags are watched, want one", n)
		}
		r.mu.Lock()
		r.pins = nil // the resource is gone
		r.mu.Unlock()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		before, _ := r.tags.asked()
		time.Sleep(time.Hour)
		synctest.Wait()
		if after, _ := r.tags.asked(); after != before || r.watching.Len() != 0 {
			t.Errorf("%d questions for a tag that nobody uses", after-before)
		}
	})
}

func TestRefreshLeavesARegistryAlone(t *testing.T) {
	withRefresh(t, func(t *testing.T, r *refreshing) {
		r.use(t, "a")
		r.tags.fail(&oci.Error{Kind: oci.RateLimited, Op: "ask", Err: errors.New("429"), After: 50 * time.Minute}, false)
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		before, _ := r.tags.asked()
		time.Sleep(44 * time.Minute)
		synctest.Wait()
		if after, _ := r.tags.asked(); before != 1 || after != before {
			t.Errorf("%d questions, then %d more although the registry asked for 50m", before, after-before)
		}
		time.Sleep(7 * time.Minute)
		synctest.Wait()
		if after, _ := r.tags.asked(); after != before+1 {
			t.Errorf("%d questions after 50m, want one", after-before)
		}
	})
}

// Agents that start together spread their questions.
func TestRefreshIsSpread(t *testing.T) {
	withRefresh(t, func(t *testing.T, r *refreshing) {
		for i := range 200 {
			url := fmt.Sprintf("oci://r.test/m%d:v1", i)
			r.tags.set(url, "one")
			m, err := r.Get(t.Context(), Request{URL: url, Resource: fmt.Sprint(i)})
			if err != nil {
				t.Fatal(err)
			}
			r.pin(m)
		}
		start := time.Now()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		minutes := map[int]int{}
		r.tags.mu.Lock()
		defer r.tags.mu.Unlock()
		for _, at := range r.tags.heads {
			minutes[int(at.Sub(start)/time.Minute)]++
		}
		for minute := range 5 {
			if n := minutes[minute]; n < 10 || n > 80 {
				t.Errorf("minute %d has %d of 200 questions", minute, n)
			}
		}
	})
}

// The digest that a real registry names is that of the index, where there is one.
func TestRefreshWithARegistry(t *testing.T) {
	r := registrytest.New(t)
	index := registrytest.Entry{Image: registrytest.WasmToOCI(core("index", 100))}
	r.Push(t, "plain", "v1", registrytest.Compat(t, core("plain", 100)))
	r.PushIndex(t, "index", "v1", index)
	p := registrytest.NewProxy(t, r.Addr)
	told, pins := make(chan string, 100), []string{hexOf(core("plain", 100)), hexOf(core("index", 100)), hexOf(core("new", 100))} // more than are told
	s := open(t, t.TempDir(), func(c *Config) {
		c.Refresh, c.OnChange, c.Pins = 20*time.Millisecond, func(url string) { told <- url }, func() []string { return pins }
	})
	get := func(ref string) Module {
		m, err := s.Get(t.Context(), Request{URL: p.Ref(ref), Resource: ref})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	get("plain:v1")
	get("index:v1")
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() { _ = s.Run(ctx) })
	p.Forget()
	for _, part := range []string{"/plain/manifests/", "/index/manifests/"} {
		for len(p.Requests(part)) < 3 {
			time.Sleep(time.Millisecond)
		}
	}
	if len(told) > 0 {
		t.Fatalf("OnChange was told %s although nothing has changed", <-told)
	}
	index.Image = registrytest.WasmToOCI(core("new", 100))
	r.PushIndex(t, "index", "v1", index)
	if url := <-told; url != p.Ref("index:v1") {
		t.Errorf("OnChange was told %s, want %s", url, p.Ref("index:v1"))
	}
	if m := get("index:v1"); m.Digest != hexOf(core("new", 100)) {
		t.Errorf("Get = %+v, want the new module", m)
	}
}
