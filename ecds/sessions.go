package ecds

import (
	"maps"
	"slices"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

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
	m.respell(e)
	m.wake(now, e, upgraded)
}

// doubt notes what Envoy had not answered when its stream ended.
func (e *entry) doubt(sub *subscription) {
	if e == nil || len(sub.inflight) == 0 {
		return
	}
	f := sub.inflight[len(sub.inflight)-1]
	if f.same(e.ready) && !f.same(sub.acked) && !f.same(e.good) {
		e.unsure = f
	}
}

// respell gives what Envoy may have refused unheard another spelling: it would take the same for unchanged, and accept it without a look.
func (m *machine) respell(e *entry) {
	if e.unsure == nil || !e.unsure.same(e.ready) || e.wanted == nil || e.wanted.plugin == nil {
		return
	}
	f := e.ready
	if again, err := m.form(e, Module{Digest: f.digest, Path: f.path}); err == nil {
		again.warning = f.warning
		e.ready = again
	}
}

// wake resumes work on a resource that a new stream asks for.
func (m *machine) wake(now time.Time, e *entry, upgraded bool) {
	if e.wanted == nil || e.wanted.ref == nil || e.wanted.err != nil || e.wanted.fatal != nil || e.pull != 0 {
		return
	}
	switch {
	case upgraded, (e.ready == nil || e.failure != nil) && e.retryAt.IsZero():
		// Another Envoy: its verdicts are its own. Or the work was given up because nobody was left.
		m.startPull(now, e)
	case m.rejectedNow(e) && e.retryAt.IsZero():
		// Perhaps another process. At most once a minute: an upstream that comes and goes must not make Envoy compile a
		// module it refuses each time.
		e.retryAt = later(now, e.rejected.at.Add(m.retryMax))
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
		m.entries[key{s.node.GetId(), name}].doubt(s.subs[name])
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
