package ecds

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

type res = discoveryv3.Resource

func anyOf(typ, value string) *anypb.Any {
	return &anypb.Any{TypeUrl: typePrefix + typ, Value: []byte(value)}
}

// dice turns fuzz input into choices; when it runs out, every choice is 0.
type dice struct{ b []byte }

func (d *dice) roll(n int) int {
	if len(d.b) == 0 {
		return 0
	}
	v := int(d.b[0])
	d.b = d.b[1:]
	return v % n
}

// world runs random events against a machine and checks, at every step, what must always hold.
type world struct {
	*rig
	d       *dice
	offers  map[[2]uint64]time.Time // settled before
	open    map[uint64]bool
	pending map[[2]string][]*res // session, name → unanswered
	acked   map[[2]string]int    // session, name → newest generation Envoy took
	gen     int
	log     bytes.Buffer
	nextID  uint64
}

func newWorld(t testing.TB, input []byte) *world {
	w := &world{
		rig: newRig(t), d: &dice{input}, offers: map[[2]uint64]time.Time{}, open: map[uint64]bool{},
		pending: map[[2]string][]*res{}, acked: map[[2]string]int{},
	}
	w.m.rand = func() float64 { return float64(w.d.roll(255)) / 255 }
	return w
}

var names = []string{"p", "q"}

func (w *world) session() uint64 { return uint64(1 + w.d.roll(3)) }

func (w *world) step() {
	id, name := w.session(), names[w.d.roll(2)]
	switch w.d.roll(11) {
	case 0:
		w.forget(id)
		w.m.open(w.now, id, node(fmt.Sprint("n", id/3)))
		w.open[id] = true
	case 1, 2:
		w.m.subscribe(w.now, id, []string{name}, nil)
	case 3:
		w.m.subscribe(w.now, id, nil, []string{name})
		delete(w.acked, sn(id, name)) // Envoy drops what it had
		delete(w.pending, sn(id, name))
	case 4, 5:
		w.upstream(id, name)
	case 6, 7:
		w.finishPull()
	case 8:
		w.answers(id, name)
	case 9:
		w.forget(id)
		w.m.close(w.now, id)
	case 10:
		w.m.recheck(w.now, fmt.Sprint("oci://r/v", w.gen%3))
		w.travel(time.Duration(1+w.d.roll(250)) * 100 * time.Millisecond)
	}
	w.check()
}

func sn(id uint64, name string) [2]string { return [2]string{fmt.Sprint(id), name} }

func (w *world) forget(id uint64) {
	delete(w.open, id)
	for k := range w.offers {
		if k[0] == id {
			delete(w.offers, k)
		}
	}
	for _, name := range names {
		delete(w.pending, sn(id, name))
		delete(w.acked, sn(id, name))
	}
}

func (w *world) upstream(id uint64, name string) {
	w.nextID++
	if w.open[id] {
		w.offers[[2]uint64{id, w.nextID}] = w.now.Add(w.m.hold)
	}
	if w.d.roll(8) == 0 {
		for other := range w.open {
			if other/3 == id/3 {
				delete(w.acked, sn(other, name))
				delete(w.pending, sn(other, name))
			}
		}
		w.m.offer(w.now, id, w.nextID, nil, []string{name})
		return
	}
	w.gen++
	s := spec{
		name: name, version: fmt.Sprint(w.gen), uri: fmt.Sprint("oci://r/v", w.d.roll(3)), config: fmt.Sprint(w.gen), open: w.d.roll(2) == 0,
		env: map[string]string{secretKey: "hunter2hunter2"},
	}
	switch w.d.roll(8) {
	case 0:
		s.uri = "" // cannot be understood
	case 1:
		s.uri, s.inline = "", "code"
	case 2:
		s.env[secretKey] = ""
	}
	wrap := forms[w.d.roll(len(forms))].wrap
	if w.d.roll(4) == 0 {
		wrap = forms[0].wrap
	}
	w.m.offer(w.now, id, w.nextID, []*res{wrap(w.t, s)}, nil)
}

func (w *world) finishPull() {
	if len(w.pulls) == 0 {
		return
	}
	p := w.pulls[w.d.roll(len(w.pulls))] // also ones that were cancelled or have ended
	switch w.d.roll(4) {
	case 0:
		w.m.pulled(w.now, p.pull, Module{}, pullError{text: "hunter2hunter2 404", permanent: true})
	case 1:
		w.m.pulled(w.now, p.pull, Module{}, pullError{text: "503", after: time.Duration(w.d.roll(100)) * time.Second})
	default:
		w.m.pulled(w.now, p.pull, module(p.ref.URL), nil)
	}
}

func (w *world) answers(id uint64, name string) {
	waiting := w.pending[sn(id, name)]
	if len(waiting) == 0 {
		return
	}
	r := waiting[0]
	w.pending[sn(id, name)] = waiting[1:]
	if w.d.roll(3) == 0 {
		w.m.answer(w.now, id, name, r.GetVersion(), errEnvoy)
		return
	}
	if g := generation(w.t, r); g > 0 {
		w.acked[sn(id, name)] = max(w.acked[sn(id, name)], g)
	}
	w.m.answer(w.now, id, name, r.GetVersion(), nil)
}

