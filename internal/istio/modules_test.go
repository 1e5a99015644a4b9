package istio

import (
	"slices"
	"strings"
	"testing"
)

// TestInsecureRegistries: what names no registry is told of, and keeps no gateway from starting.
func TestInsecureRegistries(t *testing.T) {
	value := "a.example, b.example:5000,,[::1]:5000,*,http://c.example:5000,d.example/team,e f"
	s, notes, err := try(t, func(p *pod) { p.env["WASM_INSECURE_REGISTRIES"] = value })
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"a.example", "b.example:5000", "[::1]:5000", "*"}; !slices.Equal(s.InsecureRegistries, want) {
		t.Errorf("registries %q, want %q", s.InsecureRegistries, want)
	}
	for _, bad := range []string{"http://c.example:5000", "d.example/team", "e f"} {
		if !slices.ContainsFunc(notes, func(n string) bool {
			return strings.HasPrefix(n, "WASM_INSECURE_REGISTRIES: ") && strings.Contains(n, bad)
		}) {
			t.Errorf("no note on %q in %q", bad, notes)
		}
	}
}
