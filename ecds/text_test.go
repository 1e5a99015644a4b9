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

// TestScrub: the registry is in the secret and in what is said of it; it may be seen, and nothing else.
func TestScrub(t *testing.T) {
	secret := `{"auths":{"registry.example.com:5000":{"username":"robot-account","password":"hunter2hunter2","auth":"cm9ib3Q6aHVudGVy"}}}` + "\n"
	b := &blueprint{ref: &Reference{URL: "oci://registry.example.com:5000/team/m:v1", PullSecret: []byte(secret)}}
	in := "read registry.example.com:5000/team/m:v1: 401 for robot-account, hunter2hunter2, cm9ib3Q6aHVudGVy"
	if got, want := b.scrub(in), "read registry.example.com:5000/team/m:v1: 401 for …, …, …"; got != want {
		t.Errorf("scrub(%q) = %q, want %q", in, got, want)
	}
	if got := b.scrub("it is " + secret); strings.Contains(got, "hunter2") || strings.Contains(got, "robot") {
		t.Errorf("the whole secret: %q", got)
	}
	b.ref.URL = "oci://[::1/x"
	if got := b.scrub(in); strings.Contains(got, "hunter2") || strings.Contains(got, "example.com") {
		t.Errorf("without a host: %q", got)
	}
	if got := new(blueprint).scrub(in); got != in {
		t.Errorf("without a secret: %q", got)
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
