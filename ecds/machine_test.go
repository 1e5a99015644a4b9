package ecds

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func TestInStoreGoesAtOnce(t *testing.T) {
	r := offered(t, v1)
	r.wantNone(1)
	r.pullEnds(nil)
	r.want(1, "oci://r/v1 c1")
	r.wantUnsettled(1, 1)
	r.answer(1, "p", nil)
	r.wantSettled(1, 1)
	s := r.wantState("p", StateLive)
	if s.DigestLive != module("oci://r/v1").Digest || s.Kind != "http" || s.Version != "1" || s.URL != "oci://r/v1" {
		t.Errorf("status %+v", s)
	}
}

func TestBeingPulledNeverWorked(t *testing.T) {
	for _, c := range []struct {
		spec spec
		want string
	}{
		{spec{name: "p", uri: "oci://r/v1"}, "http rbac deny"},
		{spec{name: "p", uri: "oci://r/v1", policy: wasmv3.FailurePolicy_FAIL_CLOSED}, "http rbac deny"},
		{spec{name: "p", uri: "oci://r/v1", policy: wasmv3.FailurePolicy_FAIL_RELOAD}, "http rbac deny"},
		{spec{name: "p", uri: "oci://r/v1", policy: wasmv3.FailurePolicy_FAIL_OPEN}, "http rbac allow"},
		{spec{name: "p", uri: "oci://r/v1", open: true}, "http rbac allow"},
		{spec{name: "p", uri: "oci://r/v1", network: true}, "network rbac deny"},
		{spec{name: "p", uri: "oci://r/v1", network: true, policy: wasmv3.FailurePolicy_FAIL_OPEN}, "network rbac allow"},
	} {
		t.Run(fmt.Sprint(c.spec.policy, c.spec.open, c.spec.network), func(t *testing.T) {
			r := opened(t, "p")
			r.advance(3 * time.Second)
			r.offer(1, 1, c.spec)
			r.advance(7*time.Second - 1)
			r.wantNone(1)
			r.wantState("p", StatePending, "still being pulled")
			r.advance(1)
			r.want(1, c.want) // ten seconds after Envoy began to wait
			r.wantState("p", StatePolicy, "still being pulled")
			r.wantUnsettled(1, 1)
			r.advance(3*time.Second - 1)
			r.wantUnsettled(1, 1)
			r.advance(1)
			r.wantSettled(1, 1)
			r.answer(1, "p", nil)
			r.pullEnds(nil)
			r.want(1, "oci://r/v1")
			r.answer(1, "p", nil)
			r.wantState("p", StateLive)
		})
	}
}

func TestBeingPulledWorkedBefore(t *testing.T) {
	r := live(t, v1)
	r.offer(1, 2, v2)
	r.wantState("p", StatePending, "still being pulled")
	r.advance(10*time.Second - 1)
	r.wantUnsettled(1, 2)
	r.advance(1)
	r.wantSettled(1, 2, "p: ", "previous version was kept", "still being pulled")
	r.wantNone(1)
	r.pullEnds(nil)
	r.want(1, "oci://r/v2 c2")
	r.answer(1, "p", nil)
	r.wantState("p", StateLive)
}

func TestFailedForNowNeverWorked(t *testing.T) {
	r := offered(t, v1)
	r.pullEnds(errBusy)
	r.wantNone(1)
	if s := r.wantState("p", StatePending, "503"); s.Attempts != 1 || !s.NextRetry.Equal(r.now.Add(time.Second)) {
		t.Errorf("status %+v, want one attempt and the next in 1 s", s)
	}
	// With the largest jitter: 1, 2, 4 … 60 s between a failure and the next attempt, and no end.
	for i, wait := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60, 60, 60} {
		r.advance(wait*time.Second - 1)
		r.wantPulls(i+1, "the next is not due")
		r.advance(1)
		r.wantPulls(i+2, "the next is due")
		r.pullEnds(errBusy)
	}
	r.want(1, "http rbac deny")
	r.wantSettled(1, 1)
	r.advance(time.Minute)
	r.pullEnds(nil)
	r.want(1, "oci://r/v1 c1")
}

func TestFailedForNowRecoversWithinHold(t *testing.T) {
	r := offered(t, v1)
	r.pullEnds(errBusy)
	r.advance(time.Second)
	r.pullEnds(nil)
	r.want(1, "oci://r/v1 c1")
	r.answer(1, "p", nil)
	r.wantSettled(1, 1)
}