func generation(t testing.TB, r *res) (g int) {
	if r.GetResource() == nil {
		return 0
	}
	ext := must(anypbNew(r))
	text := fmt.Sprint(ext)
	if !strings.Contains(text, "ns.") {
		return 0 // a policy filter
	}
	v := look(t, r)
	if v.config == "" {
		return 0
	}
	fmt.Sscan(v.config, &g)
	return g
}

func (w *world) travel(d time.Duration) {
	end := w.now.Add(d)
	for next := w.m.deadline(); !next.IsZero() && !next.After(end); next = w.m.deadline() {
		if next.After(w.now) {
			w.now = next
		}
		w.m.tick(w.now)
		w.check()
		if after := w.m.deadline(); !after.IsZero() && !after.After(w.now) {
			w.t.Fatalf("a tick leaves the deadline at %s: the driver would spin", after)
		}
	}
	w.now = end
}

func (w *world) check() {
	w.t.Helper()
	for _, a := range w.m.take() {
		switch a := a.(type) {
		case push:
			w.checkPush(a)
		case settle:
			k := [2]uint64{a.session, a.offer}
			deadline, ok := w.offers[k]
			if !ok {
				w.t.Fatalf("offer %v settled, but it is not open", k)
			}
			if w.now.After(deadline) {
				w.t.Fatalf("offer %v settled %s late", k, w.now.Sub(deadline))
			}
			if a.err != nil && strings.Contains(a.err.Error(), "hunter2") {
				w.t.Fatalf("secret in %v", a.err)
			}
			delete(w.offers, k)
			fmt.Fprintln(&w.log, "settle", k, a.err)
		case startPull:
			w.pulls = append(w.pulls, a)
			fmt.Fprintln(&w.log, "pull", a.pull, a.ref)
		default:
			fmt.Fprintf(&w.log, "%T\n", a)
		}
	}
	for k, deadline := range w.offers {
		if w.now.After(deadline) {
			w.t.Fatalf("offer %v is %s overdue", k, w.now.Sub(deadline))
		}
	}
	for _, s := range w.m.status() {
		if text := fmt.Sprintf("%+v", s); strings.Contains(text, "hunter2") {
			w.t.Fatalf("secret in status: %s", text)
		}
	}
}

func (w *world) checkPush(a push) {
	w.t.Helper()
	if !w.open[a.session] {
		w.t.Fatalf("push to session %d, which is closed", a.session)
	}
	b := must(proto.MarshalOptions{Deterministic: true}.Marshal(a.res))
	fmt.Fprintf(&w.log, "push %d %x\n", a.session, sha256.Sum256(b))
	if bytes.Contains(b, []byte(controlKey)) || bytes.Contains(b, []byte("hunter2")) || bytes.Contains(b, []byte("oci://")) {
		w.t.Fatalf("a control key, a secret or remote code on its way to Envoy: %q", b)
	}
	name := a.res.GetName()
	if a.res.GetResource() == nil {
		return
	}
	if a.res.GetVersion() == "" {
		w.t.Fatal("a push without a version")
	}
	if v := look(w.t, a.res); v.plugin != nil {
		if v.plugin.GetVmConfig().GetCode().GetLocal() == nil {
			w.t.Fatal("remote code on its way to Envoy")
		}
	}
	if g := generation(w.t, a.res); g > 0 && g < w.acked[sn(a.session, name)] {
		w.t.Fatalf("generation %d pushed to session %d, which runs %d", g, a.session, w.acked[sn(a.session, name)])
	}
	w.pending[sn(a.session, name)] = append(w.pending[sn(a.session, name)], a.res)
}

func runWorld(t testing.TB, input []byte) []byte {
	w := newWorld(t, input)
	for steps := 0; len(w.d.b) > 0 && steps < 2000; steps++ {
		w.step()
	}
	w.travel(time.Minute)
	if len(w.offers) > 0 {
		t.Fatalf("%d offers were never settled", len(w.offers))
	}
	data, _, err := w.m.snapshot()
	if err != nil || bytes.Contains(data, []byte("hunter2")) || bytes.Contains(data, []byte(controlKey)) {
		t.Fatalf("saved: %s, %v", data, err)
	}
	again := newMachine(time.Second, nil, nil)
	if err := again.restore(w.now, data); err != nil {
		t.Fatalf("what was saved cannot be loaded: %v", err)
	}
	w.log.Write(data)
	return w.log.Bytes()
}

func randomInput(seed uint64) []byte {
	src := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, 2000)
	for i := range b {
		b[i] = byte(src.Uint32())
	}
	return b
}

func TestInvariantsUnderRandomEvents(t *testing.T) {
	pushes := 0
	for seed := range uint64(30) {
		out := runWorld(t, randomInput(seed))
		pushes += bytes.Count(out, []byte("push "))
		if !bytes.Equal(out, runWorld(t, randomInput(seed))) {
			t.Fatalf("seed %d: the same events gave other actions", seed)
		}
	}
	if pushes < 600 {
		t.Errorf("only %d pushes: the events no longer reach much", pushes)
	}
}

func FuzzMachine(f *testing.F) {
	for seed := range uint64(4) {
		f.Add(randomInput(seed))
	}
	f.Fuzz(func(t *testing.T, input []byte) { runWorld(t, input) })
}
