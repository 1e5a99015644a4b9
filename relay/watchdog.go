package relay

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	defaultStuckAfter = 45 * time.Second
	maxMute           = 5 // doublings of the patience with a control plane that says nothing
	maxTick           = 5 * time.Second
	minTick           = 10 * time.Millisecond
)

// watchdog notices that an upstream stream does not move although its connection answers pings. A control plane that has nothing to say
// cannot be told from one that is stuck, but for its first answer when Envoy has nothing yet: that one always comes from a control plane
// that works. So a stream is stuck when a request cannot be sent, or when that answer does not come; whoever wants more gives streams a
// maximum age.
type watchdog struct {
	after   time.Duration // negative: never
	age     time.Duration // 0: any
	sending atomic.Int64  // since when the writer has been at one request, in Unix nanoseconds; 0: it is not

	first    time.Time // when the first request went out that demands an answer
	answered bool      // anything came
	end      time.Time // when it is too old, zero: never
	held     time.Time // when Envoy last kept us from reading: then the control plane may have to wait with reading, too
}

func begin(sending *atomic.Int64) {
	if sending != nil {
		sending.Store(time.Now().UnixNano())
	}
}

func done(sending *atomic.Int64) {
	if sending != nil {
		sending.Store(0)
	}
}

func (w *watchdog) init(config *Config) { w.after, w.age = config.StuckAfter, config.MaxAge }

// ticks is when to look; nil when there is nothing to look for.
func (w *watchdog) ticks() (<-chan time.Time, func()) {
	period := w.after
	if w.age > 0 && (period < 0 || w.age < period) {
		period = w.age
	}
	if period <= 0 {
		return nil, func() {}
	}
	ticker := time.NewTicker(min(max(period/16, minTick), maxTick))
	return ticker.C, ticker.Stop
}

func (w *watchdog) opened(now time.Time) {
	if w.age > 0 {
		w.end = now.Add(w.age - rand.N(w.age/10+1))
	}
}

// asked notes that a request goes to the writer.
func (w *watchdog) asked(e *entry) {
	if e.demands && w.first.IsZero() {
		w.first = time.Now()
	}
}

// answers notes that the control plane speaks.
func (s *session) answers() {
	if !s.watch.answered {
		s.watch.answered = true
		s.server.mute.Store(0)
	}
}

// checkProgress ends a session whose upstream stream is stuck or too old. Envoy comes again, and is served over another connection.
func (s *session) checkProgress(ctx context.Context, now time.Time) error {
	w := &s.watch
	if s.down.full() {
		w.held = now
	}
	if w.after > 0 {
		if since := w.sending.Load(); since != 0 && now.Sub(later(time.Unix(0, since), w.held)) >= w.after {
			return s.stuck(ctx, fmt.Sprintf("the control plane has read nothing for %v", w.after))
		}
		patience := w.after << min(s.server.mute.Load(), maxMute)
		if !w.answered && !w.first.IsZero() && now.Sub(w.first) >= patience {
			s.server.mute.Add(1)
			return s.stuck(ctx, fmt.Sprintf("the control plane has answered nothing for %v", patience))
		}
	}
	if !w.end.IsZero() && !now.Before(w.end) {
		s.log.InfoContext(ctx, "upstream stream is replaced because of its age", "age", now.Sub(s.live))
		s.redial()
		return status.Error(codes.Unavailable, "the stream to the control plane has reached its maximum age")
	}
	return nil
}

func (s *session) stuck(ctx context.Context, reason string) error {
	s.lost = true
	s.server.metrics.stuck.Inc()
	s.server.failed(fmt.Errorf("a stuck stream was cut: %s", reason))
	s.log.WarnContext(ctx, "stuck upstream stream is cut", "err", reason)
	s.redial()
	return status.Error(codes.Unavailable, reason)
}

func (s *session) redial() {
	if redial := s.server.config.Redial; redial != nil {
		redial()
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