func TestFailedForNowWorkedBefore(t *testing.T) {
	r := live(t, v1)
	r.offerAndPull(1, 2, v2, errBusy)
	r.wantState("p", StateDegraded, "503")
	r.wantNone(1)
	r.advance(10 * time.Second)
	r.wantSettled(1, 2, "previous version was kept", "503")
	r.wantNone(1)
	if n := len(r.pulls); n < 3 {
		t.Fatalf("%d pulls, want retries", n)
	}
	r.pullEnds(nil)
	r.want(1, "oci://r/v2 c2")
}

func TestFailedForGoodNeverWorked(t *testing.T) {
	r := offered(t, v1)
	r.pullEnds(errGone)
	r.want(1, "http rbac deny")
	r.wantState("p", StatePolicy, "404")
	r.wantUnsettled(1, 1)
	r.answer(1, "p", nil)
	r.wantSettled(1, 1)
	r.advance(45*time.Second - 1) // the slow end, with the jitter that makes it shortest
	r.wantPulls(1, "no retry before the slow end")
	r.advance(15 * time.Second)
	r.wantPulls(2, "the retry within a minute")
	r.pullEnds(nil)
	r.want(1, "oci://r/v1 c1")
}

func TestFailedForGoodWorkedBefore(t *testing.T) {
	r := live(t, v1)
	r.offerAndPull(1, 2, v2, errGone)
	r.wantNone(1)
	r.wantSettled(1, 2, "previous version was kept", "404")
	if s := r.wantState("p", StateDegraded, "404"); s.DigestLive != module("oci://r/v1").Digest || s.Version != "2" {
		t.Errorf("status %+v", s)
	}
	r.advance(time.Minute)
	r.pullEnds(nil)
	r.want(1, "oci://r/v2 c2")
}

func TestRetryAfter(t *testing.T) {
	for _, c := range []struct {
		name        string
		asked, want time.Duration
	}{{"longer", 90 * time.Second, 90 * time.Second}, {"shorter than the backoff", time.Millisecond, time.Second}, {"absurd", 1000 * time.Hour, time.Hour}} {
		t.Run(c.name, func(t *testing.T) {
			r := offered(t, v1)
			r.pullEnds(fmt.Errorf("pull: %w", pullError{text: "429", after: c.asked}))
			r.advance(c.want - 1)
			r.offer(1, 2, v1) // an upstream that insists does not undo what the registry asked for
			if c.want > time.Second {
				r.wantPulls(1, "too early for a retry")
			}
			r.advance(1)
			r.wantPulls(2, "the retry")
		})
	}
}

func TestNeverOffered(t *testing.T) {
	r := opened(t, "p")
	r.advance(10*time.Second - 1)
	r.wantNone(1)
	r.wantState("p", StatePending, "waiting for the control plane")
	r.advance(1)
	r.want(1, "http rbac deny")
	r.wantState("p", StatePolicy, "control plane has not sent")
	r.offerAndPull(1, 1, v1, nil)
	r.want(1, "oci://r/v1 c1")
}

func TestNeverOfferedWithLastGood(t *testing.T) {
	r := restarted(t, v1)
	r.open(1, "p")
	r.advance(10*time.Second - 1)
	r.wantNone(1)
	r.advance(1)
	r.want(1, "oci://r/v1 c1")
	r.wantState("p", StateDegraded, "control plane has not sent")
	r.answer(1, "p", nil)
	r.advance(time.Minute)
	r.wantNone(1)
}

func TestRestartServesSameAtOnce(t *testing.T) {
	r := restarted(t, v1)
	r.open(1, "p")
	r.offer(1, 1, v1)
	first := r.want(1, "oci://r/v1 c1") // the registry is not waited for
	r.answer(1, "p", nil)
	r.wantState("p", StateLive)
	r.wantSettled(1, 1)
	r.pullEnds(nil)
	r.wantNone(1)
	r.wantState("p", StateLive)
	r.close(1)
	r.open(2, "p")
	if diff := cmp.Diff(first, r.want(2, "oci://r/v1 c1"), protocmp.Transform()); diff != "" {
		t.Errorf("the same content differs between streams:\n%s", diff)
	}
}

func TestRestartKeepsOldWhileNewFails(t *testing.T) {
	r := restarted(t, v1)
	r.open(1, "p")
	r.offer(1, 1, v2)
	r.want(1, "oci://r/v1 c1") // at once: it worked here before
	r.answer(1, "p", nil)
	r.pullEnds(errGone)
	r.wantNone(1)
	r.wantState("p", StateDegraded)
	r.wantSettled(1, 1, "previous version was kept")
	// A new Envoy process starts from the same.
	r.close(1)
	r.open(2, "p")
	r.want(2, "oci://r/v1 c1")
	r.advance(time.Minute)
	r.pullEnds(nil)
	r.want(2, "oci://r/v2 c2")
}

