package fetch

import (
	"path/filepath"
	"testing"

	"github.com/gateway-agent/gateway-agent/internal/oci"
	"github.com/gateway-agent/gateway-agent/internal/oci/registries"
	"github.com/gateway-agent/gateway-agent/internal/registrytest"
)

// mirrored has every repository at two mirrors, then at the registry.
type mirrored []string

func (m mirrored) Endpoints(_, repository string, _ bool) ([]registries.Endpoint, error) {
	var all []registries.Endpoint
	for i, host := range m {
		all = append(all, registries.Endpoint{Host: host, Repository: repository, Plain: true, Key: host, Mirror: i < len(m)-1})
	}
	return all, nil
}

// A mirror whose blob is not the manifest's is found out when its bytes are all there. The module comes from the next place all the same, and
// nothing of the wrong bytes stays: they may be more, less, or a bomb.
func TestWrongBlobsAtMirrors(t *testing.T) {
	r := registrytest.New(t)
	module := core("mirrored", 3000)
	layer := registrytest.Gzip(t, registrytest.Tar(t, registrytest.File{Name: "plugin.wasm", Body: module}))
	image := registrytest.Compat(t, module)
	image.Layers[0].Body = layer
	digest := r.Push(t, "app", "v1", image)
	flipped := registrytest.Fault{Flip: int64(len(layer)) - 6} // in the checksum of gzip
	bomb := append(zeros(t, core("bomb", 100), 8<<20), make([]byte, len(layer))...)[:len(layer)]
	for name, fault := range map[string]registrytest.Fault{
		"flipped": flipped, "other module": {Body: append(core("evil", len(layer)-40), make([]byte, 4000)...)[:len(layer)]}, "bomb": {Body: bomb},
	} {
		t.Run(name, func(t *testing.T) {
			first, second, origin := registrytest.NewProxy(t, r.Addr), registrytest.NewProxy(t, r.Addr), registrytest.NewProxy(t, r.Addr)
			fresh := func() *Client {
				for _, p := range []*registrytest.Proxy{first, second, origin} {
					p.Repair()
					p.Forget()
				}
				first.Fail("/blobs/", fault)
				second.Fail("/blobs/", fault)
				return New(Config{MaxSize: 1 << 20, Registries: mirrored{first.Addr, second.Addr, origin.Addr}})
			}
			url := "oci://" + origin.Addr + "/app:v1"
			c := fresh()
			defer c.Close()
			got, _, result, err := pull(t.Context(), t, c, Request{URL: url})
			if err != nil || string(got) != string(module) || result.Digest != registrytest.Digest(module)[len("sha256:"):] {
				t.Errorf("Fetch = %d bytes, %+v, %v, want the module", len(got), result, err)
			}
			for _, p := range []*registrytest.Proxy{first, second, origin} {
				if n := len(p.Requests("/blobs/")); n != 1 {
					t.Errorf("%d requests for the layer, want one at each place", n)
				}
			}
			for _, as := range []string{"dir", "all.tar"} {
				c := fresh()
				path := filepath.Join(t.TempDir(), as)
				w, err := CreateLayout(path)
				if err != nil {
					t.Fatal(err)
				}
				var most int64
				if _, result, err = c.Copy(t.Context(), Request{URL: url}, w, func(done, total int64) { most = max(most, done-total) }); err != nil || most > 0 {
					t.Fatalf("Copy to %s = %v, %d bytes more than there are", as, err, most)
				}
				if err := w.Commit(); err != nil {
					t.Fatal(err)
				}
				layout, err := OpenLayout(path, Config{})
				if err != nil {
					t.Fatal(err)
				}
				if m, err := layout.Resolve(t.Context(), Request{URL: url}); err != nil || m.Manifest != digest {
					t.Errorf("%s: Resolve = %+v, %v", as, m, err)
				}
				_ = layout.Close()
				_ = w.Close()
			}
			// Wherever the module is wrong, the registry is to blame in the end, and each place was asked once.
			c = fresh()
			origin.Fail("/blobs/", fault)
			_, _, _, err = pull(t.Context(), t, c, Request{URL: url})
			wantError(t, err, oci.Broken, "pull "+url)
			if n := len(first.Requests("/blobs/")) + len(second.Requests("/blobs/")) + len(origin.Requests("/blobs/")); n != 3 {
				t.Errorf("%d requests for the layer, want one at each place", n)
			}
		})
	}
}
