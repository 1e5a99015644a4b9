package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/anypb"
)

// Own is a type that the agent asks for itself: Envoy does not hear of it. It is asked for, all of it and without a node, right after
// Envoy's first request for listeners on each stream; nothing waits for the answer, which may never come.
type Own struct {
	TypeURL string // required
	// First has it asked for after Envoy's first request of any type: Envoy needs what follows from it before it asks for listeners.
	First bool
	// Handle takes the resources of one response; its error is the NACK's text. It returns at once. The relay calls it for one session in
	// order, from one goroutine; for several sessions at the same time.
	Handle func(resources []*anypb.Any) error
}

func checkOwn(all []Own) error {
	seen := map[string]bool{typeECDS: true, typeCDS: true, typeLDS: true, typeHealth: true}
	for _, o := range all {
		if o.TypeURL == "" || o.Handle == nil {
			return errors.New("relay: an own type has no type URL or no handler")
		}
		if seen[o.TypeURL] {
			return fmt.Errorf("relay: %s cannot be a type of the agent's own, or is given twice", o.TypeURL)
		}
		seen[o.TypeURL] = true
	}
	return nil
}

// ownType is one of them on one stream. Its fields belong to the session's goroutine.
type ownType struct {
	Own
	t        *typeState
	asked    bool // it is time to ask
	told     bool // the first request went up
	queued   bool // an entry for it waits in the mailbox
	answer   *answer
	accepted string // state-of-the-world: version accepted last
}

func (o *ownType) wants(now time.Time) bool {
	return o.asked && !o.told || o.answer != nil && !o.answer.due.After(now)
}

// due is when an answer that is held back may go, zero: there is none.
func (o *ownType) due() time.Time {
	if o.answer == nil || o.queued {
		return time.Time{}
	}
	return o.answer.due
}

// next is the next thing to say, nil when there is nothing.
func (o *ownType) next() *ask {
	o.queued = false
	if !o.told {
		o.told = true
		return &ask{typeURL: o.TypeURL}
	}
	if a := o.answer; a != nil && !a.due.After(time.Now()) {
		o.answer = nil
		return &ask{typeURL: o.TypeURL, version: o.accepted, nonce: a.nonce, err: a.err}
	}
	return nil
}

// health is what Server.Health said.
type health struct {
	healthy bool
	reason  string
}

// Health has the control plane told on each stream, now and on streams to come, whether what stands behind this proxy is healthy.
// It returns at once. Until it is called nothing is told.
func (s *Server) Health(healthy bool, reason string) {
	now := health{healthy: healthy, reason: reason}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.health.Load(); old != nil && *old == now {
		return
	}
	s.health.Store(&now)
	for _, session := range s.sessions {
		session.calls.signal()
	}
}

func (s *session) initOwn(all []Own) {
	s.owns = make(map[string]*ownType, len(all))
	for _, o := range all {
		own := &ownType{Own: o}
		s.owns[o.TypeURL] = own
		s.order = append(s.order, own)
	}
}

// begin asks for the agent's own types and tells its health, when it is time for them: Envoy has asked for something.
func (s *session) begin(typeURL string) {
	if s.begun {
		return
	}
	s.begun = typeURL == typeLDS
	for _, o := range s.order {
		if !o.asked && (s.begun || o.First) {
			o.t = s.typeFor([]byte(o.TypeURL))
			o.asked = o.t != nil
		}
	}
	s.askOwn()
}

// askOwn queues a turn for each of the agent's own types that has something to say.
func (s *session) askOwn() {
	for _, o := range s.order {
		if !o.queued && o.wants(time.Now()) {
			o.queued = true
			s.up.append(&entry{t: o.t, compose: o.next})
		}
	}
	if s.begun && s.health != s.server.health.Load() && !s.telling {
		if t := s.typeFor([]byte(typeHealth)); t != nil {
			s.telling = true
			s.up.append(&entry{t: t, compose: s.nextHealth})
		}
	}
}

// nextHealth tells the newest.
func (s *session) nextHealth() *ask {
	s.telling = false
	s.health = s.server.health.Load()
	a := &ask{typeURL: typeHealth}
	if !s.health.healthy {
		a.err = errors.New(s.health.reason)
	}
	return a
}

// ownResponse hands a response of an own type to its handler and answers it.
func (s *session) ownResponse(ctx context.Context, o *ownType, in *inbound) {
	if !o.told {
		return // nothing was asked for
	}
	version, nonce := string(in.header.version), string(in.header.nonce)
	err := o.Handle(in.own)
	o.answer = &answer{nonce: nonce, err: err}
	if err == nil {
		o.accepted = version
		o.t.throttle.accepted(in.header.hash)
		s.accepted(o.t, version)
	} else {
		s.ownRejected(ctx, o, version, o.t.throttle.rejected(in.header.hash))
	}
	s.askOwn()
}

// ownRejected notes that the agent does not take a response of its own.
func (s *session) ownRejected(ctx context.Context, o *ownType, version string, hold time.Duration) {
	if hold > 0 {
		o.answer.due = time.Now().Add(hold)
	}
	text := bounded(o.answer.err.Error(), maxText)
	o.t.status.NACKs++
	o.t.status.LastNACK, o.t.status.Error = time.Now(), text
	log := s.log.WarnContext
	if hold > 0 {
		log = s.log.DebugContext // the same once more
	}
	log(ctx, "response rejected", "type_url", o.TypeURL, "version", version, "nonce", o.answer.nonce, "err", firstLine(text), "hold", hold)
}
