package protoyaml

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

// Tree holds the messages that were decoded from files. It belongs to one goroutine.
type Tree struct {
	// Tolerate lets a missing or wrong field pass that the API's own rules refuse. path is the chain of fields from the
	// message that was decoded, each as "full.message.Name.field_name".
	Tolerate func(path []string) bool
	// Errors is all that was found wrong so far.
	Errors []Error

	nodes map[proto.Message]*Node
	inner map[*anypb.Any]proto.Message
	// misread counts the values that could not be read into the message at hand: its rules are then not checked, since
	// they would only complain of what is missing for that reason.
	misread int
}

// Node is the node a message was decoded from, nil for a message made by the program.
func (t *Tree) Node(m proto.Message) *Node { return t.nodes[m] }

// Inner is the message packed in a, nil when there is none.
func (t *Tree) Inner(a *anypb.Any) proto.Message { return t.inner[a] }

// Pack makes an Any that holds m, packed when the tree is sealed.
func (t *Tree) Pack(m proto.Message) *anypb.Any {
	a := &anypb.Any{TypeUrl: "type.googleapis.com/" + string(m.ProtoReflect().Descriptor().FullName())}
	t.hold(a, m)
	return a
}

func (t *Tree) hold(a *anypb.Any, m proto.Message) {
	if t.inner == nil {
		t.inner = map[*anypb.Any]proto.Message{}
	}
	t.inner[a] = m
}

func (t *Tree) note(m proto.Message, n *Node) {
	if t.nodes == nil {
		t.nodes = map[proto.Message]*Node{}
	}
	t.nodes[m] = n
}

func (t *Tree) fail(n *Node, format string, args ...any) {
	t.misread++
	t.Errors = append(t.Errors, n.Errorf(format, args...))
}

// Walk visits m and every message in it, those packed in an Any too, in the order of field numbers and map keys. A
// message for which visit returns false is not entered. visit may change the message it is given.
func (t *Tree) Walk(m proto.Message, visit func(proto.Message) bool) {
	if a, ok := m.(*anypb.Any); ok {
		if in := t.inner[a]; in != nil {
			t.Walk(in, visit)
		}
		return
	}
	if visit(m) {
		eachMessage(m.ProtoReflect(), func(sub protoreflect.Message) { t.Walk(sub.Interface(), visit) })
	}
}

// eachMessage calls f for the messages directly in m, in a fixed order.
func eachMessage(m protoreflect.Message, f func(protoreflect.Message)) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if !m.Has(fd) {
			continue
		}
		switch {
		case fd.IsMap():
			if fd.MapValue().Message() != nil {
				eachMapValue(m.Get(fd).Map(), f)
			}
		case fd.Message() == nil:
		case fd.IsList():
			for l, j := m.Get(fd).List(), 0; j < l.Len(); j++ {
				f(l.Get(j).Message())
			}
		default:
			f(m.Get(fd).Message())
		}
	}
}

func eachMapValue(m protoreflect.Map, f func(protoreflect.Message)) {
	keys := make([]protoreflect.MapKey, 0, m.Len())
	m.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, k)
		return true
	})
	slices.SortFunc(keys, func(a, b protoreflect.MapKey) int { return cmp.Compare(a.String(), b.String()) })
	for _, k := range keys {
		f(m.Get(k).Message())
	}
}

// Seal packs what the Anys in m hold. The same content always gives the same bytes.
func (t *Tree) Seal(m proto.Message) error {
	if a, ok := m.(*anypb.Any); ok {
		return t.sealAny(a)
	}
	var err error
	eachMessage(m.ProtoReflect(), func(sub protoreflect.Message) {
		if err == nil {
			err = t.Seal(sub.Interface())
		}
	})
	return err
}

func (t *Tree) sealAny(a *anypb.Any) error {
	in := t.inner[a]
	if in == nil {
		return nil
	}
	if err := t.Seal(in); err != nil {
		return err
	}
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(in)
	if err != nil {
		return fmt.Errorf("pack %s: %w", strings.TrimPrefix(a.GetTypeUrl(), "type.googleapis.com/"), err)
	}
	a.Value = value
	return nil
}
