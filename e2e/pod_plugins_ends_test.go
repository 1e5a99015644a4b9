package e2e

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gateway-agent/gateway-agent/internal/registrytest"
	"github.com/gateway-agent/gateway-agent/internal/testca"
)

// tap is what a server was sent, as it came.
type tap struct {
	net.Listener
	mu   sync.Mutex
	sent bytes.Buffer
}

func (w *tap) Accept() (net.Conn, error) {
	conn, err := w.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return tappedConn{conn, w}, nil
}

type tappedConn struct {
	net.Conn
	to *tap
}

func (c tappedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.to.mu.Lock()
	defer c.to.mu.Unlock()
	c.to.sent.Write(p[:n])
	return n, err
}

func (w *tap) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sent.String()
}

// elsewhere serves a handler on another address than loopback, with a certificate that nobody knows or in plain text.
func elsewhere(t *testing.T, handler http.Handler, secure bool) *tap {
	t.Helper()
	listener, err := net.Listen("tcp", istiodAddress+":0")
	if err != nil {
		t.Fatal(err)
	}
	w := &tap{Listener: listener}
	server := &http.Server{Handler: handler}
	served := net.Listener(w)
	if secure {
		pair := testca.New(t, "unknown").Issue(t, testca.Leaf{Hosts: []string{istiodAddress}})
		cert, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
		if err != nil {
			t.Fatal(err)
		}
		served = tls.NewListener(w, &tls.Config{Certificates: []tls.Certificate{cert}})
	}
	go func() { _ = server.Serve(served) }()
	t.Cleanup(func() { server.Close() })
	return w
}

// TestPodWasmInsecureRegistries: registries without TLS, or with a certificate that nobody knows, serve when WASM_INSECURE_REGISTRIES has
// them. Else they are told of, and are never shown the secret.
func TestPodWasmInsecureRegistries(t *testing.T) {
	if !inSpace(t) {
		return
	}
	c, private, code := newWasmPod(t), startPrivateRegistry(t), padded("behind a wall")
	private.pushBytes("m:v1", code)
	file := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(code) })
	plain, plainToo := elsewhere(t, private.proxy, false), elsewhere(t, private.proxy, false)
	secure, secureToo := elsewhere(t, private.proxy, true), elsewhere(t, private.proxy, true)
	web, secureWeb, secureWebToo := elsewhere(t, file, false), elsewhere(t, file, true), elsewhere(t, file, true)
	const reference = "kubernetes://ingress/all"
	c.istiod.SetPullSecret(reference, secretFor(plain, plainToo, secure, secureToo))
	at := func(name, form string, w *tap) *wasmPlugin {
		return c.add(&wasmPlugin{name: name, uri: fmt.Sprintf(form, w.Addr()), env: map[string]string{pullSecret: reference}})
	}
	serve := []*wasmPlugin{
		at("plain", "oci://%s/m:v1", plain), at("secure", "oci://%s/m:v1", secure),
		at("web", "http://%s/m.wasm", web), at("secure-web", "https://%s/m.wasm", secureWeb),
	}
	const unknown = "certificate signed by unknown authority"
	refuse := map[*wasmPlugin]string{
		at("plain-too", "oci://%s/m:v1", plainToo): "speaks plain HTTP", at("secure-too", "oci://%s/m:v1", secureToo): unknown,
		at("secure-web-too", "https://%s/m.wasm", secureWebToo): unknown,
	}
	c.env["WASM_INSECURE_REGISTRIES"] = fmt.Sprintf("%s, %s,%s,http://scheme.example,", plain.Addr(), secure.Addr(), secureWeb.Addr())
	c.publish()
	c.start()
	c.agent.waitReady()
	for _, p := range serve {
		c.agent.eventually(soon, p.name+" serves", func() error { return c.live(p, code) })
		c.agent.eventually(soon, p.name+" lets requests through", p.place().passes)
	}
	for p, reason := range refuse {
		c.wantRefused(p, reason)
	}
	if text := strings.ToLower(plainToo.String() + secureToo.String() + web.String()); strings.Contains(text, "authorization") || len(text) == 0 {
		t.Errorf("a secret was sent in clear text to who may not have it, or nothing was sent at all: %d bytes", len(text))
	}
	if !strings.Contains(plain.String(), basicAuth(registrytest.Password)) {
		t.Error("the registry that serves was not sent the secret: does this test look in the right place?")
	}
	if all := c.remarks(); len(all) != 1 || !strings.Contains(all[0], "WASM_INSECURE_REGISTRIES") || !strings.Contains(all[0], "http://scheme.example") {
		t.Errorf("remarks %q, want one on the value that is no host", all)
	}
	c.wantClean(registrytest.Password)
}

