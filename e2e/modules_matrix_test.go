package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/registrytest"
	"github.com/gateway-agent/gateway-agent/internal/wasmtest"
)

func hexSHA256(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// causes are the ways in which a module cannot be had, each with what the reason must say.
func causes(t *testing.T, reg, private *registry) map[string]struct {
	uri, sha256, reason string
} {
	t.Helper()
	good := padded("good")
	reg.pushBytes("good:v1", good)
	reg.pushBytes("hangs:v1", padded("hangs"))
	reg.pushBytes("import:v1", wasmtest.MissingImport("wasi_snapshot_preview1", "sched_yield"))
	reg.pushBytes("big:v1", oversized())
	reg.real.Push(t, "text", "v1", registrytest.CNCF([]byte(strings.Repeat("no module\n", 100))))
	reg.proxy.Fail("/v2/hangs/blobs/", registrytest.Fault{Hang: true, Cut: 1})
	private.pushBytes("private:v1", good)
	return map[string]struct{ uri, sha256, reason string }{
		"404":            {uri: reg.uri("missing:v1"), reason: "404"},
		"401":            {uri: private.uri("private:v1"), reason: "no credentials for this registry"},
		"timeout":        {uri: reg.uri("hangs:v1"), reason: "still being pulled"},
		"bad-checksum":   {uri: reg.uri("good:v1"), sha256: strings.Repeat("ab", 32), reason: "wrong digest"},
		"not-wasm":       {uri: reg.uri("text:v1"), reason: "not a Wasm module"},
		"missing-import": {uri: reg.uri("import:v1"), reason: "wasi_snapshot_preview1.sched_yield"},
		"too-big":        {uri: reg.uri("big:v1"), reason: "raise --wasm-max-size"},
	}
}

// TestFailureMatrix: whatever keeps a module from coming, its policy answers, for HTTP and network filters; the neighbour serves, and status
// says of each what is wrong.
func TestFailureMatrix(t *testing.T) {
	t.Parallel()
	reg, private, a := startRegistry(t), startPrivateRegistry(t), newAgent(t)
	a.env = []string{"DOCKER_CONFIG=" + t.TempDir()}
	reg.pushBytes("hello:v1", wasmtest.SmallHello("v1"))
	neighbour := newPlace(t, plugin{name: "neighbour", uri: reg.uri("hello:v1"), value: "unharmed"})
	places, reasons := []place{neighbour}, map[string]string{}
	all := causes(t, reg, private)
	for cause, c := range all {
		for policy, p := range map[string]plugin{"open": {policy: "FAIL_OPEN"}, "closed": {policy: "FAIL_CLOSED"}, "reload": {policy: "FAIL_RELOAD"}, "old": {failOpen: true}} {
			for _, network := range []bool{false, true} {
				p.name, p.uri, p.sha256, p.network = fmt.Sprintf("%s-%s-%t", cause, policy, network), c.uri, c.sha256, network
				places, reasons[p.name] = append(places, newPlace(t, p)), c.reason
			}
		}
	}
	startPlaces(t, a, "delta", places, "--wasm-hold", "1s", "--wasm-max-size", "8MiB")
	took := a.eventually(soon, "each state and its reason", func() error {
		states := a.plugins()
		for name, reason := range reasons {
			if s := states[name]; s.State != "policy" || !strings.Contains(s.Reason, reason) {
				return fmt.Errorf("status of %s = %+v, want the policy because of %q", name, s, reason)
			}
		}
		return nil
	})
	t.Logf("all %d states %v after ready", len(reasons), took)
	if took > 2*time.Second {
		t.Errorf("status had them only after %v, want a second or so", took)
	}
	for _, p := range places[1:] {
		check := p.refuses
		if p.policy == "FAIL_OPEN" || p.failOpen {
			check = p.passes
		}
		if err := check(); err != nil {
			t.Errorf("%s: %v", p.name, err)
		}
	}
	a.eventually(compiled, "the neighbour serves", neighbour.serves)
	a.wantListed(reasons)
}

// wantListed looks for the plugins in `wasm list` and in the metrics.
func (a *agent) wantListed(reasons map[string]string) {
	a.t.Helper()
	var listing struct {
		Plugins []pluginStatus `json:"plugins"`
	}
	if err := json.Unmarshal([]byte(a.mustWasm("list", "-o", "json", "--run-dir", filepath.Join(a.dir, "run"))), &listing); err != nil {
		a.t.Fatal(err)
	}
	found := 0
	for _, p := range listing.Plugins {
		if reason, ok := reasons[p.Name]; ok && p.State == "policy" && strings.Contains(p.Reason, reason) {
			found++
		}
	}
	if found != len(reasons) {
		a.t.Errorf("wasm list has %d plugins with their policy and reason, want %d", found, len(reasons))
	}
	_, metrics, _, err := get("http://" + a.status + "/metrics")
	if want := fmt.Sprintf(`gateway_agent_wasm_resources{state="policy"} %d`, len(reasons)); err != nil || !strings.Contains(metrics, want) {
		a.t.Errorf("/metrics lacks %s (%v)", want, err)
	}
}

// TestRequireDigest: what can mean something else tomorrow is refused; a digest of the module, of its image, or in the reference will do.
func TestRequireDigest(t *testing.T) {
	t.Parallel()
	reg, a := startRegistry(t), newAgent(t)
	hello := helloModule(t, "v1")
	code, err := os.ReadFile(hello)
	if err != nil {
		t.Fatal(err)
	}
	manifest := reg.real.Push(t, "hello", "v1", registrytest.Compat(t, code))
	tag := newPlace(t, plugin{name: "tag", uri: reg.uri("hello:v1")})
	places := []place{
		tag,
		newPlace(t, plugin{name: "module", value: "1", uri: reg.uri("hello:v1"), sha256: hexSHA256(code)}),
		newPlace(t, plugin{name: "manifest", value: "2", uri: reg.uri("hello:v1"), sha256: strings.TrimPrefix(manifest, "sha256:")}),
		newPlace(t, plugin{name: "reference", value: "3", uri: reg.uri("hello@" + manifest)}),
	}
	startPlaces(t, a, "sotw", places, "--require-digest")
	if err := tag.refuses(); err != nil {
		t.Error(err)
	}
	if s := a.plugins()["tag"]; s.State != "policy" || !strings.Contains(s.Reason, "--require-digest") || !strings.Contains(s.Reason, "@sha256:") {
		t.Errorf("status of the tag = %+v, want the policy and the remedy", s)
	}
	for _, p := range places[1:] {
		a.eventually(compiled, p.name+" serves", p.serves)
	}
}

// TestRefreshInTime: a tag that moves is live within the interval and five seconds, with modules that Envoy compiles at once.
func TestRefreshInTime(t *testing.T) {
	t.Parallel()
	const interval = 2 * time.Second
	reg, a := startRegistry(t), newAgent(t)
	reg.pushBytes("moving:tag", padded("first"))
	p := newPlace(t, plugin{name: "moving", uri: reg.uri("moving:tag")})
	startPlaces(t, a, "delta", []place{p}, "--wasm-refresh", interval.String())
	a.eventually(compiled, "the first module", func() error { return a.live("moving", hexSHA256(padded("first"))) })
	for _, next := range []string{"second", "third", "first"} {
		reg.pushBytes("moving:tag", padded(next))
		took := a.eventually(compiled, "the moved tag is live", func() error { return a.live("moving", hexSHA256(padded(next))) })
		t.Logf("live after %v", took)
		if limit := interval + 5*time.Second; took > limit {
			t.Errorf("the %s module was live after %v, want %v at most", next, took, limit)
		}
	}
}
