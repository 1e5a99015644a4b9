package bootstrap

import "testing"

// FuzzOverlay: whatever an overlay says, there is a bootstrap that can be written, or an error.
func FuzzOverlay(f *testing.F) {
	f.Add([]byte(overlay))
	f.Add([]byte(`{"bootstrap_extensions":[{"name":"x","typed_config":{"@type":"type.googleapis.com/istio.Unknown","a":[{"@type":"b/c"}]}}]}`))
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c := minimal()
		c.Overlays = []Overlay{{Name: "o", Data: data}}
		b, err := New(c)
		if err != nil {
			return
		}
		if _, err := Marshal(b); err != nil {
			t.Errorf("a bootstrap that New made cannot be written: %v", err)
		}
	})
}