// secretFor is a pull secret for these registries.
func secretFor(all ...*tap) []byte {
	var auths []string
	for _, w := range all {
		auths = append(auths, fmt.Sprintf(`"%s":{"auth":"%s"}`, w.Addr(), basicAuth(registrytest.Password)))
	}
	return []byte(`{"auths":{` + strings.Join(auths, ",") + `}}`)
}

// wantRefused: the registry may not be used, and the status says which it is and what to do.
func (c *wasmPod) wantRefused(p *wasmPlugin, reason string) {
	c.t.Helper()
	c.agent.eventually(soon, p.name+" is told of", func() error { return c.state(p, "policy", reason) })
	if s := c.agent.plugins()[p.resource()]; !strings.Contains(s.Reason, strings.Split(p.uri, "/")[2]) || !strings.Contains(s.Reason, "--registry-config") {
		c.t.Errorf("status of %s = %q, want the registry and the remedy", p.name, s.Reason)
	}
	c.agent.eventually(soon, p.name+" refuses", p.place().refuses)
}

// TestPodWasmUnknownCluster: istiod says nothing at all of plugins when one of them has a secret and it does not know the node's cluster.
func TestPodWasmUnknownCluster(t *testing.T) {
	if !inSpace(t) {
		return
	}
	c, reg := newWasmPod(t), startRegistry(t)
	reg.pushBytes("m:v1", padded("nobody's"))
	c.env["GATEWAY_AGENT_NODE_METADATA_JSON"] = `{"CLUSTER_ID":"","NAMESPACE":"ingress","SERVICE_ACCOUNT":"gw"}`
	c.env["GATEWAY_AGENT_READY_REQUIRES_WASM"] = "true"
	p := c.add(&wasmPlugin{name: "secret", uri: reg.uri("m:v1"), env: map[string]string{pullSecret: "kubernetes://ingress/x"}})
	c.publish()
	c.start()
	c.agent.eventually(soon, "the listener refuses", p.place().refuses)
	c.agent.eventually(soon, "the plugin that istiod does not send is told of", func() error { return c.state(p, "policy", "the control plane has not sent this resource") })
	if s := c.agent.plugins()[p.resource()]; !strings.Contains(s.Reason, "CLUSTER_ID") {
		t.Errorf("status of %s = %q, want what may be wrong", p.name, s.Reason)
	}
	code, verbose, _, err := get("http://" + podStatus + "/readyz?verbose")
	if want := p.resource() + " is policy: the control plane has not sent this resource"; err != nil || code != http.StatusServiceUnavailable || !strings.Contains(verbose, "[-] plugins failed: "+want) {
		t.Errorf("/readyz?verbose = %d, %s, %v; want 503 and %q", code, verbose, err, want)
	}
	p.env = nil // and with the secret goes what istiod needs the cluster for
	c.publish()
	c.agent.eventually(soon, "without a secret it serves", func() error { return c.live(p, padded("nobody's")) })
	c.agent.waitReady()
}

// TestDataDirectoryOfAnother: an agent that finds what another has kept, on the same host and so with the same node id, does not take it for
// its own.
func TestDataDirectoryOfAnother(t *testing.T) {
	t.Parallel()
	reg, a := startRegistry(t), newAgent(t)
	reg.pushBytes("m:v1", padded("mine"))
	mine := newPlace(t, plugin{name: "guard", uri: reg.uri("m:v1"), value: "mine"})
	other := newPlace(t, plugin{name: "guard", uri: reg.uri("missing:v1"), value: "other"})
	cp := startPlaces(t, a, "delta", []place{mine})
	a.eventually(compiled, "the plugin is live", func() error { return a.live("guard", hexSHA256(padded("mine"))) })
	a.kill()
	startPlaces(t, a, "delta", []place{other}, "--wasm-hold", "1s")
	if err := other.refuses(); err != nil {
		t.Errorf("the other's plugin: %v", err)
	}
	if log := a.log.String(); !strings.Contains(log, "extension state in this directory is another agent's") || !strings.Contains(log, cp.address) {
		t.Errorf("nothing is said of it:\n%s", tail(log, 50))
	}
	a.kill()
	reg.stop()
	a.start("--xds-address", cp.address, "--xds-mode", "delta", "--wasm-hold", "1s")
	a.waitReady()
	a.eventually(soon, "the first one is live from the store", func() error { return a.live("guard", hexSHA256(padded("mine"))) })
}

