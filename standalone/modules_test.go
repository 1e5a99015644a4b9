package standalone

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReferences(t *testing.T) {
	got, err := References("testdata/ok/wasm")
	if err != nil {
		t.Fatal(err)
	}
	const sum = "b94d27b9934d3e08a52e52d7da7dabfac484efe37a5380ee9088f7ace2efcde9"
	dir, err := filepath.Abs("testdata/ok/wasm")
	if err != nil {
		t.Fatal(err)
	}
	at := func(line int, resource, url, sha256 string) Reference {
		return Reference{URL: url, SHA256: sha256, File: filepath.Join(dir, "envoy.yaml"), Line: line, Resource: resource}
	}
	plugin := "oci://registry.example.org/plugin@sha256:" + sum
	want := []Reference{
		at(27, "listener one", "oci://registry.example.org/unique:v1", ""),
		at(34, "listener one", plugin, ""),
		at(34, "listener two", plugin, ""),
		at(46, "listener two", "file://"+filepath.Join(dir, "modules/network.wasm"), ""),
		at(61, "listener two", "https://example.org/other.wasm", sum),
		at(67, "listener two", "file:///modules/shared.wasm", ""),
		at(85, "extension config shared", "file:///modules/shared.wasm", ""),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("References (-want +got):\n%s", diff)
	}
}

// What is found comes with the problems; problems that hide no module, like a missing cluster, do not matter.
func TestReferencesOfABrokenDirectory(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const plugin = `resources:
- "@type": type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig
  name: NAME
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm
    config: { vm_config: { code: { remote: { http_uri: { uri: "URL" } } } } }
`
	fill := func(name, url string) string { return strings.NewReplacer("NAME", name, "URL", url).Replace(plugin) }
	write("a.yaml", fill("a", "oci://r.example.org/a:1"))
	got, err := References(dir)
	if err != nil || len(got) != 1 {
		t.Fatalf("References = %v, %v, want one: an extension config needs no listener", got, err)
	}
	write("b.yaml", "resources: [")
	write("c.yaml", fill("c", "ftp://r.example.org/c"))
	got, err = References(dir)
	if len(got) != 2 || err == nil || !strings.Contains(err.Error(), "b.yaml:2") || !strings.Contains(err.Error(), "c.yaml:6") {
		t.Errorf("References = %v, %v, want two, and the problems of b.yaml and c.yaml", got, err)
	}
	if got, err := References(filepath.Join(dir, "nowhere")); err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("References of no directory = %v, %v", got, err)
	}
}
