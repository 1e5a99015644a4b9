package envoy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"time"
)

const (
	adminTimeout   = 5 * time.Second  // for an answer of a few bytes, when the caller sets no deadline
	metricsTimeout = 30 * time.Second // Envoy needs 7 s for the statistics of 15 000 clusters
	maxAdminBody   = 512 << 20        // bytes; those statistics are 182 MiB
	maxAdminText   = 1 << 10          // bytes of an answer that are kept for an error's text
)

// Admin is a client of Envoy's admin API on a unix socket or a TCP address. Envoy answers on its main thread: while that loads a large module it
// does not answer for many seconds, and serves traffic all the same. Its methods may be called from any goroutine.
type Admin struct {
	address string
	client  *http.Client
}

// NewAdmin makes a client for a socket's absolute path or HOST:PORT; it does not connect.
func NewAdmin(address string) *Admin {
	network := "tcp"
	if filepath.IsAbs(address) {
		network = "unix"
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, address)
	}
	// One connection per request: a kept one would be to the Envoy before a restart.
	return &Admin{address: address, client: &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}
}

// Get asks for a path, such as "/config_dump". The body is the caller's to close; it fails when ctx ends (after a minute without
// a deadline) or when it is larger than anything Envoy should say.
func (a *Admin) Get(ctx context.Context, path string) (io.ReadCloser, error) {
	return a.do(ctx, http.MethodGet, path, 2*metricsTimeout)
}

// Post asks Envoy to do something, such as "/healthcheck/fail".
func (a *Admin) Post(ctx context.Context, path string) error {
	body, err := a.do(ctx, http.MethodPost, path, adminTimeout)
	if err != nil {
		return err
	}
	defer body.Close()
	if _, err := io.Copy(io.Discard, body); err != nil {
		return fmt.Errorf("envoy admin POST %s: %w", path, err)
	}
	return nil
}

// PrometheusMetrics is Envoy's statistics in the Prometheus text format. The query chooses among them, as Envoy documents it;
// without one, those never touched are left out.
func (a *Admin) PrometheusMetrics(ctx context.Context, query url.Values) (io.ReadCloser, error) {
	if query == nil {
		query = url.Values{"usedonly": {""}}
	}
	return a.do(ctx, http.MethodGet, "/stats/prometheus?"+query.Encode(), metricsTimeout)
}

// Listeners are the names of the listeners that Envoy has.
func (a *Admin) Listeners(ctx context.Context) ([]string, error) {
	body, err := a.do(ctx, http.MethodGet, "/listeners", adminTimeout)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	var names []string
	for line, err := range lines(body) {
		if err != nil {
			return nil, fmt.Errorf("envoy admin GET /listeners: %w", err)
		}
		if name, _, ok := strings.Cut(line, "::"); ok {
			names = append(names, name)
		}
	}
	return names, nil
}

// State is what Envoy says of itself: StatePreInitializing, StateInitializing, StateLive or StateDraining.
func (a *Admin) State(ctx context.Context) (State, error) {
	// /ready, not /server_info: that has 124 KB. It says 503 with the same words while Envoy is not LIVE.
	resp, cancel, err := a.send(ctx, http.MethodGet, "/ready", adminTimeout)
	if err != nil {
		return "", err
	}
	defer cancel()
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAdminText))
	if err != nil {
		return "", fmt.Errorf("envoy admin GET /ready: %w", err)
	}
	switch s := State(strings.ToLower(strings.TrimSpace(string(text)))); s {
	case StatePreInitializing, StateInitializing, StateLive, StateDraining:
		return s, nil
	}
	return "", fmt.Errorf("envoy admin GET /ready: %s %q is no state", resp.Status, clip(string(text), 100))
}

// SetLogLevel changes the level of all of Envoy's loggers until it restarts.
func (a *Admin) SetLogLevel(ctx context.Context, level string) error {
	return a.Post(ctx, "/logging?level="+url.QueryEscape(level))
}

func (a *Admin) do(ctx context.Context, method, path string, timeout time.Duration) (io.ReadCloser, error) {
	resp, cancel, err := a.send(ctx, method, path, timeout)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		defer cancel()
		defer resp.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxAdminText))
		return nil, fmt.Errorf("envoy admin %s %s: %s: %s", method, path, resp.Status, strings.TrimSpace(string(text)))
	}
	return &boundedBody{body: resp.Body, left: maxAdminBody, cancel: cancel}, nil
}

// send sends a request; cancel ends it and must be called once the body has been read.
func (a *Admin) send(ctx context.Context, method, path string, timeout time.Duration) (*http.Response, context.CancelFunc, error) {
	cancel := func() {}
	if _, ok := ctx.Deadline(); !ok {
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, errors.New("no answer in "+timeout.String()))
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://envoy"+path, http.NoBody)
	if err != nil {
		cancel()
		return nil, nil, fmt.Errorf("envoy admin %s %s: %w", method, path, err)
	}
	resp, err := a.client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		} else if u := (*url.Error)(nil); errors.As(err, &u) {
			err = u.Err // without the made-up URL
		}
		cancel()
		return nil, nil, fmt.Errorf("envoy admin %s %s on %s: %w", method, path, a.address, err)
	}
	return resp, cancel, nil
}

// boundedBody is an answer that ends with an error when it is larger than it may be.
type boundedBody struct {
	body   io.ReadCloser
	left   int64
	cancel context.CancelFunc
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("envoy admin: answer larger than %d bytes", maxAdminBody)
	}
	n, err := b.body.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

func (b *boundedBody) Close() error {
	defer b.cancel()
	return b.body.Close()
}
