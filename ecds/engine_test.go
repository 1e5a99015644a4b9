package ecds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// store is a fake module store: each URL has a script.
type store struct {
	mu   sync.Mutex
	plan map[string]func(ctx context.Context) error
	gets []string
	ends int
}

func (s *store) Get(ctx context.Context, ref Reference) (Module, error) {
	s.mu.Lock()
	s.gets = append(s.gets, ref.URL)
	plan := s.plan[ref.URL]
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.ends++
		s.mu.Unlock()
	}()
	if plan != nil {
		if err := plan(ctx); err != nil {
			return Module{}, err
		}
	}
	return module(ref.URL), nil
}

func (s *store) set(url string, plan func(ctx context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.plan == nil {
		s.plan = map[string]func(context.Context) error{}
	}
	s.plan[url] = plan
}

func takes(d time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func fails(err error) func(context.Context) error { return func(context.Context) error { return err } }

// disk is a State in memory.
type disk struct {
	mu    sync.Mutex
	data  []byte
	err   error
	saves int
}

func (d *disk) Load() ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.data, d.err
}

func (d *disk) Save(b []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.saves++
	if d.err == nil {
		d.data = b
	}
	return d.err
}

// envoy is a stream that takes everything, unless told otherwise.
type envoy struct {
	t      *testing.T
	e      *Engine
	id     uint64
	start  time.Time
	refuse func(what string) error

	mu  sync.Mutex
	log []string // "10s p http rbac deny"
}

func (v *envoy) push(r *res) {
	v.mu.Lock()
	what := describe(v.t, r)
	v.log = append(v.log, fmt.Sprintf("%s %s %s", time.Since(v.start), r.GetName(), what))
	v.mu.Unlock()
	if r.GetResource() == nil {
		return
	}
	var err error
	if v.refuse != nil {
		err = v.refuse(what)
	}
	v.e.Answer(v.id, r.GetName(), r.GetVersion(), err)
}

func (v *envoy) settle(offer uint64, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	text := "ACK"
	if err != nil {
		text = "NACK"
	}
	v.log = append(v.log, fmt.Sprintf("%s %s %d", time.Since(v.start), text, offer))
}

func (v *envoy) wantLog(want ...string) {
	v.t.Helper()
	synctest.Wait()
	v.mu.Lock()
	defer v.mu.Unlock()
	if diff := cmp.Diff(want, v.log); diff != "" {
		v.t.Fatalf("session %d:\n%s", v.id, diff)
	}
}

// bench is an engine that runs in a synctest bubble.
type bench struct {
	t     *testing.T
	e     *Engine
	store *store
	stop  func() error
}

func newBench(t *testing.T, cfg Config) *bench {
	t.Helper()
	s := &store{}
	cfg.Modules = s
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1) // the one result
	go func() { done <- e.Run(ctx) }()
	stop := sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { _ = stop() })
	return &bench{t, e, s, stop}
}

func (b *bench) open(id uint64, names ...string) *envoy {
	v := &envoy{t: b.t, e: b.e, id: id, start: time.Now()}
	b.e.Open(id, node("n"), v.push, v.settle)
	b.e.Subscribe(id, names, nil)
	return v
}

func (b *bench) offer(id, offer uint64, specs ...spec) {
	var out []*res
	for _, s := range specs {
		out = append(out, s.res())
	}
	b.e.Offer(id, offer, out, nil)
}

func TestNewChecks(t *testing.T) {
	if _, err := New(Config{Hold: -1}); err == nil || !strings.Contains(err.Error(), "Modules") || !strings.Contains(err.Error(), "Hold") {
		t.Errorf("New: %v, want both problems", err)
	}
	e, err := New(Config{Modules: &store{}})
	if err != nil || e.cfg.Hold != 10*time.Second {
		t.Errorf("hold %v, %v", e.cfg.Hold, err)
	}
}

func TestEngineTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Config{})
		b.store.set("oci://r/v1", takes(12*time.Second))
		v := b.open(1, "p")
		time.Sleep(time.Second)
		b.offer(1, 1, v1)
		time.Sleep(20 * time.Second)
		v.wantLog("10s p http rbac deny", "11s ACK 1", "13s p oci://r/v1 c1")
		if s := b.e.Status(); len(s) != 1 || s[0].State != StateLive {
			t.Errorf("status %+v", s)
		}
		b.store.set("oci://r/v2", fails(errGone))
		b.offer(1, 2, v2)
		v.wantLog("10s p http rbac deny", "11s ACK 1", "13s p oci://r/v1 c1", "21s NACK 2")
		b.store.set("oci://r/v2", nil)
		time.Sleep(time.Minute)
		v.mu.Lock()
		last := v.log[len(v.log)-1]
		v.mu.Unlock()
		if !strings.HasSuffix(last, "oci://r/v2 c2") {
			t.Errorf("a minute after the repair: %s", last)
		}
	})
}

func TestEngineHealsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Config{})
		b.store.set("oci://r/v1", fails(errBusy))
		v := b.open(1, "p")
		b.offer(1, 1, v1)
		time.Sleep(90 * time.Second)
		v.wantLog("10s p http rbac deny", "10s ACK 1")
		b.store.set("oci://r/v1", nil)
		time.Sleep(60 * time.Second)
		synctest.Wait()
		if n := len(v.log); n != 3 || !strings.HasSuffix(v.log[2], "oci://r/v1 c1") {
			t.Errorf("log %q, want the plugin within a minute and nothing else", v.log)
		}
	})
}

func TestEngineNewerOvertakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Config{})
		var cause error
		b.store.set("oci://r/v1", func(ctx context.Context) error {
			<-ctx.Done()
			cause = context.Cause(ctx)
			time.Sleep(5 * time.Second) // slow to notice
			return nil                  // and then it even has a result
		})
		b.store.set("oci://r/v2", takes(2*time.Second))
		v := b.open(1, "p")
		b.offer(1, 1, v1)
		time.Sleep(time.Second)
		b.offer(1, 2, v2)
		time.Sleep(time.Minute)
		v.wantLog("1s ACK 1", "3s p oci://r/v2 c2", "3s ACK 2")
		if cause == nil || !strings.Contains(cause.Error(), "nobody wants") {
			t.Errorf("the older pull was cancelled with %v", cause)
		}
	})
}

func TestEngineSlowOneDelaysNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Config{})
		b.store.set("oci://r/v1", takes(8*time.Second))
		q := spec{name: "q", uri: "oci://r/v2"}
		v := b.open(1, "p", "q")
		b.offer(1, 1, v1, q)
		time.Sleep(time.Minute)
		v.wantLog("0s q oci://r/v2", "8s p oci://r/v1 c1", "8s ACK 1")
	})
}

func TestEngineRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{}
		b := newBench(t, Config{State: d})
		b.open(1, "p")
		b.offer(1, 1, v1)
		synctest.Wait()
		if err := b.stop(); err != nil {
			t.Fatal(err)
		}
		if d.saves == 0 {
			t.Fatal("nothing was saved")
		}
		b = newBench(t, Config{State: d})
		if pins := b.e.Pins(); !slices.Equal(pins, []string{module("oci://r/v1").Digest}) {
			t.Errorf("pins %v", pins)
		}
		b.store.set("oci://r/v1", fails(errBusy)) // the registry is down
		v := b.open(1, "p")
		b.offer(1, 1, v1)
		v.wantLog("0s p oci://r/v1 c1", "0s ACK 1")
	})
}

func TestPinsBeforeRun(t *testing.T) {
	e := must(New(Config{Modules: &store{}, State: &disk{data: savedBy(t, v1)}}))
	if pins := e.Pins(); len(pins) != 1 {
		t.Errorf("pins %v: a collector that starts first would remove what is needed", pins)
	}
}

func TestEngineStateTrouble(t *testing.T) {
	for name, d := range map[string]*disk{"corrupt": {data: []byte("{")}, "unreadable": {err: errors.New("permission denied")}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out strings.Builder
				b := newBench(t, Config{State: d, Log: slog.New(slog.NewTextHandler(&out, nil))})
				v := b.open(1, "p")
				b.offer(1, 1, v1)
				v.wantLog("0s p oci://r/v1 c1", "0s ACK 1")
				time.Sleep(9 * time.Second)
				saves := d.saves
				if d.err != nil && saves != 1 {
					t.Errorf("%d saves, want one each 10 s while they fail", saves)
				}
				d.mu.Lock()
				d.err = nil
				d.mu.Unlock()
				time.Sleep(11 * time.Second)
				if err := b.stop(); err != nil || !strings.Contains(string(d.data), module("oci://r/v1").Digest) {
					t.Errorf("saved %q, %v", d.data, err)
				}
				if !strings.Contains(out.String(), "saved extension state") {
					t.Errorf("log: %s", out.String())
				}
			})
		})
	}
}

func TestEngineLastSaveFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{}
		var out strings.Builder
		b := newBench(t, Config{State: d, Log: slog.New(slog.NewTextHandler(&out, nil))})
		synctest.Wait()
		d.err = errors.New("disk full")
		b.open(1, "p")
		b.offer(1, 1, v1)
		synctest.Wait()
		if err := b.stop(); err != nil || !strings.Contains(out.String(), "level=ERROR") || !strings.Contains(out.String(), "disk full") {
			t.Errorf("Run returned %v: it was asked to stop; log: %s", err, out.String())
		}
	})
}

func TestEngineSavesAtMostOncePerSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{}
		b := newBench(t, Config{State: d})
		b.open(1, "p")
		for i := range 100 {
			s := v1
			s.config = fmt.Sprint(i)
			b.offer(1, uint64(i), s)
			time.Sleep(50 * time.Millisecond)
		}
		synctest.Wait()
		if d.saves < 4 || d.saves > 6 {
			t.Errorf("%d saves in 5 s of changes", d.saves)
		}
	})
}

func TestEngineWaitsForPulls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Config{})
		b.store.set("oci://r/v1", func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(3 * time.Second)
			return ctx.Err()
		})
		b.open(1, "p")
		b.offer(1, 1, v1)
		synctest.Wait()
		start := time.Now()
		if err := b.stop(); err != nil {
			t.Fatal(err)
		}
		if got := time.Since(start); got != 3*time.Second || b.store.ends != 1 {
			t.Errorf("Run returned after %s with %d pulls ended", got, b.store.ends)
		}
		b.e.Subscribe(1, []string{"x"}, nil) // nobody listens any more: nothing piles up
		if len(b.e.events.items) != 0 {
			t.Error("events pile up after the end")
		}
	})
}

func TestEngineLearnsAndUsesPolicyModule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Config{PolicyModule: func(allow bool) (string, error) { return fmt.Sprintf("/builtin/%t.wasm", allow), nil }})
		b.store.set("oci://r/v1", fails(errGone))
		v := b.open(1)
		b.e.Observe(1, true, deltaOf(nil, listener("other", nil)))
		b.e.Observe(1, false, sotw(listener("l", map[string][]string{"p": {httpWasm}})))
		synctest.Wait()
		b.e.Subscribe(1, []string{"p"}, nil)
		b.offer(1, 1, v1)
		v.wantLog("0s p builtin /builtin/false.wasm", "0s ACK 1")
		b.e.Observe(1, false, sotw(listener("l", nil))) // no longer known
		v.wantLog("0s p builtin /builtin/false.wasm", "0s ACK 1", "0s p http rbac deny")
	})
}

func TestEnginePolicyModuleMayAskForPins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var e *Engine
		var fixed atomic.Bool
		cfg := Config{Modules: &store{}, PolicyModule: func(bool) (string, error) {
			e.Pins() // as a store does that makes room
			if !fixed.Load() {
				return "", errors.New("disk full")
			}
			return "/builtin/x.wasm", nil
		}}
		e = must(New(cfg))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1) // the one result
		go func() { done <- e.Run(ctx) }()
		b := &bench{t, e, cfg.Modules.(*store), nil}
		v := b.open(1)
		b.e.Observe(1, false, sotw(listener("l", map[string][]string{"p": {httpWasm}})))
		synctest.Wait()
		e.Subscribe(1, []string{"p"}, nil)
		time.Sleep(5 * time.Second)
		fixed.Store(true)
		time.Sleep(10 * time.Second)
		v.wantLog("10s p builtin /builtin/x.wasm")
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestTransitionsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		b := newBench(t, Config{Log: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == "digest" {
				return slog.Attr{}
			}
			return a
		}}))})
		b.store.set("oci://r/v1", fails(errGone))
		b.open(1, "p")
		b.offer(1, 1, v1)
		synctest.Wait()
		b.store.set("oci://r/v1", nil)
		time.Sleep(time.Minute)
		if err := b.stop(); err != nil {
			t.Fatal(err)
		}
		want := `level=INFO msg="extension state changed" resource=p state=pending reason="waiting for the control plane to send it"
level=WARN msg="extension state changed" resource=p state=policy from=pending version=1 ref=oci://r/v1 reason="oci://r/v2: 404, check the tag"
level=INFO msg="extension state changed" resource=p state=pending from=policy version=1 ref=oci://r/v1 reason="Envoy has not answered yet"
level=INFO msg="extension state changed" resource=p state=live from=pending version=1 ref=oci://r/v1
`
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Config{})
		reg := prometheus.NewPedanticRegistry()
		reg.MustRegister(b.e)
		b.open(1, "p", "q")
		b.offer(1, 1, v1, spec{name: "q", uri: "oci://r/v3"})
		synctest.Wait()
		b.store.set("oci://r/v2", fails(errGone))
		b.offer(1, 2, v2)
		synctest.Wait()
		got := map[string]float64{}
		for _, f := range must(reg.Gather()) {
			for _, m := range f.Metric {
				got[f.GetName()+labels(m)] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
		want := map[string]float64{
			`gateway_agent_wasm_resources{state="live"}`: 1, `gateway_agent_wasm_resources{state="degraded"}`: 1,
			`gateway_agent_wasm_resources{state="pending"}`: 0, `gateway_agent_wasm_resources{state="policy"}`: 0,
			`gateway_agent_wasm_resources{state="rejected"}`: 0, `gateway_agent_wasm_resources{state="passed"}`: 0,
			`gateway_agent_wasm_degraded{resource="p"}`: 1, `gateway_agent_wasm_degraded{resource="q"}`: 0,
			`gateway_agent_wasm_pull_failures_total`: 1, `gateway_agent_wasm_rejects_total`: 0,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("metrics:\n%s", diff)
		}
	})
}

