package status

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func from(t *testing.T, h http.Handler, peer, method, target string) (int, string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, target, http.NoBody)
	r.RemoteAddr = peer
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func TestPagesForThisHost(t *testing.T) {
	var quits, drains int
	busy := false
	c := testConfig("")
	c.MetricsLocal = true
	c.Quit = func() { quits++ }
	c.Drain = func(context.Context) error {
		drains++
		if busy {
			return errors.New("envoy is busy")
		}
		return nil
	}
	public := newServer(t, c).Public()
	for _, tt := range []struct {
		peer, method, target string
		code                 int
		body                 string
	}{
		{"127.0.0.1:999", "POST", "/quitquitquit", 200, "OK"},
		{"127.0.0.1:999", "POST", "/drain", 200, "OK"},
		{"[::1]:999", "POST", "/drain", 200, "OK"},
		{"[::ffff:127.0.0.1]:999", "POST", "/drain", 200, "OK"},
		{"127.0.0.1:999", "GET", "/quitquitquit", 405, ""},
		{"127.0.0.1:999", "PUT", "/drain", 405, ""},
		{"10.0.0.1:999", "POST", "/quitquitquit", 403, ""},
		{"10.0.0.1:999", "GET", "/drain", 403, ""},
		{"@", "POST", "/drain", 403, ""},
		{"10.0.0.1:999", "GET", "/stats/prometheus", 403, ""},
		{"10.0.0.1:999", "GET", "/metrics", 403, ""},
		{"127.0.0.1:999", "GET", "/metrics", 200, "gateway_agent_up 1"},
		{"10.0.0.1:999", "GET", "/healthz/ready", 200, "ok"},
		{"10.0.0.1:999", "GET", "/debug/ndsz", 403, "Only requests from localhost are allowed"},
		{"127.0.0.1:999", "GET", "/debug/ndsz", 404, "{}"},
	} {
		code, body := from(t, public, tt.peer, tt.method, tt.target)
		if code != tt.code || !strings.Contains(body, tt.body) {
			t.Errorf("%s %s from %s = %d %q; want %d %q", tt.method, tt.target, tt.peer, code, body, tt.code, tt.body)
		}
	}
	if quits != 1 || drains != 3 {
		t.Errorf("%d quits, %d drains; want 1, 3", quits, drains)
	}
	busy = true
	if code, body := from(t, public, "127.0.0.1:999", "POST", "/drain"); code != 503 || !strings.Contains(body, "busy") {
		t.Errorf("POST /drain with a busy Envoy = %d %q, want 503 and why", code, body)
	}
}

func TestNameTable(t *testing.T) {
	var table any
	c := testConfig("")
	c.NameTable = func() any { return table }
	public := newServer(t, c).Public()
	for want, tt := range map[string]struct {
		table any
		code  int
	}{
		"{}":              {nil, 404},
		`{"table":{}}`:    {map[string]any{"table": map[string]any{}}, 200},
		"unsupported":     {func() {}, 500},
		`"only this one"`: {"only this one", 200},
	} {
		table = tt.table
		if code, body := from(t, public, "[::1]:999", "GET", "/debug/ndsz"); code != tt.code || !strings.Contains(body, want) {
			t.Errorf("the table %v is shown as %d %q, want %d %q", tt.table, code, body, tt.code, want)
		}
	}
	if code, _ := from(t, public, "10.0.0.1:999", "GET", "/debug/ndsz"); code != 403 {
		t.Errorf("others get %d, want 403", code)
	}
}

func TestNoPagesThatNobodyAskedFor(t *testing.T) {
	public := newServer(t, testConfig("")).Public()
	for _, target := range []string{"/quitquitquit", "/drain"} {
		if code, _ := from(t, public, "127.0.0.1:999", "POST", target); code != 404 {
			t.Errorf("POST %s = %d, want 404", target, code)
		}
	}
}

func TestQueryGoesToEnvoy(t *testing.T) {
	var got []url.Values
	c := testConfig("")
	c.EnvoyMetrics = func(_ context.Context, query url.Values) (io.ReadCloser, error) {
		got = append(got, query)
		return io.NopCloser(strings.NewReader("")), nil
	}
	s := newServer(t, c)
	for _, target := range []string{"/stats/prometheus", "/stats/prometheus?usedonly&filter=a%20b", "/metrics?filter=%zz&text_readouts=1"} {
		if code, _ := from(t, s.Public(), "10.0.0.1:999", "GET", target); code != 200 {
			t.Errorf("GET %s = %d", target, code)
		}
	}
	want := []url.Values{nil, {"usedonly": {""}, "filter": {"a b"}}, {"text_readouts": {"1"}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("queries (-want +got):\n%s", diff)
	}
}
