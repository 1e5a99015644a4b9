package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMeshAskedTwice: the kubelet repeats its SIGTERM when it is restarted itself, or when somebody deletes the pod again with less grace; a
// hook may repeat its POST. Requests in flight do not suffer from that. A person's second Ctrl-C means at once.
func TestMeshAskedTwice(t *testing.T) {
	t.Parallel()
	term := func(p *pod) { p.agent.signal(syscall.SIGTERM) }
	quit := func(p *pod) {
		response, err := http.Post("http://"+p.agent.status+"/quitquitquit", "", http.NoBody)
		if err != nil {
			p.t.Fatal(err)
		}
		response.Body.Close()
	}
	for name, end := range map[string]func(*pod){"SIGTERM": term, "quitquitquit": quit} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPod(t)
			p.launch()
			p.agent.waitReady()
			slow := make(chan error, 1) // one result
			go func() {
				response, err := p.https("/slow/3s")
				if err == nil && response.StatusCode != http.StatusOK {
					err = fmt.Errorf("status %s", response.Status)
				}
				slow <- err
			}()
			time.Sleep(300 * time.Millisecond)
			for range 5 {
				end(p)
				time.Sleep(100 * time.Millisecond)
			}
			if err := <-slow; err != nil {
				t.Errorf("the request in flight: %v", err)
			}
			if code := p.agent.wait(10 * time.Second); code != 0 {
				t.Errorf("exit code %d, want 0", code)
			}
		})
	}
	t.Run("Ctrl-C", func(t *testing.T) {
		t.Parallel()
		p := newPod(t)
		p.proxyConfig["terminationDrainDuration"] = "60s"
		p.launch()
		p.agent.waitReady()
		pid := p.agent.envoyPIDIn("etc/istio/proxy")
		p.agent.signal(syscall.SIGTERM)
		time.Sleep(300 * time.Millisecond)
		p.agent.signal(syscall.SIGINT)
		if code := p.agent.wait(5 * time.Second); code == 0 {
			t.Error("exit code 0 after work was cut, want another")
		}
		waitGone(t, pid, time.Second)
	})
}

// TestMeshCrashWhileDraining: an Envoy that dies while it is being drained took requests with it: that is no success.
func TestMeshCrashWhileDraining(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	p.proxyConfig["terminationDrainDuration"] = "30s"
	p.launch()
	p.agent.waitReady()
	pid := p.agent.envoyPIDIn("etc/istio/proxy")
	p.agent.signal(syscall.SIGTERM)
	time.Sleep(300 * time.Millisecond)
	if err := syscall.Kill(pid, syscall.SIGSEGV); err != nil {
		t.Fatal(err)
	}
	if code := p.agent.wait(10 * time.Second); code != 1 || !strings.Contains(p.agent.log.String(), "crashed while it was being drained") {
		t.Errorf("exit code %d; want 1 and the reason", code)
	}
}
