package ecds

import (
	"fmt"
	"strings"
	"unicode"

	udpav1 "github.com/cncf/xds/go/udpa/type/v1"
	xdsv3 "github.com/cncf/xds/go/xds/type/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

// structMessage is what the two TypedStruct messages have in common.
type structMessage interface {
	proto.Message
	GetTypeUrl() string
	GetValue() *structpb.Struct
}

// structPlugin is a Wasm filter as JSON inside a TypedStruct. It stays one: a field that this program's protobuf
// definitions lack has no place in a Wasm message, but passes in JSON.
type structPlugin struct {
	typeURL string
	msg     structMessage
}

func decodeStruct(typed *anypb.Any, name string) (plugin, string, error) {
	var msg structMessage = &xdsv3.TypedStruct{}
	if name == udpaStruct {
		msg = &udpav1.TypedStruct{}
	}
	if err := proto.Unmarshal(typed.GetValue(), msg); err != nil {
		return nil, kindOther, fmt.Errorf("decode %s: %w", name, err)
	}
	kind := kindOf(typeName(msg.GetTypeUrl()))
	if kind == kindOther {
		return nil, kindOther, nil
	}
	p := &structPlugin{typed.GetTypeUrl(), msg}
	return p, kind, p.unambiguous()
}

// unambiguous refuses both spellings of one field on the way to anything that is edited: which one Envoy reads is not
// ours to guess.
func (p *structPlugin) unambiguous() error {
	root := p.msg.GetValue()
	config := child(root, "config")
	vm := child(config, "vm_config")
	code := child(vm, "code")
	remote := child(code, "remote")
	for _, s := range []*structpb.Struct{root, config, vm, child(vm, "environment_variables"), code, child(code, "local"), remote, child(remote, "http_uri")} {
		if err := distinct(s); err != nil {
			return err
		}
	}
	return nil
}

func distinct(s *structpb.Struct) error {
	for name := range s.GetFields() {
		if other := camel(name); other != name {
			if _, both := s.Fields[other]; both {
				return fmt.Errorf("a TypedStruct has both %q and %q: remove one", name, other)
			}
		}
	}
	return nil
}

func (p *structPlugin) config() (*wasmv3.PluginConfig, error) {
	cfg := child(p.msg.GetValue(), "config")
	vm := child(cfg, "vm_config")
	if cfg == nil {
		return nil, nil
	}
	// Only what is read here: the rest may hold types and fields this program cannot parse.
	view := pick(cfg, "name", "fail_open", "failure_policy")
	if vm != nil {
		view.Fields["vm_config"] = structpb.NewStructValue(pick(vm, "runtime", "code", "environment_variables"))
	}
	b, err := protojson.Marshal(view)
	if err != nil {
		return nil, fmt.Errorf("read TypedStruct: %w", err)
	}
	out := &wasmv3.PluginConfig{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, out); err != nil {
		return nil, fmt.Errorf("read TypedStruct of %s: %w", typeName(p.msg.GetTypeUrl()), err)
	}
	return out, nil
}

func (p *structPlugin) clone() plugin {
	return &structPlugin{p.typeURL, proto.Clone(p.msg).(structMessage)}
}

func (p *structPlugin) setPath(path string) {
	code := child(child(child(p.msg.GetValue(), "config"), "vm_config"), "code")
	if local := child(code, "local"); local != nil {
		remove(local, "inline_bytes", "inline_string", "environment_variable")
		local.Fields["filename"] = structpb.NewStringValue(path)
		return
	}
	remove(code, "remote")
	local := &structpb.Struct{Fields: map[string]*structpb.Value{"filename": structpb.NewStringValue(path)}}
	code.Fields["local"] = structpb.NewStructValue(local)
}

func (p *structPlugin) setName(name string) {
	cfg := child(p.msg.GetValue(), "config")
	cfg.Fields["name"] = structpb.NewStringValue(name)
}

func (p *structPlugin) dropEnv(drop func(string) bool) {
	vm := child(child(p.msg.GetValue(), "config"), "vm_config")
	env := child(vm, "environment_variables")
	kv := child(env, "key_values")
	n := 0
	for k := range kv.GetFields() {
		if drop(k) {
			delete(kv.Fields, k)
			n++
		}
	}
	if n == 0 || len(kv.Fields) > 0 {
		return
	}
	remove(env, "key_values")
	if v := lookup(env, "host_env_keys"); v != nil && len(v.GetListValue().GetValues()) == 0 {
		remove(env, "host_env_keys")
	}
	if len(env.Fields) == 0 {
		remove(vm, "environment_variables")
	}
}

func (p *structPlugin) pack() (*anypb.Any, error) { return packAs(p.typeURL, p.msg) }

// lookup finds a field in either of the spellings that JSON allows for a protobuf field.
func lookup(s *structpb.Struct, name string) *structpb.Value {
	if v, ok := s.GetFields()[name]; ok {
		return v
	}
	return s.GetFields()[camel(name)]
}

func child(s *structpb.Struct, name string) *structpb.Struct {
	return lookup(s, name).GetStructValue()
}

func remove(s *structpb.Struct, names ...string) {
	for _, name := range names {
		delete(s.GetFields(), name)
		delete(s.GetFields(), camel(name))
	}
}

func pick(s *structpb.Struct, names ...string) *structpb.Struct {
	out := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for _, name := range names {
		if v := lookup(s, name); v != nil {
			out.Fields[name] = v
		}
	}
	return out
}

// camel is the JSON name of a protobuf field.
func camel(snake string) string {
	var b strings.Builder
	up := false
	for _, r := range snake {
		switch {
		case r == '_':
			up = true
		case up:
			b.WriteRune(unicode.ToUpper(r))
			up = false
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
