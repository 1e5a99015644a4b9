package relay

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/envoytext"
)

// Status is what a person wants to know of the relay.
type Status struct {
	Connected    bool            `json:"connected"` // at least one upstream stream is open
	LastError    string          `json:"last_error,omitempty"`
	LastErrorAt  time.Time       `json:"last_error_at,omitzero"`
	LastResponse time.Time       `json:"last_response,omitzero"`
	Sessions     []SessionStatus `json:"sessions"`
}

// SessionStatus tells of one ADS stream of Envoy's.
type SessionStatus struct {
	ID        uint64       `json:"id"`
	PID       int          `json:"pid,omitempty"`
	UID       uint32       `json:"uid"`
	Node      string       `json:"node,omitempty"`
	Protocol  string       `json:"protocol"`
	Since     time.Time    `json:"since"`
	Upstream  string       `json:"upstream"` // connected | waiting
	Connected time.Time    `json:"connected_since,omitzero"`
	ToEnvoy   int          `json:"bytes_waiting_for_envoy,omitempty"`
	ToServer  int          `json:"bytes_waiting_for_control_plane,omitempty"`
	Types     []TypeStatus `json:"types"`
}

// TypeStatus tells of one resource type on a stream.
type TypeStatus struct {
	Type         string    `json:"type"` // CDS, LDS, …, other
	TypeURL      string    `json:"type_url"`
	Asked        bool      `json:"asked"` // by Envoy; else by the agent, or sent unasked
	Names        int       `json:"names"` // asked for; delta: subscribed less unsubscribed; 0: all
	Received     string    `json:"version_received,omitempty"`
	Accepted     string    `json:"version_accepted,omitempty"`
	Responses    uint64    `json:"responses"`
	ACKs         uint64    `json:"acks"`
	NACKs        uint64    `json:"nacks"`
	LastResponse time.Time `json:"last_response,omitzero"`
	LastACK      time.Time `json:"last_ack,omitzero"`
	LastNACK     time.Time `json:"last_nack,omitzero"`
	Unanswered   time.Time `json:"unanswered_since,omitzero"` // of the oldest response that Envoy has not answered
	Error        string    `json:"error,omitempty"`           // Envoy's words, until it accepts something; of the agent's own types: the agent's
	HeldUntil    time.Time `json:"nack_held_until,omitzero"`
}

// failure is the last trouble with the upstream.
type failure struct {
	text string
	at   time.Time
}

func (s *Server) failed(err error) {
	s.config.Log.Debug("upstream trouble", "err", firstLine(err.Error()))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failure = failure{text: bounded(err.Error(), maxText), at: time.Now()}
}

func (s *Server) setLive(ss *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live[ss.id] = true
	s.failure = failure{}
}

func (s *Server) add(ss *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions[ss.id] = ss
	ss.proc = s.processLocked(ss.pid)
	ss.proc.sessions++
	ss.proc.seen = time.Now()
}

func (s *Server) remove(ss *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, ss.id)
	delete(s.live, ss.id)
	ss.proc.sessions--
	ss.proc.seen = time.Now()
}

// Status asks each session for its state.
func (s *Server) Status() Status {
	s.mu.Lock()
	st := Status{Connected: len(s.live) > 0, LastError: s.failure.text, LastErrorAt: s.failure.at, LastResponse: s.metrics.lastResponse()}
	sessions := make([]*session, 0, len(s.sessions))
	for _, ss := range s.sessions {
		sessions = append(sessions, ss)
	}
	s.mu.Unlock()
	st.Sessions = make([]SessionStatus, 0, len(sessions))
	for _, ss := range sessions {
		if one, ok := ss.ask(); ok {
			st.Sessions = append(st.Sessions, one)
		}
	}
	slices.SortFunc(st.Sessions, func(a, b SessionStatus) int { return cmp.Compare(a.ID, b.ID) })
	return st
}

// ask gets the session's state from its goroutine; false: it has ended.
func (s *session) ask() (SessionStatus, bool) {
	reply := make(chan SessionStatus, 1) // the session never waits for us
	select {
	case s.query <- reply:
		return <-reply, true
	case <-s.done:
		return SessionStatus{}, false
	}
}

func (s *session) status() SessionStatus {
	st := SessionStatus{
		ID: s.id, PID: s.pid, UID: s.uid, Node: s.nodeID, Protocol: s.p.name, Since: s.since,
		Upstream: "waiting", Connected: s.live, ToEnvoy: s.down.bytes, ToServer: s.up.bytes,
		Types: make([]TypeStatus, 0, len(s.list)),
	}
	if !s.live.IsZero() {
		st.Upstream = "connected"
	}
	for _, t := range s.list {
		one := t.status
		if len(t.held) == 0 {
			one.HeldUntil = time.Time{}
		}
		one.Asked, one.Unanswered = t.asked, s.unanswered(t)
		if s.term != nil && t == s.term.t {
			if one.HeldUntil = s.term.client.due(); t.status.Responses == 0 && len(s.term.names) == 0 {
				continue
			}
		}
		st.Types = append(st.Types, one)
	}
	return st
}

// unanswered is when the oldest response came that Envoy owes an answer to, zero: there is none. It owes none for a type of which it wants
// nothing.
func (s *session) unanswered(t *typeState) time.Time {
	switch {
	case !t.asked || t.named && t.status.Names == 0:
	case s.term != nil && t == s.term.t:
		if inflight := s.term.server.inflight; len(inflight) > 0 {
			return inflight[0].since
		}
	case len(t.outstanding) > 0:
		return t.outstanding[0].since
	}
	return time.Time{}
}

// accepted notes an ACK of Envoy's.
func (s *session) accepted(t *typeState, version string) {
	t.status.ACKs++
	t.status.LastACK, t.status.Accepted, t.status.Error = time.Now(), version, ""
	s.progress(t, func(p *progress) { p.acked, p.rejected = true, "" })
}

// rejected notes a NACK of Envoy's, of the response r if that is known.
func (s *session) rejected(ctx context.Context, t *typeState, r response, nonce, text string, hold time.Duration) {
	if text = envoytext.Public(text, maxText); r.names != "" {
		text = envoytext.Public(r.names, maxText) + ": " + text
	}
	t.status.NACKs++
	t.status.LastNACK, t.status.Error = time.Now(), text
	s.server.metrics.reject(t.short)
	s.progress(t, func(p *progress) { p.rejected = text })
	log := s.log.WarnContext
	if hold > 0 {
		log = s.log.DebugContext // the same once more
	}
	log(ctx, "envoy rejected a response", "type_url", t.url, "version", r.version, "nonce", nonce, "err", bounded(text, 1<<10), "hold", hold)
}
