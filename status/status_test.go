package status

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// testConfig is ready unless reason says why not.
func testConfig(reason string) Config {
	registry := prometheus.NewRegistry()
	agent := prometheus.NewGauge(prometheus.GaugeOpts{Name: "gateway_agent_up", Help: "It runs."})
	agent.Set(1)
	registry.MustRegister(agent)
	checks := func(context.Context) []Check {
		return []Check{{Name: "not draining", OK: true}, {Name: "envoy live", OK: reason == "", Reason: reason}}
	}
	level := "info"
	return Config{
		Ready: checks, Live: checks, Gatherer: registry,
		Status:   func(context.Context) any { return map[string]string{"state": "fine"} },
		Debug:    map[string]func() any{"xds": func() any { return []int{1, 2} }},
		LogLevel: func() string { return level },
		SetLogLevel: func(_ context.Context, l string) error {
			if l != "debug" {
				return errors.New("unknown level " + l)
			}
			level = l
			return nil
		},
	}
}

func do(t *testing.T, h http.Handler, method, target, body string) (int, string, http.Header) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body)))
	return w.Code, w.Body.String(), w.Header()
}

func newServer(t *testing.T, c Config) *Server {
	t.Helper()
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestPages(t *testing.T) {
	up, down := newServer(t, testConfig("")), newServer(t, testConfig("Envoy is starting"))
	tests := []struct {
		handler              http.Handler
		method, target, body string
		code                 int
		want                 string
	}{
		{up.Public(), "GET", "/healthz/ready", "", 200, "ok"},
		{up.Public(), "HEAD", "/healthz/ready", "", 200, ""},
		{down.Public(), "GET", "/healthz/ready", "", 503, "envoy live: Envoy is starting"},
		{down.Public(), "GET", "/healthz/live", "", 503, "envoy live: Envoy is starting"},
		{down.Public(), "GET", "/readyz?verbose", "", 503, "[+] not draining ok\n[-] envoy live failed: Envoy is starting"},
		{up.Public(), "GET", "/readyz?verbose", "", 200, "[+] envoy live ok"},
		{up.Public(), "GET", "/readyz", "", 200, "ok"},
		{up.Public(), "GET", "/", "", 200, "/healthz/ready"},
		{up.Public(), "POST", "/healthz/ready", "", 405, ""},
		{up.Public(), "GET", "/status", "", 404, ""},
		{up.Public(), "GET", "/debug/xds", "", 404, ""},
		{up.Public(), "GET", "/debug/pprof/", "", 404, ""},
		{up.Control(), "GET", "/status", "", 200, `"state": "fine"`},
		{up.Control(), "GET", "/debug/xds", "", 200, "1,"},
		{up.Control(), "GET", "/debug/", "", 200, "/debug/xds"},
		{up.Control(), "GET", "/debug/nothing", "", 404, ""},
		{up.Control(), "GET", "/debug/pprof/goroutine?debug=1", "", 200, "goroutine profile"},
		{up.Control(), "GET", "/loglevel", "", 200, `"level": "info"`},
		{up.Control(), "PUT", "/loglevel", "verbose", 400, "unknown level verbose"},
		{up.Control(), "PUT", "/loglevel", strings.Repeat("x", 2000), 400, "too large"},
		{up.Control(), "PUT", "/loglevel", `{"level": "debug"}`, 200, `"level": "debug"`},
		{up.Control(), "DELETE", "/loglevel", "", 405, ""},
	}
	for _, test := range tests {
		code, body, _ := do(t, test.handler, test.method, test.target, test.body)
		if code != test.code || !strings.Contains(body, test.want) {
			t.Errorf("%s %s = %d %q, want %d with %q", test.method, test.target, code, body, test.code, test.want)
		}
	}
}

func TestMetricsAreOneValidExposition(t *testing.T) {
	const envoy = "# TYPE envoy_cluster_cx counter\nenvoy_cluster_cx{c=\"a\"} 3\n# TYPE gateway_agent_up gauge\ngateway_agent_up 7\n" +
		"# HELP envoy_later text\n# TYPE envoy_later gauge\nenvoy_later 1\n\n# TYPE envoy_cluster_cx counter\nenvoy_cluster_cx{c=\"b\"} 4"
	c := testConfig("")
	c.EnvoyMetrics = func(context.Context) (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(envoy)), nil }
	_, body, _ := do(t, newServer(t, c).Public(), "GET", "/metrics", "")
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		t.Fatalf("not valid: %v\n%s", err, body)
	}
	for name, want := range map[string]float64{"gateway_agent_up": 1, "envoy_later": 1, "gateway_agent_envoy_scrape_ok": 1} {
		if got := families[name].GetMetric()[0].GetGauge().GetValue(); got != want {
			t.Errorf("%s = %v, want %v", name, got, want)
		}
	}
	if got := len(families["envoy_cluster_cx"].GetMetric()); got != 1 {
		t.Errorf("envoy_cluster_cx has %d metrics, want the first family's one", got)
	}
}

