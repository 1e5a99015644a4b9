package ecds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// run is what belongs to one call of Run.
type run struct {
	*Engine
	wg       sync.WaitGroup
	handles  map[uint64]handle
	cancels  map[uint64]context.CancelCauseFunc
	saving   bool
	unsaved  bool // changed since the last successful save
	nextSave time.Time
	policies [2]struct {
		path string
		err  error
	}
	nextPolicy time.Time
}

func (r *run) loop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		r.turn(ctx)
		timer.Stop()
		if wait, ok := r.wait(); ok {
			timer.Reset(wait)
		}
		select {
		case <-ctx.Done():
			return
		case <-r.events.wake:
		case <-timer.C:
		}
	}
}

// turn handles what has happened and what is due.
func (r *run) turn(ctx context.Context) {
	for _, ev := range r.events.take() {
		if ev.handle != nil {
			r.handles[ev.session] = *ev.handle
		}
		if ev.saved != nil {
			r.saveDone(ev.saved.err)
		}
		delete(r.cancels, ev.pulled)
		if ev.apply != nil {
			r.step(ctx, ev.apply)
		}
		if ev.end {
			delete(r.handles, ev.session)
		}
	}
	r.findPolicyModules()
	r.step(ctx, func(m *machine, now time.Time) {
		if d := m.deadline(); !d.IsZero() && !d.After(now) {
			m.tick(now)
		}
	})
	r.save()
}

// step changes the machine and does what it asks for, the latter without the lock.
func (r *run) step(ctx context.Context, apply func(*machine, time.Time)) {
	r.mu.Lock()
	apply(r.m, time.Now())
	actions := r.m.take()
	r.unsaved = r.unsaved || r.m.dirty
	r.m.dirty = false
	r.mu.Unlock()
	for _, a := range actions {
		r.perform(ctx, a)
	}
}

func (r *run) perform(ctx context.Context, action any) {
	switch a := action.(type) {
	case push:
		if h, ok := r.handles[a.session]; ok {
			h.push(a.res)
		}
	case settle:
		if h, ok := r.handles[a.session]; ok {
			h.settle(a.offer, a.err)
		}
	case startPull:
		r.pull(ctx, a)
	case stopPull:
		if cancel := r.cancels[a.pull]; cancel != nil {
			cancel(errors.New("nobody wants this version of the plugin any more"))
			delete(r.cancels, a.pull)
		}
	case transition:
		r.report(ctx, a)
	default:
		panic(fmt.Sprintf("ecds: unknown action %T", action))
	}
}

func (r *run) pull(ctx context.Context, a startPull) {
	ctx, cancel := context.WithCancelCause(ctx)
	r.cancels[a.pull] = cancel
	r.wg.Go(func() {
		defer cancel(nil)
		mod, err := r.cfg.Modules.Get(ctx, a.ref)
		r.put(event{pulled: a.pull, apply: func(m *machine, now time.Time) { m.pulled(now, a.pull, mod, err) }})
	})
}

func (r *run) report(ctx context.Context, t transition) {
	level, s := slog.LevelInfo, t.status
	if s.State == StateDegraded || s.State == StatePolicy || s.State == StateRejected {
		level = slog.LevelWarn
	}
	attrs := []slog.Attr{slog.String("resource", s.Name), slog.String("state", s.State)}
	for _, a := range []slog.Attr{slog.String("from", t.from), slog.String("version", s.Version), slog.String("ref", s.URL), slog.String("digest", s.DigestWanted), slog.String("reason", s.Reason)} {
		if a.Value.String() != "" {
			attrs = append(attrs, a)
		}
	}
	r.cfg.Log.LogAttrs(ctx, level, "extension state changed", attrs...)
	if s.State == StateLive && r.cfg.OnLive != nil {
		r.cfg.OnLive(s.Name)
	}
}
