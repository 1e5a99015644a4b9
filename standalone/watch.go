package standalone

import (
	"context"
	"time"

	"github.com/fsnotify/fsnotify"
)

// quiet is how long the files must stay the same before they are read: an editor writes a file in steps.
const quiet = 50 * time.Millisecond

// settleWithin bounds waiting for files that never stay the same.
const settleWithin = 500 * time.Millisecond

// Run serves edits of the files until ctx ends. A state of the files that cannot be used is a problem in Status and
// changes nothing else.
func (s *Source) Run(ctx context.Context) error {
	hints, lost, stop := s.watch()
	defer stop()
	poll := time.NewTimer(s.cfg.Poll)
	defer poll.Stop()
	var linger <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-linger:
			linger = nil
			if err := s.set(ctx, s.accepted()); err != nil {
				return err
			}
			continue
		case <-hints:
			sleep(ctx, quiet)
			drain(hints)
		case err := <-lost: // events that did not fit: look
			s.cfg.Log.Debug("notifications of file changes were lost", "err", err)
		case <-poll.C:
		}
		start := time.Now()
		removed, err := s.check(ctx)
		if err != nil {
			return err
		}
		if removed {
			linger = time.After(s.cfg.Linger)
		}
		// Reading a large directory all the time would cost more than it brings.
		poll.Reset(max(s.cfg.Poll, 10*time.Since(start)))
	}
}

func (s *Source) accepted() snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.target
}

// watch returns a channel that hints at changes. Without inotify there is none, and polling alone must do.
func (s *Source) watch() (hints <-chan fsnotify.Event, lost <-chan error, stop func()) {
	w, err := fsnotify.NewWatcher()
	if err == nil {
		if err = w.Add(s.cfg.Dir); err == nil {
			return w.Events, w.Errors, func() { _ = w.Close() }
		}
		_ = w.Close()
	}
	s.cfg.Log.Warn("file changes are not reported by the system: comparing files only", "err", err)
	return nil, nil, func() {}
}

func drain(hints <-chan fsnotify.Event) {
	for {
		select {
		case _, ok := <-hints:
			if !ok {
				return
			}
		default:
			return
		}
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// check reads the files and applies them when they differ from what was seen last. removed: clusters linger.
func (s *Source) check(ctx context.Context) (removed bool, err error) {
	c, err := readDir(s.cfg.Dir)
	if err == nil && c.sum == s.sum {
		return false, nil
	}
	for deadline := time.Now().Add(settleWithin); time.Now().Before(deadline) && ctx.Err() == nil; {
		sleep(ctx, quiet)
		again, errAgain := readDir(s.cfg.Dir)
		same := again.sum == c.sum && (err == nil) == (errAgain == nil)
		if c, err = again, errAgain; same {
			break
		}
	}
	switch {
	case ctx.Err() != nil:
		return false, nil
	case err != nil:
		if s.sum != unreadable {
			s.sum = unreadable
			s.fail([]Problem{{File: s.cfg.Dir, Reason: reasonOf(err)}})
		}
		return false, nil
	case c.sum == s.sum:
		return false, nil
	}
	s.sum = c.sum
	publishing := false
	err = s.apply(c, func(next snapshot) error {
		publishing = true
		var err error
		removed, err = s.publish(ctx, next)
		return err
	})
	if !publishing { // the problems are in Status and in the log
		return false, nil
	}
	return removed, err
}

// unreadable stands for the contents of a directory that cannot be read.
const unreadable = "unreadable"
