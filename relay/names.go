package relay

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

const (
	maxNamed = 5   // names of one response that are remembered
	maxName  = 200 // bytes of one
)

// secretNames are the names of the secrets in a response, for people: Envoy says why it rejects one, and not which. Nothing else of them is
// read; what cannot be read has no names.
func secretNames(response []byte, delta bool) string {
	var names []string
	all := bytesFields(response, 2) // resources, in both protocols
	for _, resource := range all[:min(len(all), maxNamed)] {
		number := protowire.Number(3)
		if !delta { // state-of-the-world has the name only in the secret itself
			resource, number = last(bytesFields(resource, 2)), 1
		}
		names = append(names, bounded(string(last(bytesFields(resource, number))), maxName))
	}
	if more := len(all) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

// bytesFields are the values of a length-delimited field, up to where the message is damaged.
func bytesFields(message []byte, want protowire.Number) (values [][]byte) {
	for len(message) > 0 {
		num, typ, n := protowire.ConsumeTag(message)
		if n < 0 {
			break
		}
		message = message[n:]
		if n = protowire.ConsumeFieldValue(num, typ, message); n < 0 {
			break
		}
		if num == want && typ == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message)
			values = append(values, value)
		}
		message = message[n:]
	}
	return values
}

// last is the value that counts of a field that comes more than once.
func last(values [][]byte) []byte {
	if len(values) == 0 {
		return nil
	}
	return values[len(values)-1]
}
