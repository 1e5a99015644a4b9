package relay

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// request handles a message of Envoy's.
func (s *session) request(ctx context.Context, in inbound) error {
	switch {
	case in.err == nil:
	case in.bad:
		return status.Error(codes.InvalidArgument, in.err.Error())
	case errors.Is(in.err, io.EOF):
		return nil
	default:
		s.refused(ctx, in.err, "envoy")
		return in.err
	}
	if !s.opened {
		if err := s.open(ctx, in.header.node); err != nil {
			return err
		}
	}
	t := s.typeFor(in.header.typeURL)
	if t == nil {
		return status.Errorf(codes.InvalidArgument, "more than %d types on one stream", maxTypes)
	}
	if s.pid == 0 && t.url == typeCDS && !t.asked && len(in.header.version) == 0 && in.header.initial == 0 {
		s.server.fresh(s)
	}
	if s.owns[t.url] != nil {
		s.log.DebugContext(ctx, "envoy asks for a type of the agent's own", "type_url", t.url)
		in.frame.data.Free()
		return nil
	}
	t.asked = true
	s.countNames(t, &in.header)
	if s.term != nil && t == s.term.t {
		defer in.frame.data.Free()
		return s.terminatedRequest(ctx, in)
	}
	return s.passRequest(ctx, t, in)
}

// open reads the node of Envoy's first request.
func (s *session) open(ctx context.Context, node []byte) error {
	var n corev3.Node
	if err := proto.Unmarshal(node, &n); err != nil {
		return status.Errorf(codes.InvalidArgument, "malformed node in the first request: %v", err)
	}
	s.opened = true
	s.nodeID = n.GetId()
	if len(node) > 0 {
		s.node = protowire.AppendBytes(protowire.AppendTag(nil, s.p.request.node, protowire.BytesType), node)
	}
	s.log.InfoContext(ctx, "envoy opened a stream", "node", s.nodeID, "protocol", s.p.name)
	if s.term != nil {
		s.server.config.Terminator.Open(s.id, &n, s.calls.push, s.calls.settle)
	}
	return nil
}

func (s *session) countNames(t *typeState, h *header) {
	if s.p.delta {
		t.status.Names = max(0, t.status.Names+h.names-h.unnames)
	} else {
		t.status.Names = h.names
	}
	t.named = t.named || h.names > 0
	s.progress(t, func(p *progress) { p.asked = true })
}

// passRequest forwards a request of a passed type.
func (s *session) passRequest(ctx context.Context, t *typeState, in inbound) error {
	h := &in.header
	e := &entry{
		t: t, frame: in.frame, nonce: string(h.nonce), rejects: h.rejects, hasNode: h.node != nil,
		names: h.names, nameSum: h.nameSum, changes: h.names+h.unnames+h.initial > 0, demands: s.demands(t, h),
	}
	rejected, _ := t.awaits(e.nonce)
	hold, different := s.note(ctx, t, h)
	if different && s.p.delta {
		s.up.release(t, time.Time{})
	}
	sameNames := s.p.delta && !e.changes || !s.p.delta && e.nameSum == t.askedNames
	if hold > 0 && sameNames {
		e.due = time.Now().Add(hold)
		t.status.HeldUntil = e.due
		if !s.p.delta {
			s.up.dropRejects(t)
			s.keepOpen(t, e, rejected.version)
		}
		s.up.hold(e, s.p.delta)
		return nil
	}
	if err := s.up.put(e, s.p.delta); err != nil {
		return status.Error(codes.ResourceExhausted, err.Error())
	}
	s.begin(t.url)
	return nil
}

// demands tells whether a control plane that works has to answer a request. Some say nothing to one that names the version they have.
func (s *session) demands(t *typeState, h *header) bool {
	if t.url != typeCDS && t.url != typeLDS || len(h.nonce) > 0 {
		return false
	}
	return s.server.config.Answers || len(h.version) == 0 && h.initial == 0
}

// keepOpen sends, while a NACK is held, the same NACK under the version that it rejects. To a control plane that decides by comparing
// versions a NACK means that Envoy lacks the newest one: it would answer the held one at once with the same response, and can say nothing
// before it comes. To this one it has nothing to say until it has something new, which then comes without delay. One that answers with
// the same all the same gets no other.
func (s *session) keepOpen(t *typeState, e *entry, version string) {
	if t.deaf = t.deaf || len(t.held) > 0; t.deaf { // when one is held, nothing else has been said since
		return
	}
	e.frame.data.Ref()
	claim := protowire.AppendString(protowire.AppendTag(nil, s.p.request.version, protowire.BytesType), version)
	// Of a field that comes twice the last one counts.
	s.up.append(&entry{t: t, frame: frame{data: append(slices.Clip(e.frame.data), mem.SliceBuffer(claim))}, nonce: e.nonce, rejects: true, hasNode: e.hasNode})
}

// note keeps account of an answer of Envoy's to a passed type and tells how long a NACK must be held, and whether the answer is to another
// response than the one rejected last.
func (s *session) note(ctx context.Context, t *typeState, h *header) (hold time.Duration, different bool) {
	nonce := string(h.nonce)
	r, known := t.awaits(nonce)
	switch {
	case h.rejects:
		if known {
			t.answered(nonce)
			hold = t.throttle.rejected(r.hash)
			different = hold == 0
		}
		s.rejected(ctx, t, r, nonce, h.errorText, hold)
	case known && (s.p.delta || r.version == string(h.version)):
		t.answered(nonce)
		different = t.throttle.accepted(r.hash)
		t.deaf = t.deaf && !different
		s.accepted(t, r.version)
	}
	return hold, different
}
