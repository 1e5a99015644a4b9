package relay

import (
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"
)

// The Terminator forgets what the control plane sent for a name that Envoy gives up. When Envoy takes it up again before the control
// plane has heard of either, it must hear of both: else it sends nothing again.
func TestNameGivenUpAndTakenUpAgain(t *testing.T) {
	for _, p := range []*protocol{sotwProtocol(), deltaProtocol()} {
		for _, wanted := range [][]string{{"e1"}, {"e1", "e2"}} {
			term := newTerminated(&typeState{}, p)
			said := func() (all [][]string) {
				for a := term.client.next(term.names, time.Time{}); a != nil; a = term.client.next(term.names, time.Time{}) {
					all = append(all, a.subscribe, a.unsubscribe)
				}
				return all
			}
			change := func(on, off []string) {
				if !p.delta {
					on, off = slices.DeleteFunc(slices.Clone(wanted), func(n string) bool { return slices.Contains(off, n) }), nil
				}
				term.change(&ask{subscribe: on, unsubscribe: off}, p.delta, false)
			}
			change(wanted, nil)
			said()
			change(nil, []string{"e1"})
			change([]string{"e1"}, nil)
			got := said()
			want := [][]string{wanted[1:], nil, wanted, nil}
			if p.delta {
				want = [][]string{nil, {"e1"}, {"e1"}, nil}
			}
			if !slices.EqualFunc(got, want, slices.Equal) {
				t.Errorf("%s, of %v: told %v, want %v", p.name, wanted, got, want)
			}
			if more := said(); more != nil {
				t.Errorf("%s: told once more: %v", p.name, more)
			}
		}
	}
}

// A control plane that sends and does not read costs bounded memory.
func TestAnswersAreBounded(t *testing.T) {
	c := &newTerminated(&typeState{}, deltaProtocol()).client
	settle := func(hash uint64, verdict error) error {
		return c.settle(c.received(&reply{nonce: strconv.FormatUint(c.lastID, 10)}, hash, time.Time{}.Add(time.Hour)), verdict, time.Time{}.Add(time.Hour))
	}
	for range 10 * maxHeld {
		if err := settle(1, errors.New("no")); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(c.answers); n > maxHeld+1 {
		t.Errorf("%d rejections of the same response are held, want %d at most", n, maxHeld+1)
	}
	for i := range 10 * maxAnswers {
		if err := settle(uint64(i), nil); err != nil {
			if i < maxAnswers/2 {
				t.Errorf("too many answers after %d", i)
			}
			return
		}
	}
	t.Errorf("%d answers wait", len(c.answers))
}

// A response that is not settled within patience is acknowledged for the time being; the last word follows when it is another.
func TestUnsettledOffer(t *testing.T) {
	start := time.Time{}.Add(time.Hour)
	late := start.Add(patience)
	names := setOf([]string{"e1"})
	for _, verdict := range []error{nil, errTest} {
		for _, p := range []*protocol{sotwProtocol(), deltaProtocol()} {
			c := &newTerminated(&typeState{}, p).client
			c.accepted = "v0"
			c.tell(names)
			id := c.received(&reply{nonce: "n1", version: "v1"}, 1, start)
			if got := c.next(names, late.Add(-1)); got != nil {
				t.Errorf("%s: before %v: %+v, want nothing", p.name, patience, got)
			}
			if got := c.due(); got != late {
				t.Errorf("%s: due %v, want %v", p.name, got, late)
			}
			if got := c.next(names, late); got == nil || got.nonce != "n1" || got.err != nil || !p.delta && got.version != "v1" {
				t.Errorf("%s: after %v: %+v, want an ACK of n1", p.name, patience, got)
			}
			if got := c.next(names, late); got != nil || !c.due().IsZero() {
				t.Errorf("%s: then %+v, due %v, want nothing", p.name, got, c.due())
			}
			if err := c.settle(id, verdict, late); err != nil {
				t.Fatal(err)
			}
			got := c.next(names, late)
			switch {
			case verdict == nil && got != nil:
				t.Errorf("%s: settled as acknowledged: %+v, want nothing more", p.name, got)
			case verdict != nil && (got == nil || got.nonce != "n1" || got.err == nil || !p.delta && got.version != "v0"):
				t.Errorf("%s: rejected after all: %+v, want a NACK of n1 under v0", p.name, got)
			}
		}
	}
}

func TestSupersededOfferTakesItsAcknowledgementBack(t *testing.T) {
	start := time.Time{}.Add(time.Hour)
	c := &newTerminated(&typeState{}, sotwProtocol()).client
	c.accepted = "v0"
	c.received(&reply{nonce: "n1", version: "v1"}, 1, start)
	c.next(nil, start.Add(patience))
	id := c.received(&reply{nonce: "n2", version: "v2"}, 2, start.Add(patience))
	if err := c.settle(id, errTest, start.Add(patience)); err != nil {
		t.Fatal(err)
	}
	if got := c.next(nil, start.Add(patience)); got == nil || got.version != "v0" || got.nonce != "n2" || got.err == nil {
		t.Errorf("after the newer one was rejected: %+v, want a NACK of n2 under v0", got)
	}
}
