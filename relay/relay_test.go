package relay

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

func TestPassed(t *testing.T) {
	both(t, "passed", false, func(r *rig) {
		up := r.open()
		r.envoy.Want(xdstest.CDS)
		up.Recv()
		up.Send(xdstest.Response{Type: xdstest.CDS, Version: "1", Resources: xdstest.R("1", "c1=a", "c2=b")})
		r.envoy.ACK(r.envoy.Recv())
		up.Recv()
		r.envoy.Want(xdstest.EDS, "c1", "c2")
		up.Recv()
		r.envoy.Want(xdstest.LDS)
		up.Recv()
		up.Send(xdstest.Response{Type: xdstest.LDS, Version: "1", Resources: xdstest.R("1", "l1=a")})
		r.envoy.NACK(r.envoy.Recv(), "port taken")
		up.Recv()
		up.Send(xdstest.Response{Type: xdstest.LDS, Version: "2", Resources: xdstest.R("2", "l1=b")})
		r.envoy.ACK(r.envoy.Recv())
		up.Recv()
		r.section("Envoy leaves")
		r.envoy.Close()
		up.Gone()
	})
}

// Without a Terminator extension configs are a type like any other; with one, listeners are shown to it and still pass unchanged.
func TestPassedIsByteExact(t *testing.T) {
	both(t, "", true, func(r *rig) {
		up := r.open()
		r.envoy.Want(xdstest.LDS)
		first := up.Recv()
		unknown := protowire.AppendBytes(protowire.AppendTag(nil, 5000, protowire.BytesType), []byte("from a later version"))
		response := xdstest.Response{Type: xdstest.LDS, Version: "1", Resources: xdstest.R("1", "l1="+strings.Repeat("x", 100_000))}
		sent := up.Send(response)
		if got := r.envoy.Recv(); !bytes.Equal(got.Raw, sent.Raw) {
			t.Fatalf("response changed on its way: %d bytes, want %d", len(got.Raw), len(sent.Raw))
		}
		raw := append(append([]byte{}, unknown...), sent.Raw...)
		up.SendRaw(xdstest.LDS, "1", "s1", raw)
		got := r.envoy.Recv()
		if !bytes.Equal(got.Raw, raw) {
			t.Error("a response with unknown fields changed on its way")
		}
		request := append(append([]byte{}, first.Raw...), unknown...)
		r.envoy.SendRaw(withoutNode(t, request, r.envoy.Delta))
		if got := up.Recv(); !bytes.Equal(got.Raw, withoutNode(t, request, r.envoy.Delta)) {
			t.Error("a request with unknown fields changed on its way")
		}
		r.wait()
		if len(r.engine.observed) != 2 || !bytes.Equal(r.engine.observed[1], raw) {
			t.Errorf("Observe got %d responses, want both as they were", len(r.engine.observed))
		}
	})
}

// withoutNode strips the node, which only a first request may have.
func withoutNode(t *testing.T, raw []byte, delta bool) []byte {
	t.Helper()
	node := protowire.Number(2)
	if delta {
		node = 1
	}
	var out []byte
	for len(raw) > 0 {
		num, _, n := protowire.ConsumeField(raw)
		if n < 0 {
			t.Fatal("a request is malformed")
		}
		if num != node {
			out = append(out, raw[:n]...)
		}
		raw = raw[n:]
	}
	return out
}

func TestEnvoyStreamEndsOnceWithTheUpstream(t *testing.T) {
	both(t, "upstream-gone", true, func(r *rig) {
		up := r.open()
		r.envoy.Want(xdstest.CDS)
		up.Recv()
		r.envoy.ACK(sendAndRecv(r, up, xdstest.Response{Type: xdstest.CDS, Version: "1", Resources: xdstest.R("1", "c1=a")}))
		up.Recv()
		time.Sleep(time.Minute) // healthy
		r.section("the control plane is stopped")
		r.wait()
		r.cp.Stop()
		if code := status.Code(r.envoy.End()); code != codes.Unavailable {
			t.Errorf("Envoy's stream ended with %v, want Unavailable", code)
		}
		r.section("Envoy's next stream is held open")
		r.envoy.Open()
		r.envoy.Again(xdstest.CDS)
		r.envoy.Quiet(time.Minute)
		r.wait()
		if st := r.server.Status(); st.Connected || len(st.Sessions) != 1 || st.Sessions[0].Upstream != "waiting" || !strings.Contains(st.LastError, "connection refused") {
			t.Errorf("status while waiting: %+v, want one waiting session and the reason", st)
		}
		r.cp.Start()
		up = r.cp.Accept()
		r.section("the control plane is back")
		up.Recv()
		r.envoy.ACK(sendAndRecv(r, up, xdstest.Response{Type: xdstest.CDS, Version: "2", Resources: xdstest.R("2", "c1=b")}))
		up.Recv()
	})
}

