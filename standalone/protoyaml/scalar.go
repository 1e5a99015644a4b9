package protoyaml

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// describe says what a node is, for an error about its type.
func (n *Node) describe() string {
	switch {
	case n.Kind == Null:
		return "nothing"
	case n.Kind != Scalar:
		return n.Kind.String()
	case n.Plain && isBool(n.Value):
		return "the boolean " + n.Value
	case n.Plain && isNumber(n.Value):
		return "the number " + n.Value
	case len(n.Value) > 60:
		return strconv.Quote(n.Value[:60]) + "…"
	}
	return strconv.Quote(n.Value)
}

// isBool knows the words that Envoy's YAML reader takes for booleans.
func isBool(s string) bool {
	_, ok := boolValue(s)
	return ok
}

func boolValue(s string) (value, ok bool) {
	lower := strings.ToLower(s)
	if s != lower && s != strings.ToUpper(s) && s != strings.ToUpper(s[:1])+lower[1:] {
		return false, false
	}
	switch lower {
	case "true", "yes", "on", "y":
		return true, true
	case "false", "no", "off", "n":
		return false, true
	}
	return false, false
}

func isNumber(s string) bool {
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		return !strings.ContainsAny(s, "_xXpP")
	}
	_, ok := integer(s)
	return ok
}

func isInteger(s string) bool {
	i, ok := integer(s)
	return ok && i.IsInt64() && !strings.ContainsAny(s, ".eE")
}

// integer reads a whole number: decimal, 0x…, 0o… or 0… (octal, as Envoy reads file modes), or one written with a fraction or exponent that is whole.
func integer(s string) (*big.Int, bool) {
	if len(s) == 0 || len(s) > 40 || strings.Contains(s, "_") {
		return nil, false
	}
	digits := strings.TrimLeft(s, "+-")
	base := 10
	if len(digits) > 1 && digits[0] == '0' && !strings.ContainsAny(digits, ".eE89") || strings.HasPrefix(digits, "0x") {
		base = 0
	}
	if i, ok := new(big.Int).SetString(s, base); ok {
		return i, true
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) >= 1<<63 {
		return nil, false
	}
	i, _ := big.NewFloat(f).Int(nil)
	return i, true
}

// scalarValue reads a scalar for a field. A field's type decides how its text is read.
func (t *Tree) scalarValue(n *Node, fd protoreflect.FieldDescriptor) (protoreflect.Value, bool) {
	v, want := readScalar(n, fd)
	if want != "" {
		t.fail(n, "%s needs %s, not %s", fd.Name(), want, n.describe())
	}
	return v, want == ""
}

// readScalar returns what the field needs instead, when the node does not fit.
func readScalar(n *Node, fd protoreflect.FieldDescriptor) (v protoreflect.Value, want string) {
	switch kind := fd.Kind(); kind {
	case protoreflect.BoolKind:
		b, ok := boolValue(n.Value)
		if n.Kind != Scalar || !ok || (!n.Plain && n.Value != "true" && n.Value != "false") {
			return v, "true or false"
		}
		return protoreflect.ValueOfBool(b), ""
	case protoreflect.StringKind:
		if n.Kind != Scalar {
			return v, "a string"
		}
		if n.Plain && (isBool(n.Value) || isInteger(n.Value)) {
			return v, "a string (write it in quotes)"
		}
		return protoreflect.ValueOfString(n.Value), ""
	case protoreflect.BytesKind:
		return readBytes(n)
	case protoreflect.EnumKind:
		return readEnum(n, fd.Enum())
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return readFloat(n, kind)
	default:
		return readInteger(n, kind)
	}
}

func readBytes(n *Node) (v protoreflect.Value, want string) {
	s := strings.NewReplacer("-", "+", "_", "/", "\n", "", " ", "").Replace(n.Value)
	b, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(s, "="))
	if n.Kind != Scalar || err != nil {
		return v, "base64"
	}
	return protoreflect.ValueOfBytes(b), ""
}

func readEnum(n *Node, ed protoreflect.EnumDescriptor) (v protoreflect.Value, want string) {
	if n.Kind == Scalar {
		if e := ed.Values().ByName(protoreflect.Name(n.Value)); e != nil {
			return protoreflect.ValueOfEnum(e.Number()), ""
		}
		if i, err := strconv.ParseInt(n.Value, 10, 32); err == nil && n.Plain {
			return protoreflect.ValueOfEnum(protoreflect.EnumNumber(i)), ""
		}
		// NO and similar names read as booleans elsewhere; by name they are found above.
	}
	names := make([]string, 0, ed.Values().Len())
	for i := range min(ed.Values().Len(), 12) {
		names = append(names, string(ed.Values().Get(i).Name()))
	}
	return v, "one of " + strings.Join(names, ", ")
}

