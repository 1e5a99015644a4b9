package relay

import (
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"

	"github.com/gateway-agent/gateway-agent/internal/testbuffer"
	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

// rig is a relay between a fake Envoy and a fake control plane.
type rig struct {
	t      *testing.T
	tr     *xdstest.Transcript
	cp     *xdstest.ControlPlane
	server *Server
	engine *engine // nil: nothing is terminated
	envoy  *xdstest.Envoy
	log    *testbuffer.Buffer
}

func newRig(t *testing.T, delta, terminate bool, change ...func(*Config)) *rig {
	t.Helper()
	return newRigWith(t, xdstest.NewTranscript(), delta, terminate, change...)
}

// newRigWith makes one with another transcript, or with none.
func newRigWith(t *testing.T, tr *xdstest.Transcript, delta, terminate bool, change ...func(*Config)) *rig {
	t.Helper()
	r := &rig{t: t, tr: tr, log: new(testbuffer.Buffer)}
	t.Cleanup(func() {
		if t.Failed() && tr != nil {
			t.Logf("transcript:\n%s", r.tr)
		}
	})
	r.cp = xdstest.NewControlPlane(t, r.tr)
	config := Config{Upstream: r.cp.Dial(t), Log: slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	if terminate {
		r.engine = newEngine(r.tr)
		config.Terminator = r.engine
	}
	for _, f := range change {
		f(&config)
	}
	var err error
	if r.server, err = New(config); err != nil {
		t.Fatal(err)
	}
	network := xdstest.NewNetwork()
	grpcServer := grpc.NewServer(r.server.ServerOptions()...)
	r.server.Register(grpcServer)
	network.Serve(t, grpcServer)
	r.envoy = xdstest.NewEnvoy(t, r.tr, network.Dial(t), delta)
	return r
}

// both runs a script in both protocols, each in a bubble, and compares the transcripts; name "" compares none.
func both(t *testing.T, name string, terminate bool, script func(*rig)) {
	for _, delta := range []bool{false, true} {
		t.Run(protocolName(delta), func(t *testing.T) { one(t, name, delta, terminate, script) })
	}
}

func one(t *testing.T, name string, delta, terminate bool, script func(*rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, delta, terminate)
		r.tr.Settle = synctest.Wait
		script(r)
		r.wait()
		if name != "" {
			r.tr.Compare(t, name+"-"+protocolName(delta))
		}
	})
}

func protocolName(delta bool) string {
	if delta {
		return "delta"
	}
	return "sotw"
}

// wait lets everything that can happen now happen.
func (r *rig) wait() { synctest.Wait() }

// section lets everything happen and writes a heading.
func (r *rig) section(title string) {
	r.t.Helper()
	r.tr.Section(title)
}

// open opens a stream through the relay and returns the control plane's end of it.
func (r *rig) open() *xdstest.Stream {
	r.t.Helper()
	r.envoy.Open()
	return r.cp.Accept()
}

// engine is a Terminator that writes down what it hears and lets the test speak for it.
type engine struct {
	tr      *xdstest.Transcript
	onOffer func(offer uint64, resources []*discoveryv3.Resource) // speaks for it; nil: the test does

	mu       sync.Mutex
	session  uint64
	push     func(*discoveryv3.Resource)
	settle   func(uint64, error)
	offer    uint64
	observed [][]byte
	node     *corev3.Node
}

func newEngine(tr *xdstest.Transcript) *engine { return &engine{tr: tr} }

func (e *engine) Open(session uint64, node *corev3.Node, push func(*discoveryv3.Resource), settle func(uint64, error)) {
	e.tr.Notef("engine", "opens for node %s", node.GetId())
	e.mu.Lock()
	defer e.mu.Unlock()
	e.session, e.node, e.push, e.settle = session, node, push, settle
}

func (e *engine) Subscribe(_ uint64, subscribed, unsubscribed []string) {
	e.tr.Notef("engine", "hears subscribe=%v unsubscribe=%v", subscribed, unsubscribed)
}

func (e *engine) Offer(_, offer uint64, resources []*discoveryv3.Resource, removed []string) {
	var b strings.Builder
	for _, resource := range resources {
		_, text := xdstest.Unpack(resource.GetResource())
		b.WriteString(" " + resource.GetName() + "=" + text + "@" + resource.GetVersion())
	}
	e.tr.Notef("engine", "hears offer %d:%s removed=%v", offer, b.String(), removed)
	e.mu.Lock()
	e.offer = offer
	e.mu.Unlock()
	if e.onOffer != nil {
		e.onOffer(offer, resources)
	}
}

func (e *engine) Answer(_ uint64, name, version string, err error) {
	e.tr.Notef("engine", "hears %s@%s: %v", name, version, err)
}

func (e *engine) Observe(_ uint64, delta bool, response []byte) {
	e.tr.Notef("engine", "observes a listener response, delta=%v", delta)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.observed = append(e.observed, response)
}

func (e *engine) Close(uint64) { e.tr.Notef("engine", "closes") }

// Push hands resources of one version to Envoy, "name=text" each.
func (e *engine) Push(version string, pairs ...string) {
	e.mu.Lock()
	push := e.push
	e.mu.Unlock()
	for _, one := range xdstest.R(version, pairs...) {
		e.tr.Notef("engine", "pushes %s=%s@%s", one.Name, one.Text, one.Version)
		push(&discoveryv3.Resource{
			Name: one.Name, Version: version, Resource: xdstest.Pack(xdstest.ECDS, one.Name, one.Text),
		})
	}
}

// Remove takes a resource from Envoy.
func (e *engine) Remove(name string) {
	e.mu.Lock()
	push := e.push
	e.mu.Unlock()
	e.tr.Notef("engine", "removes %s", name)
	push(&discoveryv3.Resource{Name: name})
}

// Settle answers an offer; 0: the last one.
func (e *engine) Settle(offer uint64, err error) {
	e.mu.Lock()
	settle := e.settle
	if offer == 0 {
		offer = e.offer
	}
	e.mu.Unlock()
	e.tr.Notef("engine", "settles %d: %v", offer, err)
	settle(offer, err)
}
