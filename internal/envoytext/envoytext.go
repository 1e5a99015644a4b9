// Package envoytext makes what Envoy says about a configuration it rejects fit to be shown. Envoy puts the whole message in front of what
// is wrong with one of its fields: keys, tokens and plugin configurations included.
package envoytext

import (
	"regexp"
	"strings"
	"unicode"
)

var (
	// dump matches a message that Envoy prints, up to the colon on a line of its own that ends it, or to the end of a text that was cut.
	dump = regexp.MustCompile(`(?s)goo\.gle/debug.*?(?:\n: |$)`)
	// quoted matches a value of a message in an older Envoy's form, which no mark announces; also one that was cut off.
	quoted = regexp.MustCompile(`:\s*"(?:[^"\\]|\\.)*(?:"|$)`)
)

const nothing = "rejected without a reason that can be shown"

// Public returns text without what it quotes of the configuration, on one line, cut to max bytes.
func Public(text string, max int) string {
	text = dump.ReplaceAllString(strings.ToValidUTF8(text, "\uFFFD"), "")
	text = quoted.ReplaceAllString(text, `: "…"`)
	text, _, _ = strings.Cut(text, "-----BEGIN")
	var lines []string
	for line := range strings.Lines(text) {
		line = strings.Map(func(r rune) rune {
			if unicode.IsControl(r) {
				return ' '
			}
			return r
		}, line)
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	if text = strings.Join(lines, "; "); text == "" {
		text = nothing
	}
	return cut(text, max)
}

// cut shortens text to at most max bytes, at a rune, and says so.
func cut(text string, max int) string {
	const more = "…"
	if len(text) <= max {
		return text
	}
	end := 0
	for i := range text {
		if i+len(more) > max {
			break
		}
		end = i
	}
	if max < len(more) {
		return ""
	}
	return text[:end] + more
}
