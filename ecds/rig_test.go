package ecds

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	httpwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	netwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/wasm/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// spec describes a Wasm resource for tests.
type spec struct {
	name    string // "p"
	version string
	uri     string // remote; "": file
	file    string
	inline  string
	sha     string
	config  string
	network bool
	policy  wasmv3.FailurePolicy
	open    bool
	env     map[string]string
	hostEnv []string
	runtime string
}

func (s spec) plugin() *wasmv3.PluginConfig {
	vm := &wasmv3.VmConfig{Runtime: s.runtime}
	if vm.Runtime == "" {
		vm.Runtime = v8Runtime
	}
	switch {
	case s.uri != "":
		vm.Code = &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Remote{Remote: &corev3.RemoteDataSource{
			HttpUri: &corev3.HttpUri{Uri: s.uri}, Sha256: s.sha,
		}}}
	case s.file != "":
		vm.Code = &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Local{Local: localFile(s.file)}}
	case s.inline != "":
		vm.Code = &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Local{Local: &corev3.DataSource{
			Specifier: &corev3.DataSource_InlineString{InlineString: s.inline},
		}}}
	}
	if s.env != nil || s.hostEnv != nil {
		vm.EnvironmentVariables = &wasmv3.EnvironmentVariables{KeyValues: s.env, HostEnvKeys: s.hostEnv}
	}
	cfg := &wasmv3.PluginConfig{Name: "ns." + s.name, FailurePolicy: s.policy, FailOpen: s.open, Vm: &wasmv3.PluginConfig_VmConfig{VmConfig: vm}}
	if s.config != "" {
		cfg.Configuration = must(anypb.New(wrapperspb.String(s.config)))
	}
	return cfg
}

func (s spec) res() *discoveryv3.Resource {
	var msg proto.Message = &httpwasmv3.Wasm{Config: s.plugin()}
	if s.network {
		msg = &netwasmv3.Wasm{Config: s.plugin()}
	}
	return envelope(s.name, s.version, must(anypb.New(msg)))
}

