package istio

import (
	"encoding/json"
	"strconv"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// inSeconds writes durations such as 1m or 100ms, which pilot-agent reads, as protobuf's JSON has them.
func inSeconds(message protoreflect.MessageDescriptor, document []byte) []byte {
	var fields map[string]json.RawMessage
	if json.Unmarshal(document, &fields) != nil {
		return document
	}
	for name, raw := range fields {
		field := fieldNamed(message, name)
		switch {
		case field == nil || field.Message() == nil || field.IsMap():
		case field.IsList():
			fields[name] = eachInSeconds(field.Message(), raw)
		default:
			fields[name] = valueInSeconds(field.Message(), raw)
		}
	}
	if changed, err := json.Marshal(fields); err == nil {
		return changed
	}
	return document
}

func eachInSeconds(message protoreflect.MessageDescriptor, raw json.RawMessage) json.RawMessage {
	var members []json.RawMessage
	if json.Unmarshal(raw, &members) != nil {
		return raw
	}
	for i := range members {
		members[i] = valueInSeconds(message, members[i])
	}
	changed, err := json.Marshal(members)
	if err != nil {
		return raw
	}
	return changed
}

func valueInSeconds(message protoreflect.MessageDescriptor, raw json.RawMessage) json.RawMessage {
	if message.FullName() != "google.protobuf.Duration" {
		return inSeconds(message, raw)
	}
	var text string
	if json.Unmarshal(raw, &text) != nil {
		return raw
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return raw
	}
	return json.RawMessage(strconv.Quote(strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "s"))
}
