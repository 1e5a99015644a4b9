package e2e

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"golang.org/x/sys/unix"

	"github.com/gateway-agent/gateway-agent/envoy"
	"github.com/gateway-agent/gateway-agent/internal/testca"
	"github.com/gateway-agent/gateway-agent/internal/wasmtest"
)

const podTCP = podAddress + ":9000"

// drainDelay is how long a pod accepts connections in these tests, however it is told so.
const drainDelay = 3 * time.Second

// envoyVersion is an Envoy of tools/envoy/versions.txt, or the suite's own, and a way to tell a pod how to end that is tried with it.
type envoyVersion struct {
	name     string
	noWasm   bool
	proxy    map[string]any
	env      map[string]string
	announce bool // POST /drain a while before SIGTERM, as a preStop hook does
}

var envoyVersions = []envoyVersion{
	{name: "1.36.4", proxy: map[string]any{"terminationDrainDuration": "3s"}},
	{
		name: "1.37.0", proxy: map[string]any{"terminationDrainDuration": "100s"},
		env: map[string]string{"EXIT_ON_ZERO_ACTIVE_CONNECTIONS": "true", "MINIMUM_DRAIN_DURATION": "3s"},
	},
	{
		name: "1.38.3", noWasm: true, proxy: map[string]any{"terminationDrainDuration": "100s"},
		env: map[string]string{"TERMINATION_DRAIN_DURATION_SECONDS": "3"},
	},
	{name: "1.39.3", proxy: map[string]any{"terminationDrainDuration": "3s"}, announce: true},
	{name: "pinned", proxy: map[string]any{"terminationDrainDuration": "3s"}},
}

func (v envoyVersion) path(t *testing.T) string {
	t.Helper()
	if v.name == "pinned" {
		return envoyBinary
	}
	path := filepath.Join(filepath.Dir(envoyBinary), "envoys", v.name)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: run make envoys", err)
	}
	return path
}

// newContainerOf is a container with another Envoy.
func newContainerOf(t *testing.T, v envoyVersion) *container {
	t.Helper()
	c := newContainer(t)
	bind(t, v.path(t), filepath.Join(c.root, "usr/local/bin/envoy"), unix.MS_RDONLY)
	return c
}

// TestPodServesWithEveryEnvoy: the bootstrap with all that ProxyConfig can put into it, secrets, a plugin, and another process after a crash.
func TestPodServesWithEveryEnvoy(t *testing.T) {
	t.Parallel()
	for _, v := range envoyVersions {
		t.Run(v.name, func(t *testing.T) {
			if !inSpace(t) {
				return
			}
			reg := startRegistry(t)
			reg.pushBytes("greeter:v1", greeter())
			p := istioPlugin("greeter", reg.uri("greeter:v1"), "", "1")
			if v.noWasm {
				p.policy = "FAIL_OPEN"
			}
			c := newContainerOf(t, v)
			maps.Copy(c.proxy, everyTelemetry())
			c.env["ENVOY_SECURE_METRICS_PORT"], c.env["ENVOY_SECURE_MERGED_METRICS_PORT"] = "15091", "15092"
			c.project("etc/istio/pod", map[string]string{"annotations": "sidecar.istio.io/statsCompression=\"true\"\n"})
			c.secured, c.plugin = true, &p
			edge := c.ca.Issue(t, testca.Leaf{Hosts: []string{"edge.test"}})
			c.istiod.SetSecret(edgeSecret, "ingress", edge.CertPEM, edge.KeyPEM)
			c.publish()
			c.start()
			served := func() error {
				if v.noWasm {
					return errors.Join(wantHeader(podURL, "x-route", "one"), c.peer(c.ca, c.ca))
				}
				return errors.Join(wantHeader(podURL, "x-hello", "every"), c.peer(c.ca, c.ca))
			}
			c.agent.eventually(compiled, "everything is served", served)
			c.agent.waitReady()
			c.wantEdge(edge)
			if v.noWasm {
				c.wantNoRuntime(p)
			}
			_, pid := c.processes()
			if err := syscall.Kill(pid, syscall.SIGKILL); pid == 0 || err != nil {
				t.Fatalf("kill Envoy %d: %v", pid, err)
			}
			waitGone(t, pid, time.Second)
			t.Logf("everything is served %v after a crash", c.agent.eventually(compiled, "everything is served again", served))
		})
	}
}

