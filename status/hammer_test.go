package status

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Everything is asked at the same time over a real listener, while Envoy works, fails and breaks off.
func TestHammer(t *testing.T) {
	var level atomic.Value
	level.Store("info")
	var turn atomic.Int64
	registry := prometheus.NewRegistry()
	asked := prometheus.NewCounter(prometheus.CounterOpts{Name: "gateway_agent_asked_total", Help: "h"})
	registry.MustRegister(asked)
	checks := func(context.Context) []Check {
		asked.Inc()
		return []Check{{Name: "a", OK: turn.Load()%2 == 0, Reason: "odd"}}
	}
	s := newServer(t, Config{
		Ready: checks, Live: checks, Gatherer: registry,
		Status: func(context.Context) any { return map[string]any{"turn": turn.Load()} },
		Debug:  map[string]func() any{"x": func() any { return turn.Load() }},
		EnvoyMetrics: func(context.Context, url.Values) (io.ReadCloser, error) {
			text := strings.NewReader("# TYPE e counter\ne 1\n# TYPE gateway_agent_asked_total counter\ngateway_agent_asked_total{of=\"envoy\"} 1\n")
			switch turn.Add(1) % 3 {
			case 0:
				return nil, errors.New("away")
			case 1:
				return io.NopCloser(io.MultiReader(text, failing{errors.New("reset")})), nil
			}
			return io.NopCloser(text), nil
		},
		LogLevel:    func() string { return level.Load().(string) },
		SetLogLevel: func(_ context.Context, l string) error { level.Store(l); return nil },
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, listener, s.Control()) }()

	base := "http://" + listener.Addr().String()
	paths := []string{"/metrics", "/healthz/ready", "/readyz?verbose", "/status", "/debug/x", "/debug/", "/loglevel", "/"}
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			for end := time.Now().Add(time.Second); time.Now().Before(end); {
				hammerOnce(t, base, paths[rand.IntN(len(paths))])
			}
		})
	}
	wg.Wait()
	http.DefaultClient.CloseIdleConnections()
	cancel()
	if err := <-served; err != nil {
		t.Errorf("Serve: %v", err)
	}
}

func hammerOnce(t *testing.T, base, path string) {
	method, body := http.MethodGet, ""
	if path == "/loglevel" {
		method, body = http.MethodPut, `{"level":"debug"}`
	}
	request, err := http.NewRequestWithContext(t.Context(), method, base+path, strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Errorf("%s: %v", path, err)
		return
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != 200 && response.StatusCode != 503 {
		t.Errorf("%s: %d %v", path, response.StatusCode, err)
	}
	if path == "/metrics" && response.StatusCode == 200 {
		if families, err := parse(data); err != nil || families["gateway_agent_asked_total"] == nil {
			t.Errorf("metrics: %v\n%s", err, data)
		}
	}
}

func BenchmarkMerge(b *testing.B) {
	text := big(16 << 20)
	s, err := New(withEnvoy(text, nil))
	if err != nil {
		b.Fatal(err)
	}
	request, err := http.NewRequestWithContext(b.Context(), http.MethodGet, "/metrics", nil)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		s.metrics(discard{}, request)
	}
}

type discard struct{}

func (discard) Header() http.Header         { return http.Header{} }
func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) WriteHeader(int)             {}
