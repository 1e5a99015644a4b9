package envoy

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"syscall"
	"time"
)

const (
	drainPoll     = 100 * time.Millisecond // between looks at what is in flight
	drainCall     = 2 * time.Second        // for one admin call, which is made again until it works
	drainRetry    = 200 * time.Millisecond
	drainReport   = 5 * time.Second // between log lines about what is waited for
	maxDrainPause = 2 * time.Second
)

var (
	errDrainDeadline = errors.New("the drain timeout has passed")
	errHastened      = errors.New("asked to stop at once")
	errGone          = errors.New("envoy has ended")
)

// drain stops p so that no request fails as long as time allows: clients and load balancers are told while Envoy still accepts,
// then the sockets close, then what is in flight may end. It returns when p has ended; an error means that p ended by itself.
func (s *Supervisor) drain(ctx context.Context, p *process) error {
	began := time.Now()
	deadline := began.Add(s.c.DrainTimeout)
	told := s.beginDrain(began, deadline)
	s.log.Info("envoy stopping", "pid", p.pid, "delay", s.c.DrainDelay, "timeout", s.c.DrainTimeout)

	patience, done := s.patience(ctx, p, deadline)
	reason := s.drainPhases(patience, p, told)
	done()
	if errors.Is(reason, errGone) {
		<-p.exited
		return &CrashError{Crashes: 1, Exit: p.exit, when: "crashed while it was being drained"}
	}
	s.end(ctx, p, reason)
	s.log.Info("envoy stopped", "pid", p.pid, "took", time.Since(began).Round(time.Millisecond))
	return nil
}

// beginDrain makes readiness fail and returns since when it does: an announcement may have come before the stop.
func (s *Supervisor) beginDrain(began, deadline time.Time) time.Time {
	told := began
	s.update(func(st *Status) {
		if st.Drain != nil && st.Drain.Deadline.IsZero() {
			told = st.Drain.Since
		}
		st.draining(told, deadline)
	})
	if s.c.OnDrain != nil && told.Equal(began) {
		s.c.OnDrain()
	}
	return told
}

// Announce begins a stop that somebody else will ask for: readiness fails and every response asks its client to close, while
// connections are accepted and everything is served. A stop that follows counts its delay from here. It returns when Envoy knows.
func (s *Supervisor) Announce(ctx context.Context) error {
	s.announce.Lock()
	defer s.announce.Unlock()
	first := false
	s.update(func(st *Status) {
		if first = st.Drain == nil; first {
			st.draining(time.Now(), time.Time{})
		}
	})
	if first {
		if s.c.OnDrain != nil {
			s.c.OnDrain()
		}
		s.log.Info("drain announced, envoy goes on accepting")
	}
	if s.Status().PID == 0 {
		return nil // the next process is told
	}
	return s.insist(ctx, "/healthcheck/fail")
}

// remind tells a process that became LIVE after an announcement.
func (s *Supervisor) remind(ctx context.Context) {
	s.announce.Lock()
	defer s.announce.Unlock()
	if s.Status().Drain == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	if err := s.admin.Post(ctx, "/healthcheck/fail"); err != nil {
		s.log.Warn("envoy cannot be told of the drain that was announced", "err", err)
	}
}

// patience ends at the deadline, when Stop is called and when Envoy has ended; its cause says which. done must be called.
func (s *Supervisor) patience(ctx context.Context, p *process, deadline time.Time) (_ context.Context, done func()) {
	ctx, cancelDeadline := context.WithDeadlineCause(ctx, deadline, errDrainDeadline)
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-p.exited:
			cancel(errGone)
		case <-s.stopping:
			cancel(errHastened)
		case <-ctx.Done():
		}
	})
	return ctx, func() {
		cancel(nil)
		cancelDeadline()
		wg.Wait()
	}
}

// drainPhases returns nil when nothing is in flight any more, else why it gave up.
func (s *Supervisor) drainPhases(ctx context.Context, p *process, began time.Time) error {
	if !s.hasServed(ctx, p) {
		return ctxCause(ctx)
	}
	if err := s.insist(ctx, "/healthcheck/fail"); err != nil {
		return err
	}
	if err := sleep(ctx, time.Until(began.Add(s.c.DrainDelay))); err != nil {
		return err
	}
	s.phase(PhaseClosing)
	// Not ?graceful: the sockets would stay open for --drain-time-s. (With skip_exit: for ever.)
	if err := s.insist(ctx, "/drain_listeners"); err != nil {
		return err
	}
	s.phase(PhaseWaiting)
	return s.awaitIdle(ctx)
}

