package envoy

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// TestDrain is the promise: a slow request, keep-alive clients and new connections during a stop, and nothing fails before the
// sockets close.
func TestDrain(t *testing.T) {
	t.Parallel()
	rig := newRig(t, hello())
	var unready atomic.Bool
	r := rig.run(t, func(c *Config) {
		c.DrainDelay = 700 * time.Millisecond
		c.OnDrain = func() { unready.Store(true) }
	})
	r.awaitState(StateLive)
	idle := dial(t, rig.web)
	idle.request(t, "/")

	load := startLoad(rig.web)
	slow := make(chan error, 1) // one result
	go func() {
		_, err := get("http://" + rig.web + "/?after=3s")
		slow <- err
	}()
	eventually(t, 5*time.Second, "the slow request in flight and some load", func() bool {
		l, err := r.Admin().load(t.Context(), "gateway_agent_")
		return err == nil && l.Requests >= 1 && load.requests.Load() > 50
	})
	r.stop()
	eventually(t, time.Second, "OnDrain", unready.Load)
	accepting := time.Now()
	for time.Since(accepting) < 400*time.Millisecond {
		if !serving(rig.web) {
			t.Error("a new connection within the drain delay failed")
		}
	}
	load.noMore.Store(true) // a load balancer has noticed
	if got := r.awaitState(StateDraining); got.Drain == nil || got.Drain.Phase != PhaseDelay {
		t.Errorf("Status in the drain delay = %+v, drain %+v", got, got.Drain)
	}
	eventually(t, 5*time.Second, "closed sockets", func() bool { return refused(rig.web) })
	eventually(t, 5*time.Second, "phase waiting", func() bool { return r.drainNow().Phase == PhaseWaiting })
	eventually(t, 5*time.Second, "one request left", func() bool { return r.drainNow().Requests == 1 })

	if err := <-slow; err != nil {
		t.Errorf("the request in flight failed: %v", err)
	}
	done := time.Now()
	if err := r.await(5 * time.Second); err != nil {
		t.Errorf("Run, asked to stop = %v, want nil", err)
	}
	if took := time.Since(done); took > 2*time.Second {
		t.Errorf("Envoy ended %v after its last request, want less than 2 s", took)
	}
	load.stop()
	if n := load.failed.Load(); n > 0 {
		t.Errorf("%d of %d requests failed, first: %v", n, load.requests.Load(), load.first.Load())
	}
	if load.closed.Load() == 0 {
		t.Error("no keep-alive client was told to close its connection")
	}
	if _, err := idle.r.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("the idle connection ended with %v, want EOF", err)
	}
	if d := r.Status().Drain; d == nil || !d.Idle() || d.Phase != PhaseEnding {
		t.Errorf("the report of the drain = %+v; want nothing cut", d)
	}
}

func TestDrainTimeout(t *testing.T) {
	t.Parallel()
	rig := newRig(t, hello())
	r := rig.run(t, func(c *Config) { c.DrainTimeout = 700 * time.Millisecond })
	r.awaitState(StateLive)
	conn := dial(t, rig.web)
	conn.send(t, "/?after=30s")
	eventually(t, 5*time.Second, "a request in flight", func() bool {
		l, err := r.Admin().load(t.Context(), "x")
		return err == nil && l.Requests == 1
	})
	began := time.Now()
	r.stop()
	if err := r.await(5 * time.Second); err != nil {
		t.Errorf("Run = %v, want nil", err)
	}
	if took := time.Since(began); took < 700*time.Millisecond || took > 2*time.Second {
		t.Errorf("the stop took %v; want the drain timeout of 700 ms and little more", took)
	}
	if !strings.Contains(r.logs.String(), "cut.requests=1") {
		t.Errorf("the log does not say what was cut")
	}
}

func TestStopHastens(t *testing.T) {
	rig := newRig(t, hello())
	r := rig.run(t, func(c *Config) { c.DrainDelay, c.DrainTimeout = time.Minute, time.Hour })
	r.awaitState(StateLive)
	r.stop()
	eventually(t, 5*time.Second, "the drain delay", func() bool { return r.Status().State == StateDraining })
	r.Stop()
	r.Stop() // again is harmless
	if err := r.await(2 * time.Second); err != nil {
		t.Errorf("Run after Stop = %v, want nil", err)
	}
}

func TestStopAlone(t *testing.T) {
	rig := newRig(t, hello())
	r := rig.run(t, func(c *Config) { c.DrainDelay, c.DrainTimeout = time.Minute, time.Hour })
	r.awaitState(StateLive)
	r.Stop()
	if err := r.await(2 * time.Second); err != nil {
		t.Errorf("Run after Stop = %v, want nil", err)
	}
}

