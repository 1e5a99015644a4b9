package e2e

import (
	"syscall"
	"testing"
	"time"
)

// TestPodEndsByForce: a second Ctrl-C means at once, and has its own exit code, also for the first process of a container; and an Envoy that
// has stopped for good is ended on time.
func TestPodEndsByForce(t *testing.T) {
	if !inSpace(t) {
		return
	}
	c := newContainer(t)
	c.proxy["terminationDrainDuration"] = "60s"
	c.publish()
	c.start()
	c.agent.waitReady()
	c.agent.signal(syscall.SIGINT)
	c.agent.eventually(5*time.Second, "not ready any more", func() error { return wantCode("http://"+podStatus+"/healthz/ready", 503) })
	c.agent.signal(syscall.SIGINT)
	if code := c.agent.wait(3 * time.Second); code != 130 {
		t.Errorf("exit code %d after a second SIGINT, want 130", code)
	}

	c.proxy["terminationDrainDuration"] = "1s" // deadline: 3 s
	c.start()
	c.agent.waitReady()
	if _, envoy := c.processes(); envoy == 0 || syscall.Kill(envoy, syscall.SIGSTOP) != nil {
		t.Fatalf("cannot stop Envoy %d", envoy)
	}
	began := time.Now()
	c.agent.signal(syscall.SIGTERM)
	code := c.agent.wait(10 * time.Second)
	if took := time.Since(began); code != 0 || took < 2900*time.Millisecond || took > 8*time.Second {
		t.Errorf("exit code %d after %v; want 0, between the deadline of 3 s and 5 s more", code, took)
	}
}
