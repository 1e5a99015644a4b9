package relay

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// terminated is the table of a terminated type between its two halves.
type terminated struct {
	t      *typeState
	names  map[string]struct{} // what Envoy asks for
	client client
	server server
	queued bool // an entry for it waits in the mailbox
}

func newTerminated(t *typeState, p *protocol) *terminated {
	term := &terminated{t: t, names: make(map[string]struct{})}
	term.client = client{
		delta: p.delta, throttle: &t.throttle,
		sent: make(map[string]struct{}), dropped: make(map[string]struct{}), offers: make(map[uint64]offer), unheard: make(map[string]bool),
	}
	term.server = newServer(p.delta)
	return term
}

// change brings the names up to date with a request and returns what the Terminator must know. A state-of-the-world request that
// answers nothing and changes nothing wants answers again.
func (t *terminated) change(a *ask, delta, answer bool) (subscribed, unsubscribed []string) {
	if delta {
		subscribed = a.subscribe
		wanted := setOf(subscribed)
		unsubscribed = slices.DeleteFunc(a.unsubscribe, func(name string) bool { _, both := wanted[name]; return both })
	} else {
		subscribed, unsubscribed = t.difference(a.subscribe)
		if !answer && len(subscribed)+len(unsubscribed) == 0 {
			subscribed = sorted(t.names)
		}
	}
	for _, name := range unsubscribed {
		delete(t.names, name)
		t.server.forget(name)
		t.client.gaveUp(name)
	}
	for _, name := range subscribed {
		t.names[name] = struct{}{}
	}
	return subscribed, unsubscribed
}

func (t *terminated) difference(wanted []string) (added, gone []string) {
	now := setOf(wanted)
	for _, name := range sorted(now) {
		if _, had := t.names[name]; !had {
			added = append(added, name)
		}
	}
	for _, name := range sorted(t.names) {
		if _, still := now[name]; !still {
			gone = append(gone, name)
		}
	}
	return added, gone
}

// terminatedRequest handles a request of Envoy's for the terminated type.
func (s *session) terminatedRequest(ctx context.Context, in inbound) error {
	a, err := s.p.decodeAsk(in.frame.data.Materialize())
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "malformed %s: %v", s.p.request.message, err)
	}
	answered, isAnswer := s.term.server.answer(a)
	if answered != nil {
		s.noteAnswer(ctx, answered, a.err)
		s.server.config.Terminator.Answer(s.id, answered.name, answered.version, a.err)
	}
	subscribed, unsubscribed := s.term.change(a, s.p.delta, isAnswer)
	s.term.t.status.Names = len(s.term.names)
	if len(subscribed)+len(unsubscribed) > 0 {
		s.server.config.Terminator.Subscribe(s.id, subscribed, unsubscribed)
	}
	if len(s.term.names) == 0 {
		s.term.server.release()
	}
	s.askUpstream()
	s.pushMore()
	return nil
}

func (s *session) noteAnswer(ctx context.Context, p *pushed, err error) {
	if err != nil {
		s.rejected(ctx, s.term.t, response{version: p.version}, p.nonce, err.Error(), 0)
		return
	}
	s.accepted(s.term.t, p.version)
}

// offer hands a response of the upstream's to the Terminator.
func (s *session) offer(r *reply, hash uint64) {
	if !s.opened {
		return // nothing was asked for
	}
	id := s.term.client.received(r, hash, time.Now())
	s.askUpstream()
	s.server.config.Terminator.Offer(s.id, id, r.resources, r.removed)
}

// doCalls carries out what was called from outside.
func (s *session) doCalls() error {
	s.askOwn()
	if s.term == nil {
		return nil
	}
	pushes, settled := s.calls.take()
	for _, resource := range pushes {
		if _, wanted := s.term.names[resource.GetName()]; wanted {
			s.term.server.put(resource)
		}
	}
	for _, call := range settled {
		if err := s.term.client.settle(call.offer, call.err, time.Now()); err != nil {
			return status.Error(codes.ResourceExhausted, err.Error())
		}
	}
	s.askUpstream()
	s.pushMore()
	return nil
}

// askUpstream queues a turn for the terminated type when it has something to say upstream.
func (s *session) askUpstream() {
	if s.term.queued || !s.term.client.wants(s.term.names, time.Now()) {
		return
	}
	s.term.queued = true
	s.up.append(&entry{t: s.term.t, compose: s.nextAsk})
}

// nextAsk is the terminated type's next request. Another turn is queued when there is more.
func (s *session) nextAsk() *ask {
	s.term.queued = false
	a := s.term.client.next(s.term.names, time.Now())
	if a != nil {
		a.typeURL = s.term.t.url
		s.askUpstream()
	}
	return a
}

// compose makes the request whose turn it is; false: there is nothing to say any more.
func (s *session) compose(e *entry) bool {
	a := e.compose()
	if a == nil {
		return false
	}
	b, err := proto.Marshal(s.p.encodeAsk(a))
	if err != nil {
		panic(fmt.Sprintf("relay: marshal a request: %v", err)) // all its strings came out of valid messages or ToValidUTF8
	}
	s.up.fill(e, b)
	return true
}

// pushMore queues a turn for each push that may go to Envoy now.
func (s *session) pushMore() {
	for range s.term.server.turns() {
		s.down.turn()
	}
}

// composePush makes the response whose turn it is; false: it was withdrawn while it waited.
func (s *session) composePush() bool {
	p, ok := s.term.server.next()
	if !ok {
		return false
	}
	b, err := proto.Marshal(s.p.encodePush(p))
	if err != nil {
		s.log.Error("resource cannot be encoded", "resource", p.resource.GetName(), "version", p.resource.GetVersion(), "err", err)
		s.term.server.answer(&ask{nonce: p.nonce})
		s.server.config.Terminator.Answer(s.id, p.resource.GetName(), p.resource.GetVersion(), fmt.Errorf("encode the resource: %w", err))
		return false
	}
	s.down.fill(b)
	return true
}

func setOf(names []string) map[string]struct{} {
	set := make(map[string]struct{}, len(names))
	for _, name := range names {
		set[name] = struct{}{}
	}
	return set
}

func sorted(set map[string]struct{}) []string { return slices.Sorted(maps.Keys(set)) }
