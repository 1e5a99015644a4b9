package safehttp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// StallError ends a body that came, or went, too slowly.
type StallError struct {
	Upload bool
	Window time.Duration
	Got    int64
	Want   int64
}

func (e *StallError) Error() string {
	what := "download"
	if e.Upload {
		what = "upload"
	}
	return fmt.Sprintf("%s stalled: %d bytes in %v, less than %d (look at the server, and at what is between)", what, e.Got, e.Window, e.Want)
}

// Timeout makes it a timeout for those who ask.
func (e *StallError) Timeout() bool { return true }

// watched sends a request whose body, and whose response's body, may not stall.
func (c *Client) watched(through http.RoundTripper, req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	req = req.WithContext(ctx)
	if req.Body != nil && req.Body != http.NoBody {
		req.Body = c.watch(ctx, cancel, req.Body, true)
	}
	resp, err := through.RoundTrip(req)
	if err != nil {
		defer cancel(nil)
		return nil, cause(ctx, err)
	}
	resp.Body = c.watch(ctx, cancel, resp.Body, false)
	return resp, nil
}

// body counts what is read and is cut off when a window brings too little.
type body struct {
	io.ReadCloser
	upload  bool
	cancel  context.CancelCauseFunc // of the request that this body belongs to
	explain func(error) error       // the request's own reason to end, if it has one
	timer   *time.Timer
	window  time.Duration
	least   int64

	mu    sync.Mutex
	got   int64 // in this window
	ended bool
}

func (c *Client) watch(ctx context.Context, cancel context.CancelCauseFunc, rc io.ReadCloser, upload bool) io.ReadCloser {
	explain := func(err error) error { return cause(ctx, err) }
	b := &body{ReadCloser: rc, upload: upload, cancel: cancel, explain: explain, window: c.cfg.StallTime, least: c.cfg.StallBytes}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.timer = time.AfterFunc(b.window, b.tick)
	return b
}

func (b *body) tick() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return
	}
	if b.got < b.least {
		b.cancel(&StallError{Upload: b.upload, Window: b.window, Got: b.got, Want: b.least})
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
	switch {
	case errors.Is(err, io.EOF):
		b.end()
	case err != nil:
		err = b.explain(err)
	}
	return n, err
}

// end says that nothing more is to come.
func (b *body) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	b.timer.Stop()
}

func (b *body) Close() error {
	b.end()
	err := b.ReadCloser.Close()
	if !b.upload { // the response is still to come
		b.cancel(nil)
	}
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