func envelope(name, version string, typed *anypb.Any) *discoveryv3.Resource {
	ext := &corev3.TypedExtensionConfig{Name: name, TypedConfig: typed}
	return &discoveryv3.Resource{Name: name, Version: version, Resource: must(anypb.New(ext))}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// view is a pushed resource, decoded.
type view struct {
	typ      string // message name of the filter
	filename string
	config   string
	plugin   *wasmv3.PluginConfig
}

func look(t testing.TB, res *discoveryv3.Resource) view {
	t.Helper()
	ext := &corev3.TypedExtensionConfig{}
	if err := res.GetResource().UnmarshalTo(ext); err != nil {
		t.Fatalf("pushed resource %s: %v", res.GetName(), err)
	}
	if ext.Name != res.GetName() {
		t.Fatalf("pushed resource %s is named %s inside", res.GetName(), ext.Name)
	}
	v := view{typ: typeName(ext.TypedConfig.GetTypeUrl())}
	p, _, err := decodePlugin(ext.TypedConfig)
	if err != nil {
		t.Fatal(err)
	}
	if p == nil {
		return v
	}
	v.plugin = must(p.config())
	v.filename = v.plugin.GetVmConfig().GetCode().GetLocal().GetFilename()
	if tp, ok := p.(*typedPlugin); ok {
		s := &wrapperspb.StringValue{}
		if tp.msg.GetConfig().GetConfiguration().UnmarshalTo(s) == nil {
			v.config = s.Value
		}
	}
	return v
}

// rig runs a machine by hand.
type rig struct {
	t       testing.TB
	m       *machine
	start   time.Time
	now     time.Time
	pushed  map[uint64][]*discoveryv3.Resource // not yet looked at
	current map[string]*discoveryv3.Resource   // session/name → last push
	settled map[[2]uint64]error
	pulls   []startPull
	stopped []uint64
	states  []transition
}

func newRig(t testing.TB) *rig {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	module := func(allow bool) (string, error) { return fmt.Sprintf("/builtin/%t.wasm", allow), nil }
	return &rig{
		t: t, m: newMachine(10*time.Second, module, func() float64 { return 1 }), start: now, now: now,
		pushed: map[uint64][]*discoveryv3.Resource{}, current: map[string]*discoveryv3.Resource{}, settled: map[[2]uint64]error{},
	}
}

// opened is a rig with a stream 1 on which Envoy wants the names.
func opened(t testing.TB, names ...string) *rig {
	t.Helper()
	r := newRig(t)
	r.open(1, names...)
	return r
}

// offered has s offered there, as offer 1.
func offered(t testing.TB, s spec) *rig {
	t.Helper()
	r := opened(t, s.name)
	r.offer(1, 1, s)
	return r
}

// sent has its module pulled and Envoy told, which has not answered.
func sent(t testing.TB, s spec, want string) *rig {
	t.Helper()
	r := offered(t, s)
	r.pullEnds(nil)
	r.want(1, want)
	return r
}

// live has s running in Envoy.
func live(t testing.TB, s spec) *rig {
	t.Helper()
	r := opened(t, s.name)
	r.live(1, 1, s)
	return r
}

// restarted is an agent that starts over what another one, where s was live, has saved.
func restarted(t *testing.T, s spec) *rig {
	t.Helper()
	return live(t, s).restart()
}

// restart is an agent that starts over what r has saved.
func (r *rig) restart() *rig {
	r.t.Helper()
	data, _, err := r.m.snapshot()
	if err != nil {
		r.t.Fatal(err)
	}
	next := newRig(r.t)
	if err := next.m.restore(next.now, data); err != nil {
		r.t.Fatal(err)
	}
	return next
}

func at(session uint64, name string) string { return fmt.Sprintf("%d/%s", session, name) }

func (r *rig) drain() {
	r.t.Helper()
	for _, a := range r.m.take() {
		switch a := a.(type) {
		case push:
			r.pushed[a.session] = append(r.pushed[a.session], a.res)
			r.current[at(a.session, a.res.GetName())] = a.res
		case settle:
			k := [2]uint64{a.session, a.offer}
			if _, twice := r.settled[k]; twice {
				r.t.Fatalf("offer %d of session %d settled twice", a.offer, a.session)
			}
			r.settled[k] = a.err
		case startPull:
			r.pulls = append(r.pulls, a)
		case stopPull:
			r.stopped = append(r.stopped, a.pull)
		case transition:
			r.states = append(r.states, a)
		}
	}
}

// advance lets time pass, with every timer on the way.
func (r *rig) advance(d time.Duration) {
	r.t.Helper()
	end := r.now.Add(d)
	for {
		next := r.m.deadline()
		if next.IsZero() || next.After(end) {
			break
		}
		if next.Before(r.now) {
			next = r.now
		}
		r.now = next
		r.m.tick(r.now)
		r.drain()
		if after := r.m.deadline(); !after.IsZero() && !after.After(r.now) {
			r.t.Fatalf("tick at %s leaves the deadline %s: the driver would spin", r.now.Sub(r.start), after.Sub(r.start))
		}
	}
	r.now = end
}

func node(id string) *corev3.Node { return &corev3.Node{Id: id} }

func (r *rig) open(session uint64, names ...string) {
	r.t.Helper()
	r.m.open(r.now, session, node("n"))
	r.subscribe(session, names...)
}

func (r *rig) subscribe(session uint64, names ...string) {
	r.t.Helper()
	r.m.subscribe(r.now, session, names, nil)
	r.drain()
}

func (r *rig) unsubscribe(session uint64, names ...string) {
	r.t.Helper()
	r.m.subscribe(r.now, session, nil, names)
	r.drain()
}

func (r *rig) close(session uint64) {
	r.t.Helper()
	r.m.close(r.now, session)
	r.drain()
}

func (r *rig) offer(session, offer uint64, specs ...spec) {
	r.t.Helper()
	var res []*discoveryv3.Resource
	for _, s := range specs {
		res = append(res, s.res())
	}
	r.offerRaw(session, offer, res, nil)
}

func (r *rig) offerRaw(session, offer uint64, res []*discoveryv3.Resource, removed []string) {
	r.t.Helper()
	r.m.offer(r.now, session, offer, res, removed)
	r.drain()
}

// lastPull is the newest pull.
func (r *rig) lastPull() startPull {
	r.t.Helper()
	if len(r.pulls) == 0 {
		r.t.Fatal("no pull was started")
	}
	return r.pulls[len(r.pulls)-1]
}

// module is the module that a URL leads to in tests.
func module(url string) Module {
	h := sha256.Sum256([]byte(url))
	d := hex.EncodeToString(h[:])
	return Module{Digest: d, Path: "/store/blobs/sha256/" + d}
}

func (r *rig) pulled(p startPull, err error) {
	r.t.Helper()
	mod := module(p.ref.URL)
	if err != nil {
		mod = Module{}
	}
	r.m.pulled(r.now, p.pull, mod, err)
	r.drain()
}

// pullEnds ends the newest pull.
func (r *rig) pullEnds(err error) {
	r.t.Helper()
	r.pulled(r.lastPull(), err)
}

// offerAndPull offers s and ends the pull that follows.
func (r *rig) offerAndPull(session, offer uint64, s spec, err error) {
	r.t.Helper()
	r.offer(session, offer, s)
	r.pullEnds(err)
}

// answer answers the last push of a name.
func (r *rig) answer(session uint64, name string, err error) {
	r.t.Helper()
	res := r.current[at(session, name)]
	if res == nil {
		r.t.Fatalf("session %d has nothing pushed for %s", session, name)
	}
	r.m.answer(r.now, session, name, res.GetVersion(), err)
	r.drain()
}

// pushes returns what was pushed since the last call.
func (r *rig) pushes(session uint64) []*discoveryv3.Resource {
	p := r.pushed[session]
	r.pushed[session] = nil
	return p
}

func (r *rig) wantNone(session uint64) {
	r.t.Helper()
	if p := r.pushes(session); len(p) > 0 {
		r.t.Fatalf("at %s: session %d got %d pushes (first %s %s), want none", r.now.Sub(r.start), session, len(p), p[0].GetName(), describe(r.t, p[0]))
	}
}

// want checks that exactly one resource was pushed and returns it.
func (r *rig) want(session uint64, what string) *discoveryv3.Resource {
	r.t.Helper()
	p := r.pushes(session)
	if len(p) != 1 {
		r.t.Fatalf("at %s: session %d got %d pushes, want one: %s", r.now.Sub(r.start), session, len(p), what)
	}
	if got := describe(r.t, p[0]); got != what {
		r.t.Fatalf("at %s: session %d got %q, want %q", r.now.Sub(r.start), session, got, what)
	}
	return p[0]
}

// describe puts a push in a few words.
func describe(t testing.TB, res *discoveryv3.Resource) string {
	t.Helper()
	if res.GetResource() == nil {
		return "removed"
	}
	v := look(t, res)
	switch v.typ {
	case httpRBAC, netRBAC:
		f := must(anypbNew(res))
		kind := "http"
		if v.typ == netRBAC {
			kind = "network"
		}
		return kind + " rbac " + map[bool]string{true: "deny", false: "allow"}[f.ProtoReflect().Has(f.ProtoReflect().Descriptor().Fields().ByName("rules"))]
	case httpWasm, netWasm:
		if strings.HasPrefix(v.filename, "/builtin/") {
			return "builtin " + v.filename
		}
		for _, url := range []string{"oci://r/v1", "oci://r/v2", "oci://r/v3", "file:///m.wasm"} {
			d := module(url)
			if strings.HasSuffix(v.filename, d.Digest) {
				salt := strings.Count(v.filename, "/./") + strings.Count(v.filename, "/././")
				return strings.TrimSpace(fmt.Sprintf("%s %s%s", url, v.config, strings.Repeat(" salted", min(salt, 1))))
			}
		}
		return "wasm " + v.filename
	}
	return v.typ
}

func anypbNew(res *discoveryv3.Resource) (proto.Message, error) {
	ext := &corev3.TypedExtensionConfig{}
	if err := res.GetResource().UnmarshalTo(ext); err != nil {
		return nil, err
	}
	return ext.TypedConfig.UnmarshalNew()
}

func (r *rig) wantSettled(session, offer uint64, words ...string) {
	r.t.Helper()
	err, ok := r.settled[[2]uint64{session, offer}]
	switch {
	case !ok:
		r.t.Fatalf("at %s: offer %d is not settled", r.now.Sub(r.start), offer)
	case len(words) == 0 && err != nil:
		r.t.Fatalf("at %s: offer %d refused: %v, want accepted", r.now.Sub(r.start), offer, err)
	case len(words) > 0 && err == nil:
		r.t.Fatalf("at %s: offer %d accepted, want refused with %q", r.now.Sub(r.start), offer, words)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			r.t.Fatalf("offer %d refused with %q, want %q in it", offer, err, w)
		}
	}
}

