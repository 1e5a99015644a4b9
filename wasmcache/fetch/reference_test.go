package fetch

import (
	"strings"
	"testing"
)

// What is wrong with a reference is told without the secrets in it: errors end in logs and in what the control plane gets to see.
func TestBadReferencesAreToldWithoutSecrets(t *testing.T) {
	for _, raw := range []string{
		"oci://user:hunter2@registry.test/x:v1", "oci://user:hunter2@registry.test/x@sha256:short", "oci://registry.test/x:v1?token=hunter2",
		"https://user:hunter2@registry.test/%zz?token=hunter2", "https://user:hunter2@/x", "ftp://user:hunter2@registry.test/x", "user:hunter2@registry.test/x",
	} {
		_, err := Parse(raw)
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("Parse(%q) = %v, want an error without the password", raw, err)
		}
		if got := Shown(raw); strings.Contains(got, "hunter2") || got == "" {
			t.Errorf("Shown(%q) = %q", raw, got)
		}
	}
	for raw, want := range map[string]string{
		"oci://registry.test/x":                              "oci://registry.test/x",
		"https://user:hunter2@registry.test/x?token=hunter2": "https://registry.test/x?…",
	} {
		if got := Shown(raw); got != want {
			t.Errorf("Shown(%q) = %q, want %q", raw, got, want)
		}
	}
}