func TestRestartThenStoreFailsThenStreamIsAway(t *testing.T) {
	r := restarted(t, v1)
	r.open(1, "p")
	r.offer(1, 1, v1)
	r.want(1, "oci://r/v1 c1")
	r.answer(1, "p", nil)
	r.pullEnds(errGone)
	r.wantState("p", StateDegraded, "404")
	r.close(1)
	r.advance(time.Hour) // given up meanwhile
	n := len(r.pulls)
	r.open(2, "p")
	r.want(2, "oci://r/v1 c1")
	r.wantPulls(n+1, "the work is taken up again")
	r.pullEnds(nil)
	r.answer(2, "p", nil)
	r.wantState("p", StateLive)
}

func TestNewStreamGetsNewestAtOnce(t *testing.T) {
	r := live(t, v1)
	r.close(1)
	r.advance(time.Hour)
	r.open(2, "p")
	r.want(2, "oci://r/v1 c1")
	r.offer(2, 1, v1)
	r.answer(2, "p", nil)
	r.wantSettled(2, 1)
	r.wantNone(2)
	r.wantPulls(1, "nothing has changed")
}

func TestNewStreamDoesNotWaitForPolicyAgain(t *testing.T) {
	r := offered(t, v1)
	r.pullEnds(errBusy)
	r.advance(10 * time.Second)
	r.want(1, "http rbac deny")
	r.close(1)
	r.open(2, "p")
	r.want(2, "http rbac deny")
	r.offer(2, 1, v2)
	r.open(3, "p") // what it waits for is new: it has its hold time
	r.wantNone(3)
}

func TestNodesAreApart(t *testing.T) {
	r := live(t, v1)
	r.m.open(r.now, 2, node("other"))
	r.subscribe(2, "p")
	r.wantNone(2)
	r.offerAndPull(2, 1, v2, nil)
	r.want(2, "oci://r/v2 c2")
	r.wantNone(1)
}

func TestNewerCancelsOlder(t *testing.T) {
	r := offered(t, v1)
	old := r.lastPull()
	r.offer(1, 2, v2)
	if diff := cmp.Diff([]uint64{old.pull}, r.stopped); diff != "" {
		t.Fatalf("cancelled pulls:\n%s", diff)
	}
	r.wantSettled(1, 1) // overtaken: what came later decides
	r.pullEnds(nil)
	r.want(1, "oci://r/v2 c2")
	r.pulled(old, nil)
	r.wantNone(1)
	r.answer(1, "p", nil)
	r.pulled(old, errGone)
	r.wantState("p", StateLive)
}

func TestUnchangedIsLeftAlone(t *testing.T) {
	r := live(t, v1)
	again := v1
	again.version = "1b"
	r.offer(1, 2, again)
	r.wantSettled(1, 2)
	r.wantNone(1)
	r.wantPulls(1, "nothing has changed")
	if s := r.wantState("p", StateLive); s.Version != "1b" {
		t.Errorf("version %q, want the newest", s.Version)
	}
}

func TestUnchangedButFailedIsTriedAgain(t *testing.T) {
	r := live(t, v1)
	r.offerAndPull(1, 2, v2, errGone)
	r.offer(1, 3, v2) // at once: no
	r.wantSettled(1, 3, "404")
	r.wantPulls(2, "a control plane in a loop must not become a load on the registry")
	r.advance(time.Second)
	r.offer(1, 4, v2)
	r.wantPulls(3, "a second later it is tried again")
}

func TestAlwaysWithNewResourceVersion(t *testing.T) {
	mk := func(version string) spec {
		s := v1
		s.env = map[string]string{policyKey: "Always", versionKey: version}
		return s
	}
	r := live(t, mk("7"))
	if ref := r.lastPull().ref; !ref.Always || ref.ResourceVersion != "7" {
		t.Errorf("reference %+v", ref)
	}
	r.offer(1, 2, mk("7"))
	r.wantPulls(1, "nothing has changed")
	r.offer(1, 3, mk("8"))
	r.wantPulls(2, "the resource version is new")
	r.pullEnds(nil)
	r.wantNone(1) // the same module and configuration: Envoy has it already
	r.wantSettled(1, 3)
	r.wantState("p", StateLive)
}

func TestConfigOnlyChange(t *testing.T) {
	r := live(t, v1)
	changed := v1
	changed.config = "c9"
	r.offerAndPull(1, 2, changed, nil)
	r.want(1, "oci://r/v1 c9")
}

func TestNeighboursDoNotWait(t *testing.T) {
	q := spec{name: "q", uri: "oci://r/v2"}
	r := opened(t, "p", "q")
	r.offer(1, 1, v1, q)
	r.pulled(r.pulls[1], nil)
	r.want(1, "oci://r/v2")
	r.answer(1, "q", nil)
	r.wantUnsettled(1, 1)
	r.pulled(r.pulls[0], errGone)
	r.want(1, "http rbac deny")
	r.answer(1, "p", nil)
	r.wantSettled(1, 1)
}

