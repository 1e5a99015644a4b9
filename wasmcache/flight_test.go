package wasmcache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/registrytest"
)

func TestOnePullForAll(t *testing.T) {
	r := registrytest.New(t)
	module := core("one", 200_000)
	r.Push(t, "one", "v1", registrytest.WasmToOCI(module))
	r.Push(t, "one", "same", registrytest.WasmToOCI(module))
	p := registrytest.NewProxy(t, r.Addr)
	p.Fail("/blobs/", registrytest.Fault{Delay: 300 * time.Millisecond})
	s := open(t, t.TempDir())
	quitter, quit := context.WithCancelCause(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { // the first caller, which gives up
		_, err := s.Get(quitter, Request{URL: p.Ref("one:v1")})
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("Get of the quitter = %v, want its own reason", err)
		}
	})
	for len(p.Requests("/blobs/")) == 0 {
		time.Sleep(time.Millisecond)
	}
	var progress atomic.Int64
	for i := range 20 {
		wg.Go(func() {
			tag := []string{"v1", "same"}[i%2]
			m, err := s.Get(t.Context(), Request{URL: p.Ref("one:" + tag), Progress: func(done, total int64) { progress.Store(done*1_000_000 + total) }})
			if err != nil || m.Digest != hexOf(module) {
				t.Errorf("Get %d = %+v, %v, want the module", i, m, err)
			}
		})
	}
	for len(s.pulls.running()) < 2 {
		time.Sleep(time.Millisecond)
	}
	if pulls := s.Status().Pulls; len(pulls) != 2 || pulls[0].Ref != p.Ref("one:v1") || pulls[0].Total != -1 {
		t.Errorf("Status().Pulls = %+v, want both tags", pulls)
	}
	quit(os.ErrDeadlineExceeded)
	wg.Wait()
	if n := len(p.Requests("/blobs/")); n != 1 {
		t.Errorf("%d downloads, want 1", n)
	}
	if got := progress.Load(); got != 200_000*1_000_000+200_000 {
		t.Errorf("last progress = %d, want all of 200000", got)
	}
}

// The same image in another registry is none of this registry's business: one that hangs or lies must not hold up or fail the other.
func TestRegistriesShareNoDownload(t *testing.T) {
	r := registrytest.New(t)
	r.Push(t, "mirrored", "v1", registrytest.WasmToOCI(core("mirrored", 100_000)))
	bad, good := registrytest.NewProxy(t, r.Addr), registrytest.NewProxy(t, r.Addr)
	bad.Fail("/blobs/", registrytest.Fault{Cut: 1000, Hang: true})
	s := open(t, t.TempDir())
	ctx, quit := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := s.Get(ctx, Request{URL: bad.Ref("mirrored:v1")}); err == nil {
			t.Error("Get from the registry that hangs = nil")
		}
	})
	for len(bad.Requests("/blobs/")) == 0 {
		time.Sleep(time.Millisecond)
	}
	soon, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := s.Get(soon, Request{URL: good.Ref("mirrored:v1")}); err != nil {
		t.Errorf("Get from the registry that works = %v", err)
	}
	quit()
	wg.Wait()
}

// References to the same image share a download; when it fails, each is told so under its own name.
func TestSharedFailureNamesEachReference(t *testing.T) {
	r := registrytest.New(t)
	image := registrytest.WasmToOCI(core("shared", 100_000))
	r.Push(t, "shared", "v1", image)
	r.Push(t, "shared", "same", image)
	p := registrytest.NewProxy(t, r.Addr)
	p.Fail("/blobs/", registrytest.Fault{Delay: 300 * time.Millisecond, Status: 404})
	s := open(t, t.TempDir())
	var wg sync.WaitGroup
	for _, tag := range []string{"v1", "same"} {
		wg.Go(func() {
			_, err := s.Get(t.Context(), Request{URL: p.Ref("shared:" + tag)})
			wantError(t, err, true, p.Ref("shared:"+tag), "404 Not Found")
		})
	}
	wg.Wait()
	if n := len(p.Requests("/blobs/")); n != 1 {
		t.Errorf("%d downloads, want 1", n)
	}
}

func TestPullEndsWhenNobodyWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g flights[int]
		ended := make(chan error, 1) // by the one call
		slow := func(ctx context.Context, _ func(int64, int64)) (int, error) {
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return 0, context.Cause(ctx)
		}
		for _, after := range []time.Duration{time.Second, 2 * time.Second} {
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), after)
				defer cancel()
				_, _ = g.do(ctx, "k", "k", nil, slow)
			}()
		}
		start := time.Now()
		if err := <-ended; !errors.Is(err, errNobody) || time.Since(start) != 2*time.Second {
			t.Errorf("the call ended after %v with %v, want 2s and %v", time.Since(start), err, errNobody)
		}
		synctest.Wait()
		if got, err := g.do(t.Context(), "k", "k", nil, func(context.Context, func(int64, int64)) (int, error) { return 7, nil }); got != 7 || err != nil {
			t.Errorf("the next call = %d, %v, want 7", got, err)
		}
	})
}

func TestCallerAfterTheLastOneLeftStartsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g flights[int]
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		stubborn := func(ctx context.Context, _ func(int64, int64)) (int, error) {
			<-ctx.Done()
			time.Sleep(time.Minute) // it takes its time to end
			return 0, context.Cause(ctx)
		}
		if _, err := g.do(ctx, "k", "k", nil, stubborn); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("do = %v, want the deadline", err)
		}
		if got, err := g.do(t.Context(), "k", "k", nil, func(context.Context, func(int64, int64)) (int, error) { return 7, nil }); got != 7 || err != nil {
			t.Errorf("do = %d, %v, want 7", got, err)
		}
		g.close()
	})
}

func TestPanicIsAnError(t *testing.T) {
	var g flights[int]
	_, err := g.do(t.Context(), "k", "hello", nil, func(context.Context, func(int64, int64)) (int, error) { panic("odd input") })
	if !errors.Is(err, errInternal) || err.Error() != "internal error while working on hello: odd input" {
		t.Errorf("do = %v, want the panic as an error", err)
	}
}

func TestCloseEndsPulls(t *testing.T) {
	r := registrytest.New(t)
	r.Push(t, "hang", "v1", registrytest.WasmToOCI(core("hang", 100_000)))
	p := registrytest.NewProxy(t, r.Addr)
	p.Fail("/blobs/", registrytest.Fault{Cut: 1000, Hang: true})
	s := open(t, t.TempDir())
	result := make(chan error, 1) // of the one Get
	go func() {
		_, err := s.Get(t.Context(), Request{URL: p.Ref("hang:v1")})
		result <- err
	}()
	for len(p.Requests("/blobs/")) == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close = %v", err)
	}
	if err := <-result; !errors.Is(err, errClosed) {
		t.Errorf("Get = %v, want %v", err, errClosed)
	}
	if _, err := s.Get(t.Context(), Request{URL: p.Ref("hang:v1")}); err == nil {
		t.Error("Get after Close = nil")
	}
}

func TestPullTimeout(t *testing.T) {
	r := registrytest.New(t)
	r.Push(t, "hang", "v1", registrytest.WasmToOCI(core("hang", 100_000)))
	p := registrytest.NewProxy(t, r.Addr)
	p.Fail("/blobs/", registrytest.Fault{Cut: 1000, Hang: true})
	s := open(t, t.TempDir(), func(c *Config) { c.PullTimeout = 50 * time.Millisecond })
	_, err := s.Get(t.Context(), Request{URL: p.Ref("hang:v1")})
	wantError(t, err, false, "the pull took too long: more than 50ms", p.Ref("hang:v1"))
}

// Many callers in three stores on one directory, as processes have, each with a collector that removes everything it may, and a verifier: each
// module returned must be whole, and stay while it is pinned.
func TestHammer(t *testing.T) {
	const modules = 8
	r, dir := registrytest.New(t), t.TempDir()
	for i := range modules {
		r.Push(t, "hammer", fmt.Sprint("v", i), registrytest.WasmToOCI(core(fmt.Sprint("module", i), 20_000)))
	}
	ctx, stop := context.WithCancel(t.Context())
	var background, callers sync.WaitGroup
	for i := range 3 {
		h := &hammer{registry: r, random: rand.New(rand.NewPCG(1, uint64(i)))}
		s := open(t, dir, func(c *Config) {
			c.Expiry, c.CollectEvery, c.Quota, c.Refresh = 500*time.Millisecond, 5*time.Millisecond, 50_000, 20*time.Millisecond
			c.Pins, c.Log = h.pinned, nil
		})
		background.Go(func() {
			if err := s.Run(ctx); err != nil {
				t.Errorf("Run = %v", err)
			}
		})
		for range 2 {
			callers.Go(func() {
				for range 25 {
					h.once(t, s)
				}
			})
		}
		background.Go(func() {
			for ; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
				s.Status()
				if _, err := s.Prune(PruneOptions{All: true}); err != nil {
					t.Errorf("Prune = %v", err)
				}
				if damaged, _, err := s.Verify(ctx, nil); ctx.Err() == nil && (err != nil || len(damaged) > 0) {
					t.Errorf("Verify = %+v, %v", damaged, err)
				}
			}
		})
	}
	callers.Wait()
	stop()
	background.Wait()
}

// hammer is an agent: it pins what it works with.
type hammer struct {
	registry *registrytest.Registry
	mu       sync.Mutex
	random   *rand.Rand
	pins     []string
}

func (h *hammer) pinned() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.pins)
}

func (h *hammer) once(t *testing.T, s *Store) {
	h.mu.Lock()
	i := h.random.IntN(8)
	req := Request{URL: h.registry.Ref(fmt.Sprint("hammer:v", i)), Always: h.random.IntN(4) == 0, Preload: h.random.IntN(4) == 0, Resource: fmt.Sprint(h.random.IntN(4))}
	want := core(fmt.Sprint("module", i), 20_000)
	h.pins = append(h.pins, hexOf(want))
	h.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	m, err := s.Get(ctx, req)
	for range 3 { // an Envoy that opens it again and again
		if err != nil {
			t.Errorf("Get = %v", err)
			break
		}
		got, err := os.ReadFile(m.Path)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s holds %d bytes (%v), want %d", m.Path, len(got), err, len(want))
		}
		time.Sleep(time.Millisecond)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	j := slices.Index(h.pins, hexOf(want))
	h.pins = slices.Delete(h.pins, j, j+1)
}
