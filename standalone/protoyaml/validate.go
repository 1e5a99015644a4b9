package protoyaml

import (
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// validate checks the rules that the API states beside its fields. The rules stop at an Any, so each packed message is
// checked by itself.
func (t *Tree) validate(n *Node, m proto.Message) {
	v, ok := m.(interface{ ValidateAll() error })
	if !ok {
		return
	}
	if err := v.ValidateAll(); err != nil {
		t.violation(err, place{node: n, desc: m.ProtoReflect().Descriptor()})
	}
}

// violation follows an error of the generated rules down to the field that it is about.
func (t *Tree) violation(err error, at place) {
	if all, ok := err.(interface{ AllErrors() []error }); ok {
		for _, e := range all.AllErrors() {
			t.violation(e, at)
		}
		return
	}
	rule, ok := err.(interface {
		Field() string
		Reason() string
		Cause() error
	})
	if !ok {
		t.fail(at.node, "%v", err)
		return
	}
	next := at.enter(rule.Field())
	if rule.Cause() != nil {
		t.violation(rule.Cause(), next)
		return
	}
	if t.Tolerate != nil && t.Tolerate(next.path) {
		return
	}
	where := next.name
	if at.desc != nil {
		where += " in " + string(at.desc.FullName())
	}
	t.fail(next.node, "%s %s", where, inWords.Replace(rule.Reason()))
}

// inWords says a rule as a person would.
var inWords = strings.NewReplacer(
	"value length must be at least 1 runes", "must not be empty",
	"value length must be at least 1 bytes", "must not be empty",
	"value must contain at least 1 item(s)", "needs at least one entry",
	"value is required", "is required",
	"value must", "must",
	"runes", "characters",
)

// place is where an error of the generated rules has led to.
type place struct {
	node *Node // the nearest node that exists
	desc protoreflect.MessageDescriptor
	name string
	path []string
}

// enter goes to a field by the name that the rules give it: the Go name, with "[key]" for an element.
func (p place) enter(field string) place {
	name, index, _ := strings.Cut(strings.TrimSuffix(field, "]"), "[")
	next := place{node: p.node, name: name, path: p.path}
	if p.desc == nil {
		return next
	}
	fd := fieldByGoName(p.desc, name)
	if fd == nil {
		if o := oneofByGoName(p.desc, name); o != nil {
			next.name = oneofNames(o)
			next.path = append(p.path[:len(p.path):len(p.path)], string(p.desc.FullName())+"."+string(o.Name()))
		}
		return next
	}
	next.name = string(fd.Name())
	next.path = append(p.path[:len(p.path):len(p.path)], string(p.desc.FullName())+"."+next.name)
	next.desc = fd.Message()
	if fd.IsMap() {
		next.desc = fd.MapValue().Message()
	}
	if n := p.node.Get(fd.JSONName(), string(fd.Name())); n != nil {
		next.node = n.element(index)
	}
	return next
}

// element is the entry of a list or mapping, or the node itself.
func (n *Node) element(index string) *Node {
	if index == "" {
		return n
	}
	if i, err := strconv.Atoi(index); err == nil && n.Kind == List && i >= 0 && i < len(n.Items) {
		return n.Items[i]
	}
	if v := n.Get(index); v != nil {
		return v
	}
	return n
}

func goName(s string) string { return strings.ToLower(strings.ReplaceAll(s, "_", "")) }

func fieldByGoName(d protoreflect.MessageDescriptor, name string) protoreflect.FieldDescriptor {
	for i := range d.Fields().Len() {
		if fd := d.Fields().Get(i); goName(string(fd.Name())) == goName(name) {
			return fd
		}
	}
	return nil
}

func oneofByGoName(d protoreflect.MessageDescriptor, name string) protoreflect.OneofDescriptor {
	for i := range d.Oneofs().Len() {
		if o := d.Oneofs().Get(i); goName(string(o.Name())) == goName(name) {
			return o
		}
	}
	return nil
}

func oneofNames(o protoreflect.OneofDescriptor) string {
	names := make([]string, 0, o.Fields().Len())
	for i := range o.Fields().Len() {
		names = append(names, string(o.Fields().Get(i).Name()))
	}
	if len(names) == 1 {
		return names[0]
	}
	return "one of " + strings.Join(names, ", ")
}
