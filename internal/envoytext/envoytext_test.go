package envoytext

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestPublic(t *testing.T) {
	const failed = "Proto constraint validation failed (ClusterValidationError.ConnectTimeout: value must be greater than 0s)"
	for _, c := range []struct{ name, in, want string }{
		{"plain", "Unable to create Wasm plugin p", "Unable to create Wasm plugin p"},
		{"dump first", "goo.gle/debugonly    \nname: \"origin\"\ntoken: \"hunter2\"\nx {\n}\n: " + failed, failed},
		{
			"dump inside", "Error adding/updating listener(s) main: goo.gle/debugstr  \nkey: hunter2\n: " + failed + "\nl2: Address already in use\n",
			"Error adding/updating listener(s) main: " + failed + "; l2: Address already in use",
		},
		{"two dumps", "a: goo.gle/debugonly \nx: hunter2\n: one\nb: goo.gle/debugonly \nx: hunter2\n: two", "a: one; b: two"},
		{"dump cut off", "main: goo.gle/debugonly \nx: 1\nkey: \"hunter2", "main:"},
		{"nothing left", "goo.gle/debugonly \nx: 1\nkey: \"hunter2", nothing},
		{"empty", " \n\t", nothing},
		{"no mark", `config { key: "hunter2\"x" value: "hunter2" } bad: "hunter2 cut off`, `config { key: "…" value: "…" } bad: "…"`},
		{"PEM", "bad key -----BEGIN PRIVATE KEY-----\nhunter2", "bad key"},
		{"control characters", "a\x1b[31mb\x00c\xff", "a [31mb c\uFFFD"},
	} {
		if got := Public(c.in, 1000); got != c.want {
			t.Errorf("%s: Public(%q) = %q, want %q", c.name, c.in, got, c.want)
		}
	}
	if got := Public("éééééé", 7); got != "éé…" {
		t.Errorf("cut to 7 bytes: %q", got)
	}
}

func FuzzPublic(f *testing.F) {
	f.Add("goo.gle/debugonly \nkey: \"s\"\n: why", 5)
	f.Add("é\n\x00", 2)
	f.Fuzz(func(t *testing.T, in string, max int) {
		max &= 0xffff
		got := Public(in, max)
		if len(got) > max || strings.ContainsAny(got, "\n\r\x00") || !utf8.ValidString(got) || strings.Contains(got, "goo.gle/debug") {
			t.Errorf("Public(%q, %d) = %q", in, max, got)
		}
	})
}
