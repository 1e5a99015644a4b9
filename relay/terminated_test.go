package relay

import (
	"errors"
	"strconv"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"

	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

func ecds(version string, pairs ...string) xdstest.Response {
	return xdstest.Response{Type: xdstest.ECDS, Version: version, Resources: xdstest.R(version, pairs...)}
}

func TestTerminated(t *testing.T) {
	both(t, "terminated", true, func(r *rig) {
		up := r.open()
		r.envoy.Want(xdstest.ECDS, "e1")
		up.Recv()
		r.section("the upstream's answer goes to the engine, not to Envoy")
		up.Send(ecds("1", "e1=remote"))
		r.envoy.Quiet(time.Second)
		r.section("the engine pushes what it made of it")
		r.engine.Push("1+a", "e1=local")
		r.envoy.ACK(r.envoy.Recv())
		r.wait()
		r.engine.Settle(0, nil)
		up.Recv()
		r.section("a second name")
		r.envoy.Want(xdstest.ECDS, "e1", "e2")
		up.Recv()
		up.Send(ecds("2", "e1=remote", "e2=other"))
		r.wait()
		r.engine.Push("2+a", "e1=local", "e2=local")
		r.envoy.ACK(r.envoy.Recv())
		r.envoy.NACK(r.envoy.Recv(), "Unable to create Wasm plugin e2")
		r.wait()
		r.engine.Settle(0, errTest)
		up.Recv()
		r.section("Envoy asks for the same again")
		r.envoy.Again(xdstest.ECDS)
		up.Quiet(time.Second)
		r.section("a name goes")
		r.envoy.Want(xdstest.ECDS, "e1")
		up.Recv()
		r.section("what it had is no longer for Envoy")
		r.engine.Push("3", "e2=late")
		r.envoy.Quiet(time.Second)
		r.section("the last name goes")
		r.envoy.Want(xdstest.ECDS)
		up.Recv()
		up.Quiet(time.Second)
		r.section("Envoy leaves")
		r.envoy.Close()
		up.Gone()
	})
}

func TestTerminatedRemoval(t *testing.T) {
	both(t, "removal", true, func(r *rig) {
		up := r.open()
		r.envoy.Want(xdstest.ECDS, "e1")
		up.Recv()
		up.Send(ecds("1", "e1=remote"))
		r.wait()
		r.engine.Push("1", "e1=local")
		r.envoy.ACK(r.envoy.Recv())
		r.wait()
		r.engine.Settle(0, nil)
		up.Recv()
		up.Send(xdstest.Response{Type: xdstest.ECDS, Version: "2", Removed: []string{"e1"}[:btoi(r.envoy.Delta)]})
		r.wait()
		r.engine.Remove("e1")
		if r.envoy.Delta {
			r.envoy.ACK(r.envoy.Recv())
		} else {
			r.envoy.Quiet(time.Second)
		}
		r.wait()
		r.engine.Settle(0, nil)
		up.Recv()
	})
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// A new stream asks for everything, whatever Envoy says it has, and the settlements of the old one are void.
func TestTerminatedReconnect(t *testing.T) {
	both(t, "reconnect", true, func(r *rig) {
		up := r.open()
		r.envoy.Want(xdstest.ECDS, "e1", "e2")
		up.Recv()
		up.Send(ecds("1", "e1=remote", "e2=remote"))
		r.wait()
		r.engine.Push("1", "e1=local", "e2=local")
		r.envoy.ACK(r.envoy.Recv())
		r.envoy.ACK(r.envoy.Recv())
		r.wait()
		settle, offer := r.engine.settle, r.engine.offer
		push := r.engine.push
		r.section("the upstream ends")
		up.End(codes.OK, "")
		_ = r.envoy.End()
		r.wait()
		settle(offer, nil)
		push(nil)
		r.section("the next stream")
		r.envoy.Open()
		r.envoy.Again(xdstest.ECDS)
		r.wait()
		r.engine.Push("1", "e1=local") // Envoy is served before the upstream is back
		r.envoy.ACK(r.envoy.Recv())
		up = r.cp.Accept()
		r.section("the upstream is back")
		up.Recv()
		up.Send(ecds("1", "e1=remote", "e2=remote"))
		r.wait()
		r.engine.Settle(0, nil)
		up.Recv()
	})
}

// The control plane's newest response crosses a change of names, which it therefore ignores.
func TestNamesChangeCrossesResponse(t *testing.T) {
	one(t, "crossing", false, true, func(r *rig) {
		up := r.open()
		r.envoy.Want(xdstest.ECDS, "e1")
		up.Recv()
		up.Send(ecds("1", "e1=a"))
		r.wait()
		r.engine.Settle(0, nil)
		up.Recv()
		r.section("a name comes, but the control plane has sent another response before it hears so")
		r.envoy.Want(xdstest.ECDS, "e1", "e2")
		r.wait()
		up.Send(ecds("2", "e1=b"))
		up.Recv() // names with nonce s1: ignored
		up.Recv() // names with nonce s2
		up.Send(ecds("2", "e1=b", "e2=b"))
		up.Quiet(time.Second)
		r.section("a name of which the control plane has nothing is asked for twice, not for ever")
		r.engine.Settle(0, nil)
		up.Recv()
		r.envoy.Want(xdstest.ECDS, "e1", "e2", "e3")
		up.Recv()
		up.Send(ecds("2", "e1=b", "e2=b"))
		up.Recv()
		up.Send(ecds("2", "e1=b", "e2=b"))
		up.Quiet(time.Second)
		r.section("a name goes, crossing a response that still has it")
		r.engine.Settle(0, nil)
		up.Recv()
		r.envoy.Want(xdstest.ECDS, "e1")
		r.wait()
		up.Send(ecds("3", "e1=c", "e2=c"))
		up.Recv()
		up.Recv()
		up.Send(ecds("3", "e1=c"))
		up.Quiet(time.Second)
		r.section("a control plane that never shows it and always says something else")
		r.engine.Settle(0, nil)
		up.Recv()
		r.envoy.Want(xdstest.ECDS, "e1", "e9")
		up.Recv()
		for i := range 5 {
			up.Send(ecds("4."+string(rune('0'+i)), "e1=c"))
			if i < maxResends {
				up.Recv()
			}
		}
		up.Quiet(time.Second)
	})
}

func TestNACKNeverChangesNames(t *testing.T) {
	both(t, "nack-names", true, func(r *rig) {
		up := r.open()
		r.envoy.Want(xdstest.ECDS, "e1")
		up.Recv()
		up.Send(ecds("1", "e1=a"))
		r.wait()
		r.section("a NACK and a change of names at once: the NACK first, with the old names")
		r.engine.Settle(0, errTest)
		r.envoy.Want(xdstest.ECDS, "e1", "e2")
		up.Recv()
		up.Recv()
		r.section("while a NACK is held, names change at once; the NACK goes when it is due")
		up.Send(ecds("1", "e1=a"))
		if !r.envoy.Delta {
			up.Recv() // e2 is not in it: perhaps not heard
		}
		r.wait()
		r.engine.Settle(0, errTest)
		if !r.envoy.Delta {
			up.Recv() // under its own version
		}
		up.Quiet(500 * time.Millisecond)
		r.envoy.Want(xdstest.ECDS, "e1")
		up.Recv()
		up.Recv()
		r.section("the next is held twice as long, and a newer response voids it")
		up.Send(ecds("1", "e1=a"))
		r.wait()
		r.engine.Settle(0, errTest)
		if !r.envoy.Delta {
			up.Recv()
		}
		up.Quiet(1900 * time.Millisecond)
		up.Send(ecds("2", "e1=b"))
		r.wait()
		r.engine.Settle(0, nil)
		up.Recv()
		if r.envoy.Delta {
			up.Recv() // each delta response is answered
		}
		up.Quiet(time.Minute)
	})
}

// A newer response supersedes an older one that is not settled; in delta each is answered.
func TestSupersededOffer(t *testing.T) {
	both(t, "superseded", true, func(r *rig) {
		up := r.open()
		r.envoy.Want(xdstest.ECDS, "e1")
		up.Recv()
		up.Send(ecds("1", "e1=a"))
		r.wait()
		first := r.engine.offer
		up.Send(ecds("2", "e1=b"))
		r.wait()
		r.engine.Settle(first, errors.New("too late"))
		if r.envoy.Delta {
			up.Recv()
		}
		up.Quiet(time.Second)
		r.engine.Settle(0, nil)
		up.Recv()
		r.engine.Settle(0, errors.New("twice"))
		r.engine.Settle(77, errors.New("unknown"))
		up.Quiet(time.Second)
	})
}

// Envoy is not flooded: of several pushes of a name the newest goes, and in state-of-the-world one response at a time, since Envoy may
// answer two with one request.
func TestPushesCoalesce(t *testing.T) {
	one(t, "coalesce", false, true, func(r *rig) {
		up := r.open()
		r.envoy.Want(xdstest.ECDS, "e1", "e2")
		up.Recv()
		r.engine.Push("1", "e1=a", "e2=a")
		r.wait()
		r.engine.Push("2", "e1=b")
		r.engine.Push("3", "e1=c", "e2=c")
		r.envoy.ACK(r.envoy.Recv())
		r.envoy.ACK(r.envoy.Recv())
		r.envoy.ACK(r.envoy.Recv())
		r.envoy.Quiet(time.Second)
	})
}

func TestServerKeepsTheNewestPush(t *testing.T) {
	push := func(s *server, name, version string) {
		s.put(&discoveryv3.Resource{Name: name, Version: version, Resource: xdstest.Pack(xdstest.ECDS, name, "x")})
	}
	s := newServer(true)
	push(&s, "e1", "1")
	push(&s, "e2", "1")
	push(&s, "e1", "2")
	if got := s.turns(); got != 2 {
		t.Errorf("turns() = %d, want one for each name", got)
	}
	s.forget("e2")
	p, ok := s.next()
	if !ok || p.resource.GetName() != "e1" || p.resource.GetVersion() != "2" {
		t.Errorf("next() = %v, %v, want e1 at version 2", p, ok)
	}
	if p, ok := s.next(); ok {
		t.Errorf("next() = %v for a push that was withdrawn", p)
	}
	if got, isAnswer := s.answer(&ask{nonce: "unknown"}); got != nil || !isAnswer {
		t.Errorf("answer(unknown nonce) = %v, %v, want no verdict", got, isAnswer)
	}
	for i := range maxInflight + 10 {
		push(&s, "e3", strconv.Itoa(i))
		s.turns()
		s.next()
	}
	if len(s.inflight) != maxInflight {
		t.Errorf("%d pushes without an answer are remembered, want %d", len(s.inflight), maxInflight)
	}
}

// Envoy ignores a response of a type for which nothing waits, without an answer; the version in its next request tells.
func TestIgnoredPushIsNotAnACK(t *testing.T) {
	one(t, "ignored", false, true, func(r *rig) {
		up := r.open()
		r.envoy.Want(xdstest.ECDS, "e1")
		up.Recv()
		r.engine.Push("1", "e1=a")
		r.envoy.ACK(r.envoy.Recv())
		r.section("a push crosses the end of the subscription; Envoy takes note of the nonce only")
		r.engine.Push("2", "e1=b")
		r.envoy.Ignore(r.envoy.Recv())
		r.envoy.Want(xdstest.ECDS)
		up.Recv()
		r.envoy.Want(xdstest.ECDS, "e1")
		up.Recv()
		r.engine.Push("2", "e1=b")
		r.envoy.ACK(r.envoy.Recv())
	})
}

// The first frame upstream carries Envoy's node, even when it is one that the relay composed or when the one with the node was overtaken.
func TestNodeIsNeverLost(t *testing.T) {
	both(t, "node", true, func(r *rig) {
		r.cp.Stop()
		r.envoy.Open()
		r.envoy.Want(xdstest.EDS, "a")
		r.envoy.Want(xdstest.EDS, "a", "b")
		r.envoy.Want(xdstest.ECDS, "e1")
		r.envoy.Want(xdstest.EDS, "b")
		r.wait()
		r.cp.Start()
		up := r.cp.Accept()
		up.Recv()
		up.Recv()
		if r.envoy.Delta {
			up.Recv()
			up.Recv()
		}
		up.Quiet(time.Second)
		r.envoy.Close()
		up.Gone()
		up = r.open()
		r.section("a composed request first")
		r.envoy.Again(xdstest.ECDS)
		up.Recv()
	})
}