func sendAndRecv(r *rig, up *xdstest.Stream, response xdstest.Response) xdstest.Response {
	r.t.Helper()
	up.Send(response)
	return r.envoy.Recv()
}

// A control plane that takes streams and ends them at once is asked less and less often, however fast Envoy comes back.
func TestRefusingUpstreamIsNotHammered(t *testing.T) {
	both(t, "", false, func(r *rig) {
		r.cp.Refuse(status.Error(codes.PermissionDenied, "no such gateway"))
		start := time.Now()
		for time.Since(start) < 5*time.Minute {
			r.envoy.Open()
			r.envoy.Want(xdstest.CDS)
			if err := r.envoy.End(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "no such gateway") {
				t.Fatalf("Envoy's stream ended with %v, want Unavailable and the reason", err)
			}
			time.Sleep(50 * time.Millisecond)
		}
		if n := strings.Count(r.tr.String(), "refuses a stream"); n < 5 || n > 120 {
			t.Errorf("%d upstream streams in 5 minutes, want 5 to 120", n)
		}
	})
}

// held plays a control plane that answers each NACK at once with the same.
func TestHeldNACK(t *testing.T) {
	both(t, "held", false, func(r *rig) {
		up := r.open()
		r.envoy.Want(xdstest.LDS)
		up.Recv()
		bad := xdstest.Response{Type: xdstest.LDS, Version: "1", Resources: xdstest.R("1", "l1=bad")}
		for range 9 {
			r.envoy.NACK(sendAndRecv(r, up, bad), "port taken")
			up.Recv()
		}
		r.section("another type is not held up")
		r.envoy.NACK(sendAndRecv(r, up, bad), "port taken")
		r.envoy.Want(xdstest.CDS)
		up.Recv()
		r.section("a repair is answered at once, and so is the next rejection")
		r.envoy.ACK(sendAndRecv(r, up, xdstest.Response{Type: xdstest.LDS, Version: "2", Resources: xdstest.R("2", "l1=good")}))
		up.Recv()
		if r.envoy.Delta {
			up.Recv() // the held one went first
		}
		r.envoy.NACK(sendAndRecv(r, up, bad), "port taken")
		up.Recv()
	})
}

// A control plane that compares versions is asked in a way that it answers only when it has something new.
func TestHeldNACKDelaysNoRepair(t *testing.T) {
	one(t, "held-repair", false, false, func(r *rig) {
		up := r.open()
		r.envoy.Want(xdstest.LDS)
		up.Recv()
		r.envoy.ACK(sendAndRecv(r, up, xdstest.Response{Type: xdstest.LDS, Version: "1", Resources: xdstest.R("1", "l1=good")}))
		up.Recv()
		bad := xdstest.Response{Type: xdstest.LDS, Version: "2", Resources: xdstest.R("2", "l1=bad")}
		r.envoy.NACK(sendAndRecv(r, up, bad), "port taken")
		up.Recv()
		r.section("the same again: rejected at once under its own version, and a second later as it should be")
		for range 3 {
			r.envoy.NACK(sendAndRecv(r, up, bad), "port taken")
			if got := up.Recv(); got.Version != "2" || got.Error == "" {
				r.t.Errorf("got %v, want a NACK under version 2", got)
			}
			if got := up.Recv(); got.Version != "1" || got.Error == "" {
				r.t.Errorf("got %v, want a NACK under version 1", got)
			}
		}
		r.section("the repair comes while it is held")
		r.envoy.NACK(sendAndRecv(r, up, bad), "port taken")
		up.Recv()
		r.envoy.ACK(sendAndRecv(r, up, xdstest.Response{Type: xdstest.LDS, Version: "3", Resources: xdstest.R("3", "l1=good")}))
		up.Recv()
		up.Quiet(time.Minute)
	})
}

