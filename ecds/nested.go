package ecds

import (
	"bytes"
	"errors"
	"unicode/utf8"

	httpwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

// Resources that are not Wasm filters pass as they are, but some kinds (composite, matcher wrappers, filter chains) can
// hold one. Until those are converted too, one with remote code or control keys inside is refused: Envoy would accept it
// and let traffic through without the filter, or show a pull secret to whoever reads its configuration. The search
// works on the wire format, so it also sees into messages this program has no definition of.

var (
	wasmMark   = []byte(".wasm.v3.")      // in the type URL of every Wasm extension
	jsonRemote = []byte("\x0a\x06remote") // the key "remote" in a Struct
	maxNesting = 64
)

var errNestedRemote = errors.New("it holds a Wasm filter with remote code inside another filter, which this agent cannot convert: name the module as a resource of its own, or use local code")

var errNestedKeys = errors.New("it holds a Wasm filter with " + controlKey + " variables inside another filter, which this agent cannot convert: name the module as a resource of its own")

func checkNested(typed *anypb.Any) error {
	b := typed.GetValue()
	if !bytes.Contains(b, wasmMark) {
		return nil
	}
	if bytes.Contains(b, []byte(controlKey)) {
		return errNestedKeys
	}
	if bytes.Contains(b, jsonRemote) || hasRemote(b, 0) {
		return errNestedRemote
	}
	return nil
}

// hasRemote walks everything in b that could be a message.
func hasRemote(b []byte, depth int) bool {
	if !bytes.Contains(b, wasmMark) {
		return false
	}
	if depth > maxNesting {
		return true
	}
	if isRemoteAny(b) {
		return true
	}
	for len(b) > 0 {
		_, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return false
		}
		b = b[n:]
		if kind == protowire.BytesType {
			v, n := protowire.ConsumeBytes(b)
			if n < 0 {
				return false
			}
			if hasRemote(v, depth+1) {
				return true
			}
			b = b[n:]
			continue
		}
		n = protowire.ConsumeFieldValue(0, kind, b)
		if n < 0 {
			return false
		}
		b = b[n:]
	}
	return false
}

// isRemoteAny says whether b is an Any that holds a Wasm extension with remote code. All of them have their
// PluginConfig in field 1.
func isRemoteAny(b []byte) bool {
	a := &anypb.Any{}
	if proto.Unmarshal(b, a) != nil || !utf8.ValidString(a.TypeUrl) || !bytes.Contains([]byte(a.TypeUrl), wasmMark) {
		return false
	}
	w := &httpwasmv3.Wasm{}
	if proto.Unmarshal(a.Value, w) != nil {
		return proto.Unmarshal(a.Value, &structpb.Struct{}) != nil // a TypedStruct has been searched by key; anything else cannot be vouched for
	}
	return w.GetConfig().GetVmConfig().GetCode().GetRemote() != nil
}
