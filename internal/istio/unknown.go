package istio

import (
	"encoding/json"
	"maps"
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// unknownFields are the fields of a JSON document that a message does not have, as paths, in order.
func unknownFields(message protoreflect.MessageDescriptor, document []byte) []string {
	var value any
	if json.Unmarshal(document, &value) != nil {
		return nil
	}
	return unknownIn(message, value, "")
}

func unknownIn(message protoreflect.MessageDescriptor, value any, path string) (all []string) {
	object, ok := value.(map[string]any)
	if !ok || message.FullName().Parent() == "google.protobuf" { // those have JSON of their own
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		field := message.Fields().ByJSONName(name)
		if field == nil {
			field = message.Fields().ByTextName(name)
		}
		if field == nil {
			all = append(all, path+name)
			continue
		}
		all = append(all, unknownBelow(field, object[name], path+name+".")...)
	}
	return all
}

// unknownBelow looks into the messages that a field holds: one, a list of them, or a map.
func unknownBelow(field protoreflect.FieldDescriptor, value any, path string) (all []string) {
	message := field.Message()
	if field.IsMap() {
		message = field.MapValue().Message()
	}
	if message == nil {
		return nil
	}
	members := []any{value}
	switch value := value.(type) {
	case []any:
		members = value
	case map[string]any:
		if field.IsMap() {
			members = slices.Collect(maps.Values(value))
		}
	}
	for _, member := range members {
		for _, name := range unknownIn(message, member, path) {
			if !slices.Contains(all, name) {
				all = append(all, name)
			}
		}
	}
	slices.Sort(all)
	return all
}
