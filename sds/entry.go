package sds

import (
	"context"
	"errors"
	"fmt"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
)

// entry is one secret by name. All but name and poke is guarded by Server.mu; followEntry is the only one that publishes.
type entry struct {
	name string
	poke chan struct{} // capacity 1: one wake-up is enough, what to do is looked up

	own      *assignment   // from another part of the agent; it comes before the configuration
	named    *tlsv3.Secret // from the configuration; nil: the name itself says what it is
	gone     bool          // was in the configuration and is no longer
	dropped  bool          // no longer in Server.entries
	subs     map[*stream]*delivery
	asked    bool      // by any stream, once
	held     bool      // a client has accepted it, once
	idle     time.Time // since when it has no subs
	kind     string
	files    []string
	current  *material
	number   uint64 // of current, increases with every content published
	lastPush time.Time
	problem  problem
	soon     int // how near to its end current was when that was last logged
}

// problem is why the newest content, or any, cannot be used.
type problem struct {
	err    error
	since  time.Time
	logged bool
}

// nudge makes the entry look again.
func (e *entry) nudge() {
	select {
	case e.poke <- struct{}{}:
	default:
	}
}

// look is what followEntry remembers between two looks.
type look struct {
	named *tlsv3.Secret // nil when the name itself says what the secret is
	last  *reading      // its sum only
	made  *material
	err   error
}

// followEntry keeps one entry up to date until ctx ends or nobody wants it.
func (s *Server) followEntry(ctx context.Context, e *entry) {
	defer s.hints.watch(e, nil)
	tick := time.NewTicker(s.cfg.Poll)
	defer tick.Stop()
	var seen look
	for s.wanted(e) {
		s.refresh(ctx, e, &seen)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-e.poke:
			if !pause(ctx, stillness) { // several events come with one change
				return
			}
		}
	}
}

// wanted says whether the entry is still to be followed, and forgets it if not.
func (s *Server) wanted(e *entry) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !e.dropped && e.named == nil && e.own == nil && len(e.subs) == 0 && time.Since(e.idle) > linger {
		delete(s.entries, e.name)
		e.dropped = true
	}
	return !e.dropped
}

// refresh reads, checks and publishes.
func (s *Server) refresh(ctx context.Context, e *entry, seen *look) {
	template, named, remark, err := s.template(e)
	if template == nil {
		s.hints.watch(e, nil)
		s.publish(e, nil, err, remark)
		return
	}
	files := paths(template)
	got, err := s.read.settled(ctx, files, seen.last)
	s.hints.watch(e, got.dirs)
	if ctx.Err() != nil {
		return
	}
	s.describe(e, template, files)
	if err != nil {
		s.publish(e, nil, err, nil)
		return
	}
	if seen.last == nil || seen.last.sum != got.sum || seen.named != named {
		seen.made, seen.err = build(template, got.files)
		seen.named, seen.last = named, &reading{sum: got.sum}
	}
	s.publish(e, seen.made, seen.err, remark)
}

// template is what the secret is made of (nil: nothing yet), and the assigned or the configuration's secret if it is one. remark is what
// the part that assigned it has to say, which that part logs itself.
func (s *Server) template(e *entry) (template, named *tlsv3.Secret, remark, err error) {
	s.mu.Lock()
	own, named, gone := e.own, e.named, e.gone
	s.mu.Unlock()
	switch {
	case own != nil && own.secret == nil:
		return nil, nil, own.why, nil
	case own != nil:
		return own.secret, own.secret, own.why, nil
	case named != nil:
		return named, named, nil, nil
	case gone && !isFileName(e.name):
		return nil, nil, nil, fmt.Errorf("secret %q is no longer in the configuration", e.name)
	default:
		template, err = fromName(e.name)
		return template, nil, nil, err
	}
}

func (s *Server) describe(e *entry, template *tlsv3.Secret, files []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.files = files
	if e.current == nil {
		e.kind = kindName(template)
	}
}

