package relay

import "time"

const (
	minHold = time.Second
	maxHold = time.Minute
)

// throttle keeps a rejected response from being answered in a loop: some control planes answer a NACK at once with the same again.
// The zero value is ready; one per type.
type throttle struct {
	hash  uint64 // of the response that was rejected last
	armed bool
	hold  time.Duration
}

// rejected tells how long the NACK of a response must be held back.
func (t *throttle) rejected(hash uint64) time.Duration {
	if !t.armed || t.hash != hash {
		*t = throttle{hash: hash, armed: true}
		return 0
	}
	t.hold = min(max(2*t.hold, minHold), maxHold)
	return t.hold
}

// accepted forgets the rejected response when another one was accepted, and tells so.
func (t *throttle) accepted(hash uint64) bool {
	if t.armed && t.hash == hash {
		return false
	}
	*t = throttle{}
	return true
}
