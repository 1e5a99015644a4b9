package e2e

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/registrytest"
	"github.com/gateway-agent/gateway-agent/internal/testca"
	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

// podFiles is the listener whose certificate is a file of the pod.
const podFiles = podAddress + ":8445"

// meshConfig is what a user has applied: a gateway, a route, the service it leads to, and a plugin.
type meshConfig struct {
	kube   *kubeAPI
	origin string
	header string // that the route adds
	module string // of the plugin
	always bool   // its pull policy
	say    string // its configuration
}

// apply brings the route and the plugin up to date.
func (m meshConfig) apply() {
	m.route()
	policy := "IfNotPresent"
	if m.always {
		policy = "Always"
	}
	m.kube.apply("WasmPlugin", "ingress", "hello", object{"spec": object{
		"selector": object{"matchLabels": object{"istio": "ingress"}}, "url": m.module, "imagePullSecret": "regcred", "imagePullPolicy": policy,
		"phase": "AUTHN", "pluginConfig": object{"value": m.say},
	}})
}

func (m meshConfig) route() {
	m.kube.apply("VirtualService", "ingress", "all", object{"spec": object{
		"hosts": []string{"*"}, "gateways": []string{"gw"}, "http": []object{{
			"headers": object{"response": object{"set": object{"x-route": m.header}}},
			"route":   []object{{"destination": object{"host": "origin.test", "port": object{"number": 80}}}},
		}},
	}})
}

// applyServers brings what does not change: ports for plain HTTP and for certificates of each source.
func (m meshConfig) applyServers() {
	server := func(address, protocol string, tls object) object {
		number, _ := strconv.Atoi(port(address))
		s := object{"port": object{"number": number, "name": protocol + port(address), "protocol": strings.ToUpper(protocol)}, "hosts": []string{"*"}}
		if tls != nil {
			s["tls"] = tls
		}
		return s
	}
	m.kube.apply("Gateway", "ingress", "gw", object{"spec": object{"selector": object{"istio": "ingress"}, "servers": []object{
		server(podPlain, "http", nil),
		server(podMutual, "https", object{"mode": "ISTIO_MUTUAL"}),
		server(podEdge, "https", object{"mode": "SIMPLE", "credentialName": "edge-cert"}),
		server(podFiles, "https", object{"mode": "SIMPLE", "serverCertificate": "/etc/istio/pod/tls.crt", "privateKey": "/etc/istio/pod/tls.key"}),
	}}})
	m.kube.apply("Telemetry", "ingress", "no-istio-stats", object{"spec": object{ // Envoy is not Istio's build
		"metrics": []object{{"overrides": []object{{"match": object{"metric": "ALL_METRICS"}, "disabled": true}}}},
	}})
	number, _ := strconv.Atoi(port(m.origin))
	m.kube.apply("ServiceEntry", "ingress", "origin", object{"spec": object{
		"hosts": []string{"origin.test"}, "location": "MESH_EXTERNAL", "resolution": "STATIC",
		"ports":     []object{{"number": 80, "name": "http", "protocol": "HTTP", "targetPort": number}},
		"endpoints": []object{{"address": "127.0.0.1"}},
	}})
}

// realPod is a pod whose istiod is the real one, in the place of the fake.
type realPod struct {
	*container
	real  *realIstiod
	mesh  meshConfig
	reg   *registry
	edge  testca.Pair
	files testca.Pair
}

func newRealPod(t *testing.T) *realPod {
	t.Helper()
	p := &realPod{container: newContainer(t), reg: startPrivateRegistry(t)}
	p.istiod.Stop()
	kube := newKubeAPI(t, map[string]xdstest.Identity{"token-1": ingress}, "ingress")
	kube.crds()
	p.real = newRealIstiod(t, kube, p.ca, net.JoinHostPort(istiodAddress, "15012"), net.JoinHostPort(istiodAddress, "15010"))
	p.reg.push("private:v1", helloModule(t, "v1"))
	p.edge = p.ca.Issue(t, testca.Leaf{Hosts: []string{"edge.test"}})
	p.files = p.ca.Issue(t, testca.Leaf{Hosts: []string{"files.test"}})
	p.project("etc/istio/pod", map[string]string{
		"labels": "app=\"gw\"\nistio=\"ingress\"\n", "annotations": "inject.istio.io/templates=\"gateway\"\n",
		"tls.crt": string(p.files.CertPEM), "tls.key": string(p.files.KeyPEM),
	})
	kube.apply("Secret", "ingress", "edge-cert", tlsSecret(p.edge))
	kube.apply("Secret", "ingress", "regcred", dockerSecret(p.reg.dockerConfig(registrytest.Password)))
	p.mesh = meshConfig{kube: kube, origin: p.origin, header: "one", module: p.reg.uri("private:v1"), say: "one"}
	p.mesh.applyServers()
	p.mesh.apply()
	return p
}

