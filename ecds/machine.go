package ecds

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// machine is the state machine. Its methods are the events; each takes the time, changes the state and leaves actions,
// which take returns. It is deterministic: the same events at the same times, with the same rand, give the same actions.
// It is not safe for concurrent use.
type machine struct {
	hold         time.Duration
	retryMax     time.Duration
	policyModule func(allow bool) (string, error)
	rand         func() float64 // in [0,1), for jitter
	maxState     int            // bytes on disk
	owner        string         // whose state on disk is

	sessions map[uint64]*session
	entries  map[key]*entry
	pulls    map[uint64]*entry // running pulls by number; a result whose number is not here is stale
	counter  uint64            // last number given to a pull, a resource or a form
	actions  []any             // push, settle, startPull, stopPull, transition
	dirty    bool              // what belongs on disk has changed
	failures uint64            // pulls that failed
	rejects  uint64            // forms that Envoy refused
}

// What the driver is to do.
type (
	push struct {
		session uint64
		res     *discoveryv3.Resource // without a body: removed
	}
	settle struct {
		session, offer uint64
		err            error
	}
	startPull struct {
		pull uint64
		ref  Reference
	}
	stopPull   struct{ pull uint64 }
	transition struct {
		from   string
		status ResourceStatus
	}
)

// key is what state belongs to. A stream comes and goes; a node's configuration stays.
type key struct{ node, name string }

func (k key) compare(o key) int {
	return cmp.Or(cmp.Compare(k.node, o.node), cmp.Compare(k.name, o.name))
}

// session is one stream of Envoy's.
type session struct {
	id     uint64
	node   *corev3.Node
	build  string
	subs   map[string]*subscription
	offers map[uint64]*offer
	learnt knowledge
}

// subscription is one name on one stream.
type subscription struct {
	since    time.Time // Envoy waits since then
	due      bool      // the hold time has passed
	again    bool      // Envoy wants an answer even if nothing has changed
	removed  bool      // upstream said it is gone; nothing stands in for that
	sent     *form     // last one pushed
	acked    *form     // last one Envoy took
	inflight []*form   // pushed and not answered, oldest first
	rejects  []reject  // newest last
	noPolicy string    // why no policy filter can stand in
}

type reject struct {
	hash sum
	text string
}

// Answers that never come (a push that a newer one overtook in the relay) must not pile up.
const (
	maxInflight = 16
	maxRejects  = 8
)

// form is one thing Envoy can get for a name.
type form struct {
	res      *discoveryv3.Resource
	hash     sum
	seq      uint64 // order of making; 0: loaded from disk
	policy   bool   // a stand-in, not the plugin
	origin   sum    // blueprint.public of what it was made from
	kind     string
	url      string // for status
	digest   string
	path     string
	upstream string // upstream's version
	salt     int
	warning  string
}

// wanted is the newest upstream resource.
type wanted struct {
	seq uint64
	*blueprint
	err error // cannot be understood
}

type failure struct {
	text      string
	permanent bool
}

// rejection is what Envoy said about a form.
type rejection struct {
	hash  sum
	text  string
	at    time.Time
	build string // of that Envoy
}

// entry is the state of one resource of one node.
type entry struct {
	key
	node      *corev3.Node
	build     string
	sessions  map[uint64]*session // that subscribe to it
	wanted    *wanted             // nil: upstream has not sent it
	ready     *form               // made from wanted
	good      *form               // last one Envoy took
	pull      uint64              // running pull; 0: none
	failure   *failure            // of the last pull
	attempts  int
	lastTry   time.Time
	retryAt   time.Time // zero: no retry planned
	notBefore time.Time // what the registry asked for
	rejected  *rejection
	unsure    *form     // Envoy may have refused it without our hearing so
	held      bool      // a policy filter was given out for wanted; the next stream need not wait for it again
	expires   time.Time // upstream's time to live; zero: none
	idleSince time.Time // zero: subscribed
	forget    time.Duration
	state     string
	reason    string
	why       string // no policy filter can stand in
	since     time.Time
}

func newMachine(hold time.Duration, policyModule func(bool) (string, error), rand func() float64) *machine {
	return &machine{
		hold: hold, retryMax: defaultRetryMax, policyModule: policyModule, rand: rand, maxState: maxState, sessions: map[uint64]*session{},
		entries: map[key]*entry{}, pulls: map[uint64]*entry{},
	}
}

// take returns the actions since the last call, in order.
func (m *machine) take() []any {
	a := m.actions
	m.actions = nil
	return a
}

func (m *machine) do(action any) { m.actions = append(m.actions, action) }

func (m *machine) next() uint64 {
	m.counter++
	return m.counter
}

// answer is what Envoy said about a push.
func (m *machine) answer(now time.Time, id uint64, name, version string, err error) {
	s := m.sessions[id]
	if s == nil || s.subs[name] == nil {
		return
	}
	e, sub := m.entries[key{s.node.GetId(), name}], s.subs[name]
	f := sub.answered(version)
	if f == nil {
		return // overtaken, or from before a removal
	}
	if e.unsure.same(f) {
		e.unsure = nil
	}
	if err == nil {
		sub.acked = f
		if e.rejected != nil && e.rejected.hash == f.hash {
			e.rejected = nil
		}
		m.accept(e, f)
	} else {
		m.reject(now, e, s, sub, f, err)
	}
	m.reconcile(now, e)
	for _, other := range sorted(e.sessions) {
		m.settleOffers(now, other)
	}
}

// answered finds what Envoy answered and drops it and what was pushed before it.
func (sub *subscription) answered(version string) *form {
	for i, f := range sub.inflight {
		if f.res.GetVersion() == version {
			sub.inflight = slices.Delete(sub.inflight, 0, i+1)
			return f
		}
	}
	return nil
}

func (m *machine) accept(e *entry, f *form) {
	if f.policy {
		return
	}
	if e.good != nil && e.good.seq > f.seq {
		return
	}
	if !e.good.same(f) || e.good.origin != f.origin {
		m.dirty = true
	}
	e.good = f
}

func (m *machine) reject(now time.Time, e *entry, s *session, sub *subscription, f *form, err error) {
	m.rejects++
	text := e.scrub(envoyText(err))
	sub.rejects = append(sub.rejects, reject{f.hash, text})
	if len(sub.rejects) > maxRejects {
		sub.rejects = slices.Delete(sub.rejects, 0, 1)
	}
	if f.policy || e.ready == nil || e.ready.hash != f.hash {
		return
	}
	e.rejected = &rejection{f.hash, text, now, s.build}
	if e.good.same(f) && e.wanted.ref != nil && e.pull == 0 {
		// It worked before, so the file is the likely cause: have the store look at it once more. What comes of it is
		// another spelling, and no longer one that worked, so this does not go round.
		e.retryAt = now.Add(m.slow())
	}
}

// scrub makes a text fit for everybody's eyes.
func (e *entry) scrub(text string) string {
	if e.wanted == nil {
		return text
	}
	return e.wanted.blueprint.scrub(text)
}

func sorted(sessions map[uint64]*session) []*session {
	return slices.SortedFunc(maps.Values(sessions), func(a, b *session) int { return cmp.Compare(a.id, b.id) })
}

func (m *machine) sortedEntries() []*entry {
	return slices.SortedFunc(maps.Values(m.entries), func(a, b *entry) int { return a.key.compare(b.key) })
}
