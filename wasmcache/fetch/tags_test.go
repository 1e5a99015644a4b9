package fetch

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/gateway-agent/gateway-agent/internal/oci"
	"github.com/gateway-agent/gateway-agent/internal/registrytest"
)

func TestHeadSeesAMovedTag(t *testing.T) {
	r := registrytest.New(t)
	p := registrytest.NewProxy(t, r.Addr)
	c := New(Config{})
	defer c.Close()
	first, second := core("first", 3000), core("second", 3000)
	old := r.Push(t, "app", "v1", registrytest.Compat(t, first))
	got, err := c.Head(t.Context(), Request{URL: p.Ref("app:v1")})
	if err != nil || got != old {
		t.Errorf("Head = %s, %v, want %s", got, err, old)
	}
	moved := r.PushIndex(t, "app", "v1", registrytest.Entry{Image: registrytest.Compat(t, second)})
	p.Forget()
	if got, err = c.Head(t.Context(), Request{URL: p.Ref("app:v1")}); err != nil || got != moved {
		t.Errorf("Head = %s, %v, want the index %s", got, err, moved)
	}
	for _, req := range p.Requests("/manifests/") {
		if req.Method != "HEAD" {
			t.Errorf("Head asked with %s %s", req.Method, req.Path)
		}
	}
	p.Forget()
	if got, err = c.Head(t.Context(), Request{URL: p.Ref("app@" + old)}); err != nil || got != old || len(p.Requests("")) != 0 {
		t.Errorf("Head of a digest = %s, %v after %d requests, want %s after none", got, err, len(p.Requests("")), old)
	}
	_, err = c.Head(t.Context(), Request{URL: p.Ref("app:none")})
	wantError(t, err, oci.NotFound, "look up "+p.Ref("app:none"))
	_, err = c.Head(t.Context(), Request{URL: "https://plugins.test/a.wasm"})
	wantError(t, err, oci.Broken, "only images have a digest")

	// What a lockfile says a tag meant is still to be had.
	body, resolved, _, err := pull(t.Context(), t, c, Request{URL: p.Ref("app:v1"), Digest: old})
	if err != nil || string(body) != string(first) || resolved.Manifest != old || resolved.Source != p.Addr {
		t.Errorf("pull with Digest = %d bytes, %+v, %v, want the first from %s", len(body), resolved, err, p.Addr)
	}
	path := filepath.Join(t.TempDir(), "l")
	w := create(t, path)
	copied, _, err := c.Copy(t.Context(), Request{URL: p.Ref("app:v1"), Digest: old}, w, nil)
	if err != nil || copied.Manifest != old || copied.Source != p.Addr {
		t.Fatalf("Copy with Digest = %+v, %v, want %s from %s", copied, err, old, p.Addr)
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	l := open(t, path)
	if got, err := l.Head(t.Context(), Request{URL: p.Ref("app:v1")}); err != nil || got != old {
		t.Errorf("Head of the layout = %s, %v, want %s", got, err, old)
	}
	_, _, _, err = bring(t.Context(), t, l, Request{URL: p.Ref("app:v1"), Digest: moved})
	wantError(t, err, oci.Broken, "it is "+old+" there, not "+moved)
	_, _, _, err = pull(t.Context(), t, c, Request{URL: p.Ref("app:v1"), Digest: "v2"})
	wantError(t, err, oci.Broken, "v2 is not a digest")
}

// Layouts of tools that write a tag only, or list the parts of an index beside it.
func TestLayoutsWithoutFullNames(t *testing.T) {
	module := core("unnamed", 1000)
	f := files{}
	root := f.image(module)
	root.Annotations = map[string]string{refNameKey: "v1"}
	dir := t.TempDir()
	f.index(root).write(t, dir)
	l := open(t, dir)
	if got := l.References(); len(got) != 0 {
		t.Errorf("References = %q, want none", got)
	}
	if got := l.Unnamed(); !slices.Equal(got, []string{root.Digest.String()}) {
		t.Fatalf("Unnamed = %q, want %s", got, root.Digest)
	}
	_, _, _, err := bring(t.Context(), t, l, Request{URL: hostileURL})
	wantError(t, err, oci.NotFound, "only images without a full reference")
	if err := l.Name(root.Digest.String(), hostileURL); err != nil {
		t.Fatal(err)
	}
	got, r, _, err := bring(t.Context(), t, l, Request{URL: hostileURL})
	if err != nil || string(got) != string(module) || r.Manifest != root.Digest.String() {
		t.Errorf("after Name: %d bytes, %+v, %v, want the module", len(got), r, err)
	}
	if got := l.References(); !slices.Equal(got, []string{hostileURL}) || len(l.Unnamed()) != 0 {
		t.Errorf("after Name: References = %q, Unnamed = %q", got, l.Unnamed())
	}
	wantError(t, l.Name("sha256:00", hostileURL), oci.Broken, "it has none with the digest sha256:00")
	for name, dir := range registrytest.Fixtures(t) {
		l := open(t, dir)
		if got := l.References(); !slices.Equal(got, []string{"oci://" + registrytest.FixtureName(name)}) || len(l.Unnamed()) != 0 {
			t.Errorf("%s: References = %q, Unnamed = %q, want its name and nothing", name, got, l.Unnamed())
		}
	}
}
