package ecds

import (
	"errors"
	"slices"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

func source(types ...string) *corev3.ExtensionConfigSource {
	s := &corev3.ExtensionConfigSource{}
	for _, t := range types {
		s.TypeUrls = append(s.TypeUrls, typePrefix+t)
	}
	return s
}

// listener has an HTTP connection manager whose filters are discovered.
func listener(name string, filters map[string][]string) *listenerv3.Listener {
	hcm := &hcmv3.HttpConnectionManager{StatPrefix: "x"}
	for filter, types := range filters {
		hcm.HttpFilters = append(hcm.HttpFilters, &hcmv3.HttpFilter{Name: filter, ConfigType: &hcmv3.HttpFilter_ConfigDiscovery{ConfigDiscovery: source(types...)}})
	}
	chain := &listenerv3.FilterChain{Filters: []*listenerv3.Filter{{Name: "hcm", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: must(anypb.New(hcm))}}}}
	return &listenerv3.Listener{Name: name, FilterChains: []*listenerv3.FilterChain{chain}}
}

func sotw(listeners ...*listenerv3.Listener) []byte {
	r := &discoveryv3.DiscoveryResponse{}
	for _, l := range listeners {
		r.Resources = append(r.Resources, must(anypb.New(l)))
	}
	return must(proto.Marshal(r))
}

func deltaOf(removed []string, listeners ...*listenerv3.Listener) []byte {
	r := &discoveryv3.DeltaDiscoveryResponse{RemovedResources: removed}
	for _, l := range listeners {
		r.Resources = append(r.Resources, &discoveryv3.Resource{Name: l.Name, Resource: must(anypb.New(l))})
	}
	return must(proto.Marshal(r))
}

func (r *rig) observe(session uint64, delta bool, response []byte) {
	r.t.Helper()
	l, err := learn(delta, response)
	if err != nil {
		r.t.Fatal(err)
	}
	r.m.learn(r.now, session, l)
	r.drain()
}

func TestPolicyFollowsListener(t *testing.T) {
	for _, c := range []struct {
		name    string
		types   []string
		network bool
		want    string
	}{
		{"both", []string{httpWasm, httpRBAC}, false, "http rbac deny"},
		{"Wasm only", []string{httpWasm}, false, "builtin /builtin/false.wasm"},
		{"network, both", []string{netRBAC, netWasm}, true, "network rbac deny"},
		{"network, Wasm only", []string{netWasm}, true, "builtin /builtin/false.wasm"},
	} {
		for _, offered := range []bool{true, false} {
			t.Run(c.name, func(t *testing.T) {
				r := opened(t, "p")
				r.observe(1, false, sotw(listener("l", map[string][]string{"p": c.types})))
				if offered {
					s := v1
					s.network = c.network
					r.offer(1, 1, s)
				}
				r.advance(10 * time.Second)
				res := r.want(1, c.want)
				if v := look(t, res); v.plugin != nil && v.typ != c.types[0] {
					t.Errorf("a %s, want %s", v.typ, c.types[0])
				}
			})
		}
	}
}

func TestPolicyChangesWhenTypesAreLearnt(t *testing.T) {
	s := v1
	s.open = true
	r := opened(t, "p")
	r.offer(1, 1, s)
	r.pullEnds(errGone)
	r.want(1, "http rbac allow")
	r.observe(1, true, deltaOf(nil, listener("l", map[string][]string{"p": {httpWasm}})))
	r.want(1, "builtin /builtin/true.wasm")
	r.observe(1, true, deltaOf([]string{"l"}))
	r.want(1, "http rbac allow")
}

func TestNoPolicyPossible(t *testing.T) {
	r := opened(t, "p")
	r.observe(1, false, sotw(listener("l", map[string][]string{"p": {httpWasm}}), listener("k", map[string][]string{"p": {netWasm}})))
	r.offerAndPull(1, 1, v1, errGone)
	r.wantNone(1)
	r.wantState("p", StatePending, "404", "no policy filter possible")
	r.advance(10 * time.Second)
	r.wantSettled(1, 1, "404", "no policy filter possible")

	r = newRig(t)
	r.m.policyModule = func(bool) (string, error) { return "", errors.New("disk full") }
	r.open(1, "p")
	r.observe(1, false, sotw(listener("l", map[string][]string{"p": {httpWasm}})))
	r.advance(10 * time.Second)
	r.wantNone(1)
	r.wantState("p", StatePending, "disk full")
}

func TestLearn(t *testing.T) {
	net := &listenerv3.Listener{Name: "net", DefaultFilterChain: &listenerv3.FilterChain{Filters: []*listenerv3.Filter{
		{Name: "n", ConfigType: &listenerv3.Filter_ConfigDiscovery{ConfigDiscovery: source(netWasm)}},
	}}}
	a := listener("a", map[string][]string{"p": {httpWasm, httpRBAC}, "q": {httpWasm}})
	b := listener("b", map[string][]string{"p": {httpWasm}})
	plain := listener("plain", nil)
	var k knowledge
	step := func(what string, delta bool, response []byte, want map[string][]string) {
		t.Helper()
		l, err := learn(delta, response)
		if err != nil {
			t.Fatal(err)
		}
		k.add(l)
		if diff := cmp.Diff(want, k.names); diff != "" {
			t.Errorf("%s:\n%s", what, diff)
		}
	}
	step("state of the world", false, sotw(a, net, plain), map[string][]string{"p": {httpRBAC, httpWasm}, "q": {httpWasm}, "n": {netWasm}})
	step("two places", true, deltaOf(nil, b), map[string][]string{"p": {httpWasm}, "q": {httpWasm}, "n": {netWasm}})
	step("changed", true, deltaOf(nil, listener("a", map[string][]string{"p": {httpWasm}})), map[string][]string{"p": {httpWasm}, "n": {netWasm}})
	step("removed", true, deltaOf([]string{"b", "net"}), map[string][]string{"p": {httpWasm}})
	step("all gone", false, sotw(plain), map[string][]string{})
	wrapped := &discoveryv3.DiscoveryResponse{Resources: []*anypb.Any{must(anypb.New(&discoveryv3.Resource{Name: "b", Resource: must(anypb.New(b))}))}}
	step("wrapped", false, must(proto.Marshal(wrapped)), map[string][]string{"p": {httpWasm}})
}

func TestLearnGarbage(t *testing.T) {
	garbage := slices.Concat([]byte{0xff, 0xff}, []byte(httpWasm))
	for _, delta := range []bool{true, false} {
		if _, err := learn(delta, garbage); err == nil {
			t.Errorf("delta %t: garbage was accepted", delta)
		}
	}
	broken := &discoveryv3.DiscoveryResponse{Resources: []*anypb.Any{{TypeUrl: "x", Value: garbage}, must(anypb.New(listener("l", map[string][]string{"p": {httpWasm}})))}}
	l, err := learn(false, must(proto.Marshal(broken)))
	if err != nil || len(l.listeners) != 1 {
		t.Errorf("learnt %v, %v: want the good listener", l, err)
	}
}

func FuzzLearn(f *testing.F) {
	f.Add(true, deltaOf([]string{"x"}, listener("l", map[string][]string{"p": {httpWasm}})))
	f.Add(false, sotw(listener("l", map[string][]string{"p": {httpWasm, httpRBAC}})))
	f.Fuzz(func(t *testing.T, delta bool, response []byte) {
		l, err := learn(delta, response)
		if err != nil {
			return
		}
		var k knowledge
		k.add(l)
	})
}
