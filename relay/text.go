package relay

import (
	"strings"
	"unicode/utf8"
)

// bounded cuts a text to max bytes, at a rune, and says so.
func bounded(text string, max int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= max {
		return text
	}
	cut := max
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + "…"
}

// firstLine is what of the control plane's text goes into a log.
func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return bounded(line, 1<<10)
}
