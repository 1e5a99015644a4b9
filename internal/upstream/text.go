package upstream

import (
	"regexp"
	"strconv"
	"strings"
)

// wrapped is what gRPC puts around the reason why there is no connection.
var wrapped = regexp.MustCompile(`connection error: desc = ("(?:[^"\\]|\\.)*")`)

// Plain is the message of a failed call without what gRPC puts around the reason why there is no connection.
func Plain(message string) string {
	if found := wrapped.FindStringSubmatch(message); found != nil {
		if reason, err := strconv.Unquote(found[1]); err == nil {
			message = reason
		}
	}
	message = strings.TrimPrefix(message, "transport: ")
	for _, prefix := range []string{"Error while dialing: ", "per-RPC creds failed due to error: "} {
		message = strings.TrimPrefix(message, prefix)
	}
	return message
}
