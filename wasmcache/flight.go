package wasmcache

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

var (
	errClosed   = errors.New("the module store is closed")
	errNobody   = errors.New("nobody waits for it any more")
	errTooLong  = errors.New("the pull took too long")
	errInternal = errors.New("internal error")
)

// flights runs one call per key at a time, for all who ask for it. A caller that gives up does not end the call for the others; the last
// one does.
type flights[T any] struct {
	mu     sync.Mutex
	byKey  map[string]*flight[T]
	closed bool
	wg     sync.WaitGroup
}

type flight[T any] struct {
	since  time.Time
	label  string
	cancel context.CancelCauseFunc
	done   chan struct{} // closed after value and err were set
	value  T
	err    error

	bytes, total atomic.Int64
	waiters      int // guarded by flights.mu

	mu        sync.Mutex
	listeners []func(done, total int64)
}

// call is what a flight runs; report may be called at any time.
type call[T any] func(ctx context.Context, report func(done, total int64)) (T, error)

func (g *flights[T]) do(ctx context.Context, key, label string, progress func(done, total int64), fn call[T]) (T, error) {
	var left atomic.Bool
	defer left.Store(true)
	f, err := g.join(ctx, key, label, func(done, total int64) {
		if progress != nil && !left.Load() {
			progress(done, total)
		}
	}, fn)
	if err != nil {
		var none T
		return none, err
	}
	select {
	case <-f.done:
		return f.value, f.err
	case <-ctx.Done():
		g.leave(key, f)
		var none T
		return none, context.Cause(ctx)
	}
}

func (g *flights[T]) join(ctx context.Context, key, label string, progress func(done, total int64), fn call[T]) (*flight[T], error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, errClosed
	}
	f := g.byKey[key]
	if f == nil {
		f = g.startLocked(ctx, key, label, fn)
	}
	f.waiters++
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listeners = append(f.listeners, progress)
	return f, nil
}

func (g *flights[T]) startLocked(ctx context.Context, key, label string, fn call[T]) *flight[T] {
	f := &flight[T]{since: time.Now(), label: label, done: make(chan struct{})}
	f.total.Store(-1)
	ctx, f.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	if g.byKey == nil {
		g.byKey = map[string]*flight[T]{}
	}
	g.byKey[key] = f
	g.wg.Go(func() {
		f.run(ctx, fn)
		g.forget(key, f)
		f.cancel(nil)
		close(f.done)
	})
	return f
}

// run contains panics: what is parsed here comes from strangers.
func (f *flight[T]) run(ctx context.Context, fn call[T]) {
	defer func() {
		if p := recover(); p != nil {
			f.err = fmt.Errorf("%w while working on %s: %v", errInternal, f.label, p)
		}
	}()
	f.value, f.err = fn(ctx, f.report)
}

// leave ends the flight when its last caller left; the next one starts a new flight.
func (g *flights[T]) leave(key string, f *flight[T]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f.waiters--
	if f.waiters > 0 {
		return
	}
	f.cancel(errNobody)
	if g.byKey[key] == f {
		delete(g.byKey, key)
	}
}

func (g *flights[T]) forget(key string, f *flight[T]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.byKey[key] == f {
		delete(g.byKey, key)
	}
}

// close ends all flights and waits for them.
func (g *flights[T]) close() {
	g.mu.Lock()
	g.closed = true
	for _, f := range g.byKey {
		f.cancel(errClosed)
	}
	g.mu.Unlock()
	g.wg.Wait()
}

// running returns the flights of this moment.
func (g *flights[T]) running() []*flight[T] {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make([]*flight[T], 0, len(g.byKey))
	for _, f := range g.byKey {
		all = append(all, f)
	}
	return all
}

func (f *flight[T]) report(done, total int64) {
	f.bytes.Store(done)
	f.total.Store(total)
	f.mu.Lock()
	listeners := f.listeners[:len(f.listeners):len(f.listeners)]
	f.mu.Unlock()
	for _, l := range listeners {
		l(done, total)
	}
}
