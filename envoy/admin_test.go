package envoy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

func TestAdmin(t *testing.T) {
	rig := newRig(t, hello())
	r := rig.run(t, nil)
	r.awaitState(StateLive)
	a := r.Admin()
	ctx := t.Context()
	if s, err := a.State(ctx); s != StateLive || err != nil {
		t.Errorf("State = %s, %v; want live", s, err)
	}
	body, err := a.Get(ctx, "/listeners")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(body)
	if err != nil || !strings.Contains(string(text), rig.web) || body.Close() != nil {
		t.Errorf("Get(/listeners) = %s, %v; want %s", text, err, rig.web)
	}
	if _, err := a.Get(ctx, "/drain_listeners"); err == nil || !strings.Contains(err.Error(), "405") {
		t.Errorf("Get(/drain_listeners) = %v; want 405", err)
	}
	if err := a.Post(ctx, "/nope"); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("Post(/nope) = %v; want 404", err)
	}
	if !serving(rig.web) {
		t.Fatal("envoy does not serve")
	}
	gauges, err := a.Gauges(ctx, `^server\.(live|state)$`)
	if diff := cmp.Diff(map[string]uint64{"server.live": 1, "server.state": 0}, gauges); err != nil || diff != "" {
		t.Errorf("Gauges (-want +got): %v\n%s", err, diff)
	}
	metrics, err := a.PrometheusMetrics(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer metrics.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	if families, err := parser.TextToMetricFamilies(metrics); err != nil || families["envoy_http_downstream_rq_total"] == nil {
		t.Errorf("PrometheusMetrics: %d families, %v", len(families), err)
	}
}

func TestSetLogLevel(t *testing.T) {
	rig := newRig(t, hello())
	r := rig.run(t, nil)
	r.awaitState(StateLive)
	if err := r.SetLogLevel(t.Context(), "info"); err != nil {
		t.Fatal(err)
	}
	if err := r.SetLogLevel(t.Context(), "loud&x=y"); err == nil {
		t.Error("SetLogLevel(loud) = nil, want an error")
	}
	old := r.Status().PID
	if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, 5*time.Second, "a new process with the level", func() bool {
		return r.Status().State == StateLive && strings.Contains(r.logs.String(), "starting main dispatch loop")
	})
}

func TestAdminAbsent(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "a.sock")
	_, err := NewAdmin(socket).State(t.Context())
	if !errors.Is(err, syscall.ENOENT) || !strings.Contains(err.Error(), socket) || strings.Contains(err.Error(), "http://") {
		t.Errorf("State without a socket = %v; want an error with the socket's path", err)
	}
}

func TestAdminSilent(t *testing.T) {
	a := fakeAdmin(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("too slow"))
	defer cancel()
	if _, err := a.Get(ctx, "/x"); err == nil || !strings.Contains(err.Error(), "too slow") {
		t.Errorf("Get from a silent admin = %v; want the cause of the deadline", err)
	}
}

func TestAdminTalksNonsense(t *testing.T) {
	a := fakeAdmin(t, func(w http.ResponseWriter, _ *http.Request) {
		for range 1000 {
			io.WriteString(w, "rubbish: x: -1\n: 5\nhttp.a.downstream_rq_active: 18446744073709551616\n")
		}
	})
	if s, err := a.State(t.Context()); err == nil || len(err.Error()) > 400 {
		t.Errorf("State of nonsense = %s, %v; want a short error", s, err)
	}
	if g, err := a.Gauges(t.Context(), "."); err != nil || len(g) != 1 {
		t.Errorf("Gauges of nonsense = %v, %v", g, err)
	}
}

func TestBodyIsBounded(t *testing.T) {
	b := &boundedBody{body: io.NopCloser(strings.NewReader("12345")), left: 3, cancel: func() {}}
	got, err := io.ReadAll(b)
	if string(got) != "123" || err == nil {
		t.Errorf("ReadAll of 5 bytes with a limit of 3 = %q, %v; want 3 bytes and an error", got, err)
	}
}

func TestLoadOf(t *testing.T) {
	got := loadOf(map[string]uint64{
		"http.web.1.downstream_rq_active":                       5,
		"http.web.1.downstream_cx_active":                       3,
		"http.web.1.downstream_cx_upgrades_active":              2,
		"http.web.1.downstream_cx_tx_bytes_buffered":            70,
		"http.admin.downstream_rq_active":                       1,
		"http.admin.downstream_cx_active":                       1,
		"http.gateway_agent_readiness.downstream_rq_active":     9,
		"listener.gateway_agent_readiness.downstream_cx_active": 9,
		"listener.0.0.0.0_80.downstream_cx_active":              4,
		"listener.0.0.0.0_80.worker_0.downstream_cx_active":     4,
		"listener.[__]_81.downstream_cx_active":                 3,
		"listener.envoy_internal_x.downstream_cx_active":        8,
		"listener.admin.downstream_cx_active":                   1,
		"listener.admin.main_thread.downstream_cx_active":       1,
	}, "gateway_agent_")
	want := Load{Requests: 3, Upgrades: 2, Unsent: 70, TCP: 4, Connections: 7}
	if got != want {
		t.Errorf("loadOf = %+v, want %+v", got, want)
	}
	if got.Idle() || !(Load{Connections: 7}).Idle() || (Load{Unsent: 1}).Idle() {
		t.Error("Idle is wrong")
	}
}

// TestHungAdmin: a state stays while the admin is silent, nothing is restarted, and only after a while is it worth a word.
func TestHungAdmin(t *testing.T) {
	t.Parallel()
	rig := newRig(t, hello())
	r := rig.run(t, func(c *Config) { c.HungAfter = 3 * time.Second })
	st := r.awaitState(StateLive)
	if err := syscall.Kill(st.PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "a silent admin in the status", func() bool { return !r.Status().AdminUnresponsiveSince.IsZero() })
	if hung, why := r.Hung(); hung {
		t.Errorf("Hung at once: %s", why)
	}
	eventually(t, 10*time.Second, "a word about it", func() bool { hung, _ := r.Hung(); return hung })
	eventually(t, 10*time.Second, "a warning", func() bool { return strings.Contains(r.logs.String(), "main thread does not answer") })
	if now := r.Status(); now.State != StateLive || now.PID != st.PID || now.Restarts != 0 {
		t.Errorf("Status of a hung Envoy = %+v; want it live and not restarted", now)
	}
	if err := syscall.Kill(st.PID, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, 5*time.Second, "an answer", func() bool { return r.Status().AdminUnresponsiveSince.IsZero() })
	if hung, _ := r.Hung(); hung {
		t.Error("Hung although the admin answers")
	}
}

func fakeAdmin(t *testing.T, h http.HandlerFunc) *Admin {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "a.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h}
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(l) })
	t.Cleanup(func() { srv.Close(); wg.Wait() })
	return NewAdmin(socket)
}
