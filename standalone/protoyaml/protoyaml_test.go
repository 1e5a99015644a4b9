package protoyaml

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/typepb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func decode(t *testing.T, text string, m proto.Message) (*Tree, string) {
	t.Helper()
	docs, errs := Parse("a.yaml", []byte(text), &Budget{Nodes: 1000})
	if len(errs) > 0 || len(docs) != 1 {
		t.Fatalf("Parse(%q): %d documents, %v", text, len(docs), errs)
	}
	tree := &Tree{}
	tree.Decode(docs[0], m)
	var list []string
	for _, e := range tree.Errors {
		list = append(list, e.Error())
	}
	return tree, strings.Join(list, "\n")
}

// TestScalars: what Envoy's own YAML reader and protobuf's JSON form make of plain and quoted values.
func TestScalars(t *testing.T) {
	tests := []struct {
		text string
		into proto.Message
		want proto.Message // nil: an error
	}{
		{"0644", &wrapperspb.UInt32Value{}, wrapperspb.UInt32(0o644)},
		{"0x10", &wrapperspb.Int64Value{}, wrapperspb.Int64(16)},
		{"1e3", &wrapperspb.Int32Value{}, wrapperspb.Int32(1000)},
		{"1.5", &wrapperspb.Int32Value{}, nil},
		{"'12'", &wrapperspb.UInt64Value{}, wrapperspb.UInt64(12)},
		{"18446744073709551615", &wrapperspb.UInt64Value{}, wrapperspb.UInt64(1<<64 - 1)},
		{"18446744073709551616", &wrapperspb.UInt64Value{}, nil},
		{"4294967296", &wrapperspb.UInt32Value{}, nil},
		{"-2147483649", &wrapperspb.Int32Value{}, nil},
		{"1_000", &wrapperspb.Int32Value{}, nil},
		{"1.25", &wrapperspb.DoubleValue{}, wrapperspb.Double(1.25)},
		{"Infinity", &wrapperspb.FloatValue{}, wrapperspb.Float(float32(inf()))},
		{"Yes", &wrapperspb.BoolValue{}, wrapperspb.Bool(true)},
		{"off", &wrapperspb.BoolValue{}, wrapperspb.Bool(false)},
		{"yEs", &wrapperspb.BoolValue{}, nil},
		{"'yes'", &wrapperspb.BoolValue{}, nil},
		{"1", &wrapperspb.BoolValue{}, nil},
		{"1.5", &wrapperspb.StringValue{}, wrapperspb.String("1.5")},
		{"15", &wrapperspb.StringValue{}, nil},
		{"!!str 15", &wrapperspb.StringValue{}, wrapperspb.String("15")},
		{"no", &wrapperspb.StringValue{}, nil},
		{"|\n  a\n  b", &wrapperspb.StringValue{}, wrapperspb.String("a\nb")},
		{"aGk=", &wrapperspb.BytesValue{}, wrapperspb.Bytes([]byte("hi"))},
		{"a*b", &wrapperspb.BytesValue{}, nil},
		{"1.5s", &durationpb.Duration{}, &durationpb.Duration{Seconds: 1, Nanos: 5e8}},
		{"5", &durationpb.Duration{}, nil},
		{"{a: [1, 1.5, yes, 'yes', ~, 3000000000]}", &structpb.Struct{}, &structpb.Struct{Fields: map[string]*structpb.Value{"a": structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{
			structpb.NewNumberValue(1), structpb.NewStringValue("1.5"), structpb.NewBoolValue(true), structpb.NewStringValue("yes"), structpb.NewNullValue(), structpb.NewStringValue("3000000000"),
		}})}}},
		{"{name: x, syntax: SYNTAX_PROTO3}", &typepb.Type{}, &typepb.Type{Name: "x", Syntax: typepb.Syntax_SYNTAX_PROTO3}},
		{"{syntax: 1, oneofs: [a], fields: [{name: f, cardinality: 2, jsonName: j}]}", &typepb.Type{}, &typepb.Type{Syntax: 1, Oneofs: []string{"a"}, Fields: []*typepb.Field{{Name: "f", Cardinality: 2, JsonName: "j"}}}},
		{"{syntax: nonsense}", &typepb.Type{}, nil},
		{"{name: ~, oneofs: [~]}", &typepb.Type{}, nil},
	}
	for _, tt := range tests {
		_, problems := decode(t, tt.text, tt.into)
		if (problems == "") != (tt.want != nil) {
			t.Errorf("Decode(%q): problems %q, want some: %v", tt.text, problems, tt.want == nil)
		} else if diff := cmp.Diff(tt.want, tt.into, protocmp.Transform()); tt.want != nil && diff != "" {
			t.Errorf("Decode(%q) differs (-want +got):\n%s", tt.text, diff)
		}
	}
}

