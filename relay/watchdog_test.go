package relay

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

// watched runs a script for a relay with a watchdog of its own, in both protocols.
func watched(t *testing.T, change func(*Config), script func(r *rig, redials *atomic.Int32)) {
	for _, delta := range []bool{false, true} {
		t.Run(protocolName(delta), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				redials := new(atomic.Int32)
				r := newRig(t, delta, true, func(c *Config) {
					c.Redial = func() { redials.Add(1) }
					change(c)
				})
				script(r, redials)
			})
		})
	}
}

func defaults(*Config) {}

// endsAfter waits for the end of Envoy's stream, which must come at about want after start.
func (r *rig) endsAfter(start time.Time, want time.Duration, text string) {
	r.t.Helper()
	time.Sleep(time.Until(start.Add(want - time.Second))) // longer than the fakes have patience
	err := r.envoy.End()
	if took := time.Since(start); took < want || took > want+maxTick {
		r.t.Errorf("the stream was cut after %v, want %v", took, want)
	}
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), text) {
		r.t.Errorf("the stream ended with %v, want Unavailable and %q", err, text)
	}
}

// A control plane that answers a new stream with nothing at all is stuck, or has nothing: it is asked over another connection, less and
// less often.
func TestMuteStreamIsCut(t *testing.T) {
	watched(t, defaults, func(r *rig, redials *atomic.Int32) {
		for i := range 3 {
			up := r.open()
			start := time.Now()
			r.envoy.Want(xdstest.CDS)
			up.Recv()
			r.endsAfter(start, defaultStuckAfter<<i, "has answered nothing")
			if n := redials.Load(); n != int32(i)+1 {
				r.t.Errorf("%d redials after %d cuts", n, i+1)
			}
			up.Gone()
			r.envoy = r.envoy.Restarted()
		}
		if st := r.server.Status(); !strings.Contains(st.LastError, "stuck") {
			r.t.Errorf("the status says %q", st.LastError)
		}
		up := r.open()
		r.envoy.Want(xdstest.CDS)
		up.Recv()
		r.envoy.ACK(sendAndRecv(r, up, xdstest.Response{Type: xdstest.CDS, Version: "1", Resources: xdstest.R("1", "c=a")}))
		up.Recv()
		r.envoy.Quiet(time.Hour) // it has answered once: silence is no sign
		up.End(codes.Unavailable, "bye")
		_ = r.envoy.End()
		r.envoy = r.envoy.Restarted()
		up = r.open()
		start := time.Now()
		r.envoy.Want(xdstest.CDS)
		up.Recv()
		r.endsAfter(start, defaultStuckAfter, "has answered nothing") // patience starts anew
	})
}

// Some control planes say nothing to an Envoy that names the versions they have: only one that is known to answer is taken for stuck.
func TestSilenceToVersionsThatAreKnown(t *testing.T) {
	for _, answers := range []bool{false, true} {
		watched(t, func(c *Config) { c.Answers = answers }, func(r *rig, redials *atomic.Int32) {
			up := r.open()
			r.envoy.Want(xdstest.CDS)
			up.Recv()
			r.envoy.ACK(sendAndRecv(r, up, xdstest.Response{Type: xdstest.CDS, Version: "1", Resources: xdstest.R("1", "c=a")}))
			up.Recv()
			up.End(codes.Unavailable, "bye")
			_ = r.envoy.End()
			up = r.open()
			start := time.Now()
			r.envoy.Again(xdstest.CDS)
			up.Recv()
			if answers {
				r.endsAfter(start, defaultStuckAfter, "has answered nothing")
				return
			}
			r.envoy.Quiet(time.Hour)
			if redials.Load() != 0 {
				r.t.Error("the stream was cut")
			}
		})
	}
}

// A control plane that stops reading is stuck, though it goes on sending and its connection answers pings.
func TestStreamThatIsNotReadIsCut(t *testing.T) {
	watched(t, defaults, func(r *rig, redials *atomic.Int32) {
		up := r.open()
		up.Merged = true
		r.envoy.Want(xdstest.CDS)
		up.Recv()
		r.envoy.ACK(sendAndRecv(r, up, xdstest.Response{Type: xdstest.CDS, Version: "1", Resources: xdstest.R("1", "c=a")}))
		up.Recv()
		start := time.Now()
		for i := range 40 { // fills what the connection and gRPC hold
			r.envoy.Want(xdstest.EDS, append(manyNames(40), fmt.Sprintf("x%d-%s", i, strings.Repeat("y", 10_000)))...)
			r.wait()
		}
		time.Sleep(30 * time.Second)
		r.envoy.ACK(sendAndRecv(r, up, xdstest.Response{Type: xdstest.CDS, Version: "2", Resources: xdstest.R("2", "c=b")}))
		r.endsAfter(start, defaultStuckAfter, "has read nothing")
		if redials.Load() != 1 {
			r.t.Errorf("%d redials, want 1", redials.Load())
		}
	})
}

