package relay

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/gateway-agent/gateway-agent/internal/peercred"
)

// session is one ADS stream of Envoy's and the upstream stream that belongs to it. Its fields belong to the goroutine of loop, but for
// the channels and calls, which the others use to reach it.
type session struct {
	server   *Server
	p        *protocol
	id       uint64
	pid      int
	uid      uint32
	since    time.Time
	log      *slog.Logger
	proc     *process
	opened   bool   // Envoy's first request is there
	nodeID   string // of that request
	node     []byte // field bytes for a first upstream request that lacks them
	nodeSent bool
	live     time.Time // when the upstream stream was opened, zero: waiting
	lost     bool      // the control plane ended it

	types map[string]*typeState
	list  []*typeState // the same, in the order they came
	up    mailbox
	down  queue
	term  *terminated         // nil: nothing is terminated
	owns  map[string]*ownType // the map does not change
	order []*ownType          // as they are asked for

	begun   bool    // Envoy has asked for listeners: all of the agent's own requests may go
	health  *health // told last
	telling bool    // an entry for it waits in the mailbox
	watch   watchdog

	// Unbuffered, all of them: a message has one owner at any time, and memory is what the queues hold.
	fromEnvoy, fromUpstream chan inbound
	toEnvoy, toUpstream     chan frame
	connected               chan struct{}
	query                   chan chan SessionStatus
	done                    chan struct{}
	calls                   calls
}

// inbound is one message, or the end of its stream.
type inbound struct {
	frame  frame
	header header
	reply  *reply       // of a terminated type
	own    []*anypb.Any // resources of an own type
	err    error
	bad    bool // err says that the message makes no sense
}

func (s *Server) newSession(ctx context.Context, p *protocol) *session {
	id := s.lastID.Add(1)
	cred, _ := peercred.FromContext(ctx)
	ss := &session{
		server: s, p: p, id: id, pid: cred.PID, uid: cred.UID, since: time.Now(),
		log:       s.config.Log.With("session", id, "pid", cred.PID),
		types:     make(map[string]*typeState),
		down:      queue{limit: s.config.MaxWaiting},
		fromEnvoy: make(chan inbound), fromUpstream: make(chan inbound),
		toEnvoy: make(chan frame), toUpstream: make(chan frame),
		connected: make(chan struct{}), query: make(chan chan SessionStatus), done: make(chan struct{}),
		calls: calls{wake: make(chan struct{}, 1)}, // one token is enough: it says that there is something
	}
	ss.watch.init(&s.config)
	ss.initOwn(s.config.Own)
	if s.config.Terminator != nil {
		ss.term = newTerminated(ss.typeFor([]byte(typeECDS)), p)
	}
	return ss
}

// run returns when the session is over. The reader and the writer of Envoy's stream end a moment later: gRPC interrupts them only when the
// handler returns. They touch nothing but their channels, which nobody serves any more.
func (s *session) run(ctx context.Context, cancel context.CancelFunc, stream grpc.ServerStream) error {
	var upstream sync.WaitGroup
	defer upstream.Wait()
	defer cancel()
	defer s.end()
	go s.readEnvoy(ctx, stream)
	go s.write(ctx, stream.SendMsg, s.toEnvoy, nil)
	upstream.Go(func() { s.upstream(ctx) })
	return s.loop(ctx)
}

func (s *session) end() {
	close(s.done)
	s.calls.close()
	if s.term != nil && s.opened {
		s.server.config.Terminator.Close(s.id)
	}
	if !s.live.IsZero() {
		s.server.backoff.ended(time.Since(s.live), s.lost)
	}
}

func (s *session) readEnvoy(ctx context.Context, stream grpc.ServerStream) {
	for {
		in := s.read(stream.RecvMsg, &s.p.request)
		select {
		case s.fromEnvoy <- in:
		case <-ctx.Done():
			return
		}
		if in.err != nil {
			return
		}
	}
}

// read takes one message off a stream and parses its header.
func (s *session) read(receive func(any) error, num *fields) (in inbound) {
	if in.err = receive(&in.frame); in.err != nil {
		return in
	}
	if in.header, in.err = parse(in.frame, num, s.server.seed); in.err != nil {
		in.bad = true
	}
	return in
}

