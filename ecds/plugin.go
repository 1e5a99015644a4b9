package ecds

import (
	"fmt"
	"path/filepath"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	httpwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	netwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/wasm/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// Kinds of resource, as status shows them.
const (
	kindHTTP    = "http"
	kindNetwork = "network"
	kindOther   = "" // not a Wasm filter
)

const (
	httpWasm   = "envoy.extensions.filters.http.wasm.v3.Wasm"
	netWasm    = "envoy.extensions.filters.network.wasm.v3.Wasm"
	udpaStruct = "udpa.type.v1.TypedStruct"
	xdsStruct  = "xds.type.v3.TypedStruct"
	controlKey = "ISTIO_META_" // prefix of environment variables that are meant for the agent
)

// plugin is the configuration of a Wasm filter in one of the forms it comes in. Editing it in its own form, instead of
// turning everything into a Wasm message, is what keeps every field that this program does not know.
type plugin interface {
	config() (*wasmv3.PluginConfig, error) // a view for reading; may lack fields nobody here reads
	clone() plugin
	setPath(path string)                // code becomes the local file
	setName(name string)                // PluginConfig.name
	dropEnv(drop func(key string) bool) // removes environment variables, and the whole message when nothing remains
	pack() (*anypb.Any, error)          // deterministic
}

// decodePlugin returns nil and kindOther when typed is not a Wasm filter.
func decodePlugin(typed *anypb.Any) (plugin, string, error) {
	switch name := typeName(typed.GetTypeUrl()); name {
	case httpWasm, netWasm:
		return decodeTyped(typed, name)
	case udpaStruct, xdsStruct:
		return decodeStruct(typed, name)
	}
	return nil, kindOther, nil
}

func kindOf(name string) string {
	switch name {
	case httpWasm:
		return kindHTTP
	case netWasm:
		return kindNetwork
	}
	return kindOther
}

// typeName is the message name in a type URL; Envoy ignores what precedes the last slash.
func typeName(typeURL string) string {
	return typeURL[strings.LastIndexByte(typeURL, '/')+1:]
}

// wasmMessage is what the HTTP and the network filter have in common.
type wasmMessage interface {
	proto.Message
	GetConfig() *wasmv3.PluginConfig
}

type typedPlugin struct {
	typeURL string
	msg     wasmMessage
}

func decodeTyped(typed *anypb.Any, name string) (plugin, string, error) {
	kind := kindOf(name)
	var msg wasmMessage = &httpwasmv3.Wasm{}
	if kind == kindNetwork {
		msg = &netwasmv3.Wasm{}
	}
	if err := proto.Unmarshal(typed.GetValue(), msg); err != nil {
		return nil, kind, fmt.Errorf("decode %s: %w", name, err)
	}
	return &typedPlugin{typed.GetTypeUrl(), msg}, kind, nil
}

func (p *typedPlugin) config() (*wasmv3.PluginConfig, error) { return p.msg.GetConfig(), nil }

func (p *typedPlugin) clone() plugin {
	return &typedPlugin{p.typeURL, proto.Clone(p.msg).(wasmMessage)}
}

func (p *typedPlugin) setPath(path string) {
	code := p.msg.GetConfig().GetVmConfig().GetCode()
	if local := code.GetLocal(); local != nil {
		local.Specifier = &corev3.DataSource_Filename{Filename: path}
		return
	}
	code.Specifier = &corev3.AsyncDataSource_Local{Local: localFile(path)}
}

func (p *typedPlugin) setName(name string) { p.msg.GetConfig().Name = name }

func (p *typedPlugin) dropEnv(drop func(string) bool) {
	vm := p.msg.GetConfig().GetVmConfig()
	env := vm.GetEnvironmentVariables()
	n := 0
	for k := range env.GetKeyValues() {
		if drop(k) {
			delete(env.KeyValues, k)
			n++
		}
	}
	if n > 0 && len(env.KeyValues) == 0 && len(env.HostEnvKeys) == 0 && len(env.ProtoReflect().GetUnknown()) == 0 {
		vm.EnvironmentVariables = nil
	}
}

func (p *typedPlugin) pack() (*anypb.Any, error) { return packAs(p.typeURL, p.msg) }

func localFile(path string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: path}}
}

// packAs is anypb.New with a given type URL and a fixed order of map entries.
func packAs(typeURL string, msg proto.Message) (*anypb.Any, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(msg)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", typeName(typeURL), err)
	}
	return &anypb.Any{TypeUrl: typeURL, Value: b}, nil
}

// salted is another spelling of path for the same file. Envoy takes a message it has refused before for unchanged and
// does not even look at it; a path that differs in nothing but its text makes it look, keeps the running VMs (they are
// keyed by content) and leaves the plugin's name, and so its metrics and properties, alone.
func salted(path string, salt int) string {
	dir, file := filepath.Split(path)
	return dir + strings.Repeat("./", salt) + file
}