func labels(m *dto.Metric) string {
	if len(m.Label) == 0 {
		return ""
	}
	var out []string
	for _, l := range m.Label {
		out = append(out, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
	}
	return "{" + strings.Join(out, ",") + "}"
}

// TestHammer lets many streams do everything at once; the race detector and the checks in push are the test.
func TestHammer(t *testing.T) {
	s := &store{plan: map[string]func(context.Context) error{"oci://r/v2": fails(errBusy), "oci://r/v3": fails(errGone)}}
	log := slog.New(slog.NewTextHandler(io.Discard, nil)) //nolint:sloglint // it reads what is logged, so that the race detector sees it
	e := must(New(Config{Modules: s, State: &disk{}, Hold: 5 * time.Millisecond, Log: log}))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1) // the one result
	go func() { done <- e.Run(ctx) }()
	var streams sync.WaitGroup
	settled := make([]map[uint64]int, 8)
	for i := range uint64(8) {
		streams.Go(func() { settled[i] = hammer(t, e, i+1) })
	}
	watched := make(chan struct{})
	var watchers sync.WaitGroup
	watchers.Go(func() {
		for {
			select {
			case <-watched:
				return
			default:
				e.Status()
				e.Pins()
				reg := prometheus.NewPedanticRegistry()
				reg.MustRegister(e)
				if _, err := reg.Gather(); err != nil {
					t.Error(err)
				}
			}
		}
	})
	streams.Wait()
	close(watched)
	watchers.Wait()
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for i, m := range settled {
		for offer, n := range maps.All(m) {
			if n != 1 {
				t.Errorf("stream %d: offer %d settled %d times", i, offer, n)
			}
		}
	}
}

func hammer(t *testing.T, e *Engine, id uint64) map[uint64]int {
	var mu sync.Mutex
	counts := map[uint64]int{}
	all := make(chan struct{})
	push := func(r *res) {
		if r.GetResource() != nil && strings.Contains(string(r.Resource.Value), "oci://") {
			t.Error("remote code")
		}
		var err error
		if len(r.GetVersion())%3 == 0 {
			err = errEnvoy
		}
		e.Answer(id, r.GetName(), r.GetVersion(), err)
	}
	const offers = 300
	settle := func(offer uint64, err error) {
		mu.Lock()
		defer mu.Unlock()
		counts[offer]++
		if len(counts) == offers {
			close(all)
		}
	}
	e.Open(id, node("n"), push, settle)
	lds := sotw(listener("l", map[string][]string{"p": {httpWasm, httpRBAC}}))
	for i := range uint64(offers) {
		e.Subscribe(id, []string{"p", "q"}, nil)
		e.Observe(id, false, lds)
		s := []spec{v1, v2, v3}[i%3]
		s.config = fmt.Sprint(i / 7)
		removed := []string(nil)
		if i%50 == 0 {
			removed = []string{"q"}
		}
		e.Offer(id, i, []*res{s.res()}, removed)
		if i%20 == 0 {
			e.Subscribe(id, nil, []string{"q"})
		}
	}
	<-all
	e.Close(id)
	mu.Lock()
	defer mu.Unlock()
	return maps.Clone(counts)
}