func TestSettleJoinsReasons(t *testing.T) {
	q1, q2 := spec{name: "q", uri: "oci://r/v1"}, spec{name: "q", uri: "oci://r/v3"}
	bad := spec{name: "z"}
	r := opened(t, "p", "q", "z")
	r.live(1, 1, v1)
	r.live(1, 2, q1)
	r.offer(1, 3, v2, q2, bad)
	r.pulled(r.pulls[2], errGone)
	r.pulled(r.pulls[3], errBusy)
	r.advance(10 * time.Second)
	r.wantSettled(1, 3, "p: the previous version was kept: oci://r/v2: 404", "q: the previous version was kept", "z: the plugin names no code")
}

func TestEnvoyRejectsWorkedBefore(t *testing.T) {
	r := live(t, v1)
	r.offerAndPull(1, 2, v2, nil)
	r.want(1, "oci://r/v2 c2")
	r.answer(1, "p", errEnvoy)
	r.want(1, "oci://r/v1 c1") // at once
	r.wantSettled(1, 2, "Envoy refused it: Unable to create Wasm plugin ns.p")
	r.answer(1, "p", nil)
	if s := r.wantState("p", StateRejected, "Envoy refused it"); s.EnvoyError != errEnvoy.Error() {
		t.Errorf("status %+v", s)
	}
	// The same again changes nothing, and nothing happens by itself.
	r.offer(1, 3, v2)
	r.wantSettled(1, 3, "Envoy refused it")
	r.advance(time.Hour)
	r.wantNone(1)
	r.wantPulls(2, "the same again changes nothing")
	// New content does.
	r.offerAndPull(1, 4, v3, nil)
	r.want(1, "oci://r/v3 c3")
	r.answer(1, "p", nil)
	r.wantSettled(1, 4)
	r.wantState("p", StateLive)
}

func TestEnvoyRejectsNeverWorked(t *testing.T) {
	r := sent(t, v1, "oci://r/v1 c1")
	r.answer(1, "p", errEnvoy)
	r.want(1, "http rbac deny")
	r.wantSettled(1, 1, "Envoy refused it")
	r.answer(1, "p", nil)
	r.wantState("p", StateRejected)
}

func TestEnvoyRejectsPolicyToo(t *testing.T) {
	r := sent(t, v1, "oci://r/v1 c1")
	r.answer(1, "p", errEnvoy)
	r.want(1, "http rbac deny")
	r.answer(1, "p", errors.New("Error: filter config has type URL … but expect x"))
	r.wantNone(1)
	r.advance(time.Hour)
	r.wantNone(1)
	r.wantState("p", StateRejected, "Envoy refused the policy filter too")
	if last := r.states[len(r.states)-1].status; !strings.Contains(last.Reason, "policy filter too") {
		t.Errorf("last report %+v: nobody is told", last)
	}
}

func TestEnvoyRejectsPolicyAfterPermanentFailure(t *testing.T) {
	r := offered(t, v1)
	r.pullEnds(errGone)
	r.want(1, "http rbac deny")
	r.answer(1, "p", errEnvoy)
	r.advance(10 * time.Second)
	r.wantSettled(1, 1, "404", "Envoy refused the policy filter too")
}

func TestEnvoyRejectsLastGoodWhilePulling(t *testing.T) {
	r := restarted(t, v1)
	r.open(1, "p")
	r.offer(1, 1, v2)
	r.want(1, "oci://r/v1 c1")
	r.answer(1, "p", errors.New("Invalid path: /store/x"))
	r.want(1, "http rbac deny") // at once, although v2 is still being pulled
	r.pullEnds(nil)
	r.want(1, "oci://r/v2 c2")
}

func TestRejectedLastGoodIsRepairedOnce(t *testing.T) {
	r := restarted(t, v1)
	r.open(1, "p")
	r.offer(1, 1, v1)
	r.want(1, "oci://r/v1 c1")
	r.pullEnds(nil)
	r.answer(1, "p", errors.New("Invalid path: /store/x"))
	r.want(1, "http rbac deny")
	r.answer(1, "p", nil)
	r.advance(time.Minute)
	r.wantPulls(2, "the store is asked once more")
	r.pullEnds(nil)
	r.want(1, "oci://r/v1 c1 salted") // Envoy would take the same for unchanged
	r.answer(1, "p", errEnvoy)
	r.want(1, "http rbac deny")
	r.advance(time.Hour)
	r.wantNone(1)
	r.wantPulls(2, "no loop")
}

