package bootstrap

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	xdstypev3 "github.com/cncf/xds/go/xds/type/v3"
	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoregistry"
	"sigs.k8s.io/yaml"
)

// Overlay is a part of a bootstrap that goes over ours.
type Overlay struct {
	Name string // for error texts: its file
	Data []byte // YAML or JSON

	// Tolerate is told what is left out because Envoy, too, passes over it: fields that nobody knows, listeners that are there already.
	// Without it they are errors.
	Tolerate func(error)
}

// merge does what Envoy does with --config-yaml, which is what protobuf's own merge does.
func (o Overlay) merge(into *bootstrapv3.Bootstrap) error {
	over, err := o.parse()
	if err != nil {
		return fmt.Errorf("bootstrap overlay %s: %w", o.Name, err)
	}
	if o.Tolerate != nil {
		o.leaveOutListeners(into, over)
	}
	proto.Merge(into, over)
	if err := errors.Join(duplicates(into)...); err != nil {
		return fmt.Errorf("bootstrap overlay %s: %w", o.Name, err)
	}
	return nil
}

func (o Overlay) parse() (*bootstrapv3.Bootstrap, error) {
	data, err := yaml.YAMLToJSON(o.Data)
	if err != nil {
		return nil, err
	}
	var document map[string]any
	if err := json.Unmarshal(data, &document); err != nil {
		return nil, errors.New("want an object with the fields of a bootstrap")
	}
	if data, err = json.Marshal(wrapUnknown(document)); err != nil {
		return nil, err
	}
	over := &bootstrapv3.Bootstrap{}
	strict := protojson.Unmarshal(data, over)
	if strict == nil || o.Tolerate == nil {
		return over, strict
	}
	proto.Reset(over)
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, over); err != nil {
		return nil, err
	}
	o.Tolerate(fmt.Errorf("bootstrap overlay %s: left out: %w", o.Name, strict))
	return over, nil
}

// leaveOutListeners: of two listeners with one name Envoy silently takes the first, and two with one address keep it from starting.
func (o Overlay) leaveOutListeners(base, over *bootstrapv3.Bootstrap) {
	static := over.GetStaticResources()
	if static == nil {
		return
	}
	static.Listeners = slices.DeleteFunc(static.Listeners, func(l *listenerv3.Listener) bool {
		there := slices.ContainsFunc(base.GetStaticResources().GetListeners(), func(own *listenerv3.Listener) bool {
			return own.GetName() == l.GetName() && l.GetName() != "" || proto.Equal(own.GetAddress(), l.GetAddress())
		})
		if there {
			o.Tolerate(fmt.Errorf("bootstrap overlay %s: left out: listener %s is there already, or its address", o.Name, l.GetName()))
		}
		return there
	})
}

// wrapUnknown lets messages through that only a certain build of Envoy knows: it understands a type's name with plain values too.
func wrapUnknown(value any) any {
	switch value := value.(type) {
	case []any:
		for i := range value {
			value[i] = wrapUnknown(value[i])
		}
	case map[string]any:
		for key := range value {
			value[key] = wrapUnknown(value[key])
		}
		url, ok := value["@type"].(string)
		if !ok {
			return value
		}
		if _, err := protoregistry.GlobalTypes.FindMessageByURL(url); err == nil {
			return value
		}
		fields := maps.Clone(value)
		delete(fields, "@type")
		name := string((&xdstypev3.TypedStruct{}).ProtoReflect().Descriptor().FullName())
		return map[string]any{"@type": "type.googleapis.com/" + name, "type_url": url, "value": fields}
	}
	return value
}

// duplicates: of two listeners with one name Envoy silently takes the first, so an overlay's would do nothing; two clusters with one
// name keep it from starting.
func duplicates(b *bootstrapv3.Bootstrap) []error {
	var errs []error
	seen := map[string]bool{}
	look := func(kind, name string) {
		if key := kind + " " + name; name != "" && seen[key] {
			errs = append(errs, fmt.Errorf("%s is there already, and Envoy does not merge lists by names: give it another name", key))
		} else {
			seen[key] = true
		}
	}
	for _, c := range b.GetStaticResources().GetClusters() {
		look("cluster", c.GetName())
	}
	for _, l := range b.GetStaticResources().GetListeners() {
		look("listener", l.GetName())
	}
	return errs
}