// In state-of-the-world every request names everything, so a held NACK must neither delay a change of names nor take it back.
func TestNamesChangeWhileNACKIsHeld(t *testing.T) {
	both(t, "held-names", false, func(r *rig) {
		up := r.open()
		r.envoy.Want(xdstest.EDS, "c1")
		up.Recv()
		bad := xdstest.Response{Type: xdstest.EDS, Version: "1", Resources: xdstest.R("1", "c1=bad")}
		r.envoy.NACK(sendAndRecv(r, up, bad), "no")
		up.Recv()
		r.envoy.NACK(sendAndRecv(r, up, bad), "no")
		if !r.envoy.Delta {
			up.Recv() // under its own version
		}
		r.section("a name is added")
		r.envoy.Want(xdstest.EDS, "c1", "c2")
		up.Recv()
		if !r.envoy.Delta {
			up.Recv()
		}
		r.section("the same comes again, with the new names in the NACK")
		r.envoy.NACK(sendAndRecv(r, up, bad), "no")
		up.Recv()
		up.Recv() // in delta the first, else the third once more
		up.Quiet(time.Minute)
	})
}

// An Envoy that comes and goes is no reason to keep it waiting.
func TestEnvoyRestartsAreNotBackedOff(t *testing.T) {
	both(t, "", false, func(r *rig) {
		for range 20 {
			start := time.Now()
			up := r.open()
			if waited := time.Since(start); waited > 0 {
				r.t.Fatalf("the stream came after %v, want at once", waited)
			}
			r.envoy.Close()
			up.Gone()
		}
	})
}

func TestMalformed(t *testing.T) {
	frames := map[string][]byte{
		"truncated":   {0x0a, 0x05, 'x'},
		"huge length": {0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f},
		"bad tag":     {0x00},
		"end group":   {0x0c},
		"varint":      {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
	}
	for name, raw := range frames {
		t.Run(name, func(t *testing.T) {
			both(t, "", true, func(r *rig) {
				r.envoy.Open()
				r.envoy.SendRaw(raw)
				if err := r.envoy.End(); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "malformed") {
					t.Errorf("after a malformed request the stream ended with %v, want InvalidArgument", err)
				}
				for up := r.open(); ; up = r.cp.Accept() { // the first session may have come this far
					r.envoy.Want(xdstest.CDS)
					up.Recv()
					up.SendRaw("", "", "", raw)
					break
				}
				if err := r.envoy.End(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "malformed") {
					t.Errorf("after a malformed response the stream ended with %v, want Unavailable", err)
				}
			})
		})
	}
}

func TestTooManyTypes(t *testing.T) {
	both(t, "", false, func(r *rig) {
		r.envoy.Open()
		for i := range maxTypes + 1 {
			r.envoy.SendRaw(requestFor(r.envoy.Delta, "t"+strings.Repeat("y", i)))
		}
		if err := r.envoy.End(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("the stream ended with %v, want InvalidArgument", err)
		}
	})
}

func requestFor(delta bool, typeURL string) []byte {
	num := protowire.Number(4)
	if delta {
		num = 2
	}
	return protowire.AppendString(protowire.AppendTag(nil, num, protowire.BytesType), typeURL)
}

func TestOversizeIsLoggedWithItsType(t *testing.T) {
	for _, delta := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, delta, false, func(c *Config) { c.MaxMessage = 100_000 })
			up := r.open()
			r.envoy.Want(xdstest.CDS)
			up.Recv()
			up.Send(xdstest.Response{Type: xdstest.CDS, Version: "1", Resources: xdstest.R("1", "c1="+strings.Repeat("x", 200_000))})
			err := r.envoy.End()
			if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "larger than max") {
				t.Errorf("the stream ended with %v, want Unavailable and the size", err)
			}
			if log := r.log.String(); !strings.Contains(log, "over the size limit") || !strings.Contains(log, xdstest.CDS) {
				t.Errorf("the log does not name the refused type:\n%s", log)
			}
		})
	}
}

func TestNewChecksItsConfig(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("New without an upstream succeeded")
	}
	if _, err := New(Config{Upstream: nopConn{}, MaxMessage: -1}); err == nil {
		t.Error("New with a negative limit succeeded")
	}
}

var errTest = errors.New("the module is broken")
