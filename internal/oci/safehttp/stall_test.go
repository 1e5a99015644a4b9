package safehttp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// drip is a body that brings a chunk each second.
type drip struct {
	chunk, left int
	stop        <-chan struct{}
}

func (d *drip) Read(p []byte) (int, error) {
	if d.left == 0 {
		return 0, io.EOF
	}
	d.left--
	select {
	case <-time.After(time.Second):
		return min(d.chunk, len(p)), nil
	case <-d.stop:
		return 0, context.Canceled
	}
}

func (d *drip) Close() error { return nil }

// The real durations: a body that drips a byte a second is cut after 30 s, one that keeps the pace is not; in both directions.
func TestStallWindow(t *testing.T) {
	through := roundTripper(func(r *http.Request) (*http.Response, error) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return nil, err
		}
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
	})
	for _, tt := range []struct {
		name   string
		chunk  int
		upload bool
		want   time.Duration
	}{
		{"drips", 1, false, 30 * time.Second},
		{"flows", 8 << 10, false, 100 * time.Second},
		{"upload drips", 1, true, 30 * time.Second},
		{"upload flows", 8 << 10, true, 100 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			body := &drip{chunk: tt.chunk, left: 100, stop: ctx.Done()}
			var err error
			if tt.upload {
				var req *http.Request
				if req, err = http.NewRequestWithContext(ctx, http.MethodPut, "https://drip.test/", body); err != nil {
					t.Fatal(err)
				}
				body.stop = nil
				_, err = New(Config{}).watched(roundTripper(func(r *http.Request) (*http.Response, error) {
					body.stop = r.Context().Done()
					return through(r)
				}), req)
			} else {
				_, err = io.Copy(io.Discard, New(Config{}).watch(ctx, cancel, body, false))
			}
			stalled, ok := errors.AsType[*StallError](err)
			if got := time.Since(start); got != tt.want || ok != (tt.chunk == 1) || ok && stalled.Upload != tt.upload {
				t.Errorf("%s: ended after %v with %v, want %v", tt.name, got, err, tt.want)
			}
		})
	}
}

// A server that takes the headers of an upload and then reads nothing.
func TestStalledUpload(t *testing.T) {
	done := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadFull(r.Body, make([]byte, 10))
		<-done
	}))
	defer s.Close()
	defer close(done)
	c := New(Config{StallTime: 100 * time.Millisecond})
	defer c.CloseIdleConnections()
	u, _ := url.Parse(s.URL)
	_, err := do(t, c, c.Transport(u.Host, true), http.MethodPut, s.URL, strings.Repeat("x", 64<<20))
	if stalled, ok := errors.AsType[*StallError](err); !ok || !stalled.Upload {
		t.Errorf("PUT = %v, want a stalled upload", err)
	}
}

// An upload is over when its body is: what the server then takes to answer is not a stall.
func TestUploadEnds(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		time.Sleep(200 * time.Millisecond)
		_, _ = w.Write(bytes.Repeat([]byte("x"), 100<<10))
	}))
	defer s.Close()
	c := New(Config{StallTime: 50 * time.Millisecond})
	defer c.CloseIdleConnections()
	u, _ := url.Parse(s.URL)
	if _, err := do(t, c, c.Transport(u.Host, true), http.MethodPut, s.URL, "small"); err != nil {
		t.Errorf("PUT = %v", err)
	}
}

// What goes with a refusal, or with a redirect, may stall too.
func TestStalledBodiesThatNobodyAskedFor(t *testing.T) {
	done := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/later":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/away":
			w.Header().Set("Location", "/later")
			w.Header().Set("Content-Length", "100")
			w.WriteHeader(http.StatusFound)
		}
		_, _ = w.Write([]byte("x"))
		_ = http.NewResponseController(w).Flush()
		<-done
	}))
	defer s.Close()
	defer close(done)
	c := New(Config{StallTime: 50 * time.Millisecond})
	defer c.CloseIdleConnections()
	u, _ := url.Parse(s.URL)
	for _, path := range []string{"/later", "/away"} {
		_, err := do(t, c, c.Transport(u.Host, true), http.MethodGet, s.URL+path, "")
		if answered, ok := errors.AsType[*StatusError](err); !ok || answered.Status != http.StatusServiceUnavailable {
			t.Errorf("GET %s = %v, want the 503", path, err)
		}
	}
}

// Pools of certificates that were replaced are forgotten, and with them what they hold.
func TestOldPoolsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(Config{})
		get := func(key string) *pool {
			return c.pools.get(c.cfg, Endpoint{Host: "registry.test", SkipVerify: true, Key: key}, true, true, false)
		}
		first := get("in use all the time")
		for range 100 {
			time.Sleep(idleTime + time.Second)
			get(time.Now().String())
			if get("in use all the time") != first {
				t.Fatal("a pool that is in use was forgotten")
			}
		}
		if n := c.pools.byKey.Len(); n > 4 {
			t.Errorf("%d pools, want those of the last minute", n)
		}
	})
}
