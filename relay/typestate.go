package relay

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	maxTypes       = 256 // types on one stream
	maxOutstanding = 64  // unanswered responses of one type that are remembered
)

// typeState is what a session knows of one type. It belongs to the session's goroutine.
type typeState struct {
	url, short string

	waiting    []*entry // in the mailbox, in order
	held       []*entry // NACKs held back
	merged     int      // waiting after the last merge
	asked      bool     // Envoy has asked
	named      bool     // it has asked for names
	requested  bool     // a request has gone upstream
	askedNames uint64   // of the newest request that was not held

	throttle    throttle
	deaf        bool       // state-of-the-world: the control plane answers keepOpen with the same response again
	outstanding []response // handed to Envoy (terminated types: received) and not answered, oldest first

	status    TypeStatus
	responses prometheus.Counter
}

// response is what must be remembered of one until it is answered.
type response struct {
	nonce, version string
	names          string // of secrets, for people
	hash           uint64
	since          time.Time // when it came
}

func (t *typeState) forget(e *entry) {
	if i := slices.Index(t.waiting, e); i >= 0 {
		t.waiting = slices.Delete(t.waiting, i, i+1)
	}
}

func (t *typeState) waitingCopy() []*entry { return slices.Clone(t.waiting) }

// replaceable is the first of the waiting requests that e makes pointless: those at the end that reject nothing. The very first request
// of a type is not replaced by one without names, since that would ask for everything.
func (t *typeState) replaceable(e *entry) *entry {
	first := len(t.waiting)
	for first > 0 && !t.waiting[first-1].rejects {
		first--
	}
	if first == 0 && !t.requested && e.names == 0 && len(t.waiting) > 0 && t.waiting[0].names > 0 {
		first++
	}
	if first == len(t.waiting) {
		return nil
	}
	return t.waiting[first]
}

func (t *typeState) after(e *entry) []*entry {
	return slices.Clone(t.waiting[slices.Index(t.waiting, e)+1:])
}

// received counts a response of the control plane's.
func (t *typeState) received(version string, now time.Time) {
	t.status.Responses++
	t.status.LastResponse = now
	t.status.Received = version
}

// sent remembers a passed response until it is answered.
func (t *typeState) sent(r response) {
	if len(t.outstanding) == maxOutstanding {
		t.outstanding = slices.Delete(t.outstanding, 0, 1)
	}
	t.outstanding = append(t.outstanding, r)
}

// answered forgets the response with this nonce and the older ones.
func (t *typeState) answered(nonce string) {
	i := slices.IndexFunc(t.outstanding, func(r response) bool { return r.nonce == nonce })
	t.outstanding = slices.Delete(t.outstanding, 0, i+1)
}

// awaits finds the response with this nonce.
func (t *typeState) awaits(nonce string) (response, bool) {
	i := slices.IndexFunc(t.outstanding, func(r response) bool { return r.nonce == nonce })
	if i < 0 || nonce == "" {
		return response{}, false
	}
	return t.outstanding[i], true
}
