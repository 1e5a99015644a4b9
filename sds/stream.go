package sds

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/gateway-agent/gateway-agent/internal/envoytext"
)

const maxRejection = 500 // bytes of what Envoy says about a secret it rejects

// peer is one protocol's end of a stream. recv and send are called by one goroutine each.
type peer interface {
	recv() (request, error)
	send(response) error
}

// request is what a request of either protocol says.
type request struct {
	subscribe, unsubscribe []string
	again                  bool              // a name subscribed again wants an answer again
	held                   map[string]string // versions the client has: name → version
	nonce                  string
	nack                   string // reason of a rejection; "" accepted
	rejected               bool
}

// response carries one secret, or the word that there is none.
type response struct {
	nonce, name, version string
	body                 *anypb.Any // nil: cannot be served, for this reason
	reason               string
}

// stream is one stream of either protocol. What is not in the entries belongs to the goroutine that runs it.
type stream struct {
	s      *Server
	wake   chan struct{} // capacity 1: one wake-up is enough, what to send is looked up
	subs   map[string]*delivery
	nonces map[string]sent // newest answer for each name that awaits a verdict
	nonce  uint64
}

// sent is an answer on its way.
type sent struct {
	name    string
	number  uint64
	refusal bool
}

// delivery is what one stream got of one secret. The stream's goroutine owns it, but for nack, which is guarded by Server.mu.
type delivery struct {
	e        *entry
	number   uint64    // content last sent
	nonce    string    // of the answer that awaits a verdict
	has      bool      // the client has some version: it waits for nothing
	told     bool      // was told that it cannot be served
	deadline time.Time // when it is told so
	nack     string    // why the client rejected content number
}

func (s *Server) newStream() *stream {
	return &stream{s: s, wake: make(chan struct{}, 1), subs: map[string]*delivery{}, nonces: map[string]sent{}}
}

func (st *stream) nudge() {
	select {
	case st.wake <- struct{}{}:
	default:
	}
}

// serve runs one stream until its client leaves. The goroutine that receives ends with the stream's context, that is when this returns.
func (s *Server) serve(ctx context.Context, p peer) error {
	st := s.newStream()
	s.count(1)
	defer s.count(-1)
	defer st.close()
	requests := make(chan request)
	failed := make(chan error, 1) // the receiver must be able to leave when nobody listens
	go func() {
		for {
			r, err := p.recv()
			if err != nil {
				failed <- err
				return
			}
			select {
			case requests <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	return st.run(ctx, p, requests, failed)
}

func (st *stream) run(ctx context.Context, p peer, requests <-chan request, failed <-chan error) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-failed:
			return ended(err)
		case r := <-requests:
			if err := st.handle(r); err != nil {
				return err
			}
		case <-st.wake:
		case <-timer.C:
		}
		for _, r := range st.due(time.Now()) {
			if err := p.send(r); err != nil {
				return err
			}
		}
		timer.Reset(st.untilRefusal(time.Now()))
	}
}

func (s *Server) count(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams += n
}

func (st *stream) handle(r request) error {
	if len(st.subs)+len(r.subscribe) > maxSecrets {
		return status.Errorf(codes.ResourceExhausted, "more than %d secrets on one stream", maxSecrets)
	}
	if r.nonce != "" {
		st.verdict(r)
	}
	for _, name := range r.unsubscribe {
		st.unsubscribe(name)
	}
	for _, name := range r.subscribe {
		if err := st.subscribe(name, r); err != nil {
			return err
		}
	}
	return nil
}

func (st *stream) subscribe(name string, r request) error {
	if d := st.subs[name]; d != nil {
		if r.again {
			d.number, d.told = 0, false
		}
		return nil
	}
	s := st.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.entries[name] == nil && len(s.entries) >= maxSecrets {
		return status.Errorf(codes.ResourceExhausted, "more than %d secrets are in use", maxSecrets)
	}
	d := &delivery{e: s.entryLocked(name), deadline: time.Now().Add(s.cfg.Wait)}
	if version, ok := r.held[name]; ok {
		d.has = true
		if version == s.version(d.e.number) {
			d.number = d.e.number
		}
	}
	d.e.subs[st], d.e.asked, d.e.held = d, true, d.e.held || d.has
	st.subs[name] = d
	return nil
}

func (st *stream) unsubscribe(name string) {
	d := st.subs[name]
	if d == nil {
		return
	}
	delete(st.subs, name)
	delete(st.nonces, d.nonce)
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	delete(d.e.subs, st)
	d.e.idle = time.Now()
	st.s.dropUnusedLocked(d.e)
}

func (st *stream) close() {
	for name := range st.subs {
		st.unsubscribe(name)
	}
}

// due lists what is to be sent now: new contents, and refusals whose time has come.
func (st *stream) due(now time.Time) []response {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	var out []response
	for _, name := range slices.Sorted(maps.Keys(st.subs)) {
		d := st.subs[name]
		switch e := d.e; {
		case e.current != nil && e.number != d.number:
			d.number, d.nack, d.told = e.number, "", false
			e.lastPush = now
			st.s.pushes++
			out = append(out, st.answer(d, response{name: name, version: st.s.version(e.number), body: e.current.body}))
		case e.current == nil && !d.told && !d.has && !now.Before(d.deadline):
			d.told = true
			out = append(out, st.answer(d, response{name: name, reason: e.reasonLocked()}))
		}
	}
	return out
}

// answer gives a response its nonce, which replaces the one that the client has not yet answered.
func (st *stream) answer(d *delivery, r response) response {
	st.nonce++
	r.nonce = strconv.FormatUint(st.nonce, 10)
	delete(st.nonces, d.nonce)
	d.nonce = r.nonce
	st.nonces[r.nonce] = sent{name: r.name, number: d.number, refusal: r.body == nil}
	return r
}

// untilRefusal is how long until a name has to be told that it cannot be served.
func (st *stream) untilRefusal(now time.Time) time.Duration {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	next := time.Hour
	for _, d := range st.subs {
		if d.e.current == nil && !d.told && !d.has {
			next = min(next, d.deadline.Sub(now))
		}
	}
	return max(next, 0)
}

// verdict takes the client's answer to one response. A rejected content is not sent again; the next one is.
func (st *stream) verdict(r request) {
	answer, ok := st.nonces[r.nonce]
	if !ok {
		return // overtaken by a newer answer
	}
	delete(st.nonces, r.nonce)
	s := st.s
	if answer.refusal {
		s.log.Debug("client knows that a secret cannot be served", "resource", answer.name)
		return
	}
	if d := st.subs[answer.name]; d != nil {
		d.has = d.has || !r.rejected
		s.accepted(d)
	}
	if !r.rejected {
		return
	}
	text := envoytext.Public(r.nack, maxRejection)
	s.mu.Lock()
	s.rejects++
	if d := st.subs[answer.name]; d != nil && d.number == answer.number {
		d.nack = text
	}
	version := s.version(answer.number)
	s.mu.Unlock()
	s.log.Error("envoy rejects a secret and keeps the one before it", slog.String("resource", answer.name),
		slog.String("version", version), slog.String("err", text))
}

// version names the content with a number; "" if there is none yet.
func (s *Server) version(number uint64) string {
	if number == 0 {
		return ""
	}
	return s.boot + "/" + strconv.FormatUint(number, 10)
}