func readFloat(n *Node, kind protoreflect.Kind) (v protoreflect.Value, want string) {
	bits := 64
	if kind == protoreflect.FloatKind {
		bits = 32
	}
	f, err := strconv.ParseFloat(strings.TrimPrefix(n.Value, "+"), bits)
	if n.Kind != Scalar || err != nil || strings.ContainsAny(n.Value, "_xX") {
		return v, "a number"
	}
	if bits == 32 {
		return protoreflect.ValueOfFloat32(float32(f)), ""
	}
	return protoreflect.ValueOfFloat64(f), ""
}

func readInteger(n *Node, kind protoreflect.Kind) (v protoreflect.Value, want string) {
	i, ok := integer(n.Value)
	if n.Kind != Scalar || !ok {
		return v, "a whole number"
	}
	switch kind {
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		if i.IsInt64() && i.Int64() >= math.MinInt32 && i.Int64() <= math.MaxInt32 {
			return protoreflect.ValueOfInt32(int32(i.Int64())), ""
		}
		return v, "a whole number of 32 bits"
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		if i.IsUint64() && i.Uint64() <= math.MaxUint32 {
			return protoreflect.ValueOfUint32(uint32(i.Uint64())), ""
		}
		return v, "a whole number from 0 to 4294967295"
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		if i.IsUint64() {
			return protoreflect.ValueOfUint64(i.Uint64()), ""
		}
		return v, "a whole number that is not negative"
	}
	if i.IsInt64() {
		return protoreflect.ValueOfInt64(i.Int64()), ""
	}
	return v, "a whole number of 64 bits"
}

// wellKnown types have a JSON form of their own.
func wellKnown(name protoreflect.FullName) bool {
	if name.Parent() != "google.protobuf" {
		return false
	}
	switch name.Name() {
	case "Struct", "Value", "ListValue", "Duration", "Timestamp", "FieldMask", "DoubleValue", "FloatValue",
		"Int64Value", "UInt64Value", "Int32Value", "UInt32Value", "BoolValue", "StringValue", "BytesValue":
		return true
	}
	return false
}

func (t *Tree) wellKnown(n *Node, m protoreflect.Message) {
	d := m.Descriptor()
	switch d.Name() {
	case "Struct", "Value", "ListValue", "Duration", "Timestamp", "FieldMask":
	default: // a wrapper
		if v, ok := t.scalarValue(n, named{d.Fields().ByName("value"), d.Name()}); ok {
			m.Set(d.Fields().ByName("value"), v)
		}
		return
	}
	text, err := json.Marshal(n.plain())
	if err == nil {
		err = protojson.Unmarshal(text, m.Interface())
	}
	if err != nil {
		t.fail(n, "%s needs %s, not %s", d.FullName(), wellKnownForm(d.Name()), n.describe())
	}
}

// named is a field that errors call by another name.
type named struct {
	protoreflect.FieldDescriptor
	name protoreflect.Name
}

func (f named) Name() protoreflect.Name { return f.name }

func wellKnownForm(name protoreflect.Name) string {
	switch name {
	case "Duration":
		return `seconds such as 5s or 0.25s`
	case "Timestamp":
		return `a time such as "2026-01-31T12:00:00Z"`
	case "FieldMask":
		return "field names with commas between"
	case "Struct":
		return "a mapping"
	case "ListValue":
		return "a list"
	}
	return "a plain value, a list or a mapping"
}

// plain is the node as encoding/json's values, with types as Envoy's YAML reader gives them: whole numbers of 32 bits
// and booleans are such, everything else is text.
func (n *Node) plain() any {
	switch n.Kind {
	case Scalar:
		return n.plainScalar()
	case List:
		l := make([]any, 0, len(n.Items))
		for _, item := range n.Items {
			l = append(l, item.plain())
		}
		return l
	case Map:
		m := make(map[string]any, len(n.Keys))
		for i, k := range n.Keys {
			m[k.Value] = n.Items[i].plain()
		}
		return m
	}
	return nil
}

func (n *Node) plainScalar() any {
	if !n.Plain {
		return n.Value
	}
	if b, ok := boolValue(n.Value); ok {
		return b
	}
	if i, err := strconv.ParseInt(n.Value, 0, 64); err == nil && !strings.Contains(n.Value, "_") {
		if i >= math.MinInt32 && i <= math.MaxInt32 {
			return i
		}
		return fmt.Sprint(i)
	}
	if f, err := strconv.ParseFloat(n.Value, 64); err == nil && strings.HasSuffix(n.File, ".json") {
		return f
	}
	return n.Value
}
