package e2e

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/testca"
	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

const podURL = "http://" + podPlain + "/"

// ending is a way to tell a gateway how to end.
type ending struct {
	name       string
	annotation string // the pod's ProxyConfig
	env        map[string]string
	balancer   time.Duration // until the load balancer has taken the pod out
	min, max   time.Duration // until the container has ended
}

// TestPodEnds: the kubelet's SIGTERM, while the load balancer goes on for a while, with a slow request in flight and a client that stays
// connected and says nothing.
func TestPodEnds(t *testing.T) {
	t.Parallel()
	const least, most = 3500 * time.Millisecond, 7500 * time.Millisecond
	for _, e := range []ending{
		{"terminationDrainDuration", "terminationDrainDuration: 3s", nil, 2500 * time.Millisecond, least, most},
		{
			"on zero", "terminationDrainDuration: 100s",
			map[string]string{"EXIT_ON_ZERO_ACTIVE_CONNECTIONS": "true", "MINIMUM_DRAIN_DURATION": "2s"},
			1500 * time.Millisecond, least, most,
		},
		{
			"seconds", "terminationDrainDuration: 100s",
			map[string]string{"TERMINATION_DRAIN_DURATION_SECONDS": "3"},
			2500 * time.Millisecond, least, most,
		},
	} {
		t.Run(e.name, func(t *testing.T) {
			if !inSpace(t) {
				return
			}
			c := newContainer(t)
			maps.Copy(c.env, e.env)
			c.project("etc/istio/pod", map[string]string{"labels": "app=\"gw\"\n", "annotations": fmt.Sprintf("proxy.istio.io/config=%q\n", e.annotation)})
			c.publish()
			c.start()
			c.agent.waitReady()
			c.wantGoodEnd(e)
		})
	}
}

func (c *container) wantGoodEnd(e ending) {
	t := c.t
	t.Helper()
	idle := c.idleClient()
	defer idle.Close()
	l := startLoad(t, podURL, 100)
	slow := make(chan error, 1) // one result
	go func() { slow <- wantCode(podURL+"slow/5s", http.StatusOK) }()
	time.Sleep(time.Second)

	began := time.Now()
	c.agent.signal(syscall.SIGTERM)
	for _, address := range []string{podStatus, podReady} {
		c.agent.eventually(e.balancer/2, "the pod is not ready any more", func() error {
			return wantCode("http://"+address+"/healthz/ready", http.StatusServiceUnavailable)
		})
	}
	time.Sleep(time.Until(began.Add(e.balancer)))
	l.wantNoFailure(200)
	if err := <-slow; err != nil {
		t.Errorf("the request in flight: %v", err)
	}
	if code := c.agent.wait(e.max); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if took := time.Since(began); took < e.min || took > e.max {
		t.Errorf("the container ended after %v, want %v to %v", took, e.min, e.max)
	}
}

// TestPodEndsBeforeItIsReady: a gateway that has never seen istiod, nor its CA, starts in vain and ends on time, at whatever moment.
func TestPodEndsBeforeItIsReady(t *testing.T) {
	if !inSpace(t) {
		return
	}
	c := newContainer(t)
	c.proxy["terminationDrainDuration"] = "1s"
	c.publish()
	c.istiod.Stop()
	for _, after := range []time.Duration{0, 20 * time.Millisecond, 100 * time.Millisecond, 1500 * time.Millisecond} {
		c.start()
		c.agent.eventually(5*time.Second, "Envoy's program runs, be it to check the bootstrap", func() error {
			if _, envoy := c.processes(); envoy == 0 {
				return errors.New("no process")
			}
			return nil
		})
		time.Sleep(after)
		if code, _, _, err := get("http://" + podStatus + "/healthz/ready"); err == nil && code != http.StatusServiceUnavailable {
			t.Errorf("readiness after %v = %d, want 503", after, code)
		}
		c.agent.signal(syscall.SIGTERM)
		if code := c.agent.wait(6 * time.Second); code != 0 {
			t.Errorf("SIGTERM after %v: exit code %d, want 0", after, code)
		}
	}
	c.start()
	c.istiod.Start()
	c.agent.waitReady()
	if err := wantHeader(podURL, "x-route", "one"); err != nil {
		t.Error(err)
	}
}

// idleClient asks once and keeps its connection.
func (c *container) idleClient() net.Conn {
	c.t.Helper()
	conn, err := net.Dial("tcp", podPlain)
	if err != nil {
		c.t.Fatal(err)
	}
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	if n, err := conn.Read(make([]byte, 4096)); n == 0 {
		c.t.Fatal(err)
	}
	return conn
}

// TestPodRestarts: Envoy is killed, and the pod goes on; the container is killed, and the next finds what the volumes keep.
func TestPodRestarts(t *testing.T) {
	if !inSpace(t) {
		return
	}
	reg := startRegistry(t)
	reg.push("hello:v1", helloModule(t, "v1"))
	p := istioPlugin("hello", reg.uri("hello:v1"), "again", "1")
	c := newContainer(t)
	c.secured, c.plugin = true, &p
	edge := c.ca.Issue(t, testca.Leaf{Hosts: []string{"edge.test"}})
	c.istiod.SetSecret(edgeSecret, "ingress", edge.CertPEM, edge.KeyPEM)
	c.publish()
	c.start()
	served := func(limit time.Duration) time.Duration {
		t.Helper()
		return c.agent.eventually(limit, "everything is served", func() error {
			return errors.Join(wantHeader(podURL, "x-hello", "again"), c.peer(c.ca, c.ca))
		})
	}
	served(compiled)
	for range 2 {
		first, envoy := c.processes()
		if err := syscall.Kill(envoy, syscall.SIGKILL); envoy == 0 || err != nil {
			t.Fatalf("kill Envoy %d: %v", envoy, err)
		}
		waitGone(t, envoy, time.Second)
		t.Logf("served again after %v", served(compiled))
		c.wantEdge(edge)
		c.agent.waitReady()
		if now, next := c.processes(); now != first || next == envoy || next == 0 {
			t.Errorf("the container's processes are %d and %d, they were %d and %d; want another Envoy only", now, next, first, envoy)
		}
	}
	if n := len(c.authority.Requests()); n != 1 {
		t.Errorf("%d requests to the CA, want 1: the identity is not Envoy's to lose", n)
	}

	c.agent.kill() // and the sockets stay where they were
	c.istiod.Stop()
	reg.stop()
	c.start()
	c.agent.eventually(10*time.Second, "the agent lives", func() error { return wantCode("http://"+podStatus+"/healthz/live", http.StatusOK) })
	time.Sleep(time.Second)
	c.istiod.Start()
	t.Logf("a new container served %v after istiod was back, without its registry", served(compiled))
}

