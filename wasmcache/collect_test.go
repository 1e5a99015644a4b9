package wasmcache

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gateway-agent/gateway-agent/wasmcache/fetch"
)

// inline is a fetcher that makes a module from the reference, without a network: synctest needs that.
type inline struct {
	size int
	slow time.Duration
}

func (inline) Resolve(_ context.Context, req fetch.Request) (*fetch.Resolved, error) {
	r := &fetch.Resolved{Repository: req.URL, Size: -1}
	if strings.HasPrefix(req.URL, "oci://") {
		r.Manifest = "sha256:" + hexOf([]byte(req.URL))
	}
	return r, nil
}

func (inline) Head(_ context.Context, req fetch.Request) (string, error) {
	return "sha256:" + hexOf([]byte(req.URL)), nil
}

func (f inline) Fetch(ctx context.Context, r *fetch.Resolved, dst fetch.Sink, _ func(int64, int64)) (fetch.Result, error) {
	module := core(r.Repository, f.size)
	_, err := dst.Write(module[:f.size/2])
	if f.slow > 0 {
		select {
		case <-time.After(f.slow):
		case <-ctx.Done():
			return fetch.Result{}, context.Cause(ctx)
		}
	}
	if err == nil {
		_, err = dst.Write(module[f.size/2:])
	}
	return fetch.Result{Digest: hexOf(module), Size: int64(len(module))}, err
}

// inBubble runs a store with its collector under a fake clock.
func inBubble(t *testing.T, change func(*Config), test func(t *testing.T, s *Store)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := open(t, t.TempDir(), func(c *Config) { c.Fetch = inline{size: 1000} }, change)
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := s.Run(ctx); err != nil {
				t.Errorf("Run = %v", err)
			}
		})
		test(t, s)
		stop()
		wg.Wait()
	})
}

func mustGet(t *testing.T, s *Store, url string) Module {
	t.Helper()
	m, err := s.Get(t.Context(), Request{URL: url})
	if err != nil {
		t.Fatalf("Get(%s) = %v", url, err)
	}
	return m
}

func stored(m Module) bool {
	_, err := os.Stat(m.Path)
	return err == nil
}

func TestUnusedModulesExpire(t *testing.T) {
	var pinned atomic.Value
	pinned.Store("")
	inBubble(t, func(c *Config) {
		c.Expiry = time.Hour
		c.Pins = func() []string { return []string{pinned.Load().(string)} }
	}, func(t *testing.T, s *Store) {
		used, unused, pin := mustGet(t, s, "oci://r.test/used:v1"), mustGet(t, s, "oci://r.test/unused:v1"), mustGet(t, s, "oci://r.test/pin:v1")
		pinned.Store(pin.Digest)
		for range 4 {
			time.Sleep(20 * time.Minute)
			mustGet(t, s, "oci://r.test/used:v1")
		}
		synctest.Wait()
		if !stored(used) || stored(unused) || !stored(pin) {
			t.Errorf("after 80 min: used %v, unused %v, pinned %v, want only the unused one gone", stored(used), stored(unused), stored(pin))
		}
		for _, sub := range []string{"refs", "manifests", "verdicts"} {
			if files, _ := os.ReadDir(filepath.Join(s.dir, sub)); len(files) > 2 {
				t.Errorf("%d files in %s, want those of two modules", len(files), sub)
			}
		}
		pinned.Store("")
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if stored(used) || stored(pin) {
			t.Error("modules are kept for ever")
		}
		if m := mustGet(t, s, "oci://r.test/pin:v1"); !stored(m) {
			t.Error("a collected module does not come back")
		}
	})
}

func TestQuotaRemovesTheLeastRecentlyUsed(t *testing.T) {
	var pinned atomic.Value
	pinned.Store("")
	inBubble(t, func(c *Config) {
		c.Quota = 3000
		c.Pins = func() []string { return []string{pinned.Load().(string)} }
	}, func(t *testing.T, s *Store) {
		var all []Module
		get := func(i int) {
			all = append(all, mustGet(t, s, fmt.Sprintf("oci://r.test/m%d:v1", i)))
			time.Sleep(5 * time.Minute)
		}
		get(0)
		pinned.Store(all[0].Digest)
		get(1)
		get(2)
		mustGet(t, s, "oci://r.test/m1:v1")
		time.Sleep(5 * time.Minute)
		get(3)
		get(4)
		synctest.Wait()
		var kept []int
		for i, m := range all {
			if stored(m) {
				kept = append(kept, i)
			}
		}
		// 0 is the oldest, but pinned; 2 went before 1, which was used again; 1 went for 4.
		if !slices.Equal(kept, []int{0, 3, 4}) {
			t.Errorf("kept %v, want 0, 3 and 4", kept)
		}
	})
}

