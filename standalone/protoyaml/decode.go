package protoyaml

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"
)

// Decode fills m from n by the rules of protobuf's JSON form, as Envoy reads its files: both spellings of a field name,
// null for a field that is not set, and unknown fields refused. Then it checks the API's own rules (required
// fields, ranges). What is wrong is added to t.Errors.
func (t *Tree) Decode(n *Node, m proto.Message) {
	t.checked(n, m.ProtoReflect(), func() { t.message(n, m.ProtoReflect(), 0) })
}

// checked reads a message and then checks the API's rules for it, if it could be read.
func (t *Tree) checked(n *Node, m protoreflect.Message, read func()) {
	outer := t.misread
	t.misread = 0
	read()
	if t.misread == 0 {
		t.validate(n, m.Interface())
	}
	t.misread = outer
}

// skip names keys of a mapping that are not fields of the message.
func (t *Tree) message(n *Node, m protoreflect.Message, depth int, skip ...string) {
	t.note(m.Interface(), n)
	name := m.Descriptor().FullName()
	switch {
	case depth > maxDepth:
		t.fail(n, "nested too deeply")
		return
	case name == "google.protobuf.Any":
		t.any(n, m.Interface().(*anypb.Any), depth)
		return
	case wellKnown(name):
		t.wellKnown(n, m)
		return
	case n.Kind != Map:
		t.fail(n, "%s needs a mapping, not %s", name, n.describe())
		return
	}
	set := map[protoreflect.Name]string{}
	for i, key := range n.Keys {
		if slices.Contains(skip, key.Value) {
			continue
		}
		fd := fieldByName(m.Descriptor(), key.Value)
		if fd == nil {
			t.fail(key, "%s", unknownField(m.Descriptor(), key.Value))
			continue
		}
		if isUnset(fd, n.Items[i]) {
			continue
		}
		if !t.once(set, key, fd) {
			continue
		}
		t.field(n.Items[i], m, fd, depth)
	}
}

// isUnset: a null leaves the field unset, except where null is itself a value.
func isUnset(fd protoreflect.FieldDescriptor, n *Node) bool {
	if n.Kind != Null {
		return false
	}
	m := fd.Message()
	return m == nil || fd.IsList() || fd.IsMap() || m.FullName() != "google.protobuf.Value"
}

// once refuses a second spelling of a field and a second member of a oneof.
func (t *Tree) once(set map[protoreflect.Name]string, key *Node, fd protoreflect.FieldDescriptor) bool {
	slot := fd.Name()
	if o := fd.ContainingOneof(); o != nil && !o.IsSynthetic() {
		slot = o.Name() + " (one of)"
	}
	if other, dup := set[slot]; dup {
		if other == string(fd.Name()) {
			t.fail(key, "%s is given twice, in two spellings", fd.Name())
		} else {
			t.fail(key, "%s and %s cannot both be given", other, fd.Name())
		}
		return false
	}
	set[slot] = string(fd.Name())
	return true
}

func fieldByName(d protoreflect.MessageDescriptor, name string) protoreflect.FieldDescriptor {
	if fd := d.Fields().ByJSONName(name); fd != nil {
		return fd
	}
	return d.Fields().ByTextName(name)
}

func (t *Tree) field(n *Node, m protoreflect.Message, fd protoreflect.FieldDescriptor, depth int) {
	switch {
	case fd.IsMap():
		t.mapField(n, m.Mutable(fd).Map(), fd, depth)
	case fd.IsList():
		t.listField(n, m.Mutable(fd).List(), fd, depth)
	case fd.Message() != nil:
		t.message(n, m.Mutable(fd).Message(), depth+1)
	default:
		if v, ok := t.scalarValue(n, fd); ok {
			m.Set(fd, v)
		}
	}
}

func (t *Tree) listField(n *Node, l protoreflect.List, fd protoreflect.FieldDescriptor, depth int) {
	if n.Kind != List {
		t.fail(n, "%s needs a list, not %s", fd.Name(), n.describe())
		return
	}
	for _, item := range n.Items {
		if fd.Message() != nil {
			if isUnset(singular{fd}, item) {
				t.fail(item, "%s: an entry of the list is empty", fd.Name())
				continue
			}
			t.message(item, l.AppendMutable().Message(), depth+1)
		} else if v, ok := t.scalarValue(item, fd); ok {
			l.Append(v)
		}
	}
}

// singular is a repeated field seen as one of its elements.
type singular struct{ protoreflect.FieldDescriptor }

func (singular) IsList() bool { return false }