// write sends what comes until the stream fails; the reader of the same stream learns why.
func (s *session) write(ctx context.Context, send func(any) error, frames <-chan frame, sending *atomic.Int64) {
	for {
		select {
		case f := <-frames:
			begin(sending)
			err := send(&f)
			done(sending)
			f.data.Free()
			if err != nil {
				if status.Code(err) == codes.ResourceExhausted {
					s.log.WarnContext(ctx, "message refused", "err", err)
				}
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// upstream opens the upstream stream and reads it to its end.
func (s *session) upstream(ctx context.Context) {
	stream, err := s.server.open(ctx, s.p)
	if err != nil {
		return // ctx has ended
	}
	select {
	case s.connected <- struct{}{}:
	case <-ctx.Done():
		return
	}
	var writer sync.WaitGroup
	defer writer.Wait()
	writer.Go(func() { s.write(ctx, stream.SendMsg, s.toUpstream, &s.watch.sending) })
	for {
		in := s.read(stream.RecvMsg, &s.p.response)
		if in.err == nil {
			s.decode(&in)
		}
		select {
		case s.fromUpstream <- in:
		case <-ctx.Done():
			return
		}
		if in.err != nil {
			<-ctx.Done()
			return
		}
	}
}

// decode reads a response of a type that does not pass.
func (s *session) decode(in *inbound) {
	switch {
	case s.term != nil && string(in.header.typeURL) == typeECDS:
		in.reply, in.err = s.p.decodeOffer(in.frame.data.Materialize())
	case s.owns[string(in.header.typeURL)] != nil:
		in.own, in.err = s.p.decodeOwn(in.frame.data.Materialize())
	}
	in.bad = in.err != nil
}

// loop owns the session. It never waits for a peer: it offers the next message to whoever is ready to send it.
func (s *session) loop(ctx context.Context) error {
	tick, stop := s.watch.ticks()
	defer stop()
	for {
		upFrame, toUpstream := s.nextUp()
		downFrame, toEnvoy := s.nextDown()
		fromUpstream := s.fromUpstream
		if s.down.full() {
			fromUpstream = nil
		}
		var err error
		select {
		case in := <-s.fromEnvoy:
			err = s.request(ctx, in)
			if in.err != nil {
				return err // nil: Envoy has closed its side
			}
		case in := <-fromUpstream:
			err = s.response(ctx, in)
		case toUpstream <- upFrame:
			s.watch.asked(s.up.head())
			s.up.pop()
			s.nodeSent = true
		case toEnvoy <- downFrame:
			s.down.pop()
		case <-s.connected:
			s.nowLive(ctx)
		case <-s.calls.wake:
			err = s.doCalls()
		case <-tick:
			err = s.checkProgress(ctx, time.Now())
		case <-s.nextDue():
			s.releaseHeld(time.Now())
		case reply := <-s.query:
			reply <- s.status()
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
		if err != nil {
			return err
		}
	}
}

func (s *session) nowLive(ctx context.Context) {
	s.live = time.Now()
	s.watch.opened(s.live)
	s.server.setLive(s)
	s.log.InfoContext(ctx, "upstream stream opened")
}

// typeFor is the state of a type, nil when there are too many.
func (s *session) typeFor(bytes []byte) *typeState {
	t := s.types[string(bytes)]
	if t == nil && len(s.types) < maxTypes {
		url := string(bytes)
		t = &typeState{url: url, short: shortName(url)}
		t.responses = s.server.metrics.responses.WithLabelValues(t.short)
		t.status.Type, t.status.TypeURL = t.short, url
		s.types[url] = t
		s.list = append(s.list, t)
	}
	return t
}

// nextUp is the next request to send and the channel to offer it on, nil when there is none.
func (s *session) nextUp() (frame, chan<- frame) {
	for {
		e := s.up.head()
		if e == nil || s.live.IsZero() {
			return frame{}, nil
		}
		if e.compose != nil && len(e.frame.data) == 0 && !s.compose(e) {
			s.up.drop(e)
			continue
		}
		f := e.frame
		if !s.nodeSent && !e.hasNode && s.node != nil {
			f = frame{data: append(frameOf(s.node).data, f.data...)}
		}
		return f, s.toUpstream
	}
}

// nextDown is the next response to send and the channel to offer it on, nil when there is none.
func (s *session) nextDown() (frame, chan<- frame) {
	for d := s.down.head(); d != nil; d = s.down.head() {
		if d.push && len(d.frame.data) == 0 && !s.composePush() {
			s.down.pop()
			continue
		}
		return d.frame, s.toEnvoy
	}
	return frame{}, nil
}

// nextDue fires when something that is held back may go.
func (s *session) nextDue() <-chan time.Time {
	var due time.Time
	for _, t := range s.list {
		for _, e := range t.held {
			if due.IsZero() || e.due.Before(due) {
				due = e.due
			}
		}
	}
	if s.term != nil && !s.term.queued { // a turn in the queue says all that is due
		if d := s.term.client.due(); !d.IsZero() && (due.IsZero() || d.Before(due)) {
			due = d
		}
	}
	for _, o := range s.order {
		if d := o.due(); !d.IsZero() && (due.IsZero() || d.Before(due)) {
			due = d
		}
	}
	if due.IsZero() {
		return nil
	}
	return time.After(time.Until(due))
}

func (s *session) releaseHeld(now time.Time) {
	for _, t := range s.list {
		s.up.release(t, now)
	}
	s.askOwn()
	if s.term != nil {
		s.askUpstream()
	}
}
