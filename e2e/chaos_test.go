package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/registrytest"
	"github.com/gateway-agent/gateway-agent/internal/wasmtest"
)

// filtered asks a listener all the time: what its plugin has not seen must not be answered by the origin.
type filtered struct {
	t          *testing.T
	name       string
	stop       func()
	mu         sync.Mutex
	codes      map[int]int
	violations []string
}

func watchFiltered(t *testing.T, name, url string) *filtered {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &filtered{t: t, name: name, codes: map[int]int{}}
	var ended sync.WaitGroup
	ended.Go(func() { w.run(ctx, url) })
	w.stop = func() { cancel(); ended.Wait() }
	t.Cleanup(w.stop)
	return w
}

func (w *filtered) run(ctx context.Context, url string) {
	for ctx.Err() == nil {
		w.one(ctx, url)
		select {
		case <-ctx.Done():
		case <-time.After(15 * time.Millisecond):
		}
	}
}

func (w *filtered) one(ctx context.Context, url string) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		w.t.Error(err)
		return
	}
	response, err := client.Do(request)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.codes[0]++
		return
	}
	response.Body.Close()
	w.codes[response.StatusCode]++
	if response.StatusCode == http.StatusOK && response.Header.Get("x-hello-version") == "" {
		w.violations = append(w.violations, time.Now().Format("15:04:05.000"))
	}
}

// check ends the watch and fails the test when a request passed unfiltered.
func (w *filtered) check() {
	w.t.Helper()
	w.stop()
	if len(w.violations) > 0 {
		w.t.Errorf("%s: %d requests passed unfiltered, at %.10v", w.name, len(w.violations), w.violations)
	}
	if w.codes[http.StatusOK] == 0 {
		w.t.Errorf("%s: no request was served", w.name)
	}
	w.t.Logf("%s: answers by status (0: none) %v", w.name, w.codes)
}

// chaos is one agent to which everything happens that happens to gateways.
type chaos struct {
	t       *testing.T
	rand    *rand.Rand
	reg     *registry
	a       *agent
	cp      *controlPlane // nil: standalone
	up      bool
	origin  string
	at      []string // the listeners' addresses
	plugins []plugin
	edits   int
	taken   bool // there is a listener on the origin's port, which Envoy rejects
	kills   int
}

const (
	chaosTime = 40 * time.Second
	settling  = 30 * time.Second
	maxKills  = 4 // within the supervisor's budget
)

func TestChaos(t *testing.T) {
	seed := uint64(1) // the same events in every run of CI; another CHAOS_SEED tries others
	if text := os.Getenv("CHAOS_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("CHAOS_SEED=%d repeats the events", seed)
	for i, name := range []string{"delta", "sotw", "standalone"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			module := wasmtest.SmallHello
			if name == "standalone" { // here Envoy also has to compile for seconds
				module = func(version string) []byte { return wasmtest.PluginBytes(t, "hello", "main.version="+version) }
			}
			c := newChaos(t, rand.New(rand.NewPCG(seed, uint64(i))), module)
			c.start(name)
			c.live()
		})
	}
}

func newChaos(t *testing.T, r *rand.Rand, module func(version string) []byte) *chaos {
	c := &chaos{t: t, rand: r, reg: startRegistry(t), a: newAgent(t), origin: startOrigin(t)}
	for _, v := range []string{"v1", "v2", "v3", "v4"} {
		for i := range 3 {
			c.reg.pushBytes(fmt.Sprintf("p%d:%s", i, v), module(v))
		}
	}
	c.reg.pushBytes("bad:v1", wasmtest.MissingImport("env", "no_such_function"))
	for i, policy := range []string{"FAIL_CLOSED", "", "FAIL_OPEN"} {
		c.at = append(c.at, freeAddress(t))
		c.plugins = append(c.plugins, plugin{name: fmt.Sprint("p", i), policy: policy, uri: c.reg.uri(fmt.Sprintf("p%d:v1", i)), value: "start"})
	}
	return c
}

func (c *chaos) start(name string) {
	if name == "standalone" {
		c.a.startConfig(map[string]string{"all.yaml": resources(c.items()...)}, "--wasm-retry-max", "4s")
	} else {
		c.cp, c.up = newControlPlane(c.t), true
		c.publish()
		c.a.start("--xds-address", c.cp.address, "--xds-mode", name, "--wasm-retry-max", "4s")
	}
	c.a.waitReady()
}

func (c *chaos) items() []string {
	items := []string{cluster("origin", c.origin)}
	for i, p := range c.plugins {
		l := listener(p.name, c.at[i], p.discovered())
		items = append(items, strings.Replace(l, "stat_prefix: "+p.name, fmt.Sprint("stat_prefix: s", c.edits), 1), p.extension())
	}
	if c.taken {
		items = append(items, listener("taken", c.origin))
	}
	return items
}

func (c *chaos) publish() {
	if c.cp != nil {
		c.cp.set(c.items()...)
	} else {
		c.a.write("all.yaml", resources(c.items()...))
	}
}

// live lets everything happen, then the dust settle.
func (c *chaos) live() {
	for i := range c.plugins {
		c.serves(i, "start")
	}
	goroutines, pid := c.goroutines(), c.a.cmd.Process.Pid
	var watches []*filtered
	for i, p := range c.plugins[:2] { // the third one fails open
		watches = append(watches, watchFiltered(c.t, p.name, "http://"+c.at[i]+"/"))
	}
	for end := time.Now().Add(chaosTime); time.Now().Before(end); {
		c.happen()
		time.Sleep(time.Duration(c.rand.IntN(700)) * time.Millisecond)
	}
	c.settle()
	for _, w := range watches {
		w.check()
	}
	c.wantSteady(pid, goroutines)
}

