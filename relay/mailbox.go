package relay

import (
	"errors"
	"time"
)

const (
	mailboxBytes  = 64 << 20 // of requests that wait for an upstream which does not read
	entryOverhead = 512      // bytes charged for each waiting request
	mergeAt       = 256      // waiting delta requests of one type
	maxHeld       = 16       // held NACKs of one type (delta; state-of-the-world has one at most)
)

var errMailbox = errors.New("more than 64 MiB of requests wait for a control plane that does not read them")

// entry is one request on its way upstream.
type entry struct {
	t       *typeState
	frame   frame
	nonce   string
	rejects bool
	hasNode bool
	names   int
	nameSum uint64
	changes bool        // delta: it subscribes, unsubscribes or tells versions
	demands bool        // a control plane that works answers it
	compose func() *ask // made when its turn comes, nil: nothing to say any more; empty until then
	dead    bool        // replaced while it waited
	due     time.Time   // held back until then
	size    int         // charged to the mailbox; the frame itself may be freed any time after it was taken
}

// mailbox holds the requests for upstream. Putting never waits: state-of-the-world requests of one type coalesce, since the newest holds
// the full state, delta requests queue and are merged when many wait, and a NACK is lost only to an answer to a newer response.
type mailbox struct {
	queue []*entry
	bytes int
}

func (m *mailbox) append(e *entry) {
	m.queue = append(m.queue, e)
	m.charge(e)
	e.t.waiting = append(e.t.waiting, e)
}

func (m *mailbox) charge(e *entry) {
	e.size = e.frame.data.Len() + entryOverhead
	m.bytes += e.size
}

// fill gives a composed request its bytes.
func (m *mailbox) fill(e *entry, b []byte) {
	m.bytes -= e.size
	e.frame = frameOf(b)
	m.charge(e)
}

// drop takes a waiting entry out; it stays in the queue as a dead one until its turn.
func (m *mailbox) drop(e *entry) {
	m.bytes -= e.size
	e.frame.data.Free()
	e.frame, e.dead = frame{}, true
	e.t.forget(e)
}

// replace puts e where old waits.
func (m *mailbox) replace(old, e *entry) {
	for i, waiting := range m.queue {
		if waiting == old {
			m.queue[i] = e
		}
	}
	for i, waiting := range old.t.waiting {
		if waiting == old {
			old.t.waiting[i] = e
		}
	}
	m.bytes -= old.size
	m.charge(e)
	old.frame.data.Free()
}

// head is the next request to send, nil when there is none.
func (m *mailbox) head() *entry {
	for len(m.queue) > 0 && m.queue[0].dead {
		m.queue[0] = nil
		m.queue = m.queue[1:]
	}
	if len(m.queue) == 0 {
		m.queue = nil
		return nil
	}
	return m.queue[0]
}

// pop takes the head, which now belongs to the sender.
func (m *mailbox) pop() {
	e := m.queue[0]
	m.queue[0] = nil
	m.queue = m.queue[1:]
	m.bytes -= e.size
	e.t.forget(e)
	e.t.requested = true
}

// put accepts a request of a passed type.
func (m *mailbox) put(e *entry, delta bool) error {
	if delta {
		m.putDelta(e)
	} else {
		m.putSotw(e)
	}
	if m.bytes > mailboxBytes {
		return errMailbox
	}
	return nil
}

func (m *mailbox) putSotw(e *entry) {
	t := e.t
	m.settleHeld(e)
	for _, w := range t.waitingCopy() {
		if w.rejects && (e.rejects || w.nonce != e.nonce) {
			m.drop(w) // Envoy has answered a newer response, or the same one again
		}
	}
	t.askedNames = e.nameSum
	if e.rejects {
		m.append(e)
		return
	}
	first := t.replaceable(e)
	if first == nil {
		m.append(e)
		return
	}
	for _, w := range t.after(first) {
		m.drop(w)
	}
	m.replace(first, e)
}

// settleHeld decides about a held NACK when a newer request of its type comes: it is void when Envoy has answered another response
// since; otherwise it goes first, since control planes ignore the names in a NACK and a NACK sent later would take the new names back.
func (m *mailbox) settleHeld(e *entry) {
	for _, held := range e.t.held {
		if held.nonce != e.nonce || e.rejects {
			held.frame.data.Free()
		} else {
			m.append(held)
		}
	}
	e.t.held = nil
}

func (m *mailbox) putDelta(e *entry) {
	m.append(e)
	if limit := max(mergeAt, 2*e.t.merged); len(e.t.waiting) > limit {
		m.merge(e.t)
		e.t.merged = len(e.t.waiting)
	}
}

// hold keeps a NACK back until it is due.
func (m *mailbox) hold(e *entry, delta bool) {
	t := e.t
	if !delta || len(t.held) >= maxHeld {
		for _, older := range t.held[:min(1, len(t.held))] {
			older.frame.data.Free() // it repeats what upstream has been told
		}
		t.held = t.held[min(1, len(t.held)):]
	}
	t.held = append(t.held, e)
}

// dropRejects takes out the waiting NACKs of a type.
func (m *mailbox) dropRejects(t *typeState) {
	for _, w := range t.waitingCopy() {
		if w.rejects {
			m.drop(w)
		}
	}
}

// release moves what is due from a type's holds to the queue; now zero: everything.
func (m *mailbox) release(t *typeState, now time.Time) {
	waiting := t.held[:0]
	for _, e := range t.held {
		if !now.IsZero() && e.due.After(now) {
			waiting = append(waiting, e)
		} else {
			m.append(e)
		}
	}
	clear(t.held[len(waiting):])
	t.held = waiting
}
