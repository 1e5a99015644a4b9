package ecds

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

func savedBy(t *testing.T, specs ...spec) []byte {
	t.Helper()
	r := newRig(t)
	for i, s := range specs {
		r.open(1+uint64(i), s.name)
		r.live(1+uint64(i), 1, s)
	}
	data, left, err := r.m.snapshot()
	if err != nil || left != 0 {
		t.Fatal(left, err)
	}
	return data
}

func TestDamagedStateStartsEmpty(t *testing.T) {
	good := savedBy(t, v1)
	change := func(f func(*savedState)) []byte {
		var s savedState
		if err := json.Unmarshal(good, &s); err != nil {
			t.Fatal(err)
		}
		f(&s)
		return must(json.Marshal(s))
	}
	for name, data := range map[string][]byte{
		"half":          good[:len(good)/2],
		"garbage":       []byte("\x00\x01"),
		"other version": change(func(s *savedState) { s.Version = 2 }),
		"remote code":   change(func(s *savedState) { s.Entries[0].Resource = v1.res().Resource.Value }),
		"other name":    change(func(s *savedState) { s.Entries[0].Name = "q" }),
		"origin":        change(func(s *savedState) { s.Entries[0].Origin = "zz" }),
		"salt":          change(func(s *savedState) { s.Entries[0].Salt = -1 }),
		"no version":    change(func(s *savedState) { s.Entries[0].Sent = "" }),
		"other type":    change(func(s *savedState) { s.Entries[0].TypeURL = "x" }),
	} {
		r := newRig(t)
		if err := r.m.restore(r.now, data); err == nil {
			t.Errorf("%s: no error", name)
		}
		if len(r.m.entries) != 0 {
			t.Errorf("%s: %d entries", name, len(r.m.entries))
		}
	}
	r := newRig(t)
	if err := r.m.restore(r.now, nil); err != nil {
		t.Errorf("nothing saved: %v", err)
	}
	if err := r.m.restore(r.now, good); err != nil || len(r.m.entries) != 1 {
		t.Errorf("%d entries, %v", len(r.m.entries), err)
	}
	if pins := r.m.pins(); len(pins) != 1 || pins[0] != module("oci://r/v1").Digest {
		t.Errorf("pins %v: what was loaded must be kept", pins)
	}
}

func TestOneBadEntryFailsAlone(t *testing.T) {
	q := v2
	q.name = "q"
	var s savedState
	if err := json.Unmarshal(savedBy(t, v1, q), &s); err != nil {
		t.Fatal(err)
	}
	s.Entries[0].Resource = []byte{0xff}
	r := newRig(t)
	err := r.m.restore(r.now, must(json.Marshal(s)))
	if err == nil || !strings.Contains(err.Error(), `"p"`) || len(r.m.entries) != 1 {
		t.Errorf("%d entries, %v", len(r.m.entries), err)
	}
}

func TestStateIsBounded(t *testing.T) {
	const limit = 1 << 20
	r := newRig(t)
	r.m.maxState = limit
	for i := range uint64(5) {
		s := spec{name: fmt.Sprint("p", i), inline: strings.Repeat("x", limit/5)}
		r.open(1+i, s.name)
		r.offer(1+i, 1, s)
		r.answer(1+i, s.name, nil)
	}
	data, left, err := r.m.snapshot()
	if err != nil || left == 0 || len(data) > limit+limit/10 {
		t.Errorf("%d bytes, %d left out, %v", len(data), left, err)
	}
	if err := r.m.restore(r.now, make([]byte, 2*limit+1)); err == nil {
		t.Error("a file that was never ours is read")
	}
}

func TestLoadedEntriesAge(t *testing.T) {
	r := live(t, v1)
	r.close(1)
	data, _, _ := r.m.snapshot()
	for _, c := range []struct{ down, left time.Duration }{{0, forgetClosed}, {time.Hour, forgetClosed - time.Hour}, {30 * 24 * time.Hour, loadGrace}, {-time.Hour, forgetClosed}} {
		later := newRig(t)
		later.now = r.now.Add(c.down)
		later.start = later.now
		if err := later.m.restore(later.now, data); err != nil {
			t.Fatal(err)
		}
		later.advance(c.left - 1)
		if len(later.m.pins()) != 1 {
			t.Errorf("down for %s: forgotten before %s", c.down, c.left)
		}
		later.advance(1)
		if len(later.m.pins()) != 0 {
			t.Errorf("down for %s: still there after %s", c.down, c.left)
		}
	}
}

func TestOtherTypesAreNotSaved(t *testing.T) {
	r := opened(t, "p")
	r.offerRaw(1, 1, []*res{envelope("p", "", anyOf("example.Cors", "x"))}, nil)
	r.answer(1, "p", nil)
	if data, _, _ := r.m.snapshot(); strings.Contains(string(data), "Cors") || !strings.Contains(string(data), `"entries":[]`) {
		t.Errorf("saved %s", data)
	}
}

func TestIdleEntriesAreBounded(t *testing.T) {
	r := newRig(t)
	for i := range maxIdle + 10 {
		id := uint64(i + 1)
		r.m.open(r.now, id, node(fmt.Sprint("n", i)))
		r.subscribe(id, "p")
		r.offer(id, 1, spec{name: "p", inline: "x"})
		r.answer(id, "p", nil)
		r.close(id)
		r.now = r.now.Add(time.Millisecond)
	}
	if n := len(r.m.entries); n != maxIdle {
		t.Errorf("%d entries, want %d", n, maxIdle)
	}
	if r.m.entries[key{"n0", "p"}] != nil || r.m.entries[key{fmt.Sprint("n", maxIdle+9), "p"}] == nil {
		t.Error("not the oldest were dropped")
	}
}

func TestStateOfAnotherOwner(t *testing.T) {
	r := newRig(t)
	r.m.owner = "mine"
	r.open(1, "p")
	r.live(1, 1, v1)
	data, _, err := r.m.snapshot()
	if err != nil {
		t.Fatal(err)
	}
	for owner, want := range map[string]int{"mine": 1, "another": 0, "": 1} {
		later := newRig(t)
		later.m.owner = owner
		err := later.m.restore(later.now, data)
		if len(later.m.entries) != want || (err == nil) != (want == 1) || len(later.m.pins()) != want {
			t.Errorf("owner %q: %d entries, pins %v, %v; want %d", owner, len(later.m.entries), later.m.pins(), err, want)
		}
	}
	later := newRig(t)
	later.m.owner = "mine"
	if err := later.m.restore(later.now, savedBy(t, v1)); err != nil || len(later.m.entries) != 1 {
		t.Errorf("saved before there were owners: %d entries, %v", len(later.m.entries), err)
	}
}
