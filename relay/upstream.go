package relay

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gateway-agent/gateway-agent/internal/upstream"
)

const (
	backoffBase  = time.Second
	backoffMax   = 30 * time.Second
	backoffShare = 10               // the wait is at most this part of the time since the control plane was healthy
	healthy      = 30 * time.Second // a stream that lived that long resets the backoff
	openTimeout  = 2 * time.Second  // after it the reason for waiting is asked for; the wait goes on
)

// backoff spaces the openings of upstream streams after failures, with full jitter. The wait grows with the trouble: a control plane that
// was away for some seconds is found within one, and many agents do not fall on one that was away for long all at once.
type backoff struct {
	mu    sync.Mutex
	since time.Time // the first failure since a healthy stream, zero: none
}

func (b *backoff) failed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failedLocked()
}

func (b *backoff) failedLocked() {
	if b.since.IsZero() {
		b.since = time.Now()
	}
}

// ended counts a stream that lived for so long, and whether the control plane ended it. That Envoy left is no failure.
func (b *backoff) ended(lived time.Duration, failed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if lived >= healthy {
		b.since = time.Time{}
	}
	if failed {
		b.failedLocked()
	}
}

func (b *backoff) delay() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.since.IsZero() {
		return 0
	}
	return rand.N(min(max(time.Since(b.since)/backoffShare, backoffBase), backoffMax))
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// open opens an upstream stream, however long it takes; its error is ctx's.
func (s *Server) open(ctx context.Context, p *protocol) (grpc.ClientStream, error) {
	for waiting := false; ; {
		if !waiting { // else the connection has a backoff of its own
			if err := sleep(ctx, s.backoff.delay()); err != nil {
				return nil, err
			}
		}
		var stream grpc.ClientStream
		var err error
		stream, waiting, err = s.tryOpen(ctx, p)
		if err == nil {
			return stream, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		s.failed(err)
		if !waiting {
			s.backoff.failed()
		}
	}
}

var errOpening = errors.New("the control plane is not reached yet")

// explained is what a person reads of a failed call, with what to do about it where the peer does not say.
func explained(err error) string {
	s, ok := status.FromError(err)
	if !ok {
		return err.Error()
	}
	text := upstream.Plain(s.Message())
	if text != s.Message() { // why there is no connection: the code says no more
		return text
	}
	text = fmt.Sprintf("%v: %s", s.Code(), text)
	if s.Code() == codes.Unauthenticated {
		text += " (are the token or the client certificate there, fresh, and for this control plane, and does it know the cluster id that it is told?)"
	}
	return text
}

// tryOpen opens a stream or says why that takes long. With waiting the failure is only that: the connection is being made.
func (s *Server) tryOpen(ctx context.Context, p *protocol) (_ grpc.ClientStream, waiting bool, _ error) {
	attempt, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(openTimeout, func() { cancel(errOpening) })
	desc := &grpc.StreamDesc{StreamName: p.method, ServerStreams: true, ClientStreams: true}
	stream, err := s.config.Upstream.NewStream(attempt, desc, "/"+serviceName+"/"+p.method, s.callOptions()...)
	if !timer.Stop() && err == nil {
		err = errOpening
	}
	if err == nil {
		return stream, false, nil // attempt ends with ctx
	}
	waiting = errors.Is(context.Cause(attempt), errOpening)
	cancel(err)
	return nil, waiting, fmt.Errorf("open a stream to the control plane: %s", explained(err))
}