func TestFreshModulesAreNotCollectedBeforeTheyArePinned(t *testing.T) {
	inBubble(t, func(c *Config) { c.Quota = 1 }, func(t *testing.T, s *Store) {
		m := mustGet(t, s, "oci://r.test/fresh:v1")
		time.Sleep(59 * time.Second)
		synctest.Wait()
		if !stored(m) {
			t.Error("removed within a minute after Get returned it")
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if stored(m) {
			t.Error("kept over quota")
		}
	})
}

func TestModulesOutliveALongPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		s := open(t, dir, func(c *Config) { c.Fetch = inline{size: 1000} })
		m := mustGet(t, s, "oci://r.test/pause:v1")
		s.Close()
		time.Sleep(30 * 24 * time.Hour) // the machine was off
		s = open(t, dir, func(c *Config) { c.Fetch = fullDisk{} })
		s.collect(nil)
		if again := mustGet(t, s, "oci://r.test/pause:v1"); again.Digest != m.Digest {
			t.Errorf("Get = %+v, want %s", again, m.Digest)
		}
	})
}

func TestLastUseSurvivesARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, small := t.TempDir(), func(c *Config) { c.Fetch, c.Quota = inline{size: 1000}, 1500 }
		s := open(t, dir, small)
		older, newer := mustGet(t, s, "oci://r.test/a:v1"), mustGet(t, s, "oci://r.test/b:v1")
		time.Sleep(10 * time.Minute)
		mustGet(t, s, "oci://r.test/a:v1")
		s.Close()
		time.Sleep(time.Hour)
		s = open(t, dir, small)
		s.collect(nil)
		if !stored(older) || stored(newer) {
			t.Errorf("kept a %v, b %v, want a, which was used last", stored(older), stored(newer))
		}
	})
}

func TestStatusAndMetrics(t *testing.T) {
	var pinned atomic.Value
	pinned.Store("")
	s := open(t, t.TempDir(), func(c *Config) {
		c.Fetch = inline{size: 1000}
		c.Pins = func() []string { return []string{pinned.Load().(string)} }
	})
	a := mustGet(t, s, "oci://r.test/a:v1")
	pinned.Store(a.Digest)
	mustGet(t, s, "oci://r.test/b:v1")
	mustGet(t, s, "oci://r.test/a:v1")
	st := s.Status()
	if len(st.Modules) != 2 || st.Bytes != 2000 || !st.Writable {
		t.Fatalf("Status = %+v, want two modules", st)
	}
	i := slices.IndexFunc(st.Modules, func(m ModuleStatus) bool { return m.Digest == a.Digest })
	got := st.Modules[i]
	if !got.Pinned || got.Size != 1000 || !slices.Equal(got.Refs, []string{"oci://r.test/a:v1"}) || time.Since(got.LastUsed) > time.Minute {
		t.Errorf("module status = %+v", got)
	}
	if len(got.Verdicts) != 1 || got.Verdicts[0].Outcome != "good" || got.Verdicts[0].Host != "unknown" {
		t.Errorf("verdicts = %+v, want one good one", got.Verdicts)
	}
	want := map[string]float64{
		"gateway_agent_wasm_store_bytes": 2000, "gateway_agent_wasm_store_modules": 2, "gateway_agent_wasm_store_hits_total": 1,
		"gateway_agent_wasm_pulls_total downloaded": 2, "gateway_agent_wasm_pulls_total permanent": 0,
		"gateway_agent_wasm_pull_duration_seconds": 2, "gateway_agent_wasm_pulls_running": 0,
	}
	have := gather(t, s)
	for name, value := range want {
		if got, ok := have[name]; !ok || got != value {
			t.Errorf("metric %s = %v (there: %v), want %v", name, got, ok, value)
		}
	}
}

func gather(t *testing.T, c prometheus.Collector) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatalf("Gather = %v", err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			out[strings.TrimSpace(name)] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return out
}
