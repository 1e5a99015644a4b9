package envoy

import (
	"net/http"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// TestAdminOnTCP runs a whole life with an admin that is not a socket.
func TestAdminOnTCP(t *testing.T) {
	t.Parallel()
	rig := newRig(t, hello())
	admin := freeAddress(t)
	config := rig.config(serve(t, hello()))
	config["admin"] = object{"address": address(admin)}
	rig.write(t, config)
	rig.admin = admin
	r := rig.run(t, nil)
	r.awaitState(StateLive)
	r.stop()
	if err := r.await(5 * time.Second); err != nil {
		t.Errorf("Run, asked to stop = %v, want nil", err)
	}
}

// TestAnnounce: clients are told and readiness fails, nothing else; a crash does not undo it, and a stop goes on from there.
func TestAnnounce(t *testing.T) {
	t.Parallel()
	rig := newRig(t, hello())
	var unready atomic.Int32
	r := rig.run(t, func(c *Config) {
		c.OnDrain = func() { unready.Add(1) }
		c.DrainDelay = time.Second
	})
	r.awaitState(StateLive)
	for range 2 {
		if err := r.Announce(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	closes := func() bool {
		resp, err := (&http.Client{Timeout: time.Second}).Get("http://" + rig.web + "/")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK && resp.Close
	}
	if n := unready.Load(); n != 1 || !closes() {
		t.Errorf("after Announce: readiness failed %d times, responses ask to close: %v; want 1, true", n, closes())
	}
	pid := r.Status().PID
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "another process that asks to close", func() bool { return r.Status().PID != pid && closes() })
	if st := r.awaitState(StateDraining); st.Drain == nil || !st.Drain.Deadline.IsZero() {
		t.Errorf("status %+v, drain %+v; want one without a deadline", st, st.Drain)
	}
	eventually(t, 2*time.Second, "the drain delay", func() bool { return time.Since(r.drainNow().Since) > time.Second })
	began := time.Now()
	r.stop()
	if err := r.await(5 * time.Second); err != nil {
		t.Errorf("Run, asked to stop = %v, want nil", err)
	}
	if took := time.Since(began); took > 900*time.Millisecond || unready.Load() != 1 {
		t.Errorf("the stop took %v and readiness failed %d times; want no second delay and 1", took, unready.Load())
	}
}

// TestMinListeners: the agent's own listener does not count, and what was once there stays counted.
func TestMinListeners(t *testing.T) {
	t.Parallel()
	rig := newRig(t, hello())
	r := rig.run(t, func(c *Config) { c.MinListeners = 2 })
	r.awaitState(StateLive)
	eventually(t, 5*time.Second, "two listeners", func() bool { return r.Status().Filled })
	names, err := r.Admin().Listeners(t.Context())
	if err != nil || len(names) != 3 {
		t.Errorf("Listeners = %q, %v; want 3", names, err)
	}

	rig = newRig(t, hello())
	r = rig.run(t, func(c *Config) { c.MinListeners = 3 })
	r.awaitState(StateLive)
	time.Sleep(4 * pollWaiting)
	if r.Status().Filled {
		t.Error("filled with two listeners of three")
	}
}

// TestCrashEndsRun is --on-crash=exit.
func TestCrashEndsRun(t *testing.T) {
	t.Parallel()
	rig := newRig(t, hello())
	r := rig.run(t, func(c *Config) { c.Restarts = -1 })
	pid := r.awaitState(StateLive).PID
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := r.await(5 * time.Second); err == nil {
		t.Error("Run after a crash that is not to be answered = nil, want an error")
	}
}

// TestDrainWithoutStatistics: when nobody can see what is in flight, the drain takes all its time.
func TestDrainWithoutStatistics(t *testing.T) {
	t.Parallel()
	rig := newRig(t, hello())
	config := rig.config(serve(t, hello()))
	config["stats_config"] = object{"stats_matcher": object{"reject_all": true}}
	rig.write(t, config)
	r := rig.run(t, func(c *Config) { c.DrainTimeout = 1500 * time.Millisecond })
	r.awaitState(StateLive)
	slow := make(chan error, 1) // one result
	go func() {
		_, err := get("http://" + rig.web + "/?after=1s")
		slow <- err
	}()
	time.Sleep(200 * time.Millisecond)
	r.stop()
	if err := <-slow; err != nil {
		t.Errorf("the request in flight failed: %v", err)
	}
	if err := r.await(5 * time.Second); err != nil {
		t.Errorf("Run, asked to stop = %v, want nil", err)
	}
}
