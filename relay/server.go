package relay

import (
	"slices"
	"strconv"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

const maxInflight = 1024 // pushes whose answer is awaited; Envoy drops some responses without an answer

// server is the half of a terminated type that faces Envoy: each resource in a response of its own, with a nonce of our own. In
// state-of-the-world Envoy may answer two responses at once, so there the next one waits for the answer to the last.
type server struct {
	delta    bool
	pending  map[string]*discoveryv3.Resource // the newest for each name
	order    []string                         // of the pending
	queued   int                              // turns in the queue for Envoy
	inflight []pushed
	last     uint64 // nonce
}

// pushed is a resource that Envoy has not answered.
type pushed struct {
	nonce, name, version string
	since                time.Time // when its turn came
}

func newServer(delta bool) server {
	return server{delta: delta, pending: make(map[string]*discoveryv3.Resource)}
}

// put makes a resource the newest of its name. In state-of-the-world a removal cannot be said, it only withdraws what waits.
func (s *server) put(r *discoveryv3.Resource) {
	name := r.GetName()
	if r.GetResource() == nil && !s.delta {
		s.forget(name)
		return
	}
	if _, waits := s.pending[name]; !waits {
		s.order = append(s.order, name)
	}
	s.pending[name] = r
}

// forget withdraws what waits for a name.
func (s *server) forget(name string) {
	if _, waits := s.pending[name]; waits {
		delete(s.pending, name)
		s.order = slices.DeleteFunc(s.order, func(n string) bool { return n == name })
	}
}

// turns tells how many more turns in the queue the pending resources need now.
func (s *server) turns() int {
	want := len(s.pending)
	if !s.delta {
		want = min(want, 1)
		if len(s.inflight) > 0 {
			want = 0
		}
	}
	more := max(0, want-s.queued)
	s.queued += more
	return more
}

// next takes the resource whose turn it is.
func (s *server) next() (push, bool) {
	s.queued--
	if len(s.order) == 0 || !s.delta && len(s.inflight) > 0 {
		return push{}, false
	}
	name := s.order[0]
	s.order = s.order[1:]
	r := s.pending[name]
	delete(s.pending, name)
	s.last++
	p := push{nonce: strconv.FormatUint(s.last, 10), resource: r}
	if len(s.inflight) == maxInflight {
		s.inflight = slices.Delete(s.inflight, 0, 1)
	}
	s.inflight = append(s.inflight, pushed{nonce: p.nonce, name: name, version: r.GetVersion(), since: time.Now()})
	return p, true
}

// answer finds what a request answers. It can be an answer without a verdict: in state-of-the-world Envoy tells by the version that it
// has ignored a response, when nothing waits for it.
func (s *server) answer(a *ask) (verdict *pushed, isAnswer bool) {
	i := slices.IndexFunc(s.inflight, func(p pushed) bool { return p.nonce == a.nonce })
	if i < 0 {
		return nil, s.delta || a.err != nil
	}
	p := s.inflight[i]
	s.inflight = slices.Delete(s.inflight, 0, i+1) // answers come in order: what is older was dropped
	if !s.delta && a.err == nil && a.version != p.version {
		return nil, false
	}
	return &p, true
}

// release gives up waiting for an answer: Envoy gives none for a type of which it wants nothing.
func (s *server) release() {
	if !s.delta {
		s.inflight = nil
	}
}