// startSecured starts a container that serves TLS too, and returns the certificate from the Secret.
func startSecured(t *testing.T) (*container, testca.Pair) {
	t.Helper()
	c := newContainer(t)
	c.secured = true
	edge := c.ca.Issue(t, testca.Leaf{Hosts: []string{"edge.test"}})
	c.istiod.SetSecret(edgeSecret, "ingress", edge.CertPEM, edge.KeyPEM)
	c.publish()
	c.start()
	c.agent.waitReady()
	c.agent.eventually(5*time.Second, "a workload of the mesh is let in", func() error { return c.peer(c.ca, c.ca) })
	c.wantEdge(edge)
	return c, edge
}

// TestPodRotates: istiod gets another root of the same name, another certificate and other tokens, and the kubelet brings what belongs to
// them a while later.
func TestPodRotates(t *testing.T) {
	if !inSpace(t) {
		return
	}
	c, edge := startSecured(t)
	l := startLoad(t, podURL, 50)
	first, envoy := c.processes()

	c.project("var/run/secrets/tokens", map[string]string{"istio-token": "token-2"}) // as every few hours
	next, old := testca.New(t, "cluster"), c.ca
	c.replaceIstiod(next, "token-2")
	began := time.Now()
	time.Sleep(3 * time.Second)
	c.project("var/run/secrets/istio", map[string]string{"root-cert.pem": string(next.PEM)})
	c.header = "two"
	c.publish()
	took := func(what string, check func() error) {
		t.Helper()
		c.agent.eventually(time.Until(began.Add(30*time.Second)), what, check)
		t.Logf("%s after %v", what, time.Since(began).Round(time.Millisecond))
	}
	took("a changed route is live", func() error { return wantHeader(podURL, "x-route", "two") })
	took("the CA has certified again", func() error {
		all := c.authority.Requests()
		if last := all[len(all)-1]; len(all) < 2 || !last.Granted || last.Token != "token-2" {
			return fmt.Errorf("%d requests, the last with token %q, granted: %v", len(all), last.Token, last.Granted)
		}
		return nil
	})
	took("the gateway shows the new identity to the new root's workloads", func() error { return c.peer(next, next) })
	if err := c.peer(old, next); err != nil {
		t.Errorf("a workload with a certificate of the old root, which may live on for a day: %v", err)
	}
	if err := c.peer(testca.New(t, "cluster"), next); err == nil {
		t.Error("a workload of a third root of the same name was let in")
	}
	c.wantEdge(edge)
	l.wantNoFailure(100)
	if now, same := c.processes(); now != first || same != envoy {
		t.Errorf("processes %d and %d became %d and %d: nothing should restart", first, envoy, now, same)
	}
}

// replaceIstiod starts an istiod of another root and for another token in the place of the one there is.
func (c *container) replaceIstiod(root *testca.CA, token string) {
	c.t.Helper()
	c.istiod.Stop()
	c.istiod.UseCertificate(c.certificate(root))
	c.istiod.UseTokens(map[string]xdstest.Identity{token: ingress})
	c.authority.SignWith(root)
	c.authority.Accept(token)
	c.istiod.Start()
}

// TestPodOutlivesIstiod: ten seconds without istiod, under load over both plain HTTP and TLS.
func TestPodOutlivesIstiod(t *testing.T) {
	if !inSpace(t) {
		return
	}
	c, _ := startSecured(t)
	l := startLoad(t, podURL, 100)
	stop := handshakes(t, podEdge)
	var unready atomic.Int64
	c.istiod.Stop()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if wantCode("http://"+podReady+"/healthz/ready", http.StatusOK) != nil || wantCode("http://"+podStatus+"/healthz/ready", http.StatusOK) != nil {
			unready.Add(1)
		}
		if err := c.peer(c.ca, c.ca); err != nil {
			t.Errorf("mutual TLS without istiod: %v", err)
		}
	}
	next := c.ca.Issue(t, testca.Leaf{Hosts: []string{"edge.test"}})
	c.istiod.SetSecret(edgeSecret, "ingress", next.CertPEM, next.KeyPEM)
	c.header = "after"
	c.publish()
	c.istiod.Start()
	took := c.agent.eventually(2*time.Second, "what changed is live", func() error { return wantHeader(podURL, "x-route", "after") })
	t.Logf("what changed was live %v after istiod was back", took)
	c.wantEdge(next)
	if made, failures := stop(); len(failures) > 0 || made < 100 {
		t.Errorf("%d of %d handshakes failed: %v", len(failures), made, failures[:min(3, len(failures))])
	}
	l.wantNoFailure(500)
	if n := unready.Load(); n > 0 {
		t.Errorf("%d times not ready", n)
	}
}