// hasServed asks once more: a start may have become LIVE since the last poll. Before that Envoy accepts no connection.
func (s *Supervisor) hasServed(ctx context.Context, p *process) bool {
	if p.live.Load() {
		return true
	}
	asked := time.Now()
	state, err := s.askState(ctx)
	_ = s.observe(p, asked, state, err)
	return p.live.Load()
}

// insist makes an admin call until it works. While Envoy's main thread is busy the admin is silent, and traffic flows.
func (s *Supervisor) insist(ctx context.Context, path string) error {
	warned := false
	for {
		call, cancel := context.WithTimeout(ctx, drainCall)
		err := s.admin.Post(call, path)
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctxCause(ctx)
		}
		if !warned {
			s.log.Warn("envoy cannot be told to drain, trying again", "err", err)
			warned = true
		}
		if err := sleep(ctx, drainRetry); err != nil {
			return err
		}
	}
}

// awaitIdle waits until nothing is in flight, and at least DrainMin while there are connections.
func (s *Supervisor) awaitIdle(ctx context.Context) error {
	began := time.Now()
	reported := began
	first := true
	for {
		asked := time.Now()
		load, err := s.look(ctx, drainCall)
		if ctx.Err() != nil {
			return ctxCause(ctx)
		}
		switch {
		case err != nil:
			s.log.Debug("requests in flight unknown", "err", err)
		case first:
			s.log.Info("envoy accepts no more connections", "load", load)
			first = false
		case time.Since(reported) >= drainReport:
			s.log.Info("envoy still has work in flight", "load", load, "waited", time.Since(began).Round(time.Second))
			reported = time.Now()
		}
		if err == nil && (load.Connections == 0 || load.Idle() && time.Since(began) >= s.c.DrainMin) {
			return nil
		}
		// The answer may cost Envoy's main thread much, with many clusters.
		if err := sleep(ctx, min(max(drainPoll, 3*time.Since(asked)), maxDrainPause)); err != nil {
			return err
		}
	}
}

// look asks for what is in flight, and remembers it.
func (s *Supervisor) look(ctx context.Context, timeout time.Duration) (Load, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	load, err := s.admin.load(ctx, s.c.OwnPrefix)
	if err == nil {
		s.update(func(st *Status) { st.Drain.Load = load })
	}
	return load, err
}

// end ends p, by force if need be, within 2 × KillGrace. reason is why the drain did not come to its end.
func (s *Supervisor) end(ctx context.Context, p *process, reason error) {
	s.phase(PhaseEnding)
	ctx, cancel := context.WithTimeout(ctx, s.c.KillGrace/2)
	defer cancel()
	load := s.Status().Drain.Load
	if reason != nil {
		if now, err := s.look(ctx, s.c.KillGrace/4); err == nil {
			load = now
		}
		s.log.Warn("envoy ends before its work is done, cutting it", "err", reason, "cut", load)
	} else if p.live.Load() {
		s.log.Info("envoy drained", "idle_connections", load.Connections)
	}
	p.asked.Store(true)
	patience := s.c.KillGrace
	if err := s.admin.Post(ctx, "/quitquitquit"); err == nil {
		if p.within(s.c.KillGrace) {
			return
		}
		patience /= 2 // it was told already
	}
	p.signal(syscall.SIGTERM)
	if p.within(patience) {
		return
	}
	s.log.Warn("envoy does not end, killing it", "pid", p.pid)
	p.signal(syscall.SIGKILL)
	<-p.exited
}

func (s *Supervisor) phase(name string) {
	s.update(func(st *Status) { st.Drain.Phase, st.Drain.Since = name, time.Now() })
}

// LogValue writes the counts as a group.
func (l Load) LogValue() slog.Value {
	return slog.GroupValue(slog.Int("requests", l.Requests), slog.Int("upgrades", l.Upgrades), slog.Int("tcp", l.TCP),
		slog.Int("unsent_bytes", l.Unsent), slog.Int("connections", l.Connections))
}

// ctxCause is why ctx has ended, nil while it has not.
func ctxCause(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return context.Cause(ctx)
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctxCause(ctx)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