func (r *rig) wantUnsettled(session, offer uint64) {
	r.t.Helper()
	if err, ok := r.settled[[2]uint64{session, offer}]; ok {
		r.t.Fatalf("at %s: offer %d settled with %v, want it open", r.now.Sub(r.start), offer, err)
	}
}

func (r *rig) wantState(name, state string, words ...string) ResourceStatus {
	r.t.Helper()
	for _, s := range r.m.status() {
		if s.Name != name {
			continue
		}
		if s.State != state {
			r.t.Fatalf("at %s: %s is %s (%s), want %s", r.now.Sub(r.start), name, s.State, s.Reason, state)
		}
		for _, w := range words {
			if !strings.Contains(s.Reason, w) {
				r.t.Fatalf("%s: reason %q, want %q in it", name, s.Reason, w)
			}
		}
		return s
	}
	r.t.Fatalf("no status for %s", name)
	return ResourceStatus{}
}

// wantPulls checks how many pulls were started in all.
func (r *rig) wantPulls(n int, why string) {
	r.t.Helper()
	if len(r.pulls) != n {
		r.t.Fatalf("at %s: %d pulls, want %d: %s", r.now.Sub(r.start), len(r.pulls), n, why)
	}
}

func (r *rig) wantPins(digests ...string) {
	r.t.Helper()
	if diff := cmp.Diff(digests, r.m.pins(), cmpopts.EquateEmpty()); diff != "" {
		r.t.Errorf("at %s: pins (-want +got):\n%s", r.now.Sub(r.start), diff)
	}
}

// live brings a resource to life in session.
func (r *rig) live(session, offer uint64, s spec) {
	r.t.Helper()
	r.offerAndPull(session, offer, s, nil)
	r.pushes(session)
	r.answer(session, s.name, nil)
	r.wantSettled(session, offer)
	r.wantState(s.name, StateLive)
}

type pullError struct {
	text      string
	permanent bool
	after     time.Duration
}

func (e pullError) Error() string             { return e.text }
func (e pullError) Permanent() bool           { return e.permanent }
func (e pullError) RetryAfter() time.Duration { return e.after }

var (
	errGone  = pullError{text: "oci://r/v2: 404, check the tag", permanent: true}
	errBusy  = pullError{text: "oci://r/v2: 503, the registry is busy"}
	errEnvoy = errors.New("Unable to create Wasm plugin ns.p")
)

var (
	v1 = spec{name: "p", version: "1", uri: "oci://r/v1", config: "c1"}
	v2 = spec{name: "p", version: "2", uri: "oci://r/v2", config: "c2"}
	v3 = spec{name: "p", version: "3", uri: "oci://r/v3", config: "c3"}
)
