package relay

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

// table is the handler of an own type.
type table struct {
	mu  sync.Mutex
	got []string // the text of each resource handed over
	err error
}

func (h *table) handle(resources []*anypb.Any) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range resources {
		_, text := xdstest.Unpack(r)
		h.got = append(h.got, text)
	}
	return h.err
}

func (h *table) want(t *testing.T, texts ...string) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if fmt.Sprint(h.got) != fmt.Sprint(texts) {
		t.Errorf("the handler got %v, want %v", h.got, texts)
	}
}

// withOwn runs a script for a relay that has two own types, in both protocols.
func withOwn(t *testing.T, name string, script func(r *rig, nds, pcds *table)) {
	withOwnConfig(t, name, func(*Config) {}, script)
}

func withOwnConfig(t *testing.T, name string, change func(*Config), script func(r *rig, nds, pcds *table)) {
	for _, delta := range []bool{false, true} {
		t.Run(protocolName(delta), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nds, pcds := new(table), new(table)
				r := newRig(t, delta, false, func(c *Config) {
					c.Own = []Own{{TypeURL: typeNDS, Handle: nds.handle}, {TypeURL: typePCDS, Handle: pcds.handle}}
					change(c)
				})
				r.tr.Settle = synctest.Wait
				script(r, nds, pcds)
				r.wait()
				if name != "" {
					r.tr.Compare(t, name+"-"+protocolName(delta))
				}
			})
		})
	}
}

func TestOwnTypes(t *testing.T) {
	withOwn(t, "own", func(r *rig, nds, pcds *table) {
		r.server.Health(true, "")
		up := r.open()
		r.envoy.Want(xdstest.CDS)
		up.Recv()
		up.Quiet(time.Second)
		r.section("Envoy asks for listeners")
		r.envoy.Want(xdstest.LDS)
		for range 4 {
			up.Recv()
		}
		r.section("an answer is the agent's, and Envoy's types do not wait for one that never comes")
		up.Send(xdstest.Response{Type: typeNDS, Version: "1", Resources: xdstest.R("1", "names=a")})
		up.Recv()
		r.envoy.ACK(sendAndRecv(r, up, xdstest.Response{Type: xdstest.LDS, Version: "1", Resources: xdstest.R("1", "l1=a")}))
		up.Recv()
		nds.want(r.t, "a")
		r.section("the agent rejects, the same again later")
		nds.mu.Lock()
		nds.err = errors.New("the table is broken")
		nds.mu.Unlock()
		up.Send(xdstest.Response{Type: typeNDS, Version: "2", Resources: xdstest.R("2", "names=b")})
		up.Recv()
		up.Send(xdstest.Response{Type: typeNDS, Version: "2", Resources: xdstest.R("2", "names=b")})
		up.Recv()
		nds.mu.Lock()
		nds.err = nil
		nds.mu.Unlock()
		up.Send(xdstest.Response{Type: typeNDS, Version: "3", Resources: xdstest.R("3", "names=c")})
		up.Recv()
		r.section("health changes")
		r.server.Health(false, "the port is closed")
		up.Recv()
		r.server.Health(false, "the port is closed")
		up.Quiet(time.Second)
		r.section("a new stream asks again")
		up.End(codes.Unavailable, "bye")
		_ = r.envoy.End()
		up = r.open()
		r.section("and tells its health")
		r.envoy.Again(xdstest.CDS)
		up.Recv()
		r.envoy.Again(xdstest.LDS)
		for range 4 {
			up.Recv()
		}
		up.Send(xdstest.Response{Type: typePCDS, Version: "1", Resources: xdstest.R("1", "roots=x")})
		up.Recv()
		pcds.want(r.t, "x")
		r.envoy.Quiet(time.Second)
	})
}

// What Envoy needs before it asks for listeners is asked for at once; the rest waits.
func TestOwnTypeThatIsFirst(t *testing.T) {
	withOwnConfig(t, "", func(c *Config) { c.Own[0].First = true }, func(r *rig, nds, _ *table) {
		r.server.Health(true, "")
		up := r.open()
		r.envoy.Want(xdstest.CDS)
		for _, want := range []string{xdstest.CDS, typeNDS} {
			if got := up.Recv(); got.Type != want {
				t.Errorf("the control plane gets %s, want %s", got.Type, want)
			}
		}
		up.Send(xdstest.Response{Type: typeNDS, Version: "1", Resources: xdstest.R("1", "names=a")})
		if got := up.Recv(); got.Type != typeNDS || got.Nonce == "" || got.Error != "" {
			t.Errorf("the control plane gets %v, want an ACK of the table", got)
		}
		nds.want(r.t, "a")
		up.Quiet(time.Second)
		r.envoy.Want(xdstest.LDS)
		for _, want := range []string{xdstest.LDS, typePCDS, typeHealth} {
			if got := up.Recv(); got.Type != want {
				t.Errorf("the control plane gets %s, want %s", got.Type, want)
			}
		}
		up.Quiet(time.Second)
	})
}

// What the agent would say while the control plane does not read costs one request for each type, and the newest is said.
func TestOwnTypesAreBounded(t *testing.T) {
	underPressure(t, 0, func(r *rig) {
		nds := new(table)
		own := newRigWith(r.t, nil, r.envoy.Delta, false, func(c *Config) { c.Own = []Own{{TypeURL: typeNDS, Handle: nds.handle}} })
		up := own.open()
		own.envoy.Want(xdstest.LDS)
		up.Recv()
		up.Recv()
		for i := range 5000 { // the control plane reads none of the answers
			up.Send(xdstest.Response{Type: typeNDS, Version: fmt.Sprint(i), Resources: xdstest.R("", "names="+strings.Repeat("x", 100))})
			own.server.Health(i%2 == 0, fmt.Sprint("reason ", i))
		}
		own.wait()
		if waiting := own.server.Status().Sessions[0].ToServer; waiting > 1<<20 {
			r.t.Errorf("%d bytes of requests wait, want 1 MiB at most", waiting)
		}
		var lastNonce, lastHealth string
		for _, q := range up.Drain(time.Second) {
			switch q.Type {
			case typeNDS:
				lastNonce = q.Nonce
			case typeHealth:
				lastHealth = q.Error
			}
		}
		if lastNonce != "s5000" || lastHealth != "reason 4999" {
			r.t.Errorf("in the end the control plane knows nonce %q, health %q, want the newest of both", lastNonce, lastHealth)
		}
	})
}

// Envoy has no business with the agent's own types.
func TestEnvoyAsksForAnOwnType(t *testing.T) {
	withOwn(t, "", func(r *rig, nds, _ *table) {
		up := r.open()
		r.envoy.Want(xdstest.CDS)
		up.Recv()
		r.envoy.Want(typeNDS)
		up.Quiet(time.Second)
		up.Send(xdstest.Response{Type: typeNDS, Version: "1", Resources: xdstest.R("1", "names=a")})
		up.Quiet(time.Second)
		r.envoy.Quiet(time.Second)
		nds.want(r.t) // unasked
	})
}

func TestNewChecksOwnTypes(t *testing.T) {
	handle := new(table).handle
	for _, own := range [][]Own{
		{{Handle: handle}},
		{{TypeURL: typeNDS}},
		{{TypeURL: typeNDS, Handle: handle}, {TypeURL: typeNDS, Handle: handle}},
		{{TypeURL: typeLDS, Handle: handle}},
		{{TypeURL: typeECDS, Handle: handle}},
	} {
		if _, err := New(Config{Upstream: nopConn{}, Own: own}); err == nil {
			t.Errorf("New took the own types %+v", own)
		}
	}
}