// An Envoy that does not read holds the control plane up: that is no reason to cut its stream.
func TestSlowEnvoyIsNotTakenForAStuckControlPlane(t *testing.T) {
	change := func(c *Config) { c.MaxWaiting = 1 << 20 }
	watched(t, change, func(r *rig, redials *atomic.Int32) {
		up := r.open()
		up.Merged = true
		r.envoy.Want(xdstest.CDS)
		up.Recv()
		go func() {
			for range 8 { // gives up reading while it cannot send, as a control plane with one goroutine does
				up.Send(xdstest.Response{Type: xdstest.CDS, Version: "1", Resources: xdstest.R("1", "c="+strings.Repeat("x", 1<<20))})
			}
		}()
		r.wait()
		for i := range 40 {
			r.envoy.Want(xdstest.EDS, append(manyNames(40), fmt.Sprintf("x%d-%s", i, strings.Repeat("y", 10_000)))...)
			r.wait()
		}
		time.Sleep(10 * defaultStuckAfter)
		if redials.Load() != 0 {
			r.t.Error("the stream was cut")
		}
		for range 8 {
			r.envoy.Recv()
		}
	})
}

func TestStreamIsReplacedAtItsMaximumAge(t *testing.T) {
	const age = 10 * time.Minute
	change := func(c *Config) { c.MaxAge = age }
	watched(t, change, func(r *rig, redials *atomic.Int32) {
		for i := range 3 {
			start := time.Now()
			up := r.open()
			if waited := time.Since(start); waited > 0 {
				r.t.Errorf("the next stream waited %v, want none: an old one is no failure", waited)
			}
			r.envoy.Again(xdstest.CDS)
			up.Recv()
			r.envoy.ACK(sendAndRecv(r, up, xdstest.Response{Type: xdstest.CDS, Version: "1", Resources: xdstest.R("1", "c=a")}))
			up.Recv()
			time.Sleep(age*9/10 - time.Second)
			err := r.envoy.End()
			if took := time.Since(start); took < age*9/10 || took > age+maxTick || status.Code(err) != codes.Unavailable {
				r.t.Errorf("the stream ended after %v with %v, want a little less than %v", took, err, age)
			}
			if redials.Load() != int32(i)+1 {
				r.t.Errorf("%d redials, want %d", redials.Load(), i+1)
			}
		}
	})
}

func TestWatchdogCanBeOff(t *testing.T) {
	change := func(c *Config) { c.StuckAfter = -1 }
	watched(t, change, func(r *rig, redials *atomic.Int32) {
		up := r.open()
		r.envoy.Want(xdstest.CDS)
		up.Recv()
		time.Sleep(24 * time.Hour)
		r.wait()
		if redials.Load() != 0 || len(r.server.Status().Sessions) != 1 {
			r.t.Error("a stream was cut")
		}
	})
}

// What was away for long is asked less often, and many agents do not come at the same moment; a healthy stream makes them quick again.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b backoff
		longest := func() (d time.Duration) {
			for range 1000 {
				d = max(d, b.delay())
			}
			return d
		}
		within := func(got, limit time.Duration) {
			t.Helper()
			if got > limit || got < limit*9/10 {
				t.Errorf("the longest of 1000 waits is %v, want about %v", got, limit)
			}
		}
		if d := longest(); d != 0 {
			t.Errorf("a wait of %v before any failure", d)
		}
		b.failed()
		within(longest(), backoffBase)
		time.Sleep(10 * time.Second)
		b.failed()
		within(longest(), time.Second)
		time.Sleep(50 * time.Second)
		b.ended(healthy-1, true)
		within(longest(), 6*time.Second)
		time.Sleep(time.Hour)
		within(longest(), backoffMax)
		b.ended(healthy, true)
		within(longest(), backoffBase)
		b.ended(healthy, false)
		if d := longest(); d != 0 {
			t.Errorf("a wait of %v after a healthy stream that Envoy ended", d)
		}
	})
}
