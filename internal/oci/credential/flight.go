package credential

import (
	"context"
	"sync"
)

// A flight lets callers that want the same share one call. The call goes on while anybody waits for it; the last one to give up ends it
// and waits for its end.
type flight[T any] struct {
	mu    sync.Mutex
	calls map[string]*call[T]
}

type call[T any] struct {
	waiting int // guarded by flight.mu
	cancel  context.CancelCauseFunc
	done    chan struct{} // closed when value and err are set
	value   T
	err     error
}

func (f *flight[T]) do(ctx context.Context, key string, run func(context.Context) (T, error)) (T, error) {
	if ctx.Err() != nil {
		var zero T
		return zero, context.Cause(ctx)
	}
	c := f.join(ctx, key, run)
	select {
	case <-c.done:
		return c.value, c.err
	case <-ctx.Done():
	}
	if f.leave(key, c) {
		c.cancel(context.Cause(ctx))
		<-c.done
	}
	var zero T
	return zero, context.Cause(ctx)
}

func (f *flight[T]) join(ctx context.Context, key string, run func(context.Context) (T, error)) *call[T] {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c, ok := f.calls[key]; ok {
		c.waiting++
		return c
	}
	if f.calls == nil {
		f.calls = map[string]*call[T]{}
	}
	c := &call[T]{waiting: 1, done: make(chan struct{})}
	ctx, c.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	f.calls[key] = c
	go func() { // whoever leaves last waits for it
		defer close(c.done)
		c.value, c.err = run(ctx)
		c.cancel(nil)
		f.forget(key, c)
	}()
	return c
}

// leave reports that nobody waits for the call any more; nobody can join it from then on.
func (f *flight[T]) leave(key string, c *call[T]) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	c.waiting--
	if c.waiting == 0 && f.calls[key] == c {
		delete(f.calls, key)
	}
	return c.waiting == 0
}

func (f *flight[T]) forget(key string, c *call[T]) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.calls[key] == c {
		delete(f.calls, key)
	}
}