func inf() float64 { var zero float64; return 1 / zero }

// TestSeal: what is packed can be found, changed and packed again, with the same bytes for the same content.
func TestSeal(t *testing.T) {
	const text = `{"@type": type.googleapis.com/google.protobuf.Any, value: {"@type": type.googleapis.com/google.protobuf.Type, name: x, options: [{name: o, value: {"@type": type.googleapis.com/google.protobuf.StringValue, value: v}}]}}`
	var a, b anypb.Any
	tree, problems := decode(t, text, &a)
	if problems != "" {
		t.Fatal(problems)
	}
	tree.Walk(&a, func(m proto.Message) bool {
		if s, ok := m.(*wrapperspb.StringValue); ok {
			s.Value += "!"
		}
		return true
	})
	if err := tree.Seal(&a); err != nil {
		t.Fatal(err)
	}
	other, _ := decode(t, strings.Replace(text, "value: v}", `value: "v!"}`, 1), &b)
	if err := other.Seal(&b); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&b, &a, protocmp.Transform()); diff != "" || string(a.GetValue()) != string(b.GetValue()) {
		t.Errorf("Seal after a change differs from the changed text (-want +got):\n%s", diff)
	}
	var typ typepb.Type
	var inner anypb.Any
	if err := a.UnmarshalTo(&inner); err != nil {
		t.Fatal(err)
	}
	if err := inner.UnmarshalTo(&typ); err != nil || typ.GetName() != "x" {
		t.Errorf("the inner message is %v (%v), want the name x", &typ, err)
	}
}

// TestMerge: merge keys add what is missing, the first source first, and never replace.
func TestMerge(t *testing.T) {
	docs, errs := Parse("a.yaml", []byte("x: &x {a: 1, b: 1}\ny: &y {b: 2, c: 2}\nz: {<<: [*x, *y], a: 0}\n"), &Budget{Nodes: 100})
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	z := docs[0].Get("z")
	for key, want := range map[string]string{"a": "0", "b": "1", "c": "2"} {
		if got := z.Get(key); got == nil || got.Value != want {
			t.Errorf("z.%s = %v, want %s", key, got, want)
		}
	}
	if _, errs := Parse("a.yaml", []byte("x: &x [1]\nz: {<<: *x}\n"), &Budget{Nodes: 100}); len(errs) == 0 {
		t.Error("merging a list of numbers gave no error")
	}
}

// TestNames: a misspelt field is answered with the nearest one.
func TestNames(t *testing.T) {
	d := (&descriptorpb.FileDescriptorProto{}).ProtoReflect().Descriptor()
	for name, want := range map[string]string{
		"pakage":                   `(did you mean "package"?)`,
		"zzzzzzzz":                 "unknown field",
		strings.Repeat("a", 1<<20): "unknown field",
	} {
		if got := unknownField(d, name); !strings.Contains(got, want) {
			t.Errorf("unknownField(%.20q) = %.200q, want %q in it", name, got, want)
		}
	}
	if fieldByName(d, "messageType") == nil || fieldByName(d, "message_type") == nil || fieldByName(d, "MessageType") != nil {
		t.Error("fieldByName does not take exactly the two spellings of protobuf's JSON form")
	}
}
