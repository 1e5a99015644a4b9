package ecds

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// offer is one upstream response that has not been answered.
type offer struct {
	id       uint64
	deadline time.Time
	open     map[string]uint64 // names without an outcome → number of the resource they are about
	reasons  []error
}

// maxOffers bounds the unanswered responses of one stream; a control plane that sends more without waiting gets the
// oldest one refused.
const maxOffers = 256

func (m *machine) offer(now time.Time, id, number uint64, resources []*discoveryv3.Resource, gone []string) {
	s := m.sessions[id]
	if s == nil {
		return
	}
	o := &offer{id: number, deadline: now.Add(m.hold), open: map[string]uint64{}}
	s.offers[number] = o
	touched := map[string]*entry{}
	for _, res := range resources {
		name := res.GetName()
		e := m.entries[key{s.node.GetId(), name}]
		if e == nil || s.subs[name] == nil || touched[name] != nil {
			continue // not asked for, or named twice: Envoy takes the first, too
		}
		touched[name] = e
		m.revive(now, e)
		m.offered(now, s, e, res)
		if e.wanted != nil {
			o.open[name] = e.wanted.seq
		}
	}
	for _, name := range gone {
		e := m.entries[key{s.node.GetId(), name}]
		if e == nil || s.subs[name] == nil || touched[name] != nil {
			continue
		}
		touched[name] = e
		m.removed(e)
	}
	m.bound(s)
	m.afterOffer(now, s, touched)
}

// revive ends the state after a removal: Envoy waits again from now.
func (m *machine) revive(now time.Time, e *entry) {
	for _, s := range e.sessions {
		if sub := s.subs[e.name]; sub.removed {
			sub.removed, sub.since, sub.due = false, now, false
		}
	}
}

func (m *machine) afterOffer(now time.Time, s *session, touched map[string]*entry) {
	others := map[uint64]*session{s.id: s}
	for _, name := range slices.Sorted(maps.Keys(touched)) {
		m.reconcile(now, touched[name])
		maps.Copy(others, touched[name].sessions)
	}
	for _, other := range sorted(others) {
		m.settleOffers(now, other)
	}
}

func (m *machine) bound(s *session) {
	for len(s.offers) > maxOffers {
		oldest := s.sortedOffers()[0]
		delete(s.offers, oldest.id)
		m.do(settle{s.id, oldest.id, errors.New("too many responses are waiting for an answer: this one was overtaken")})
	}
}

func (s *session) sortedOffers() []*offer {
	return slices.SortedFunc(maps.Values(s.offers), func(a, b *offer) int {
		return cmp.Or(a.deadline.Compare(b.deadline), cmp.Compare(a.id, b.id))
	})
}

// settleOffers answers the responses whose outcome is known, or whose time is up.
func (m *machine) settleOffers(now time.Time, s *session) {
	for _, o := range s.sortedOffers() {
		final := !now.Before(o.deadline)
		for _, name := range slices.Sorted(maps.Keys(o.open)) {
			done, err := m.outcome(s, name, o.open[name], final)
			if !done {
				continue
			}
			delete(o.open, name)
			if err != nil {
				o.reasons = append(o.reasons, fmt.Errorf("%s: %w", name, err))
			}
		}
		if len(o.open) == 0 {
			delete(s.offers, o.id)
			slices.SortFunc(o.reasons, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
			m.do(settle{s.id, o.id, errors.Join(o.reasons...)})
		}
	}
}

// outcome says what became of one resource of one response. With final it always knows.
func (m *machine) outcome(s *session, name string, seq uint64, final bool) (done bool, err error) {
	e, sub := m.entries[key{s.node.GetId(), name}], s.subs[name]
	if e == nil || sub == nil || e.wanted == nil || e.wanted.seq != seq {
		return true, nil // unsubscribed, removed or overtaken: what came later decides
	}
	if e.wanted.err != nil {
		return true, e.wanted.err
	}
	if f := e.ready; f != nil && e.rejects(sub, f) {
		if r := sub.refused(f.hash); r != nil {
			return true, fmt.Errorf("Envoy refused it: %s", r.text)
		}
		return true, fmt.Errorf("Envoy refused it: %s", e.rejected.text)
	}
	if e.runs(sub) {
		return true, nil
	}
	if e.ready == nil && e.worked(sub) {
		if final || e.failure != nil && e.failure.permanent {
			return true, fmt.Errorf("the previous version was kept: %s", e.problem(m.hold))
		}
		return false, nil
	}
	if final && sub.noPolicy != "" && e.ready == nil {
		return true, fmt.Errorf("%s; %s", e.problem(m.hold), sub.noPolicy)
	}
	if f := sub.sent; f != nil && f.policy && sub.acked.same(f) && e.failure != nil && e.failure.permanent {
		return true, nil
	}
	// In time: the policy filter stands in for a plugin that never worked. Or the plugin was delivered and Envoy is still
	// at it (a large module takes it longer than the hold time): nothing is known to be wrong, and status shows the rest.
	return final, nil
}
