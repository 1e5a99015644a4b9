package relay

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"
)

const (
	maxResends = 3    // of one change of names that the control plane seems to have ignored
	maxAnswers = 1024 // settled responses whose answer the control plane does not read

	// patience is how long a response waits for its settlement before it is acknowledged for the time being. A control plane that
	// sends nothing new before the answer to the last response would else hold a newer version back while a slow module is pulled.
	// The NACK follows when it comes to that; servers take the last word on a nonce.
	patience = time.Second
)

var errAnswers = errors.New("more than 1024 answers wait for a control plane that does not read them")

// client is the half of a terminated type that faces the control plane. Its requests are composed when their turn comes, so they always
// tell the latest; a NACK carries the names that were sent before, never a change.
type client struct {
	delta    bool
	throttle *throttle

	sent     map[string]struct{} // names the control plane was told
	dropped  map[string]struct{} // names that Envoy gave up and the control plane was told once: what it sent for them is forgotten
	asked    bool                // a request went up
	nonce    string              // state-of-the-world: of the newest response
	accepted string              // state-of-the-world: version accepted last
	hash     uint64              // of the newest response
	deaf     bool                // state-of-the-world: the control plane answers keepOpen with the same response again
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
	since          time.Time
	acked          bool   // for the time being
	former         string // state-of-the-world: the version accepted before that
}

type answer struct {
	nonce string
	err   error
	due   time.Time // held back until then; zero: not
	claim string    // state-of-the-world: the version to name instead of the last accepted one
}

func (a *answer) held() bool { return !a.due.IsZero() }

// received takes note of a response and gives it the number under which it is settled.
func (c *client) received(r *reply, hash uint64, now time.Time) uint64 {
	repeated := c.hash == hash && c.nonce != ""
	if !c.delta {
		c.deaf = c.deaf || repeated && slices.ContainsFunc(c.answers, func(a answer) bool { return a.held() })
		for _, o := range c.offers {
			c.withdraw(o)
		}
		clear(c.offers) // superseded: a settlement that comes now is about the past
		c.answers = nil
		c.nonce = r.nonce
		c.checkHeard(r, repeated)
	}
	c.hash = hash
	c.lastID++
	c.offers[c.lastID] = offer{nonce: r.nonce, version: r.version, hash: hash, problem: r.problem, since: now}
	return c.lastID
}

// withdraw takes an acknowledgement for the time being back.
func (c *client) withdraw(o offer) {
	if o.acked && !c.delta {
		c.accepted = o.former
	}
}

// overdue is the response that has waited longest without any answer, 0 when none has lost patience.
func (c *client) overdue(now time.Time) (oldest uint64) {
	for id, o := range c.offers {
		if !o.acked && now.Sub(o.since) >= patience && (oldest == 0 || id < oldest) {
			oldest = id
		}
	}
	return oldest
}

// acknowledge answers a response for the time being.
func (c *client) acknowledge(id uint64, names map[string]struct{}) *ask {
	o := c.offers[id]
	o.acked, o.former = true, c.accepted
	c.offers[id] = o
	if !c.delta {
		c.accepted = o.version
	}
	return c.answer(answer{nonce: o.nonce}, names)
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

// settle answers a response. Its error says that the control plane takes no answers.
func (c *client) settle(id uint64, err error, now time.Time) error {
	o, known := c.offers[id]
	if !known {
		return nil
	}
	delete(c.offers, id)
	c.withdraw(o)
	a := answer{nonce: o.nonce, err: errors.Join(err, o.problem)}
	if a.err == nil {
		c.accepted = o.version
		c.deaf = c.deaf && !c.throttle.accepted(o.hash)
		if o.acked {
			return nil
		}
	} else if hold := c.throttle.rejected(o.hash); hold > 0 {
		c.keepOpen(a, o.version)
		a.due = now.Add(hold)
		c.dropHeld()
	}
	c.answers = append(c.answers, a)
	if len(c.answers) > maxAnswers {
		return errAnswers
	}
	return nil
}

// keepOpen says, when a NACK is held, the same at once under the version that it rejects: see session.keepOpen.
func (c *client) keepOpen(a answer, version string) {
	if !c.delta && !c.deaf {
		a.claim = version
		c.answers = append(c.answers, a)
	}
}

// dropHeld bounds what is held: the oldest repeats what the control plane has been told.
func (c *client) dropHeld() {
	held := 0
	for _, a := range c.answers {
		if a.held() {
			held++
		}
	}
	if held >= maxHeld {
		i := slices.IndexFunc(c.answers, func(a answer) bool { return a.held() })
		c.answers = slices.Delete(c.answers, i, i+1)
	}
}

// due is when there is something to say at the latest: an answer that is held back, or one for the time being. Zero: nothing is.
func (c *client) due() (first time.Time) {
	sooner := func(t time.Time) {
		if first.IsZero() || t.Before(first) {
			first = t
		}
	}
	for _, a := range c.answers {
		if a.held() {
			sooner(a.due)
		}
	}
	for _, o := range c.offers {
		if !o.acked {
			sooner(o.since.Add(patience))
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
	for name := range c.dropped {
		if _, wanted := names[name]; wanted {
			return true
		}
	}
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
	return c.ready(now) >= 0 || c.overdue(now) != 0 || c.changed(names) || c.resend
}

// next is the next thing to say, nil when there is nothing.
func (c *client) next(names map[string]struct{}, now time.Time) *ask {
	if i := c.ready(now); i >= 0 {
		a := c.answers[i]
		c.answers = slices.Delete(c.answers, i, i+1)
		return c.answer(a, names)
	}
	if id := c.overdue(now); id != 0 {
		return c.acknowledge(id, names)
	}
	if !c.changed(names) && !c.resend {
		return nil
	}
	names = c.withoutDropped(names)
	if c.delta {
		return c.deltaNames(names)
	}
	c.tell(names)
	return &ask{version: c.accepted, nonce: c.nonce, subscribe: sorted(names)}
}

// withoutDropped leaves names that Envoy gave up and took up again before the control plane heard so for the next request, so that they
// are told as a loss and as a gain: else the control plane would not send them again.
func (c *client) withoutDropped(names map[string]struct{}) map[string]struct{} {
	if len(c.dropped) > 0 {
		names = maps.Clone(names)
		maps.DeleteFunc(names, func(name string, _ struct{}) bool { _, gone := c.dropped[name]; return gone })
	}
	return names
}

// gaveUp notes a name that Envoy does not want any more.
func (c *client) gaveUp(name string) {
	if _, told := c.sent[name]; told {
		c.dropped[name] = struct{}{}
	}
}

func (c *client) answer(a answer, names map[string]struct{}) *ask {
	switch {
	case c.delta:
		return &ask{nonce: a.nonce, err: a.err}
	case a.err != nil:
		return &ask{version: cmp.Or(a.claim, c.accepted), nonce: a.nonce, err: a.err, subscribe: sorted(c.sent)}
	}
	names = c.withoutDropped(names)
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
	clear(c.dropped)
	for name := range names {
		c.sent[name] = struct{}{}
	}
	c.asked = true
}
