package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// response handles a message of the control plane's.
func (s *session) response(ctx context.Context, in inbound) error {
	if in.err != nil {
		return s.upstreamEnded(ctx, in)
	}
	t := s.typeFor(in.header.typeURL)
	if t == nil {
		in = inbound{bad: true, err: fmt.Errorf("more than %d types on one stream", maxTypes)}
		return s.upstreamEnded(ctx, in)
	}
	now := time.Now()
	s.server.metrics.last.Store(&now)
	s.answers()
	t.responses.Inc()
	t.received(string(in.header.version), now)
	s.progress(t, func(p *progress) { p.answered = true })
	if in.reply != nil {
		in.frame.data.Free()
		s.offer(in.reply, in.header.hash)
		return nil
	}
	if o := s.owns[t.url]; o != nil {
		s.ownResponse(ctx, o, &in)
		in.frame.data.Free() // the header points into it
		return nil
	}
	if s.term != nil && t.url == typeLDS && s.opened {
		s.server.config.Terminator.Observe(s.id, s.p.delta, in.frame.data.Materialize())
	}
	passed := response{nonce: string(in.header.nonce), version: string(in.header.version), hash: in.header.hash, since: now}
	if t.url == typeSDS {
		passed.names = secretNames(in.frame.data.Materialize(), s.p.delta)
	}
	t.sent(passed)
	s.down.put(in.frame)
	return nil
}

// upstreamEnded turns the end of the upstream stream into the one end that Envoy sees.
func (s *session) upstreamEnded(ctx context.Context, in inbound) error {
	s.lost = true
	err := in.err
	if in.bad {
		err = fmt.Errorf("the control plane sent what cannot be read: %w", err)
	} else if errors.Is(err, io.EOF) {
		err = errors.New("the control plane closed the stream")
	} else {
		s.refused(ctx, err, "control plane")
		err = fmt.Errorf("the control plane ended the stream: %s", explained(err))
	}
	s.server.failed(err)
	s.log.WarnContext(ctx, "upstream stream ended", "err", firstLine(err.Error()))
	return status.Error(codes.Unavailable, bounded(err.Error(), maxText))
}

// refused logs a message over the limit. gRPC does not read it, so its type is known only as one of those that wait for an answer.
func (s *session) refused(ctx context.Context, err error, from string) {
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "larger than max") {
		return
	}
	var candidates []string
	for _, t := range s.list {
		if t.requested && t.url != typeHealth && t.status.Responses == t.status.ACKs+t.status.NACKs {
			candidates = append(candidates, t.url)
		}
	}
	slices.Sort(candidates)
	s.log.ErrorContext(ctx, "message over the size limit", "from", from, "type_url", strings.Join(candidates, " or "),
		"limit", s.server.config.MaxMessage, "err", err)
}