// TestDrainWithoutAdmin: Envoy's main thread is stopped, as a looping module does, and SIGTERM does nothing.
func TestDrainWithoutAdmin(t *testing.T) {
	t.Parallel()
	rig := newRig(t, hello())
	r := rig.run(t, func(c *Config) { c.DrainTimeout, c.KillGrace = 500*time.Millisecond, 300*time.Millisecond })
	st := r.awaitState(StateLive)
	if err := syscall.Kill(st.PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	r.stop()
	if err := r.await(5 * time.Second); err != nil {
		t.Errorf("Run = %v, want nil: it was asked to stop", err)
	}
	// timeout + 2 × grace, and some air
	if took := time.Since(began); took > 2100*time.Millisecond {
		t.Errorf("stopping a hung Envoy took %v", took)
	}
	if gone(st.PID) != nil {
		t.Errorf("hung Envoy %d survived", st.PID)
	}
}

func TestDrainWithBusyAdmin(t *testing.T) {
	t.Parallel()
	rig := newRig(t, hello())
	r := rig.run(t, nil)
	st := r.awaitState(StateLive)
	if err := syscall.Kill(st.PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	r.stop()
	eventually(t, 5*time.Second, "a first attempt", func() bool { return strings.Contains(r.logs.String(), "cannot be told to drain") })
	if err := syscall.Kill(st.PID, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := r.await(5 * time.Second); err != nil {
		t.Errorf("Run = %v, want nil", err)
	}
	if !strings.Contains(r.logs.String(), "envoy drained") {
		t.Error("Envoy was not drained once its admin answered again")
	}
}

func TestCrashWhileDraining(t *testing.T) {
	rig := newRig(t, hello())
	r := rig.run(t, func(c *Config) { c.DrainDelay = 20 * time.Second })
	st := r.awaitState(StateLive)
	r.stop()
	r.awaitState(StateDraining)
	if err := syscall.Kill(st.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := r.await(2 * time.Second); err == nil || !strings.Contains(err.Error(), "while it was being drained") {
		t.Errorf("Run after a crash in the drain = %v; want an error that says so", err)
	}
}

// TestStubbornProcess: what stands for Envoy never answers and ignores SIGTERM, and so does its child.
func TestStubbornProcess(t *testing.T) {
	deaf := filepath.Join(t.TempDir(), "deaf")
	file := script(t, `trap "" TERM; : > `+deaf+`; while :; do sleep 0.1; done`)
	r := run(t, Config{Path: file, Bootstrap: "b", Admin: "/nonexistent", KillGrace: 200 * time.Millisecond})
	st := r.awaitState(StateStarting)
	eventually(t, 5*time.Second, "deafness to SIGTERM", func() bool {
		_, err := os.Stat(deaf)
		return err == nil
	})
	began := time.Now()
	r.stop()
	if err := r.await(2 * time.Second); err != nil {
		t.Errorf("Run = %v, want nil", err)
	}
	if took := time.Since(began); took < 200*time.Millisecond || took > time.Second {
		t.Errorf("stopping took %v; want the kill grace of 200 ms and little more", took)
	}
	// Its child got the same signal, and dies when the kernel comes to it.
	eventually(t, time.Second, "nothing left of the process group", func() bool { return len(groupMembers(t, st.PID)) == 0 })
}

func TestDrainCountsUpgradesAndTCPApart(t *testing.T) {
	t.Parallel()
	rig := newRig(t, upgrader())
	r := rig.run(t, nil)
	r.awaitState(StateLive)
	ws := dial(t, rig.web)
	fmt.Fprintf(ws.c, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	if line, err := ws.r.ReadString('\n'); err != nil || !strings.Contains(line, "101") {
		t.Fatalf("upgrade answered with %q, %v", line, err)
	}
	tcp := dial(t, rig.tcp)
	own := dial(t, rig.own)
	own.send(t, "/?after=30s")
	want := Load{Upgrades: 1, TCP: 1, Connections: 2}
	eventually(t, 5*time.Second, "one upgrade and one TCP connection", func() bool {
		l, err := r.Admin().load(t.Context(), "gateway_agent_")
		return err == nil && l == want
	})
	r.stop()
	eventually(t, 5*time.Second, "the wait for them", func() bool { d := r.drainNow(); return d.Phase == PhaseWaiting && d.Load == want })
	tcp.c.Close()
	eventually(t, 5*time.Second, "the end of the TCP connection", func() bool { return r.drainNow().TCP == 0 })
	select {
	case <-r.done:
		t.Fatal("Envoy ended with an upgraded connection open")
	case <-time.After(1200 * time.Millisecond): // more than DrainMin
	}
	ws.c.Close()
	if err := r.await(2 * time.Second); err != nil {
		t.Errorf("Run = %v; want nil, with the agent's own request not waited for", err)
	}
}

// TestDrainMin: a connection that is idle when the sockets close may still bring a request, whose answer tells its client to leave.
func TestDrainMin(t *testing.T) {
	t.Parallel()
	rig := newRig(t, hello())
	r := rig.run(t, func(c *Config) { c.DrainMin = 3 * time.Second })
	r.awaitState(StateLive)
	idle := dial(t, rig.web)
	idle.request(t, "/")
	r.stop()
	eventually(t, 5*time.Second, "closed sockets", func() bool { return refused(rig.web) })
	time.Sleep(time.Second)
	idle.send(t, "/")
	if closing, err := idle.exchange(); err != nil || !closing {
		t.Errorf("a request on an idle connection: told to close: %v, %v; want an answer that tells it", closing, err)
	}
	idle.c.Close()
	answered := time.Now()
	if err := r.await(5 * time.Second); err != nil {
		t.Errorf("Run = %v, want nil", err)
	}
	if took := time.Since(answered); took > 1500*time.Millisecond {
		t.Errorf("Envoy ended %v after its last connection, want at once", took)
	}
}

// TestIdle: each kind of work alone is waited for; connections without any are not.
func TestIdle(t *testing.T) {
	t.Parallel()
	for load, want := range map[Load]bool{
		{}: true, {Connections: 3}: true, {Requests: 1}: false, {Upgrades: 1}: false, {TCP: 1}: false, {Unsent: 1}: false,
	} {
		if got := load.Idle(); got != want {
			t.Errorf("%+v: idle %v, want %v", load, got, want)
		}
	}
}

// TestDrainWaitsForSlowReaders: for Envoy a request is over when it has taken the last byte, long before its client has.
func TestDrainWaitsForSlowReaders(t *testing.T) {
	t.Parallel()
	const size = 20 << 20
	rig := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Write(make([]byte, size))
	}))
	r := rig.run(t, func(c *Config) { c.DrainMin = -1 })
	r.awaitState(StateLive)
	conn := dial(t, rig.web)
	conn.send(t, "/")
	eventually(t, 5*time.Second, "a response on its way", func() bool {
		l, err := r.Admin().load(t.Context(), "x")
		return err == nil && l.Unsent > 0
	})
	r.stop()
	eventually(t, 5*time.Second, "closed sockets", func() bool { return refused(rig.web) })
	resp, err := http.ReadResponse(conn.r, nil)
	if err != nil {
		t.Fatal(err)
	}
	var n int64
	for err == nil { // slowly at the end, where Envoy has already called the request done
		var k int64
		k, err = io.CopyN(io.Discard, resp.Body, 1<<20)
		n += k
		time.Sleep(30 * time.Millisecond)
	}
	if n != size || !errors.Is(err, io.EOF) {
		t.Errorf("the slow reader got %d of %d bytes, then %v", n, size, err)
	}
	if err := r.await(5 * time.Second); err != nil {
		t.Errorf("Run = %v, want nil", err)
	}
}

func (r *running) drainNow() Drain {
	if d := r.Status().Drain; d != nil {
		return *d
	}
	return Drain{}
}

// TestQuitAndHang: an Envoy that says it will end, and does not, costs two graces at most.
func TestQuitAndHang(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	admin := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/quitquitquit" {
			time.Sleep(400 * time.Millisecond)
		}
		fmt.Fprintln(w, "LIVE")
	}))
	deaf := filepath.Join(dir, "deaf")
	file := script(t, `trap "" TERM; : > `+deaf+`; while :; do sleep 0.1; done`)
	r := run(t, Config{Path: file, Bootstrap: "b", Admin: admin, DrainTimeout: -1, KillGrace: time.Second})
	r.awaitState(StateLive)
	eventually(t, 5*time.Second, "deafness to SIGTERM", func() bool {
		_, err := os.Stat(deaf)
		return err == nil
	})
	began := time.Now()
	r.stop()
	if err := r.await(5 * time.Second); err != nil {
		t.Errorf("Run = %v, want nil", err)
	}
	if took := time.Since(began); took < time.Second || took > 2200*time.Millisecond {
		t.Errorf("stopping took %v; want two kill graces of 1 s at most", took)
	}
}
