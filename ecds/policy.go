package ecds

import (
	"fmt"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	httpwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	netrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	netwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/wasm/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

const (
	typePrefix = "type.googleapis.com/"
	httpRBAC   = "envoy.extensions.filters.http.rbac.v3.RBAC"
	netRBAC    = "envoy.extensions.filters.network.rbac.v3.RBAC"
)

// policy describes a stand-in that refuses or passes everything.
type policy struct {
	name    string
	kind    string // kindHTTP or kindNetwork
	allow   bool
	allowed []string // message names the listener takes under this name; nil: not known
	runtime string   // Wasm runtime of the filter it stands in for
}

// filter builds the stand-in: RBAC where the listener takes it, else the tiny Wasm module.
func (p policy) filter(module func(allow bool) (string, error)) (*anypb.Any, error) {
	rbac, wasm := httpRBAC, httpWasm
	if p.kind == kindNetwork {
		rbac, wasm = netRBAC, netWasm
	}
	takes := func(name string) bool {
		if slices.Contains(p.allowed, name) {
			return true
		}
		return p.allowed == nil && name == rbac
	}
	switch {
	case takes(rbac):
		return p.pack(p.rbac())
	case !takes(wasm):
		return nil, fmt.Errorf("no policy filter possible: the listener takes only %s under this name", strings.Join(p.allowed, ", "))
	case module == nil:
		return nil, fmt.Errorf("no policy filter possible: the listener takes only %s under this name and there is no built-in module", wasm)
	}
	path, err := module(p.allow)
	if err != nil {
		return nil, fmt.Errorf("no policy filter possible: built-in module: %w", err)
	}
	return p.pack(p.wasm(path))
}

func (p policy) word() string {
	if p.allow {
		return "allow"
	}
	return "deny"
}

// rbac: absent rules pass everything; rules without a policy refuse everything.
func (p policy) rbac() proto.Message {
	var rules *rbacv3.RBAC
	if !p.allow {
		rules = &rbacv3.RBAC{}
	}
	if p.kind == kindNetwork {
		return &netrbacv3.RBAC{Rules: rules, StatPrefix: "wasm_policy_" + p.word()}
	}
	return &httprbacv3.RBAC{Rules: rules, RulesStatPrefix: "wasm_policy_" + p.word()}
}

func (p policy) wasm(path string) proto.Message {
	runtime := p.runtime
	if runtime == "" || runtime == nullRuntime {
		runtime = v8Runtime
	}
	failure := wasmv3.FailurePolicy_FAIL_CLOSED
	if p.allow {
		failure = wasmv3.FailurePolicy_FAIL_OPEN
	}
	cfg := &wasmv3.PluginConfig{Name: p.name, FailurePolicy: failure, Vm: &wasmv3.PluginConfig_VmConfig{VmConfig: &wasmv3.VmConfig{
		VmId: "wasm_policy_" + p.word(), Runtime: runtime,
		Code: &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Local{Local: localFile(path)}},
	}}}
	if p.kind == kindNetwork {
		return &netwasmv3.Wasm{Config: cfg}
	}
	return &httpwasmv3.Wasm{Config: cfg}
}

func (p policy) pack(filter proto.Message) (*anypb.Any, error) {
	typed, err := packAs(typePrefix+string(filter.ProtoReflect().Descriptor().FullName()), filter)
	if err != nil {
		return nil, err
	}
	return packAs(typePrefix+extensionConfig, &corev3.TypedExtensionConfig{Name: p.name, TypedConfig: typed})
}
