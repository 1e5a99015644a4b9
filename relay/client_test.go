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
		return c.settle(c.received(&reply{nonce: strconv.FormatUint(c.lastID, 10)}, hash), verdict, time.Time{}.Add(time.Hour))
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
