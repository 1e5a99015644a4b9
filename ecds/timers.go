package ecds

import "time"

// deadline is when tick has something to do next; zero: never.
func (m *machine) deadline() time.Time {
	var first time.Time
	add := func(t time.Time) {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	for _, s := range m.sessions {
		for _, sub := range s.subs {
			if !sub.due {
				add(sub.since.Add(m.hold))
			}
		}
		for _, o := range s.offers {
			add(o.deadline)
		}
	}
	for _, e := range m.entries {
		add(e.expires)
		if e.pull == 0 {
			add(e.retryAt)
		}
		if !e.idleSince.IsZero() {
			add(e.idleSince.Add(e.forget))
			if e.pull != 0 || !e.retryAt.IsZero() {
				add(e.idleSince.Add(pullGrace))
			}
		}
	}
	return first
}

// tick does what the time has come for.
func (m *machine) tick(now time.Time) {
	for _, e := range m.sortedEntries() {
		m.tickEntry(now, e)
	}
	for _, s := range sorted(m.sessions) {
		m.settleOffers(now, s)
	}
}

func (m *machine) tickEntry(now time.Time, e *entry) {
	if passed(now, e.idleSince, e.forget) {
		m.stop(e)
		delete(m.entries, e.key)
		m.dirty = true
		return
	}
	if passed(now, e.idleSince, pullGrace) {
		m.stop(e)
	}
	touched := false
	if passed(now, e.expires, 0) {
		m.removed(e)
		touched = true
	}
	if !e.retryAt.IsZero() && !e.retryAt.After(now) {
		m.retryDue(now, e)
		touched = true
	}
	for _, s := range e.sessions {
		if sub := s.subs[e.name]; !sub.due && passed(now, sub.since, m.hold) {
			sub.due, touched = true, true
		}
	}
	if touched {
		m.reconcile(now, e)
	}
}

// passed says whether d has passed since a moment that is set.
func passed(now, since time.Time, d time.Duration) bool {
	return !since.IsZero() && !now.Before(since.Add(d))
}
