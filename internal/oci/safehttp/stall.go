package safehttp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// StallError ends a body that came too slowly.
type StallError struct {
	Window time.Duration
	Got    int64
	Want   int64
}

func (e *StallError) Error() string {
	return fmt.Sprintf("download stalled: %d bytes in %v, less than %d (look at the server, and at what is between)", e.Got, e.Window, e.Want)
}

// Timeout makes it a timeout for those who ask.
func (e *StallError) Timeout() bool { return true }

// body counts what is read and is cut off when a window brings too little.
type body struct {
	io.ReadCloser
	cancel  context.CancelCauseFunc // of the request that this body belongs to
	explain func(error) error       // the request's own reason to end, if it has one
	timer   *time.Timer
	window  time.Duration
	least   int64

	mu     sync.Mutex
	got    int64 // in this window
	closed bool
}

func watch(ctx context.Context, cancel context.CancelCauseFunc, rc io.ReadCloser, window time.Duration, least int64) io.ReadCloser {
	explain := func(err error) error { return cause(ctx, err) }
	b := &body{ReadCloser: rc, cancel: cancel, explain: explain, window: window, least: least}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.timer = time.AfterFunc(window, b.tick)
	return b
}

func (b *body) tick() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	if b.got < b.least {
		b.cancel(&StallError{Window: b.window, Got: b.got, Want: b.least})
		return
	}
	b.got = 0
	b.timer.Reset(b.window)
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.mu.Lock()
	b.got += int64(n)
	b.mu.Unlock()
	if err != nil && !errors.Is(err, io.EOF) {
		err = b.explain(err)
	}
	return n, err
}

func (b *body) Close() error {
	b.mu.Lock()
	b.closed = true
	b.timer.Stop()
	b.mu.Unlock()
	err := b.ReadCloser.Close()
	b.cancel(nil)
	return err
}

// cause replaces the bare "context canceled" by the reason for it.
func cause(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	if why := context.Cause(ctx); why != nil {
		return why
	}
	return err
}