// TestPodOfRealIstiod: a gateway pod whose control plane and certificate authority are Istio's own.
func TestPodOfRealIstiod(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		mode string
		end  syscall.Signal // of istiod
		late time.Duration  // it starts after the pod
	}{{"delta", syscall.SIGKILL, 0}, {"sotw", syscall.SIGTERM, 2 * time.Second}} {
		t.Run(tt.mode, func(t *testing.T) {
			if !inSpace(t) {
				return
			}
			p := newRealPod(t)
			p.real.strict()
			p.proxy["terminationDrainDuration"], p.env["SECRET_TTL"] = "1s", "14s"
			p.run(tt.mode, tt.late)
			p.agent.waitReady()
			p.agent.eventually(compiled, "the plugin serves", func() error { return wantHeader(podURL, "x-hello", "one") })
			if err := wantHeader(podURL, "x-route", "one"); err != nil {
				t.Error(err)
			}
			p.wantMutual()
			p.wantEdge(p.edge)
			p.wantServed(podFiles, p.files)
			p.wantChanges()
			p.wantOutlived(tt.end)
			p.wantPluginGone()
			p.wantRenewed()
			p.wantNoMistakes()
			p.wantNoSecrets(append(append(secretWords(registrytest.Password)[1:], keyWords(p.edge.KeyPEM)...), keyWords(p.files.KeyPEM)...)...)
			p.agent.signal(syscall.SIGTERM)
			if code := p.agent.wait(10 * time.Second); code != 0 {
				t.Errorf("exit code %d, want 0", code)
			}
			p.wantQuiet()
		})
	}
}

// run starts both, istiod late if need be.
func (p *realPod) run(mode string, late time.Duration) {
	p.t.Helper()
	if late > 0 {
		p.start("--xds-mode=" + mode)
		time.Sleep(late)
	}
	p.t.Logf("istiod served after %v", p.real.start())
	if late == 0 {
		p.start("--xds-mode=" + mode)
	}
}

func (p *realPod) wantServed(address string, pair testca.Pair) {
	p.t.Helper()
	serial, err := handshake(address)
	if err != nil || serial != pair.Cert.SerialNumber.String() {
		p.t.Errorf("handshake with %s: serial %s, %v; want %s", address, serial, err, pair.Cert.SerialNumber)
	}
}

// wantChanges: a route, a Secret, a plugin's configuration and its module.
func (p *realPod) wantChanges() {
	p.t.Helper()
	p.mesh.header = "two"
	p.mesh.route()
	took := p.agent.eventually(2*time.Second, "a changed route is live", func() error { return wantHeader(podURL, "x-route", "two") })
	p.t.Logf("a changed route was live after %v", took)
	p.edge = p.ca.Issue(p.t, testca.Leaf{Hosts: []string{"edge.test"}})
	p.mesh.kube.apply("Secret", "ingress", "edge-cert", tlsSecret(p.edge))
	p.wantEdge(p.edge)
	p.mesh.say = "two"
	p.mesh.apply()
	p.agent.eventually(compiled, "a changed plugin is live", func() error { return wantHeader(podURL, "x-hello", "two") })
	p.reg.push("private:v1", helloModule(p.t, "v2"))
	p.mesh.always = true
	p.mesh.apply()
	p.agent.eventually(compiled, "a moved tag is followed", func() error { return wantHeader(podURL, "x-hello-version", "v2") })
}

// wantOutlived: istiod ends under load, the configuration is changed, and it starts again.
func (p *realPod) wantOutlived(signal os.Signal) {
	t := p.t
	t.Helper()
	l := startLoad(t, podURL, 50)
	stop := handshakes(t, podEdge)
	p.real.end(signal)
	time.Sleep(2 * time.Second)
	if err := wantCode("http://"+podReady+"/healthz/ready", http.StatusOK); err != nil {
		t.Errorf("without istiod: %v", err)
	}
	p.mesh.header = "three"
	p.mesh.route()
	p.edge = p.ca.Issue(t, testca.Leaf{Hosts: []string{"edge.test"}})
	p.mesh.kube.apply("Secret", "ingress", "edge-cert", tlsSecret(p.edge))
	p.real.start()
	took := p.agent.eventually(2*time.Second, "what changed is live", func() error { return wantHeader(podURL, "x-route", "three") })
	t.Logf("what changed was live %v after istiod was back", took)
	p.wantEdge(p.edge)
	if made, failures := stop(); len(failures) > 0 || made < 30 {
		t.Errorf("%d of %d handshakes failed: %v", len(failures), made, failures[:min(3, len(failures))])
	}
	l.wantNoFailure(80)
	if err := wantHeader(podURL, "x-hello", "two"); err != nil {
		t.Error(err)
	}
}

// wantPluginGone: the plugin is removed.
func (p *realPod) wantPluginGone() {
	p.t.Helper()
	p.mesh.kube.remove("WasmPlugin", "ingress", "hello")
	p.agent.eventually(5*time.Second, "the removed plugin is gone", func() error { return wantHeader(podURL, "x-hello", "") })
	if err := wantHeader(podURL, "x-route", "three"); err != nil {
		p.t.Error(err)
	}
}

// wantRenewed: the identity's life is 14 s; the second certificate was asked for with the first.
func (p *realPod) wantRenewed() {
	p.t.Helper()
	p.agent.eventually(20*time.Second, "the CA has certified again", func() error {
		if n := strings.Count(p.agent.log.String(), "certificate authority has certified the workload"); n < 2 {
			return fmt.Errorf("certified %d times", n)
		}
		return nil
	})
	p.wantMutual()
}

// wantNoMistakes: istiod has nothing to say against what it was sent.
func (p *realPod) wantNoMistakes() {
	p.t.Helper()
	if !strings.Contains(p.real.log.String(), "unsafe features enabled") {
		p.t.Error("istiod is not strict")
	}
	for line := range strings.Lines(p.real.log.String()) {
		for _, word := range []string{"ACK ERROR", "mismatch", "health check probe before", "Unauthorized", "authenticate", "signing error", "panic"} {
			if strings.Contains(line, word) {
				p.t.Errorf("istiod says: %s", line)
			}
		}
	}
}
