package relay

import (
	"errors"
	"slices"
	"time"
)

const maxResends = 3 // of one change of names that the control plane seems to have ignored

// client is the half of a terminated type that faces the control plane. Its requests are composed when their turn comes, so they always
// tell the latest; a NACK carries the names that were sent before, never a change.
type client struct {
	delta    bool
	throttle *throttle

	sent     map[string]struct{} // names the control plane was told
	asked    bool                // a request went up
	nonce    string              // state-of-the-world: of the newest response
	accepted string              // state-of-the-world: version accepted last
	hash     uint64              // of the newest response
	offers   map[uint64]offer    // not settled; in state-of-the-world one at most
	lastID   uint64
	answers  []answer // settled and not sent; in state-of-the-world one at most

	// State-of-the-world servers ignore a request whose nonce is not that of their last response, names included. So a change of names
	// counts as heard only when a response shows it; else it is told again.
	unheard map[string]bool // names in requests that may have been ignored; true: added, false: removed
	resends int
	resend  bool
}

type offer struct {
	nonce, version string
	hash           uint64
	problem        error
}

type answer struct {
	nonce string
	err   error
	due   time.Time // held back until then; zero: not
}

// received takes note of a response and gives it the number under which it is settled.
func (c *client) received(r *reply, hash uint64) uint64 {
	repeated := c.hash == hash && c.nonce != ""
	if !c.delta {
		clear(c.offers) // superseded: a settlement that comes now is about the past
		c.answers = nil
		c.nonce = r.nonce
		c.checkHeard(r, repeated)
	}
	c.hash = hash
	c.lastID++
	c.offers[c.lastID] = offer{nonce: r.nonce, version: r.version, hash: hash, problem: r.problem}
	return c.lastID
}

// checkHeard has a change of names told again when a response does not show it. A response that only repeats the last one is the answer to
// such a repetition: the control plane has heard, and has nothing for those names.
func (c *client) checkHeard(r *reply, repeated bool) {
	shown := make(map[string]bool, len(r.resources))
	for _, resource := range r.resources {
		shown[resource.GetName()] = true
	}
	for name, added := range c.unheard {
		if shown[name] == added {
			delete(c.unheard, name)
		}
	}
	if len(c.unheard) == 0 || repeated && c.resends > 0 || c.resends == maxResends {
		clear(c.unheard)
		c.resends, c.resend = 0, false
		return
	}
	c.resends++
	c.resend = true
}

// settle answers a response.
func (c *client) settle(id uint64, err error, now time.Time) {
	o, known := c.offers[id]
	if !known {
		return
	}
	delete(c.offers, id)
	a := answer{nonce: o.nonce, err: errors.Join(err, o.problem)}
	if a.err == nil {
		c.accepted = o.version
		c.throttle.accepted(o.hash)
	} else if hold := c.throttle.rejected(o.hash); hold > 0 {
		a.due = now.Add(hold)
	}
	c.answers = append(c.answers, a)
}

// due is when the first answer that is held back may go, zero: none is.
func (c *client) due() (first time.Time) {
	for _, a := range c.answers {
		if !a.due.IsZero() && (first.IsZero() || a.due.Before(first)) {
			first = a.due
		}
	}
	return first
}

func (c *client) ready(now time.Time) int {
	return slices.IndexFunc(c.answers, func(a answer) bool { return !a.due.After(now) })
}

// changed tells whether the control plane must be told names. An empty list is only said when there was something before: as a first
// request it would mean everything.
func (c *client) changed(names map[string]struct{}) bool {
	if len(names) != len(c.sent) {
		return c.asked || len(names) > 0
	}
	for name := range names {
		if _, told := c.sent[name]; !told {
			return true
		}
	}
	return false
}

// wants tells whether there is something to say.
func (c *client) wants(names map[string]struct{}, now time.Time) bool {
	return c.ready(now) >= 0 || c.changed(names) || c.resend
}

// next is the next thing to say, nil when there is nothing.
func (c *client) next(names map[string]struct{}, now time.Time) *ask {
	if i := c.ready(now); i >= 0 {
		a := c.answers[i]
		c.answers = slices.Delete(c.answers, i, i+1)
		return c.answer(a, names)
	}
	if !c.changed(names) && !c.resend {
		return nil
	}
	if c.delta {
		return c.deltaNames(names)
	}
	c.tell(names)
	return &ask{version: c.accepted, nonce: c.nonce, subscribe: sorted(names)}
}

func (c *client) answer(a answer, names map[string]struct{}) *ask {
	switch {
	case c.delta:
		return &ask{nonce: a.nonce, err: a.err}
	case a.err != nil:
		return &ask{version: c.accepted, nonce: a.nonce, err: a.err, subscribe: sorted(c.sent)}
	}
	c.tell(names)
	return &ask{version: c.accepted, nonce: a.nonce, subscribe: sorted(names)}
}

// tell notes that a state-of-the-world request with these names goes up.
func (c *client) tell(names map[string]struct{}) {
	if c.asked { // the first request cannot be ignored
		c.noteChange(names, c.sent, true)
		c.noteChange(c.sent, names, false)
	}
	c.setSent(names)
	c.resend = false
}

// noteChange notes the names of one set that the other lacks.
func (c *client) noteChange(in, other map[string]struct{}, added bool) {
	for name := range in {
		if _, known := other[name]; !known {
			c.unheard[name] = added
			c.resends = 0
		}
	}
}

func (c *client) deltaNames(names map[string]struct{}) *ask {
	a := new(ask)
	for _, name := range sorted(names) {
		if _, told := c.sent[name]; !told {
			a.subscribe = append(a.subscribe, name)
		}
	}
	for _, name := range sorted(c.sent) {
		if _, wanted := names[name]; !wanted {
			a.unsubscribe = append(a.unsubscribe, name)
		}
	}
	c.setSent(names)
	return a
}

func (c *client) setSent(names map[string]struct{}) {
	clear(c.sent)
	for name := range names {
		c.sent[name] = struct{}{}
	}
	c.asked = true
}
