package safehttp

import (
	"strings"
	"testing"
)

func TestRedactRaw(t *testing.T) {
	for raw, want := range map[string]string{
		"":                                      "",
		"host/repository:tag":                   "host/repository:tag",
		"host/repository@sha256:short":          "host/repository@sha256:short",
		"oci://Host/UPPER":                      "oci://Host/UPPER",
		"https://host/%zz":                      "https://host/%zz",
		"user:word@host:5000/x:v1":              "…@host:5000/x:v1",
		"oci://user:word@host/x":                "oci://host/x",
		"oci://user:wo/rd@host/x":               "oci://…@host/x",
		"oci://user:wo@rd@host/X@sha256:short":  "oci://host/X@sha256:short",
		"https://user:word@host/%zz?token=word": "https://…@host/%zz?…",
		"https://host/x?token=word":             "https://host/x?…",
		"https://host/%zz?sig=word@sha256:word": "https://host/%zz?…",
		"https://host/\x1b[31m?a=word":          "https://host/?[31m?…",
		"word:word@":                            "…@",
	} {
		if got := RedactRaw(raw); got != want || strings.Contains(got, "word") {
			t.Errorf("RedactRaw(%q) = %q, want %q", raw, got, want)
		}
	}
}