func TestMetricsWithoutEnvoy(t *testing.T) {
	c := testConfig("")
	c.EnvoyMetrics = func(context.Context) (io.ReadCloser, error) { return nil, errors.New("connection refused") }
	code, body, _ := do(t, newServer(t, c).Public(), "GET", "/stats/prometheus", "")
	if code != 200 || !strings.Contains(body, "gateway_agent_up 1") || !strings.Contains(body, "gateway_agent_envoy_scrape_ok 0") {
		t.Errorf("/stats/prometheus = %d %s, want the agent's own metrics", code, body)
	}
}

// endless never stops and never blocks.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

func TestMetricsThatBreakOffAreNotTakenForAllOfThem(t *testing.T) {
	c := testConfig("")
	for name, body := range map[string]io.Reader{
		"error":        io.MultiReader(strings.NewReader("# TYPE a gauge\na 1\n"), iotestError{}),
		"endless line": endless{},
	} {
		c.EnvoyMetrics = func(context.Context) (io.ReadCloser, error) { return io.NopCloser(body), nil }
		server := httptest.NewServer(newServer(t, c).Public())
		response, err := server.Client().Get(server.URL + "/metrics")
		if err == nil {
			_, err = io.ReadAll(response.Body)
			response.Body.Close()
		}
		if err == nil {
			t.Errorf("%s: the scrape succeeded", name)
		}
		server.Close()
	}
}

type iotestError struct{}

func (iotestError) Read([]byte) (int, error) { return 0, errors.New("reset") }

func TestScrapeTimeoutIsTheScrapersOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testConfig("")
		c.EnvoyMetrics = func(ctx context.Context) (io.ReadCloser, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		for header, want := range map[string]time.Duration{"": 10 * time.Second, "3": 2800 * time.Millisecond, "-1": 10 * time.Second, "x": 10 * time.Second} {
			start := time.Now()
			request := httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil)
			request.Header.Set("X-Prometheus-Scrape-Timeout-Seconds", header)
			newServer(t, c).Public().ServeHTTP(httptest.NewRecorder(), request)
			if took := time.Since(start); took != want {
				t.Errorf("with the header %q Envoy had %v, want %v", header, took, want)
			}
		}
	})
}

func TestServeEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, testConfig(""))
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, listener, s.Public()) }()
	response, err := http.Get("http://" + listener.Addr().String() + "/healthz/ready")
	if err != nil || response.StatusCode != 200 {
		t.Fatalf("Get = %v, %v", response, err)
	}
	response.Body.Close()
	cancel()
	if err := <-served; err != nil {
		t.Errorf("Serve = %v, want nil when asked to stop", err)
	}
}

func TestServeTellsOfABrokenListener(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
	s := newServer(t, testConfig(""))
	if err := s.Serve(t.Context(), listener, s.Public()); err == nil {
		t.Error("Serve on a closed listener = nil")
	}
}

func TestNewWantsEverything(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("New(Config{}) = nil, want an error")
	}
}