// happen is one event.
func (c *chaos) happen() {
	i := c.rand.IntN(len(c.plugins))
	p := &c.plugins[i]
	event := ""
	switch n := c.rand.IntN(20); {
	case n < 6:
		p.uri, p.value = c.reg.uri(fmt.Sprintf("p%d:v%d", i, 1+c.rand.IntN(4))), fmt.Sprint("e", c.edits)
		event = "publish " + p.uri
	case n < 8:
		p.value = fmt.Sprint("e", c.edits)
		event = "configure " + p.name
	case n < 9:
		p.uri = c.reg.uri("bad:v1")
		event = "bad module for " + p.name
	case n < 10:
		p.value = `{"fail_configure": true}`
		event = "refused configuration for " + p.name
	case n < 12:
		c.edits++
		event = "change listeners"
	case n < 13:
		c.taken = !c.taken
		event = fmt.Sprint("rejected listener: ", c.taken)
	default:
		c.outage(n, i)
		return
	}
	c.edits++
	c.t.Logf("%s %s", time.Now().Format("05.000"), event)
	c.publish()
}

// outage breaks something, or repairs it.
func (c *chaos) outage(n, i int) {
	event, part := "", fmt.Sprintf("/v2/p%d/", i)
	switch {
	case n == 13 && c.kills < maxKills:
		c.kills++
		event = "kill Envoy"
		if pid := c.livePID(); pid != 0 {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	case n < 16 && c.cp != nil && c.up:
		event, c.up = "stop the control plane", false
		c.cp.stop()
	case n < 16 && c.cp != nil:
		event, c.up = "start the control plane", true
		c.cp.start()
	case n < 19:
		fault := []registrytest.Fault{{Status: 503}, {Status: 404}, {Delay: 2 * time.Second}, {Cut: 1000}}[c.rand.IntN(4)]
		event = fmt.Sprintf("registry: %+v for %s", fault, part)
		c.reg.proxy.Fail(part, fault)
	default:
		event = "repair the registry"
		c.reg.heal()
	}
	c.t.Logf("%s %s", time.Now().Format("05.000"), event)
}

// livePID is Envoy's, 0 while there is none.
func (c *chaos) livePID() int {
	var doc struct {
		Envoy struct {
			PID int `json:"pid"`
		} `json:"envoy"`
	}
	c.a.statusJSON(&doc)
	return doc.Envoy.PID
}

// settle repairs everything and wants the newest version of everything.
func (c *chaos) settle() {
	c.reg.heal()
	if c.cp != nil && !c.up {
		c.cp.start()
	}
	c.taken = false
	c.edits++
	for i := range c.plugins {
		c.plugins[i].uri, c.plugins[i].value = c.reg.uri(fmt.Sprintf("p%d:v4", i)), "end"
	}
	c.publish()
	start := time.Now()
	for i := range c.plugins {
		c.serves(i, "end")
		if err := wantHeader("http://"+c.at[i]+"/", "x-hello-version", "v4"); err != nil {
			c.t.Error(err)
		}
	}
	c.t.Logf("settled after %v", time.Since(start))
	c.a.eventually(settling, "status is calm", func() error {
		if text := c.a.statusText(); strings.Count(text, " live ") < 1+len(c.plugins) || strings.Contains(text, "rejected") {
			return fmt.Errorf("status:\n%s", text)
		}
		return nil
	})
}

func (c *chaos) serves(i int, value string) {
	c.t.Helper()
	c.a.eventually(settling, c.plugins[i].name+" serves "+value, func() error {
		err := wantHeader("http://"+c.at[i]+"/", "x-hello", value)
		if err != nil {
			time.Sleep(100 * time.Millisecond)
		}
		return err
	})
}

func (c *chaos) goroutines() int {
	c.t.Helper()
	text, err := c.a.control("/debug/pprof/goroutine?debug=1")
	if err != nil {
		c.t.Fatal(err)
	}
	var n int
	if _, err := fmt.Sscanf(string(text), "goroutine profile: total %d", &n); err != nil {
		c.t.Fatalf("%v in %.60q", err, text)
	}
	return n
}

const maxRSS = 400 << 20 // bytes of the agent, far above what it needs

// wantSteady checks that the agent is the same process and keeps nothing of what is over.
func (c *chaos) wantSteady(pid, goroutines int) {
	c.t.Helper()
	select {
	case <-c.a.done:
		c.t.Errorf("the agent ended: %v", c.a.exitErr)
		return
	default:
	}
	if now := c.a.cmd.Process.Pid; now != pid {
		c.t.Errorf("the agent was restarted: pid %d, then %d", pid, now)
	}
	c.a.eventually(15*time.Second, "no goroutine is left over", func() error {
		if now := c.goroutines(); now > goroutines+10 {
			return fmt.Errorf("%d goroutines, %d before", now, goroutines)
		}
		return nil
	})
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		c.t.Fatal(err)
	}
	var size, resident int
	if _, err := fmt.Sscan(string(stat), &size, &resident); err != nil {
		c.t.Fatal(err)
	}
	if resident *= os.Getpagesize(); resident > maxRSS {
		c.t.Errorf("the agent holds %d MiB, want %d at most", resident>>20, maxRSS>>20)
	} else {
		c.t.Logf("the agent holds %d MiB, %d goroutines (%d before)", resident>>20, c.goroutines(), goroutines)
	}
}
