package envoy

import (
	"slices"
	"strings"
)

// laterFlags came after MinVersion, each with a value, in the version given. An Envoy that does not know a flag does not start.
var laterFlags = map[string]string{"--file-flush-min-size-kb": "1.37"}

// withoutLater leaves out the arguments that an Envoy of the version does not know yet, and returns which. An unknown version knows all.
func withoutLater(args []string, version string) (kept, ignored []string) {
	for i := 0; i < len(args); i++ {
		name, _, joined := strings.Cut(args[i], "=")
		since, later := laterFlags[name]
		if !later || version == "" || (Version{Number: version}).AtLeast(since) {
			kept = append(kept, args[i])
			continue
		}
		if ignored = append(ignored, name); !joined {
			i++
		}
	}
	return kept, slices.Compact(ignored)
}
