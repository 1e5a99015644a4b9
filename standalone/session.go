package standalone

import (
	"context"
	"sync"
)

// sessions remembers what each open stream was sent and has answered. It is safe for concurrent use.
type sessions struct {
	mu      sync.Mutex
	list    map[*session]bool
	changed chan struct{} // closed and replaced at each change
}

// session is one stream; its fields are guarded by sessions.mu.
type session struct {
	types map[string]*sending // by type URL
}

// sending is the last response of a type.
type sending struct {
	version string
	nonce   string
	settled bool // Envoy answered it, well or not
	delta   bool
	names   []string        // state of the world: the names asked for, none for all; delta: the names sent
	all     map[string]bool // delta: every name sent on this stream
}

func (s *sessions) open() *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	sess := &session{types: map[string]*sending{}}
	if s.list == nil {
		s.list = map[*session]bool{}
	}
	s.list[sess] = true
	return sess
}

func (s *sessions) close(sess *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.list, sess)
	s.notifyLocked()
}

func (s *sessions) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.list)
}

func (s *sessions) sent(sess *session, typeURL string, now sending) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now.all = map[string]bool{}
	if before := sess.types[typeURL]; before != nil && now.delta {
		now.all = before.all
	}
	for _, name := range now.names {
		now.all[name] = true
	}
	sess.types[typeURL] = &now
}

// answered returns the last response of the type on the stream, nil before the first; it is settled when the nonce is
// its own.
func (s *sessions) answered(sess *session, typeURL, nonce string) *sending {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := sess.types[typeURL]
	if last == nil {
		return nil
	}
	if last.nonce == nonce && !last.settled {
		last.settled = true
		s.notifyLocked()
	}
	out := *last
	return &out
}

func (s *sessions) notifyLocked() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// wait returns when the condition holds for every open stream, or when ctx ends.
func (s *sessions) wait(ctx context.Context, done func(*session) bool) {
	for {
		s.mu.Lock()
		open := false
		for sess := range s.list {
			open = open || !done(sess)
		}
		if s.changed == nil {
			s.changed = make(chan struct{})
		}
		changed := s.changed
		s.mu.Unlock()
		if !open {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// hasVersion: the stream does not ask for the type, or has answered this version of it.
func hasVersion(typeURL, version string) func(*session) bool {
	return func(sess *session) bool {
		last := sess.types[typeURL]
		return last == nil || (last.version == version && last.settled)
	}
}

// hasNames: the stream was sent these resources and has answered.
func hasNames(typeURL string, names []string) func(*session) bool {
	return func(sess *session) bool {
		last := sess.types[typeURL]
		if last == nil || !last.settled {
			return false
		}
		for _, name := range names {
			if !last.all[name] {
				return false
			}
		}
		return true
	}
}
