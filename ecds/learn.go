package ecds

import (
	"bytes"
	"fmt"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

// lesson is what one listener response says about the types that Envoy takes for each extension config name.
type lesson struct {
	all       bool                           // a state-of-the-world response: listeners it lacks are gone
	listeners map[string]map[string][]string // listener → extension config name → message names
	removed   []string
}

// worthLearning is a cheap look at the bytes: almost no listener response of a gateway without plugins passes it.
func worthLearning(b []byte) bool {
	return bytes.Contains(b, []byte(httpWasm)) || bytes.Contains(b, []byte(netWasm))
}

// learn decodes a listener response. Listeners it cannot decode are left out: Envoy will say what is wrong with them.
func learn(delta bool, response []byte) (lesson, error) {
	out := lesson{all: !delta, listeners: map[string]map[string][]string{}}
	if !delta && !worthLearning(response) {
		return out, nil
	}
	bodies, removed, err := bodiesOf(delta, response)
	if err != nil {
		return lesson{}, err
	}
	out.removed = removed
	for _, body := range bodies {
		l := &listenerv3.Listener{}
		if err := proto.Unmarshal(body.GetValue(), l); err != nil {
			continue
		}
		found := map[string][]string{}
		if worthLearning(body.GetValue()) {
			walk(l.ProtoReflect(), found, 0)
		}
		out.listeners[l.GetName()] = found
	}
	return out, nil
}

func bodiesOf(delta bool, response []byte) (bodies []*anypb.Any, removed []string, err error) {
	if delta {
		r := &discoveryv3.DeltaDiscoveryResponse{}
		if err := proto.Unmarshal(response, r); err != nil {
			return nil, nil, fmt.Errorf("decode delta listener response: %w", err)
		}
		for _, res := range r.GetResources() {
			bodies = append(bodies, unwrapped(res.GetResource()))
		}
		return bodies, r.GetRemovedResources(), nil
	}
	r := &discoveryv3.DiscoveryResponse{}
	if err := proto.Unmarshal(response, r); err != nil {
		return nil, nil, fmt.Errorf("decode listener response: %w", err)
	}
	for _, body := range r.GetResources() {
		bodies = append(bodies, unwrapped(body))
	}
	return bodies, nil, nil
}

// unwrapped looks through the Resource wrapper that a control plane may put around a resource.
func unwrapped(body *anypb.Any) *anypb.Any {
	if typeName(body.GetTypeUrl()) != "envoy.service.discovery.v3.Resource" {
		return body
	}
	r := &discoveryv3.Resource{}
	if proto.Unmarshal(body.GetValue(), r) != nil {
		return body
	}
	return r.GetResource()
}

// walk collects the extension config sources below m, also inside Anys of known types.
func walk(m protoreflect.Message, found map[string][]string, depth int) {
	if depth > maxNesting {
		return
	}
	switch f := m.Interface().(type) {
	case *anypb.Any:
		if !worthLearning(f.GetValue()) {
			return
		}
		if inner, err := f.UnmarshalNew(); err == nil {
			walk(inner.ProtoReflect(), found, depth+1)
		}
		return
	case *hcmv3.HttpFilter:
		note(f.GetName(), f.GetConfigDiscovery(), found)
	case *listenerv3.Filter:
		note(f.GetName(), f.GetConfigDiscovery(), found)
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsMap() && fd.MapValue().Message() != nil:
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				walk(v.Message(), found, depth+1)
				return true
			})
		case fd.IsList() && fd.Message() != nil:
			for i := range v.List().Len() {
				walk(v.List().Get(i).Message(), found, depth+1)
			}
		case !fd.IsMap() && !fd.IsList() && fd.Message() != nil:
			walk(v.Message(), found, depth+1)
		}
		return true
	})
}

// note adds what one filter takes; where a name is used twice, Envoy wants a type that every place takes.
func note(name string, src *corev3.ExtensionConfigSource, found map[string][]string) {
	if src == nil || name == "" {
		return
	}
	types := make([]string, 0, len(src.GetTypeUrls()))
	for _, t := range src.GetTypeUrls() {
		types = append(types, typeName(t))
	}
	if before, ok := found[name]; ok {
		types = common(before, types)
	}
	found[name] = types
}

func common(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(t string) bool { return !slices.Contains(b, t) })
}

// knowledge is what a session has learnt so far.
type knowledge struct {
	listeners map[string]map[string][]string
	names     map[string][]string
}

func (k *knowledge) add(l lesson) {
	if k.listeners == nil || l.all {
		k.listeners = map[string]map[string][]string{}
	}
	for _, name := range l.removed {
		delete(k.listeners, name)
	}
	for listener, names := range l.listeners {
		delete(k.listeners, listener)
		if len(names) > 0 {
			k.listeners[listener] = names
		}
	}
	k.names = map[string][]string{}
	for _, names := range k.listeners {
		for name, types := range names {
			if before, ok := k.names[name]; ok {
				types = common(before, types)
			}
			k.names[name] = types
		}
	}
	for _, types := range k.names {
		slices.Sort(types)
	}
}
