package fetch

import (
	"strings"
	"testing"

	"github.com/gateway-agent/gateway-agent/internal/oci"
	"github.com/gateway-agent/gateway-agent/internal/registrytest"
)

// Every image that a real tool made loads from the registry and straight from its layout, and is the same after export and import.
func TestImagesOfRealTools(t *testing.T) {
	r := registrytest.New(t)
	c := New(Config{})
	defer c.Close()
	module := registrytest.FixtureModule(t)
	for name, dir := range registrytest.Fixtures(t) {
		t.Run(name, func(t *testing.T) {
			digest := r.PushLayout(t, "real/"+name, "v1", dir, registrytest.FixtureName(name))
			url := r.Ref("real/" + name + ":v1")
			got, resolved, result, err := pull(t.Context(), t, c, Request{URL: url})
			if name == "oras-component" {
				wantError(t, err, oci.Broken, "WebAssembly component, not a core module: Proxy-Wasm needs a core module (build for wasip1, not wasip2)")
				return
			}
			if err != nil || string(got) != string(module) || result.Digest != hexOf(module) {
				t.Fatalf("pull = %d bytes %+v, %v, want the module %s", len(got), result, err, hexOf(module))
			}
			checkResolved(t, name, resolved, digest)
			checkSame(t, "the layout", open(t, dir), "oci://"+registrytest.FixtureName(name), module, resolved)
			both(t, func(t *testing.T, path string) {
				w := create(t, path)
				if _, _, err := c.Copy(t.Context(), Request{URL: url}, w, nil); err != nil {
					t.Fatal(err)
				}
				if err := w.Commit(); err != nil {
					t.Fatal(err)
				}
				checkSame(t, "the export", open(t, path), url, module, resolved)
			})
		})
	}
}

func checkResolved(t *testing.T, name string, r *Resolved, digest string) {
	t.Helper()
	index := strings.Contains(name, "index") || strings.Contains(name, "platform") || strings.Contains(name, "attestations")
	if index && r.Index != digest || !index && (r.Manifest != digest || r.Index != "") {
		t.Errorf("resolved index %q, manifest %q, want %s as the index: %v", r.Index, r.Manifest, digest, index)
	}
	modules := 0
	for _, l := range r.Layers {
		if l.Module {
			modules++
		}
		if l.MediaType == "" || l.Size <= 0 || !strings.HasPrefix(l.Digest, "sha256:") {
			t.Errorf("layer %+v is not described", l)
		}
	}
	if modules != 1 || r.MediaType == "" && name != "umoci-insert" || r.Source == "" {
		t.Errorf("resolved %+v has %d modules, want one, a media type and a source", r, modules)
	}
}

func checkSame(t *testing.T, what string, l *Layout, url string, module []byte, want *Resolved) {
	t.Helper()
	got, r, _, err := bring(t.Context(), t, l, Request{URL: url})
	if err != nil || string(got) != string(module) {
		t.Errorf("from %s: %d bytes, %v, want the module", what, len(got), err)
		return
	}
	if r.Index != want.Index || r.Manifest != want.Manifest || len(r.Layers) != len(want.Layers) || r.ArtifactType != want.ArtifactType {
		t.Errorf("from %s: %+v, want %+v", what, r, want)
	}
}

func create(t *testing.T, path string) *LayoutWriter {
	t.Helper()
	w, err := CreateLayout(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}