func (t *Tree) mapField(n *Node, m protoreflect.Map, fd protoreflect.FieldDescriptor, depth int) {
	if n.Kind != Map {
		t.fail(n, "%s needs a mapping, not %s", fd.Name(), n.describe())
		return
	}
	for i, key := range n.Keys {
		k, ok := t.scalarValue(&Node{Kind: Scalar, File: key.File, Line: key.Line, Value: key.Value}, fd.MapKey())
		if !ok {
			continue
		}
		item := n.Items[i]
		if fd.MapValue().Message() != nil {
			v := m.NewValue()
			if item.Kind == Null && isUnset(fd.MapValue(), item) {
				t.fail(key, "%s: entry %q is empty", fd.Name(), key.Value)
				continue
			}
			t.message(item, v.Message(), depth+1)
			m.Set(k.MapKey(), v)
		} else if v, ok := t.scalarValue(item, fd.MapValue()); ok {
			m.Set(k.MapKey(), v)
		}
	}
}

// any decodes a message with "@type". A TypedStruct around a message we know becomes that message, which means the
// same to Envoy and can be checked.
func (t *Tree) any(n *Node, a *anypb.Any, depth int) {
	if n.Kind != Map {
		t.fail(n, "needs a mapping with @type, not %s", n.describe())
		return
	}
	at := n.Get("@type")
	if at == nil || at.Kind != Scalar {
		t.fail(n, `"@type" is missing: it says which message this is, as in "@type": type.googleapis.com/envoy.…`)
		return
	}
	name := typeName(at.Value)
	mt, err := protoregistry.GlobalTypes.FindMessageByName(name)
	if err != nil {
		t.fail(at, "%s", unknownType(at.Value, name))
		return
	}
	a.TypeUrl = "type.googleapis.com/" + string(name)
	m := mt.New()
	t.hold(a, m.Interface())
	switch {
	case isTypedStruct(name) && t.typedStruct(n, a, depth):
	case name == "google.protobuf.Any" || wellKnown(name):
		t.checked(n, m, func() { t.anyValue(n, m, depth) })
	default:
		t.checked(n, m, func() { t.message(n, m, depth+1, "@type") })
	}
}

// anyValue reads a well-known type, whose content stands under "value".
func (t *Tree) anyValue(n *Node, m protoreflect.Message, depth int) {
	v := n.Get("value")
	if v == nil {
		t.fail(n, `%s needs its content under "value"`, m.Descriptor().FullName())
		return
	}
	for _, key := range n.Keys {
		if key.Value != "@type" && key.Value != "value" {
			t.fail(key, "unknown field %q beside @type %s: only value is known", key.Value, m.Descriptor().FullName())
		}
	}
	t.message(v, m, depth+1)
}

func typeName(url string) protoreflect.FullName {
	return protoreflect.FullName(url[strings.LastIndexByte(url, '/')+1:])
}

func isTypedStruct(name protoreflect.FullName) bool {
	return name == "udpa.type.v1.TypedStruct" || name == "xds.type.v3.TypedStruct"
}

func (t *Tree) typedStruct(n *Node, a *anypb.Any, depth int) bool {
	url := n.Get("type_url", "typeUrl")
	if url == nil || url.Kind != Scalar {
		return false
	}
	mt, err := protoregistry.GlobalTypes.FindMessageByName(typeName(url.Value))
	if err != nil || wellKnown(typeName(url.Value)) || isTypedStruct(typeName(url.Value)) || typeName(url.Value) == "google.protobuf.Any" {
		return false
	}
	for _, key := range n.Keys {
		if !slices.Contains([]string{"@type", "type_url", "typeUrl", "value"}, key.Value) {
			t.fail(key, "unknown field %q in TypedStruct", key.Value)
		}
	}
	value := n.Get("value")
	if value == nil || value.Kind == Null {
		value = &Node{Kind: Map, File: n.File, Line: n.Line}
	}
	m := mt.New()
	a.TypeUrl = "type.googleapis.com/" + string(typeName(url.Value))
	t.hold(a, m.Interface())
	t.checked(value, m, func() { t.message(value, m, depth+1) })
	return true
}

func unknownType(url string, name protoreflect.FullName) string {
	why := "it is not in the Envoy API that this agent knows"
	if strings.Contains(string(name), ".v2.") || strings.Contains(string(name), ".v2alpha") || strings.HasPrefix(string(name), "envoy.api.v2") {
		why = "Envoy no longer has its v2 API; use the v3 name"
	}
	return fmt.Sprintf("unknown @type %q: %s", url, why)
}

// unknownField names the field, the message and the nearest field that exists.
func unknownField(d protoreflect.MessageDescriptor, name string) string {
	text := fmt.Sprintf("unknown field %.100q in %s", name, d.FullName())
	best, at := "", 3
	for i := range d.Fields().Len() {
		known := string(d.Fields().Get(i).Name())
		if dist := distance(name, known, at); dist < at {
			best, at = known, dist
		}
	}
	if best != "" {
		text += fmt.Sprintf(" (did you mean %q?)", best)
	}
	return text
}

// distance is the edit distance of a and b, or limit when it is not smaller.
func distance(a, b string, limit int) int {
	if len(a)-len(b) >= limit || len(b)-len(a) >= limit || len(a) > 100 {
		return limit
	}
	prev := make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(prev[j]+cost, prev[j+1]+1, row[j]+1)
		}
		prev = row
	}
	return min(prev[len(b)], limit)
}