func TestRejectedIsTriedOnNewStream(t *testing.T) {
	r := live(t, v1)
	r.offerAndPull(1, 2, v2, nil)
	r.answer(1, "p", errEnvoy)
	r.answer(1, "p", nil)
	for i := range uint64(5) { // an upstream that comes and goes
		r.close(1 + i)
		r.open(2+i, "p")
		r.want(2+i, "oci://r/v1 c1")
		r.advance(time.Second)
	}
	r.wantPulls(2, "none within a minute of the rejection")
	r.advance(time.Minute)
	r.pullEnds(nil)
	first := r.want(6, "oci://r/v2 c2 salted")
	r.answer(6, "p", nil)
	r.wantState("p", StateLive)
	// From now on that spelling is the one.
	r.close(6)
	r.open(7, "p")
	if diff := cmp.Diff(first, r.want(7, "oci://r/v2 c2 salted"), protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

func TestRejectedIsTriedOnAnotherEnvoy(t *testing.T) {
	r := sent(t, v1, "oci://r/v1 c1")
	r.answer(1, "p", errEnvoy)
	r.close(1)
	n := node("n")
	n.UserAgentVersionType = &corev3.Node_UserAgentBuildVersion{UserAgentBuildVersion: &corev3.BuildVersion{Version: &typev3.SemanticVersion{MajorNumber: 1, MinorNumber: 41}}}
	r.m.open(r.now, 2, n)
	r.subscribe(2, "p")
	r.want(2, "http rbac deny")
	if got := r.lastPull(); got.ref.Node != n || len(r.pulls) != 2 {
		t.Fatalf("pull %+v: want one for the new Envoy, whose verdict may differ", got)
	}
	r.pullEnds(nil)
	r.want(2, "oci://r/v1 c1 salted")
}

func TestRejectedContentComesBack(t *testing.T) {
	r := offered(t, v1)
	r.pullEnds(nil)
	r.answer(1, "p", errEnvoy)
	r.answer(1, "p", nil) // the policy filter
	r.pushes(1)
	changed := v1
	changed.env = map[string]string{versionKey: "2"} // new content upstream, the same for Envoy
	r.offerAndPull(1, 2, changed, nil)
	r.want(1, "oci://r/v1 c1 salted")
}

func TestOneStreamRejectsWhatAnotherRuns(t *testing.T) {
	r := opened(t, "p")
	r.open(2, "p")
	r.live(1, 1, v1)
	r.want(2, "oci://r/v1 c1")
	r.answer(2, "p", nil)
	r.offerAndPull(1, 2, v2, nil)
	r.pushes(1)
	r.pushes(2)
	r.answer(1, "p", nil)
	r.wantSettled(1, 2)
	r.answer(2, "p", errEnvoy)
	r.want(2, "oci://r/v1 c1") // what it ran, although the node's last good one is v2
	r.wantNone(1)
	r.wantState("p", StateRejected, errEnvoy.Error())
	r.offer(1, 3, v2)
	r.wantSettled(1, 3) // it runs there
	r.offer(2, 1, v2)
	r.wantSettled(2, 1, "Envoy refused it")
}

func TestLaterAcceptanceCounts(t *testing.T) {
	r := opened(t, "p")
	r.open(2, "p")
	r.offerAndPull(1, 1, v1, nil)
	r.answer(1, "p", errEnvoy)
	r.wantState("p", StateRejected)
	r.answer(2, "p", nil)
	r.close(1)
	r.open(3, "p")
	r.want(3, "oci://r/v1 c1")
	r.wantState("p", StateLive)
}

func TestLateAcceptanceIsNoStepBack(t *testing.T) {
	r := opened(t, "p")
	r.open(2, "p")
	r.live(1, 1, v1)
	r.live(1, 2, v2)
	r.m.answer(r.now, 2, "p", r.pushes(2)[0].GetVersion(), nil) // v1, late
	r.drain()
	r.offer(1, 3, v3)
	r.open(3, "p")
	r.want(3, "oci://r/v2 c2")
}

func TestBothRejected(t *testing.T) {
	r := live(t, v1)
	r.offerAndPull(1, 2, v2, nil)
	r.pushes(1)
	r.answer(1, "p", errEnvoy)
	r.want(1, "oci://r/v1 c1")
	r.answer(1, "p", errors.New("Invalid path"))
	r.want(1, "http rbac deny")
	r.answer(1, "p", nil)
	r.wantState("p", StateRejected, errEnvoy.Error()) // the reason is that of what is wanted
	r.advance(time.Hour)
	r.wantNone(1)
}

func TestPinsCoverWhatEnvoyHolds(t *testing.T) {
	r := offered(t, v1)
	r.pullEnds(nil)
	r.answer(1, "p", errEnvoy)
	r.answer(1, "p", errEnvoy) // the policy filter: v1 is what Envoy reads when a listener changes
	r.offerAndPull(1, 2, v2, nil)
	want := module("oci://r/v2").Digest
	r.wantPins(want)
	r.offer(1, 3, v3) // v2 is with Envoy, v3 on its way
	r.wantPins(want)
	r.answer(1, "p", errEnvoy) // nothing takes its place, so Envoy may still read it
	r.wantPins(want)
}

func TestSaltOutlivesRestart(t *testing.T) {
	before := offered(t, v1)
	before.pullEnds(nil)
	before.answer(1, "p", errEnvoy)
	before.answer(1, "p", nil)
	changed := v1
	changed.env = map[string]string{versionKey: "2"}
	before.live(1, 2, changed)
	r := before.restart()
	r.open(1, "p")
	r.offer(1, 1, changed)
	r.want(1, "oci://r/v1 c1 salted")
	r.pullEnds(nil)
	r.wantNone(1)
}

func TestLateAnswerForOldVersion(t *testing.T) {
	r := offered(t, v1)
	r.pullEnds(nil)
	old := r.want(1, "oci://r/v1 c1")
	r.offer(1, 2, v2)
	r.wantNone(1)
	r.pullEnds(nil)
	r.want(1, "oci://r/v2 c2")
	r.m.answer(r.now, 1, "p", old.GetVersion(), nil)
	r.drain()
	r.wantNone(1)
	r.wantUnsettled(1, 2)
	r.answer(1, "p", nil)
	r.wantSettled(1, 2)
	r.m.answer(r.now, 1, "p", old.GetVersion(), errEnvoy) // twice, out of order: nothing
	r.drain()
	if r.m.rejects != 0 {
		t.Error("an answer counts twice")
	}
	r.wantState("p", StateLive)
}

func TestSlowEnvoyIsNotAFailure(t *testing.T) {
	r := sent(t, v1, "oci://r/v1 c1")
	r.advance(10 * time.Second)
	r.wantSettled(1, 1)
	r.wantNone(1) // no policy filter behind its back
	r.wantState("p", StatePending, "Envoy has not answered")
	r.advance(4 * time.Second)
	r.answer(1, "p", nil)
	r.wantState("p", StateLive)
}

func TestSubscribedAgainWantsAnAnswer(t *testing.T) {
	r := live(t, v1)
	r.subscribe(1, "p")
	r.want(1, "oci://r/v1 c1")
	r.answer(1, "p", nil)
	r.wantNone(1)
}

func TestUnsubscribedNamesAreIgnored(t *testing.T) {
	r := opened(t, "q")
	r.offer(1, 1, v1)
	r.wantSettled(1, 1)
	r.wantPulls(0, "nobody asked for it")
	r.offerRaw(1, 2, nil, []string{"p"})
	r.wantSettled(1, 2)
	r.wantNone(1)
	r.offerRaw(1, 3, nil, nil)
	r.wantSettled(1, 3)
}

func TestRemovedUpstream(t *testing.T) {
	r := opened(t, "p")
	r.open(2, "p")
	r.live(1, 1, v1)
	r.pushes(2)
	r.offerRaw(1, 2, nil, []string{"p"})
	r.wantSettled(1, 2)
	r.want(1, "removed")
	r.want(2, "removed")
	r.advance(time.Minute)
	r.wantNone(1) // no policy filter: upstream has said that there is nothing
	r.wantPins()
	if data, _, _ := r.m.snapshot(); strings.Contains(string(data), "oci://") {
		t.Errorf("saved: %s", data)
	}
	r.subscribe(2, "p") // Envoy asks once more: now it waits, and not for ever
	r.advance(10 * time.Second)
	r.want(2, "http rbac deny")
	r.offer(1, 3, v2)
	r.advance(10*time.Second - 1)
	r.wantNone(1)
	r.advance(1)
	r.want(1, "http rbac deny") // the old version is no fallback
}

func TestRemovalCancelsPull(t *testing.T) {
	r := offered(t, v1)
	p := r.lastPull()
	r.offerRaw(1, 2, nil, []string{"p"})
	r.want(1, "removed")
	r.wantSettled(1, 1)
	if len(r.stopped) != 1 || r.stopped[0] != p.pull {
		t.Errorf("stopped %v", r.stopped)
	}
	r.pulled(p, nil)
	r.wantNone(1)
}

func TestUnsubscribeCancelsPullAndForgets(t *testing.T) {
	r := live(t, v1)
	r.offer(1, 2, v2)
	r.unsubscribe(1, "p")
	if len(r.stopped) != 1 {
		t.Fatalf("stopped %v, want the pull", r.stopped)
	}
	r.wantSettled(1, 2)
	r.pullEnds(nil)
	lastGood := module("oci://r/v1").Digest
	r.wantPins(lastGood)
	r.advance(forgetUnsubscribed - 1)
	r.wantPins(lastGood)
	r.advance(1)
	r.wantPins()
	if len(r.m.entries) != 0 {
		t.Errorf("%d entries after %s", len(r.m.entries), forgetUnsubscribed)
	}
}

func TestClosedStreamKeepsPullForAWhile(t *testing.T) {
	r := offered(t, v1)
	r.close(1)
	r.advance(pullGrace - 1)
	if len(r.stopped) != 0 {
		t.Fatal("pull cancelled although the stream may be back in a second")
	}
	r.pullEnds(nil)
	r.open(2, "p")
	r.want(2, "oci://r/v1 c1")
	r.close(2)
	r.offer(3, 1, v2)
	r.open(3, "p")
	r.offer(3, 1, v2)
	r.close(3)
	r.advance(pullGrace)
	if len(r.stopped) != 1 {
		t.Fatalf("stopped %v, want the pull that nobody came back for", r.stopped)
	}
	r.open(4, "p")
	r.wantPulls(3, "a new one for the new stream")
	r.close(4)
	r.advance(forgetClosed + time.Second)
	if len(r.m.entries) != 0 {
		t.Error("kept for ever")
	}
}

func TestEmptyPullSecret(t *testing.T) {
	s := v1
	s.env = map[string]string{secretKey: " \n"}
	r := offered(t, s)
	r.want(1, "http rbac deny")
	r.wantState("p", StatePolicy, "empty pull secret")
	r.answer(1, "p", nil)
	r.wantSettled(1, 1)
	r.wantPulls(0, "none without credentials")
	s.env = map[string]string{secretKey: `{"auths":{}}`}
	r.offer(1, 2, s)
	if got := string(r.lastPull().ref.PullSecret); got != `{"auths":{}}` {
		t.Errorf("pull secret %q", got)
	}
	r.pullEnds(nil)
	r.want(1, "oci://r/v1 c1")
	r.answer(1, "p", nil)
	// A new secret means asking the registry again, and nothing new for Envoy.
	s.env = map[string]string{secretKey: `{"auths":{"r":{}}}`}
	r.offer(1, 3, s)
	r.wantSettled(1, 3)
	r.pullEnds(nil)
	r.wantNone(1)
	r.wantPulls(2, "one for each secret")
}

func TestNotUnderstood(t *testing.T) {
	none := spec{name: "p", version: "2", policy: wasmv3.FailurePolicy_FAIL_OPEN}
	both := v2
	both.open, both.policy = true, wasmv3.FailurePolicy_FAIL_CLOSED
	for _, c := range []struct {
		name string
		res  *discoveryv3.Resource
		word string
		want string // never worked
	}{
		{"no code", none.res(), "names no code", "http rbac allow"},
		{"both policies", both.res(), "only one of", "http rbac deny"},
		{"not an extension config", &discoveryv3.Resource{Name: "p", Resource: must(anypb.New(wrapperspb.String("x")))}, "not a", "http rbac deny"},
		{"garbage", &discoveryv3.Resource{Name: "p", Resource: &anypb.Any{TypeUrl: typePrefix + extensionConfig, Value: []byte{0xff}}}, "decode", "http rbac deny"},
		{"other name inside", func() *discoveryv3.Resource { s := v2; s.name = "x"; r := s.res(); r.Name = "p"; return r }(), "named \"x\" inside", "http rbac deny"},
		{"garbage inside", envelope("p", "", &anypb.Any{TypeUrl: typePrefix + netWasm, Value: []byte{0xff}}), "decode", "network rbac deny"},
		{"empty", envelope("p", "", nil), "typed_config", "http rbac deny"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := opened(t, "p")
			r.offerRaw(1, 1, []*discoveryv3.Resource{c.res}, nil)
			r.wantSettled(1, 1, c.word)
			r.want(1, c.want)
			r.wantState("p", StatePolicy, c.word)
			r.answer(1, "p", nil)
			r.advance(time.Hour)
			r.wantNone(1)

			r = live(t, v1)
			r.offerRaw(1, 2, []*discoveryv3.Resource{c.res}, nil)
			r.wantSettled(1, 2, c.word)
			r.wantNone(1)
			r.wantState("p", StateDegraded, c.word)
		})
	}
}

func TestOthersPass(t *testing.T) {
	res := envelope("p", "9", &anypb.Any{TypeUrl: typePrefix + "envoy.extensions.filters.http.cors.v3.Cors", Value: []byte("\x0a\x00")})
	r := opened(t, "p")
	r.offerRaw(1, 1, []*discoveryv3.Resource{res}, nil)
	got := r.pushes(1)
	if len(got) != 1 {
		t.Fatalf("%d pushes", len(got))
	}
	if diff := cmp.Diff(res.Resource, got[0].Resource, protocmp.Transform()); diff != "" {
		t.Errorf("changed on the way:\n%s", diff)
	}
	r.wantUnsettled(1, 1)
	r.answer(1, "p", nil)
	r.wantSettled(1, 1)
	r.wantState("p", StatePassed)
	// A bad update goes back to what worked.
	bad := envelope("p", "10", &anypb.Any{TypeUrl: typePrefix + "envoy.extensions.filters.http.cors.v3.Cors", Value: []byte("\x0a\x01x")})
	r.offerRaw(1, 2, []*discoveryv3.Resource{bad}, nil)
	r.pushes(1)
	r.answer(1, "p", errEnvoy)
	if got := r.pushes(1); len(got) != 1 || !cmp.Equal(got[0].Resource, res.Resource, protocmp.Transform()) {
		t.Errorf("pushed %v, want what worked", got)
	}
	r.wantSettled(1, 2, "Envoy refused it")
	r.wantState("p", StateRejected)
	// A first one has nothing to go back to, and what would be accepted in its place is not known.
	r = opened(t, "p")
	r.offerRaw(1, 1, []*discoveryv3.Resource{res}, nil)
	r.pushes(1)
	r.answer(1, "p", errEnvoy)
	r.wantNone(1)
	r.wantSettled(1, 1, "Envoy refused it")
}

func TestTimeToLive(t *testing.T) {
	res := v1.res()
	res.Ttl = durationpb.New(30 * time.Second)
	r := opened(t, "p")
	r.offerRaw(1, 1, []*discoveryv3.Resource{res}, nil)
	r.pullEnds(nil)
	if got := r.want(1, "oci://r/v1 c1"); got.Ttl != nil {
		t.Error("Envoy is told a time to live that the agent keeps itself")
	}
	r.advance(29 * time.Second)
	r.offerRaw(1, 2, []*discoveryv3.Resource{{Name: "p", Ttl: durationpb.New(30 * time.Second)}}, nil) // a heartbeat
	r.answer(1, "p", nil)
	r.wantSettled(1, 2)
	r.advance(30*time.Second - 1)
	r.wantNone(1)
	r.advance(1)
	r.want(1, "removed")
}

func TestWrapperIsKept(t *testing.T) {
	res := v1.res()
	res.Aliases = []string{"alias"}
	r := opened(t, "p")
	r.offerRaw(1, 1, []*discoveryv3.Resource{res}, nil)
	r.pullEnds(nil)
	if got := r.want(1, "oci://r/v1 c1"); len(got.Aliases) != 1 {
		t.Errorf("aliases lost: %v", got)
	}
}

func TestTooManyOffers(t *testing.T) {
	r := opened(t, "p")
	for i := range uint64(maxOffers + 1) {
		r.offer(1, i, v1)
	}
	r.wantSettled(1, 0, "overtaken")
	r.wantUnsettled(1, 1)
	r.advance(10 * time.Second)
	for i := range uint64(maxOffers) {
		r.wantSettled(1, i+1)
	}
}

func TestPullSecretStaysInside(t *testing.T) {
	const secret = `{"auths":{"r.example":{"auth":"dXNlcjpodW50ZXIyaHVudGVyMg=="}}}`
	s := v1
	s.env = map[string]string{secretKey: secret + "\n"}
	r := offered(t, s)
	r.pullEnds(fmt.Errorf("login with %s failed, tried dXNlcjpodW50ZXIyaHVudGVyMg==", secret))
	r.advance(time.Second)
	status := fmt.Sprintf("%+v", r.m.status())
	r.pullEnds(nil)
	pushed := r.want(1, "oci://r/v1 c1")
	r.answer(1, "p", fmt.Errorf("Proto constraint validation failed: %s", secret))
	data, _, _ := r.m.snapshot()
	for what, text := range map[string]string{
		"status": status + fmt.Sprintf("%+v", r.m.status()), "push": pushed.String(), "state": string(data),
		"settle": fmt.Sprint(r.settled), "log": fmt.Sprintf("%+v", r.states), "reference": fmt.Sprintf("%v %+v %#v", r.lastPull().ref, r.lastPull(), r.lastPull().ref),
	} {
		if strings.Contains(text, "dXNlcjpodW50ZXIy") {
			t.Errorf("the pull secret is in the %s: %s", what, text)
		}
	}
}