// TestEveryEnvoyTakesTheBootstrap: with whatever is in it.
func TestEveryEnvoyTakesTheBootstrap(t *testing.T) {
	t.Parallel()
	a := newAgent(t)
	overlay := filepath.Join(a.dir, "overlay.yaml")
	writeFile(t, overlay, []byte("static_resources: { clusters: [{ name: mine, connect_timeout: 1s }] }\n"))
	for name, flags := range map[string][]string{
		"plain": nil,
		"zipkin": {
			"--tracing=zipkin=127.0.0.1:9411", "--statsd=127.0.0.1:8125", "--metrics-service=127.0.0.1:1", "--access-log-service=127.0.0.1:1",
			"--outlier-log=/dev/stdout", "--max-connections=10", "--runtime=a.b=true", "--stats-tag=a=((b)c)", "--stats-prefix=x", "--stats-suffix=x",
			"--stats-regexp=x.*", "--stats-default-tags=false", "--xds-mode=sotw", "--sds-external=/sds.sock", "--node-locality=a/b/c",
			"--bootstrap-overlay=" + overlay, "--secure-prometheus-address=:3", "--secure-metrics-address=:4", "--dual-stack", "--ready-proxy-protocol",
			"--local-cluster", "--stats-flush-interval=1s", "--stats-eviction-interval=2s",
		},
		"datadog": {"--tracing=datadog=localhost:8126", "--admin-address=127.0.0.1:1", "--ready-address=[::]:2", "--prometheus-address=off"},
	} {
		args := append([]string{"bootstrap", "--xds-address", "127.0.0.1:1", "--run-dir", a.dir, "--data-dir", a.dir}, flags...)
		text, err := exec.CommandContext(t.Context(), agentBinary, args...).Output()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		file := filepath.Join(a.dir, name+".json")
		writeFile(t, file, text)
		for _, v := range envoyVersions {
			if err := envoy.Validate(t.Context(), v.path(t), file); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// greeter is a plugin that adds a header, which Envoy compiles at once.
func greeter() []byte {
	const name, value, valueAt, responseHeaders = "x-hello", "every", 16, 2
	var add uint32
	e := wasmtest.New(func(e *wasmtest.Encoder) { add = e.Import("env", "proxy_add_header_map_value", "iiiii>i") })
	e.ExportFunc("proxy_on_response_headers", "iii>i",
		wasmtest.I32Const(responseHeaders), wasmtest.I32Const(0), wasmtest.I32Const(int32(len(name))),
		wasmtest.I32Const(valueAt), wasmtest.I32Const(int32(len(value))), wasmtest.Call(add))
	e.Data(0, name)
	e.Data(valueAt, value)
	return e.Bytes()
}

// everyTelemetry is what ProxyConfig can have Envoy do beside its work. Nobody answers at these addresses.
func everyTelemetry() map[string]any {
	return map[string]any{
		"tracing":               map[string]any{"zipkin": map[string]any{"address": "127.0.0.1:9411"}, "sampling": 1},
		"statsdUdpAddress":      "127.0.0.1:8125",
		"envoyMetricsService":   map[string]any{"address": "127.0.0.1:8126"},
		"envoyAccessLogService": map[string]any{"address": "127.0.0.1:8127", "tlsSettings": map[string]any{"mode": "ISTIO_MUTUAL"}},
		"proxyStatsMatcher":     map[string]any{"inclusionRegexps": []string{".*wasm.*"}},
		"extraStatTags":         []string{"some_tag"},
		"runtimeValues":         map[string]any{"some.feature": "true"},
		"fileFlushMinSizeKb":    4,
		"fileFlushInterval":     "2s",
	}
}

// wantNoRuntime: an Envoy that cannot run any plugin is told of as such.
func (c *container) wantNoRuntime(p plugin) {
	c.t.Helper()
	cmd := containerCommand(c.t, c.root, c.environment(), "/usr/local/bin/gateway-agent", "status", "--run-dir", "/etc/istio/proxy")
	out, err := cmd.CombinedOutput()
	for _, want := range []string{p.name, "this Envoy was built without a Wasm runtime: run an Envoy that has one"} {
		if err != nil || !strings.Contains(string(out), want) {
			c.t.Errorf("status (%v) lacks %q:\n%s", err, want, out)
		}
	}
}

// TestPodDrains: whatever a client does while a gateway ends, it may end it, with every Envoy; and what does not end by itself is cut on time.
func TestPodDrains(t *testing.T) {
	t.Parallel()
	for _, v := range envoyVersions {
		t.Run(v.name, func(t *testing.T) {
			if !inSpace(t) {
				return
			}
			c := newContainerOf(t, v)
			maps.Copy(c.proxy, v.proxy)
			maps.Copy(c.env, v.env)
			origin := startPatient(t)
			c.set(origin.items()...)
			c.start()
			c.agent.waitReady()
			c.wantDrained(origin, v.announce)

			maps.DeleteFunc(c.env, func(name, _ string) bool { return v.env[name] != "" })
			c.proxy["terminationDrainDuration"], c.proxy["drainDuration"] = "1s", "1s" // the latter is about listeners that change
			c.set(startPatient(t).items()...)
			c.start()
			c.agent.waitReady()
			c.wantCut()
		})
	}
}

// clients are what is going on in a gateway while it is told to end.
type clients struct {
	t    *testing.T
	wg   sync.WaitGroup
	mu   sync.Mutex
	last time.Time // when the last one was done
}

// run has a client do something that must not fail.
func (c *clients) run(name string, do func() error) {
	c.wg.Go(func() {
		if err := do(); err != nil {
			c.t.Errorf("%s: %v", name, err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.last = time.Now()
	})
}

// begin starts all that lasts until the origin releases it, and what asks again and again until noticed is closed; it returns those that
// only ask.
func (c *clients) begin(origin *patient, noticed <-chan struct{}) (steady map[string]*caller) {
	steady = callers()
	for name, caller := range callers() {
		c.run(name+" long request", func() error { return caller.ask("/held", "end") })
		c.run(name+" long response", func() error { return caller.ask("/drip", "end") })
		c.run(name+" requests beside them", func() error { return caller.steady(noticed) })
		c.run(name+" steady requests", func() error { return steady[name].steady(noticed) })
	}
	c.run("TCP", func() error { return talkTCP(origin.released) })
	c.run("WebSocket", func() error { return talkWebSocket(origin.released) })
	c.run("gRPC", func() error { return talkGRPC(c.t.Context(), origin.released) })
	return steady
}

// callers are one client of each kind of HTTP.
func callers() map[string]*caller {
	return map[string]*caller{"HTTP/1": newCaller(1, false), "HTTPS/1": newCaller(1, true), "h2c": newCaller(2, false), "h2": newCaller(2, true)}
}

// wantDrained ends the container under every kind of client.
func (c *container) wantDrained(origin *patient, announce bool) {
	t := c.t
	t.Helper()
	idle, waking := idleCallers(t), idleCallers(t)
	noticed := make(chan struct{})
	all := &clients{t: t}
	steady := all.begin(origin, noticed)
	time.Sleep(5 * beat)

	began := time.Now()
	if announce {
		c.postDrain()
		time.Sleep(time.Second)
	}
	c.agent.signal(syscall.SIGTERM)
	time.Sleep(time.Until(began.Add(drainDelay - 500*time.Millisecond)))
	close(noticed)
	for name, caller := range steady {
		if conns, _ := caller.ended(); conns < 5 {
			t.Errorf("%s: %d connections since SIGTERM, want many: each response, or GOAWAY, tells to close", name, conns)
		}
	}
	c.agent.eventually(3*time.Second, "nothing listens any more", func() error { return wantRefused(podPlain, podEdge, podTCP) })
	if since := time.Since(began); since < drainDelay-100*time.Millisecond {
		t.Errorf("nothing listens any more after %v, want %v", since, drainDelay)
	}
	for name, caller := range waking {
		if err := caller.ask("/", "origin"); err != nil {
			t.Errorf("%s, a request on a connection that was idle: %v", name, err)
		}
	}
	time.Sleep(time.Until(began.Add(drainDelay + 1200*time.Millisecond)))
	close(origin.released)
	all.wg.Wait()
	c.wantSoonEnded(began, all.last)
	wantNoReset(t, idle)
}

// idleCallers are clients that have asked once and keep their connections.
func idleCallers(t *testing.T) map[string]*caller {
	t.Helper()
	all := callers()
	for name, caller := range all {
		if err := caller.ask("/", "origin"); err != nil {
			t.Fatalf("%s before the end: %v", name, err)
		}
	}
	return all
}

func (c *container) wantSoonEnded(began, last time.Time) {
	c.t.Helper()
	if code := c.agent.wait(10 * time.Second); code != 0 {
		c.t.Errorf("exit code %d, want 0", code)
	}
	took := time.Since(last)
	if took > 2*time.Second {
		c.t.Errorf("the container ended %v after its last client was done, want less than 2 s", took)
	}
	c.t.Logf("the container ended %v after SIGTERM, %v after its last client was done", time.Since(began), took)
}

// wantNoReset: Envoy never tells idle clients; their connections end with it, and not by a reset.
func wantNoReset(t *testing.T, idle map[string]*caller) {
	t.Helper()
	for name, caller := range idle {
		conns, ends := caller.ended()
		if conns != 1 || slices.ContainsFunc(ends, func(err error) bool { return !errors.Is(err, io.EOF) }) {
			t.Errorf("%s, an idle client: %d connections, ended by %v; want one, and no reset", name, conns, ends)
		}
	}
}

func wantRefused(addresses ...string) error {
	for _, address := range addresses {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
			return fmt.Errorf("%s is listened on", address)
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return err
		}
	}
	return nil
}

// postDrain asks as a preStop hook does, from within the pod.
func (c *container) postDrain() {
	c.t.Helper()
	response, err := http.Post("http://127.0.0.1:15020/drain", "", http.NoBody)
	if err != nil {
		c.t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusOK {
		c.t.Fatalf("POST /drain = %s", response.Status)
	}
}

// wantCut ends a container, whose deadline is three seconds, under clients that never come to their end, and with the signal twice.
func (c *container) wantCut() {
	t := c.t
	t.Helper()
	never := make(chan struct{})
	works := map[string]func() error{
		"request": func() error { return newCaller(1, false).ask("/held", "end") },
		"TCP":     func() error { return talkTCP(never) }, "WebSocket": func() error { return talkWebSocket(never) },
		"gRPC": func() error { return talkGRPC(t.Context(), never) },
	}
	var cut sync.WaitGroup
	began := time.Now().Add(time.Second)
	for name, work := range works {
		cut.Go(func() {
			err := work()
			if took := time.Since(began); err == nil || took < 2900*time.Millisecond {
				t.Errorf("%s ended %v after SIGTERM with %v, want the deadline of 3 s", name, took, err)
			}
		})
	}
	time.Sleep(time.Until(began))
	c.agent.signal(syscall.SIGTERM)
	time.Sleep(500 * time.Millisecond)
	c.agent.signal(syscall.SIGTERM)
	code := c.agent.wait(10 * time.Second)
	took := time.Since(began)
	if code != 0 || took > 5*time.Second {
		t.Errorf("exit code %d after %v; want 0, soon after 3 s", code, took)
	}
	cut.Wait()
	if log := c.agent.log.String(); !strings.Contains(log, "cut.requests=2 cut.upgrades=1 cut.tcp=1") {
		t.Error("the log does not say what was cut")
	}
	t.Logf("cut off, the container ended after %v", took)
}
