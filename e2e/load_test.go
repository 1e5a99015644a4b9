package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// load sends requests at a steady rate, over kept-alive and over new connections, and records every answer that is not 200.
type load struct {
	t        *testing.T
	url      string
	sent     atomic.Int64
	mu       sync.Mutex
	failures []string
	stop     context.CancelFunc
	ended    sync.WaitGroup
}

const maxFailuresKept = 20

// startLoad sends rate requests a second until the test calls wantNoFailure, at most for two minutes.
func startLoad(t *testing.T, url string, rate int) *load {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	l := &load{t: t, url: url, stop: stop}
	l.ended.Go(func() { l.run(ctx, rate) })
	t.Cleanup(func() { stop(); l.ended.Wait() })
	return l
}

func (l *load) run(ctx context.Context, rate int) {
	kept := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	defer kept.CloseIdleConnections()
	fresh := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	var requests sync.WaitGroup
	defer requests.Wait()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		c := kept
		if n%5 == 0 {
			c = fresh
		}
		requests.Go(func() { l.one(c) })
	}
}

// one request runs to its end even when the load stops, so that a stop is not taken for a failure. It is a POST because net/http
// repeats a GET by itself when its connection breaks, which would hide a reset.
func (l *load) one(c *http.Client) {
	l.sent.Add(1)
	response, err := c.Post(l.url, "text/plain", nil)
	if err != nil {
		l.fail(err.Error())
		return
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		l.fail(err.Error())
	} else if response.StatusCode != http.StatusOK {
		l.fail(response.Status)
	}
}

func (l *load) fail(reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.failures) < maxFailuresKept {
		l.failures = append(l.failures, fmt.Sprintf("%s %s", time.Now().Format("15:04:05.000"), reason))
	}
}

// wantNoFailure ends the load and fails the test when any request was not answered 200, or hardly any was sent.
func (l *load) wantNoFailure(atLeast int) {
	l.t.Helper()
	l.stop()
	l.ended.Wait()
	if len(l.failures) > 0 {
		l.t.Errorf("of %d requests to %s some failed: %q", l.sent.Load(), l.url, l.failures)
	}
	if n := int(l.sent.Load()); n < atLeast {
		l.t.Errorf("only %d requests were sent, want at least %d", n, atLeast)
	}
}