// fullDisk is a pod whose volume for modules is full.
type fullDisk struct {
	*wasmPod
	data, filler       string
	kept, moving, late *wasmPlugin
	large              []byte // the module of moving and late, for which there is no room
}

// newFullDisk starts a pod, fills its disk, and has istiod tell of modules that are not there yet.
func newFullDisk(t *testing.T, reg *registry) *fullDisk {
	t.Helper()
	c := &fullDisk{wasmPod: newWasmPod(t), large: padded(strings.Repeat("large", 300<<10))} // 1.5 MiB
	c.data = filepath.Join(c.root, "var/lib/istio/data")
	c.filler = filepath.Join(c.data, "filler")
	mountAt(t, "data", c.data, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=4m,mode=0777")
	reg.pushBytes("m:v1", padded("small"))
	reg.pushBytes("m:v2", c.large)
	c.kept = c.add(&wasmPlugin{name: "kept", uri: reg.uri("m:v1")})
	c.moving = c.add(&wasmPlugin{name: "moving", uri: reg.uri("m:v1")})
	c.publish()
	c.start()
	c.agent.waitReady()
	c.agent.eventually(soon, "both plugins are kept for the next start", func() error {
		file, err := os.ReadFile(filepath.Join(c.data, "plugins.json"))
		if err == nil && (!strings.Contains(string(file), c.moving.resource()) || !strings.Contains(string(file), c.kept.resource())) {
			err = fmt.Errorf("plugins.json has only\n%s", file)
		}
		return err
	})
	fillDisk(t, c.filler)
	c.late = c.add(&wasmPlugin{name: "late", uri: reg.uri("m:v2"), policy: failOpen})
	c.moving.uri, c.moving.value = reg.uri("m:v2"), "of the large one"
	c.publish()
	return c
}

// wantFull: what is there serves, what is new waits, and the status says which disk is full.
func (c *fullDisk) wantFull() {
	c.t.Helper()
	c.agent.eventually(soon, "what is new waits for room", func() error {
		if err := c.state(c.late, "policy", "free space there"); err != nil {
			return err
		}
		return c.state(c.moving, "degraded", "no space left on device")
	})
	for _, p := range c.plugins {
		c.agent.eventually(soon, p.name+" lets requests through", p.place().passes)
	}
	if text := c.agent.statusText(); !strings.Contains(text, "/var/lib/istio/data") || !strings.Contains(text, "no space left on device") {
		c.t.Errorf("the status does not tell which disk is full:\n%s", text)
	}
}

// TestPodOnAFullDisk: what is there serves, also after Envoy or the container has ended, and what is new comes when there is room.
func TestPodOnAFullDisk(t *testing.T) {
	if !inSpace(t) {
		return
	}
	c := newFullDisk(t, startRegistry(t))
	c.wantFull()
	first, envoy := c.processes()
	if err := syscall.Kill(envoy, syscall.SIGKILL); envoy == 0 || err != nil {
		t.Fatalf("kill Envoy %d: %v", envoy, err)
	}
	waitGone(t, envoy, time.Second)
	c.agent.eventually(compiled, "another Envoy serves", c.kept.place().passes)
	if now, _ := c.processes(); now != first {
		t.Error("the agent has ended")
	}
	c.wantFull()
	c.kept.value = "changed meanwhile"
	c.publish()
	c.wantInDump(c.kept.value) // it cannot be kept for the next start, though
	c.agent.signal(syscall.SIGTERM)
	if code := c.agent.wait(compiled); code != 0 {
		t.Errorf("exit code %d after SIGTERM on a full disk, want 0", code)
	}
	c.start()
	c.agent.waitReady()
	c.wantFull()

	if err := os.Remove(c.filler); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*wasmPlugin{c.late, c.moving} {
		took := c.agent.eventually(soon, p.name+" is live when there is room", func() error { return c.live(p, c.large) })
		t.Logf("%s live %v after there was room", p.name, took)
	}
}

func fillDisk(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !strings.Contains(err.Error(), "no space left") {
		t.Fatal(err)
	}
}
