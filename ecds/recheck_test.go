package ecds

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestRecheckSendsNothingWhenTheModuleIsTheSame(t *testing.T) {
	r := opened(t, "p", "q")
	r.live(1, 1, v1)
	r.live(1, 2, spec{name: "q", version: "1", uri: "oci://r/v2", config: "c2"})
	before := len(r.pulls)
	r.m.recheck(r.now, "oci://r/v1")
	r.drain()
	if n := len(r.pulls) - before; n != 1 || r.lastPull().ref.Resource != "p" {
		t.Fatalf("recheck started %d pulls, want one, for p", n)
	}
	r.m.recheck(r.now, "oci://r/v1") // the first has not ended
	r.m.recheck(r.now, "oci://r/other")
	r.drain()
	r.wantState("p", StateLive)
	r.pullEnds(nil)
	r.wantNone(1)
	r.wantState("p", StateLive)
	if n := len(r.pulls) - before; n != 1 {
		t.Errorf("%d pulls, want one", n)
	}
}

func TestRecheckSwapsSafely(t *testing.T) {
	r := live(t, v1)
	r.m.recheck(r.now, v1.uri)
	r.drain()
	r.pullEnds(errBusy)
	r.wantNone(1)
	r.wantState("p", StateDegraded, "503")
	r.advance(time.Minute) // its own retry
	r.m.pulled(r.now, r.lastPull().pull, module("oci://r/v2"), nil)
	r.drain()
	r.want(1, "oci://r/v2 c1")
	r.answer(1, "p", errEnvoy)
	r.want(1, "oci://r/v1 c1") // what worked before
	r.wantState("p", StateRejected)
	r.answer(1, "p", nil)
	r.m.recheck(r.now, v1.uri)
	r.drain()
	r.m.pulled(r.now, r.lastPull().pull, module("oci://r/v3"), nil)
	r.drain()
	r.want(1, "oci://r/v3 c1")
	r.answer(1, "p", nil)
	if s := r.wantState("p", StateLive); s.DigestLive != module("oci://r/v3").Digest {
		t.Errorf("live is %s, want the newest", s.DigestLive)
	}
}

func TestRecheckLeavesOthersAlone(t *testing.T) {
	r := opened(t, "p", "q", "x")
	r.live(1, 1, v1)
	r.unsubscribe(1, "p")
	r.offer(1, 2, spec{name: "q", version: "1", uri: v1.uri, config: "c"})
	r.pullEnds(pullError{text: "429", after: 10 * time.Minute})
	before := len(r.pulls)
	r.m.recheck(r.now, v1.uri) // p: nobody has it; q: the registry wants to be left alone; x: upstream has not sent it
	r.drain()
	if n := len(r.pulls) - before; n != 0 {
		t.Errorf("%d pulls, want none", n)
	}
}

func TestEngineRecheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		e := must(New(Config{Modules: s}))
		e.Recheck("oci://r/v1") // before Run
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1) // the one result
		go func() { done <- e.Run(ctx) }()
		v := &envoy{t: t, e: e, id: 1, start: time.Now()}
		e.Open(1, node("n"), v.push, func(uint64, error) {})
		e.Subscribe(1, []string{"p"}, nil)
		e.Offer(1, 1, []*res{v1.res()}, nil)
		synctest.Wait()
		e.Recheck("oci://r/v1")
		synctest.Wait()
		if len(s.gets) != 2 || len(v.log) != 1 {
			t.Errorf("the store was asked %d times, Envoy got %q, want two questions and one push", len(s.gets), v.log)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
