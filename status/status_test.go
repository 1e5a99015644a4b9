package status

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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
	config := testConfig("")
	config.Notes = func() []string { return []string{"plugin p is pending: it\n[+] forged ok"} }
	noted := newServer(t, config)
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
		{down.Public(), "GET", "/readyz?verbose", "", 503, "[+] not draining ok\n[-] envoy live failed: Envoy is starting\nreadyz check failed"},
		{down.Public(), "GET", "/readyz", "", 503, "envoy live: Envoy is starting"},
		{up.Public(), "GET", "/readyz?verbose", "", 200, "[+] envoy live ok\nreadyz check passed"},
		{up.Public(), "GET", "/readyz", "", 200, "ok"},
		{noted.Public(), "GET", "/readyz?verbose", "", 200, "[+] envoy live ok\n[!] plugin p is pending: it [+] forged ok\nreadyz check passed"},
		{noted.Public(), "GET", "/healthz/ready", "", 200, "ok"},
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

func TestScrapeTimeoutIsTheScrapersOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testConfig("")
		c.EnvoyMetrics = func(ctx context.Context, _ url.Values) (io.ReadCloser, error) {
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

func TestOtherMethodsAreRefusedWithAllow(t *testing.T) {
	s := newServer(t, testConfig(""))
	for target, want := range map[string]string{
		"/healthz/ready": "GET, HEAD", "/healthz/live": "GET, HEAD", "/readyz": "GET, HEAD", "/metrics": "GET, HEAD", "/": "GET, HEAD",
		"/status": "GET, HEAD", "/debug/xds": "GET, HEAD", "/loglevel": "GET, HEAD, PUT",
	} {
		for _, method := range []string{"POST", "DELETE", "PATCH"} {
			if code, _, header := do(t, s.Control(), method, target, ""); code != http.StatusMethodNotAllowed || header.Get("Allow") != want {
				t.Errorf("%s %s = %d Allow %q, want 405 Allow %q", method, target, code, header.Get("Allow"), want)
			}
		}
	}
}

func TestReasonsStayOnOneLine(t *testing.T) {
	_, body, header := do(t, newServer(t, testConfig("first\nsecond\r\n[+] forged ok")).Public(), "GET", "/readyz?verbose", "")
	if strings.Count(body, "\n") != 3 || !strings.HasPrefix(header.Get("Content-Type"), "text/plain") {
		t.Errorf("%s %q, want three lines of plain text", header.Get("Content-Type"), body)
	}
}

func TestDebugNames(t *testing.T) {
	for _, name := range []string{"pprof", "", "a b", "{x}", "../x"} {
		c := testConfig("")
		c.Debug[name] = func() any { return nil }
		if _, err := New(c); err == nil {
			t.Errorf("New with debug view %q = nil, want an error", name)
		}
	}
}

func TestNewWantsEverything(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("New(Config{}) = nil, want an error")
	}
}
