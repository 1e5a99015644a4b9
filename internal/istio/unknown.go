package istio

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// oddities are what a JSON document has and its message has not, as paths, in order.
type oddities struct {
	fields []string // no such field
	values []string // PATH "VALUE": the enum has no such value. Leaving it out would make it the first one, which may mean something
}

func findOddities(message protoreflect.MessageDescriptor, document []byte) (o oddities) {
	var value any
	if json.Unmarshal(document, &value) == nil {
		o.message(message, value, "")
	}
	return o
}

func add(to *[]string, text string) {
	if !slices.Contains(*to, text) {
		*to = append(*to, text)
	}
}

func (o *oddities) message(message protoreflect.MessageDescriptor, value any, path string) {
	object, ok := value.(map[string]any)
	if !ok || message.FullName().Parent() == "google.protobuf" { // those have JSON of their own
		return
	}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		field := fieldNamed(message, name)
		if field == nil {
			add(&o.fields, path+name)
			continue
		}
		o.field(field, object[name], path+name)
	}
}

// field looks at what a field holds: one thing, a list, or a map.
func (o *oddities) field(field protoreflect.FieldDescriptor, value any, path string) {
	members := []any{value}
	switch value := value.(type) {
	case []any:
		members = value
	case map[string]any:
		if field.IsMap() {
			field = field.MapValue()
			members = nil
			for _, key := range slices.Sorted(maps.Keys(value)) {
				members = append(members, value[key])
			}
		}
	}
	for _, member := range members {
		text, isText := member.(string)
		switch {
		case field.Message() != nil:
			o.message(field.Message(), member, path+".")
		case field.Enum() != nil && isText && field.Enum().Values().ByName(protoreflect.Name(text)) == nil:
			add(&o.values, fmt.Sprintf("%s %q", path, text))
		}
	}
}
