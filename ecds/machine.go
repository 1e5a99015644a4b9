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
	policyModule func(allow bool) (string, error)
	rand         func() float64 // in [0,1), for jitter
	maxState     int            // bytes on disk

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
	retried  bool      // what worked and was rejected has had its one repair attempt
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
	held      bool      // a policy filter was given out for wanted; the next stream need not wait for it again
	expires   time.Time // upstream's time to live; zero: none
	idleSince time.Time // zero: subscribed
	forget    time.Duration
	state     string
	reason    string
	since     time.Time
}

func newMachine(hold time.Duration, policyModule func(bool) (string, error), rand func() float64) *machine {
	return &machine{hold: hold, policyModule: policyModule, rand: rand, maxState: maxState, sessions: map[uint64]*session{},
		entries: map[key]*entry{}, pulls: map[uint64]*entry{}}
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

func (m *machine) open(now time.Time, id uint64, node *corev3.Node) {
	m.close(now, id)
	m.sessions[id] = &session{id: id, node: node, build: buildOf(node), subs: map[string]*subscription{}, offers: map[uint64]*offer{}}
}

// buildOf identifies the Envoy behind a node: another one may take what this one refused.
func buildOf(node *corev3.Node) string {
	if v := node.GetUserAgentBuildVersion(); v != nil {
		return v.String()
	}
	return node.GetUserAgentVersion()
}

func (m *machine) subscribe(now time.Time, id uint64, names, gone []string) {
	s := m.sessions[id]
	if s == nil {
		return
	}
	for _, name := range gone {
		m.unsubscribe(now, s, name, forgetUnsubscribed)
	}
	for _, name := range names {
		if sub := s.subs[name]; sub != nil {
			m.askAgain(now, sub)
		} else {
			s.subs[name] = &subscription{since: now}
			m.attach(now, s, name)
		}
		m.reconcile(now, m.entries[key{s.node.GetId(), name}])
	}
	m.settleOffers(now, s)
}

func (m *machine) askAgain(now time.Time, sub *subscription) {
	sub.again = true
	if sub.removed {
		sub.removed, sub.since, sub.due = false, now, false
	}
}

// attach makes a session one of those that a resource is for.
func (m *machine) attach(now time.Time, s *session, name string) {
	k := key{s.node.GetId(), name}
	e := m.entries[k]
	if e == nil {
		e = &entry{key: k, since: now}
		m.entries[k] = e
	}
	if e.sessions == nil {
		e.sessions = map[uint64]*session{}
	}
	if !e.idleSince.IsZero() {
		e.idleSince, m.dirty = time.Time{}, true
	}
	e.sessions[s.id] = s
	upgraded := e.node != nil && e.build != s.build
	e.node, e.build = s.node, s.build
	m.wake(now, e, upgraded)
}

// wake resumes work on a resource that a new stream asks for.
func (m *machine) wake(now time.Time, e *entry, upgraded bool) {
	if e.wanted == nil || e.wanted.ref == nil || e.wanted.err != nil || e.wanted.fatal != nil || e.pull != 0 {
		return
	}
	switch {
	case upgraded, e.ready == nil && e.retryAt.IsZero():
		// Another Envoy: its verdicts are its own. Or nobody was left to pull for.
		m.startPull(now, e)
	case m.rejectedNow(e) && e.retryAt.IsZero():
		// Perhaps another process. At most once a minute: an upstream that comes and goes must not make Envoy compile a
		// module it refuses each time.
		e.retryAt = later(now, e.rejected.at.Add(retryMax))
		m.retryDue(now, e)
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (m *machine) close(now time.Time, id uint64) {
	s := m.sessions[id]
	if s == nil {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(s.subs)) {
		m.unsubscribe(now, s, name, forgetClosed)
	}
	delete(m.sessions, id)
}

// unsubscribe ends one name on one stream. forget tells an unsubscription from the end of the stream.
func (m *machine) unsubscribe(now time.Time, s *session, name string, forget time.Duration) {
	e := m.entries[key{s.node.GetId(), name}]
	if s.subs[name] == nil || e == nil {
		return
	}
	delete(s.subs, name)
	delete(e.sessions, s.id)
	if len(e.sessions) > 0 {
		return
	}
	e.idleSince, e.forget, m.dirty = now, forget, true
	if forget == forgetUnsubscribed {
		// Upstream no longer tells us of changes, so what it sent last is no longer the newest.
		m.stop(e)
		e.wanted, e.ready, e.failure, e.rejected, e.held, e.expires = nil, nil, nil, nil, false, time.Time{}
	}
	if e.good == nil && e.wanted == nil {
		delete(m.entries, e.key)
	}
	m.evict()
}

// maxIdle bounds the resources that are kept though no stream asks for them. Node ids change with every new pod, and a
// directory may see many.
const maxIdle = 4096

func (m *machine) evict() {
	if len(m.entries) <= maxIdle {
		return
	}
	var idle []*entry
	for _, e := range m.sortedEntries() {
		if !e.idleSince.IsZero() {
			idle = append(idle, e)
		}
	}
	if len(idle) <= maxIdle {
		return
	}
	slices.SortStableFunc(idle, func(a, b *entry) int { return a.idleSince.Compare(b.idleSince) })
	for _, e := range idle[:len(idle)-maxIdle] {
		m.stop(e)
		delete(m.entries, e.key)
	}
}

// stop ends the work on a resource.
func (m *machine) stop(e *entry) {
	if e.pull != 0 {
		delete(m.pulls, e.pull)
		m.do(stopPull{e.pull})
		e.pull = 0
	}
	e.retryAt = time.Time{}
}

func (m *machine) learn(now time.Time, id uint64, l lesson) {
	s := m.sessions[id]
	if s == nil {
		return
	}
	s.learnt.add(l)
	for _, name := range slices.Sorted(maps.Keys(s.subs)) {
		m.reconcile(now, m.entries[key{s.node.GetId(), name}])
	}
	m.settleOffers(now, s)
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
	if err == nil {
		sub.acked = f
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
	if e.rejected != nil && e.rejected.hash == f.hash {
		e.rejected = nil
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
	text := scrub(envoyText(err), e.secret())
	sub.rejects = append(sub.rejects, reject{f.hash, text})
	if len(sub.rejects) > maxRejects {
		sub.rejects = slices.Delete(sub.rejects, 0, 1)
	}
	if f.policy || e.ready == nil || e.ready.hash != f.hash {
		return
	}
	e.rejected = &rejection{f.hash, text, now, s.build}
	if e.good != nil && e.good.hash == f.hash && !sub.retried && e.wanted.ref != nil && e.pull == 0 {
		// It worked before, so the file is the likely cause: have the store look at it once more.
		sub.retried = true
		e.retryAt = now.Add(m.slow())
	}
}

func (e *entry) secret() []byte {
	if e.wanted == nil {
		return nil
	}
	return e.wanted.blueprint.secret()
}

func sorted(sessions map[uint64]*session) []*session {
	return slices.SortedFunc(maps.Values(sessions), func(a, b *session) int { return cmp.Compare(a.id, b.id) })
}

func (m *machine) sortedEntries() []*entry {
	return slices.SortedFunc(maps.Values(m.entries), func(a, b *entry) int { return a.key.compare(b.key) })
}
