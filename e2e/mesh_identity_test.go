package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestMeshWaitsForItsIdentity: a gateway whose listener shows the workload's certificate is not ready while the CA has not given one, as
// with pilot-agent: a rollout must not end the pods that have theirs. What needs no certificate serves meanwhile, and a stop is a stop.
func TestMeshWaitsForItsIdentity(t *testing.T) {
	t.Parallel()
	for name, trouble := range map[string]func(*pod){
		"the CA hangs":   func(p *pod) { p.authority.Delay(time.Hour) },
		"the CA refuses": func(p *pod) { p.authority.Refuse(status.Error(codes.PermissionDenied, "not yours")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPod(t)
			plain := gateway{address: freeAddress(t), origin: p.gateway.origin, header: "plain"}
			p.set(append(p.items(), plain.items()[:2]...)...)
			trouble(p)
			p.launch()
			p.agent.eventually(20*time.Second, "what needs no certificate serves", func() error {
				return wantHeader("http://"+plain.address+"/", "x-route", "plain")
			})
			for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
				for _, address := range []string{p.agent.status, p.agent.ready} {
					if code, body, _, err := get("http://" + address + "/healthz/ready"); code == http.StatusOK {
						t.Fatalf("%s is ready without an identity: %d %q, %v", address, code, body, err)
					}
				}
			}
			if code, body, _, err := get("http://" + p.agent.status + "/healthz/ready"); code != http.StatusServiceUnavailable || !strings.Contains(body, "default") {
				t.Errorf("not ready: %d %q, %v; want 503 that names the secret", code, body, err)
			}
			p.agent.signal(syscall.SIGTERM)
			began := time.Now()
			if code := p.agent.wait(10 * time.Second); code != 0 {
				t.Errorf("exit code %d after SIGTERM, want 0", code)
			}
			if took := time.Since(began); took > 5*time.Second { // terminationDrainDuration is 2 s
				t.Errorf("the agent ended after %v", took)
			}

			p.launch()
			p.agent.eventually(20*time.Second, "what needs no certificate serves", func() error {
				return wantHeader("http://"+plain.address+"/", "x-route", "plain")
			})
			p.authority.Delay(0)
			p.authority.Refuse(nil)
			p.agent.waitReady()
			p.wantServed()
			p.authority.Refuse(status.Error(codes.Unavailable, "down")) // from now on nobody minds
			if code, body, _, err := get("http://" + p.agent.status + "/healthz/ready"); code != http.StatusOK {
				t.Errorf("ready = %d %q, %v", code, body, err)
			}
		})
	}
}

// TestMeshWithoutNameService: istiod's name means nothing yet when the pod starts.
func TestMeshWithoutNameService(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	p.proxyConfig["discoveryAddress"] = "istiod.nowhere.invalid:15012"
	delete(p.env, "CA_ADDR")
	p.launch()
	p.agent.eventually(20*time.Second, "the agent says what is wrong", func() error {
		code, body, _, err := get("http://" + p.agent.status + "/healthz/ready")
		if err == nil && (code != http.StatusServiceUnavailable || !strings.Contains(body, "istiod.nowhere.invalid")) {
			err = fmt.Errorf("%d %q", code, body)
		}
		return err
	})
	p.agent.signal(syscall.SIGTERM)
	if code := p.agent.wait(10 * time.Second); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}
