package envoy

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// CrashError says that Envoy crashed too often, or while it was being drained.
type CrashError struct {
	Crashes int  // how many; 1 for a crash during a drain
	Exit    Exit // the last one
	when    string
}

// Error names the cause, and ends with Envoy's last words on lines of their own.
func (e *CrashError) Error() string {
	return "envoy " + e.when + ": " + e.Exit.String() + e.Exit.lastLines()
}

// Run starts Envoy and keeps it running until ctx is done, drains it then, and returns when it has ended: with nil when that was
// asked for, with a *CrashError when Envoy failed more often than it may. Envoy exiting by itself is a failure, whatever its status.
func (s *Supervisor) Run(ctx context.Context) error {
	defer s.update(func(st *Status) { st.stopped() })
	s.warnOfLater()
	b := budget{allowed: s.c.Restarts, window: s.c.RestartWindow}
	for first := true; ; first = false {
		exit, asked, err := s.runOnce(ctx, first)
		if asked || err != nil {
			return err
		}
		wait, again := b.crash(exit.At, exit.Live)
		if !again {
			return &CrashError{Crashes: b.count(), Exit: exit, when: fmt.Sprintf("crashed %d times, giving up", b.count())}
		}
		s.crashed(exit, wait)
		if !s.pause(ctx, wait) {
			return nil
		}
	}
}

func (s *Supervisor) warnOfLater() {
	_, ignored := withoutLater(s.c.Args, s.c.Version)
	for _, flag := range ignored {
		s.log.Warn("envoy is too old for a flag, which is left out", "flag", flag, "version", s.c.Version, "since", laterFlags[flag])
	}
}

// runOnce runs one Envoy process to its end. asked: the agent ended it.
func (s *Supervisor) runOnce(ctx context.Context, first bool) (exit Exit, asked bool, err error) {
	if ctx.Err() != nil {
		return Exit{}, true, nil
	}
	work := context.WithoutCancel(ctx) // a drain begins when ctx ends
	p, err := startProcess(work, s.c, s.args(), &s.dropped)
	if err != nil && first {
		return Exit{}, false, err
	}
	if err != nil { // the binary is being replaced, perhaps
		return Exit{At: time.Now(), Code: -1, Last: []string{err.Error()}}, false, nil
	}
	s.started(p)
	poll, stopPoll := context.WithCancel(work)
	var polling sync.WaitGroup
	polling.Go(func() { s.poll(poll, p) })
	defer polling.Wait()
	defer stopPoll()

	select {
	case <-p.exited:
		return p.exit, false, nil
	case <-ctx.Done():
	case <-s.stopping:
	}
	err = s.drain(work, p)
	return p.exit, true, err
}

// pause waits before a restart; false: asked to stop meanwhile.
func (s *Supervisor) pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
	case <-s.stopping:
	}
	return false
}

func (s *Supervisor) started(p *process) {
	epoch := 0
	s.update(func(st *Status) {
		st.started(p)
		epoch = st.Epoch
	})
	s.log.Info("envoy started", "pid", p.pid, "epoch", epoch, "version", s.c.Version)
}

func (s *Supervisor) crashed(exit Exit, wait time.Duration) {
	s.log.Error("envoy crashed, restarting", "err", exit.String(), "pid", exit.PID, "served", exit.Live, "wait", wait)
	s.mu.Lock()
	s.restarts[exit.reason()]++
	s.mu.Unlock()
	s.update(func(st *Status) { st.crashed(exit, wait) })
}
