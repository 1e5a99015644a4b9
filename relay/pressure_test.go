package relay

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

// underPressure runs a script in both protocols without a transcript.
func underPressure(t *testing.T, maxWaiting int, script func(*rig)) {
	for _, delta := range []bool{false, true} {
		t.Run(protocolName(delta), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				script(newRigWith(t, nil, delta, true, func(c *Config) { c.MaxWaiting = maxWaiting }))
			})
		})
	}
}

// The control plane stops reading while Envoy changes its mind thousands of times and large responses flow: little is kept, nothing that
// counts is lost, and in the end the control plane knows what Envoy wants.
func TestUpstreamThatDoesNotRead(t *testing.T) {
	underPressure(t, 0, func(r *rig) {
		up := r.open()
		up.Merged = true
		r.envoy.Want(xdstest.EDS, "c0")
		up.Recv()
		up.Send(xdstest.Response{Type: xdstest.EDS, Version: "1", Resources: xdstest.R("1", "c0=bad")})
		rejected := r.envoy.Recv()
		for i := range 500 { // fills the connection
			r.envoy.Want(xdstest.EDS, append(manyNames(i%7), fmt.Sprintf("x%d", i))...)
		}
		r.envoy.NACK(rejected, "a reason that must arrive")
		big := strings.Repeat("x", 20<<20)
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			for range 2 {
				up.Send(xdstest.Response{Type: xdstest.CDS, Version: "1", Resources: xdstest.R("1", "c0="+big)})
			}
		}()
		for i := range 3000 {
			r.envoy.Want(xdstest.EDS, append(manyNames(i%7), fmt.Sprintf("y%d", i))...)
			r.envoy.Want(xdstest.ECDS, fmt.Sprintf("e%d", i))
		}
		for range 2 {
			if got := r.envoy.Recv(); len(got.Raw) < len(big) {
				t := r.t
				t.Errorf("got a response of %d bytes, want %d", len(got.Raw), len(big))
			}
		}
		<-sent
		r.wait()
		if waiting := r.server.Status().Sessions[0].ToServer; waiting > 2<<20 {
			r.t.Errorf("%d bytes of requests wait for the control plane, want at most 2 MiB", waiting)
		}
		requests := up.Drain(time.Second)
		if got, want := up.Names(xdstest.EDS), slices.Sorted(slices.Values(append(manyNames(2999%7), "y2999"))); !slices.Equal(got, want) {
			r.t.Errorf("the control plane ends up with the names %v, want %v", got, want)
		}
		if got := up.Names(xdstest.ECDS); !slices.Equal(got, []string{"e2999"}) {
			r.t.Errorf("the control plane ends up with the extension configs %v, want [e2999]", got)
		}
		if !slices.ContainsFunc(requests, func(q xdstest.Request) bool { return q.Error == "a reason that must arrive" }) {
			r.t.Errorf("the NACK is not among the %d requests that arrived", len(requests))
		}
	})
}

func manyNames(n int) []string {
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("n%d-%s", i, strings.Repeat("z", 100)))
	}
	return names
}

// An Envoy that does not read slows the control plane's responses down and nothing else.
func TestEnvoyThatDoesNotRead(t *testing.T) {
	const limit = 4 << 20
	underPressure(t, limit, func(r *rig) {
		up := r.open()
		r.envoy.Want(xdstest.CDS)
		up.Recv()
		big := strings.Repeat("x", 3<<19)
		const count = 20
		sent := make(chan int, count)
		go func() {
			for i := range count {
				up.Send(xdstest.Response{Type: xdstest.CDS, Version: fmt.Sprint(i), Resources: xdstest.R("1", "c0="+big)})
				sent <- i
			}
		}()
		r.wait()
		waiting := r.server.Status().Sessions[0].ToEnvoy
		if waiting < limit || waiting > limit+len(big)+1000 {
			r.t.Errorf("%d bytes wait for Envoy, want at least %d and one message more at most", waiting, limit)
		}
		if len(sent) == count {
			r.t.Error("the control plane could send everything, want back-pressure")
		}
		r.envoy.Want(xdstest.LDS)
		if got := up.Recv(); got.Type != xdstest.LDS {
			r.t.Errorf("got %v, want Envoy's request while its responses are stuck", got)
		}
		for i := range count {
			got := r.envoy.Recv()
			if got.Version != fmt.Sprint(i) && !r.envoy.Delta {
				r.t.Errorf("response %d has version %s", i, got.Version)
			}
			r.envoy.ACK(got)
			up.Recv()
		}
		if waiting := r.server.Status().Sessions[0].ToEnvoy; waiting != 0 {
			r.t.Errorf("%d bytes are still charged when nothing waits", waiting)
		}
	})
}

// Many short runs of the same: the control plane stops reading at some point, both sides go on, and in the end it knows the newest of all.
// The bubble sees to it that no goroutine is left.
func TestBackPressureConverges(t *testing.T) {
	const runs = 100 // in each protocol
	for _, delta := range []bool{false, true} {
		t.Run(protocolName(delta), func(t *testing.T) {
			for seed := range uint64(runs) {
				synctest.Test(t, func(t *testing.T) { backPressure(t, delta, rand.New(rand.NewPCG(seed, 0))) })
				if t.Failed() {
					t.Fatalf("with seed %d", seed)
				}
			}
		})
	}
}

func backPressure(t *testing.T, delta bool, random *rand.Rand) {
	nds := new(table)
	r := newRigWith(t, nil, delta, true, func(c *Config) {
		c.MaxWaiting = 200 << 10
		c.Own = []Own{{TypeURL: typeNDS, Handle: nds.handle}}
	})
	up := r.open()
	up.Merged = true
	r.envoy.Want(xdstest.LDS)
	up.Recv()
	up.Recv()
	size, responses := 1+random.IntN(100<<10), random.IntN(12)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for i := range responses {
			typeURL := []string{xdstest.LDS, typeNDS}[i%2]
			up.Send(xdstest.Response{Type: typeURL, Version: fmt.Sprint(i), Resources: xdstest.R("1", "x="+strings.Repeat("x", size))})
		}
	}()
	reads, changes := random.IntN(8), 10+random.IntN(20)
	for i := range changes {
		if i < reads {
			up.Drain(time.Millisecond)
		}
		r.envoy.Want(xdstest.EDS, append(manyNames(random.IntN(30)), fmt.Sprintf("x%d", i))...)
		r.envoy.Want(xdstest.ECDS, fmt.Sprintf("e%d", i))
		r.server.Health(i%2 == 0, fmt.Sprint(i))
	}
	for range (responses + 1) / 2 {
		r.envoy.ACK(r.envoy.Recv())
	}
	<-sent
	r.wait()
	up.Drain(time.Second)
	if got, want := up.Names(xdstest.ECDS), []string{fmt.Sprint("e", changes-1)}; !slices.Equal(got, want) {
		t.Errorf("the control plane ends up with the extension configs %v, want %v", got, want)
	}
	if got, want := up.Names(xdstest.EDS), fmt.Sprint("x", changes-1); !slices.Contains(got, want) {
		t.Errorf("the control plane ends up with the endpoints %v, want %s among them", got, want)
	}
	if st := r.server.Status().Sessions[0]; st.ToServer != 0 || st.ToEnvoy != 0 {
		t.Errorf("%d and %d bytes still wait", st.ToServer, st.ToEnvoy)
	}
	nds.mu.Lock()
	defer nds.mu.Unlock()
	if len(nds.got) != responses/2 {
		t.Errorf("the own type got %d responses, want %d", len(nds.got), responses/2)
	}
}