// publish takes a look's outcome over and tells the streams; m is nil when there is none. A remark is kept like an error, but does not
// stop m and is not logged.
func (s *Server) publish(e *entry, m *material, err, remark error) {
	now := time.Now()
	s.mu.Lock()
	changed := false
	if err == nil && m != nil {
		changed, err = e.acceptLocked(m, now)
	}
	if changed {
		s.changes++
		e.number = s.changes
		for st := range e.subs {
			st.nudge()
		}
	}
	silent := err == nil
	if silent {
		err = remark
	}
	was := e.problem
	e.notedLocked(err, now)
	warn := !silent && !e.problem.logged && (e.current == nil || now.Sub(e.problem.since) >= s.cfg.Poll)
	if warn {
		e.problem.logged = true
	}
	current, soon := e.current, e.nearEndLocked(now)
	s.mu.Unlock()

	if changed {
		s.logChange(e.name, current, now)
	} else if was.logged && err == nil {
		s.log.Info("secret is in order again", "resource", e.name)
	}
	if warn {
		s.logProblem(e.name, current, err)
	}
	if soon != "" && !changed {
		s.log.Warn("secret in use nears its end and nothing newer is there", "resource", e.name, "left", soon, "not_after", current.to)
	}
}

// acceptLocked decides whether m replaces what is served.
func (e *entry) acceptLocked(m *material, now time.Time) (bool, error) {
	switch cur := e.current; {
	case cur == nil:
	case m.same(cur):
		return false, nil
	case m.kind != cur.kind && len(e.subs) > 0:
		// Envoy accepts a secret of another kind and stops verifying clients.
		return false, fmt.Errorf("secret was a %s and is now a %s: that needs another name", cur.kind, m.kind)
	case cur.works(now) && !m.works(now):
		return false, errors.New(m.dates(now) + ": the one before it is kept, which is in force")
	}
	// With nothing better, one that is out of date is served: handshakes fail either way, and an expired certificate
	// tells every client and every monitor what is wrong, where a refused connection tells nobody.
	e.current, e.kind, e.soon = m, m.kind, 0
	return true, nil
}

// notedLocked remembers a problem from when it was first seen.
func (e *entry) notedLocked(err error, now time.Time) {
	switch {
	case err == nil:
		e.problem = problem{}
	case e.problem.err == nil || e.problem.err.Error() != err.Error():
		e.problem = problem{err: err, since: now}
	}
}

// nearEndLocked says how much of a certificate's life is left when it first falls below 20 and 5 percent.
func (e *entry) nearEndLocked(now time.Time) string {
	if e.current == nil || e.current.to.IsZero() || e.own != nil && e.own.why != nil { // who assigned it and has a remark logs better
		return ""
	}
	life, left := e.current.to.Sub(e.current.from), e.current.to.Sub(now)
	stage := 0
	switch {
	case left <= 0:
		stage = 3
	case left < life/20:
		stage = 2
	case left < life/5:
		stage = 1
	}
	if stage <= e.soon {
		return ""
	}
	e.soon = stage
	return max(left, 0).Round(time.Second).String()
}

func (s *Server) logChange(name string, m *material, now time.Time) {
	attrs := []any{"resource", name, "kind", m.kind}
	if m.cert != nil {
		attrs = append(attrs, "serial", serialOf(m.cert), "not_after", m.cert.NotAfter)
	}
	for _, w := range m.warnings {
		s.log.Warn("secret is served with a reservation", "resource", name, "err", w)
	}
	if why := m.dates(now); why != "" {
		s.log.Error("secret is served although clients will refuse it, nothing better is there", append(attrs, "err", why)...)
		return
	}
	s.log.Info("secret loaded", attrs...)
}

func (s *Server) logProblem(name string, current *material, err error) {
	if current == nil {
		s.log.Error("secret cannot be served", "resource", name, "err", err)
		return
	}
	s.log.Warn("new content of a secret cannot be used, the old one is kept", "resource", name, "err", err)
}
