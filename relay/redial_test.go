package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gateway-agent/gateway-agent/internal/upstream"
	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

// replicas is a control plane of two servers, behind one name: a connection goes to the other one than the last.
type replicas struct {
	*rig
	hole   xdstest.Hole // in front of the first
	first  *xdstest.ControlPlane
	second *xdstest.ControlPlane
	dialed []string
}

// withReplicas runs a script for a relay that dials as the agent does, in both protocols.
func withReplicas(t *testing.T, script func(r *replicas)) {
	for _, delta := range []bool{false, true} {
		t.Run(protocolName(delta), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := new(replicas)
				conn, err := upstream.Open(upstream.Config{Address: "istiod:15012", Plaintext: true, Dial: r.dial})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = conn.Close() })
				r.rig = newRig(t, delta, true, func(c *Config) { c.Upstream, c.Redial, c.Answers = conn, conn.Redial, true })
				r.first, r.second = r.cp, xdstest.NewControlPlane(t, r.tr)
				script(r)
			})
		})
	}
}

func (r *replicas) dial(ctx context.Context, _ string) (net.Conn, error) {
	if len(r.dialed)%2 == 1 {
		r.dialed = append(r.dialed, "second")
		return r.second.Conn(ctx)
	}
	r.dialed = append(r.dialed, "first")
	conn, err := r.first.Conn(ctx)
	if err != nil {
		return nil, err
	}
	return r.hole.Wrap(conn), nil
}

// running opens Envoy's stream and serves it.
func (r *replicas) running() *xdstest.Stream {
	r.t.Helper()
	r.envoy.Open()
	up := r.first.Accept()
	up.Merged = true
	r.envoy.Want(xdstest.CDS)
	up.Recv()
	r.envoy.ACK(sendAndRecv(r.rig, up, xdstest.Response{Type: xdstest.CDS, Version: "1", Resources: xdstest.R("1", "c=a")}))
	up.Recv()
	return up
}

// servedByTheOther lets Envoy come again and wants it served by the second one, within a minute of the fault.
func (r *replicas) servedByTheOther(fault time.Time) {
	r.t.Helper()
	if err := r.envoy.End(); status.Code(err) != codes.Unavailable {
		r.t.Errorf("Envoy's stream ended with %v, want Unavailable", err)
	}
	r.envoy.Open()
	r.envoy.Again(xdstest.CDS)
	up := r.second.Accept()
	up.Recv()
	if took := time.Since(fault); took > time.Minute {
		r.t.Errorf("connected again after %v, want a minute at most", took)
	}
	r.envoy.ACK(sendAndRecv(r.rig, up, xdstest.Response{Type: xdstest.CDS, Version: "2", Resources: xdstest.R("2", "c=b")}))
	up.Recv()
	if want := []string{"first", "second"}; fmt.Sprint(r.dialed) != fmt.Sprint(want) {
		r.t.Errorf("dialled %v, want %v", r.dialed, want)
	}
}

// Packets are lost and nothing is closed: pings find out.
func TestBlackHole(t *testing.T) {
	withReplicas(t, func(r *replicas) {
		r.running()
		time.Sleep(time.Hour)
		fault := time.Now()
		r.hole.Swallow()
		r.servedByTheOther(fault)
	})
}

// The connection answers pings and the stream is not read any more: what is sent finds out.
func TestPingsAnsweredStreamNotRead(t *testing.T) {
	withReplicas(t, func(r *replicas) {
		r.running()
		time.Sleep(time.Hour)
		fault := time.Now()
		for i := range 40 {
			r.envoy.Want(xdstest.EDS, append(manyNames(40), fmt.Sprintf("x%d-%s", i, strings.Repeat("y", 10_000)))...)
			r.wait()
		}
		r.servedByTheOther(fault)
	})
}

// The connection answers pings and a new stream is never read: that nothing is answered finds out.
func TestPingsAnsweredNewStreamNotRead(t *testing.T) {
	withReplicas(t, func(r *replicas) {
		up := r.running()
		time.Sleep(time.Hour)
		up.End(codes.Unavailable, "bye")
		_ = r.envoy.End()
		fault := time.Now()
		r.envoy.Open()
		r.envoy.Again(xdstest.CDS)
		r.first.Accept()
		r.servedByTheOther(fault)
	})
}

// A server that is gone is found soon after it is back, in proportion to the time it was away.
func TestOutages(t *testing.T) {
	for _, away := range []time.Duration{time.Second, 10 * time.Second, 5 * time.Minute} {
		for range 20 {
			synctest.Test(t, func(t *testing.T) {
				cp := xdstest.NewControlPlane(t, nil)
				conn, err := upstream.Open(upstream.Config{Address: "istiod:15012", Plaintext: true, Dial: func(ctx context.Context, _ string) (net.Conn, error) {
					return cp.Conn(ctx)
				}})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = conn.Close() })
				r := newRigWith(t, nil, true, false, func(c *Config) { c.Upstream, c.Redial = conn, conn.Redial })
				r.envoy.Open()
				r.envoy.Want(xdstest.CDS)
				up := cp.Accept()
				up.Recv()
				up.Send(xdstest.Response{Type: xdstest.CDS, Version: "1", Resources: xdstest.R("1", "c=a")})
				r.envoy.ACK(r.envoy.Recv())
				time.Sleep(time.Minute)
				cp.Stop()
				if err := r.envoy.End(); errors.Is(err, context.Canceled) {
					t.Fatal(err)
				}
				r.envoy.Open()
				r.envoy.Again(xdstest.CDS)
				time.Sleep(away)
				cp.Start()
				back := time.Now()
				cp.Accept().Recv()
				if took, limit := time.Since(back), max(away/6, 1200*time.Millisecond); took > limit {
					t.Errorf("away for %v: found after %v, want %v at most", away, took, limit)
				}
			})
		}
	}
}
