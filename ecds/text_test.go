package ecds

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestEnvoyText(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"Unable to create Wasm plugin p", "Unable to create Wasm plugin p"},
		{"\n first\nsecond", "first; second"},
		{"goo.gle/debugonly \nvalue: \"hunter2\"\n: why", "why"},
		{`config { key: "hunter2\"x" value: "hunter2" } bad: "hunter2 cut off`, `config { key: "…" value: "…" } bad: "…"`},
		{"a\tb\x00c\xff", "a b c\uFFFD"},
	} {
		if got := envoyText(errors.New(c.in)); got != c.want {
			t.Errorf("envoyText(%q) = %q, want %q", c.in, got, c.want)
		}
	}
	long := envoyText(errors.New(strings.Repeat("é", 1000)))
	if len(long) > maxEnvoyText || !utf8.ValidString(long) {
		t.Errorf("%d bytes", len(long))
	}
}

func TestPublicURL(t *testing.T) {
	for in, want := range map[string]string{
		"oci://r/i:1":                    "oci://r/i:1",
		"https://u:p@r/m.wasm?sig=x#y":   "https://r/m.wasm?…",
		"https://u:p@r:x/%zz?sig=secret": "https://r:x/%zz",
		"file:///m.wasm":                 "file:///m.wasm",
	} {
		if got := publicURL(in); got != want {
			t.Errorf("publicURL(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzEnvoyText(f *testing.F) {
	f.Add(`x: "secret`)
	f.Fuzz(func(t *testing.T, s string) {
		got := envoyText(errors.New(s))
		if len(got) > maxEnvoyText || strings.ContainsAny(got, "\n\r") || !utf8.ValidString(got) {
			t.Errorf("envoyText(%q) = %q", s, got)
		}
	})
}
