package registrytest

import (
	"io"
	"net/http"
	"testing"
	"time"
)

func get(t *testing.T, url string) (int, []byte, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "application/vnd.oci.image.manifest.v1+json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, body, err
}

func TestRegistryKeepsAddressAndDataOverRestart(t *testing.T) {
	r := New(t)
	digest := r.Push(t, "hello", "v1", WasmToOCI([]byte("module")))
	addr := r.Addr
	r.Stop()
	if _, _, err := get(t, "http://"+addr+"/v2/"); err == nil {
		t.Fatal("the registry answers after Stop")
	}
	r.Start(t)
	status, body, err := get(t, "http://"+addr+"/v2/hello/manifests/"+digest)
	if err != nil || status != http.StatusOK || Digest(body) != digest {
		t.Fatalf("after Start: %d, %d bytes, %v, want the manifest %s at %s", status, len(body), err, digest, addr)
	}
}

func TestProxyFaults(t *testing.T) {
	r := New(t)
	module := make([]byte, 100_000)
	r.Push(t, "hello", "v1", WasmToOCI(module))
	p := NewProxy(t, r.Addr)
	url := "http://" + p.Addr + "/v2/hello/blobs/" + Digest(module)

	p.Fail("/blobs/", Fault{Status: 503, Times: 1})
	if status, _, err := get(t, url); status != 503 || err != nil {
		t.Errorf("with Status: %d, %v, want 503", status, err)
	}
	if status, body, err := get(t, url); status != 200 || len(body) != len(module) || err != nil {
		t.Errorf("after Times: %d, %d bytes, %v, want the module", status, len(body), err)
	}
	p.Fail("/blobs/", Fault{Cut: 50_000})
	if _, body, err := get(t, url); err == nil || len(body) != 50_000 {
		t.Errorf("with Cut: %d bytes, %v, want 50000 and an error", len(body), err)
	}
	p.Fail("/blobs/", Fault{Flip: 70_000})
	if _, body, err := get(t, url); err != nil || len(body) != len(module) || body[70_000] != 1 {
		t.Errorf("with Flip: %d bytes, %v, want one bit changed", len(body), err)
	}
	p.Fail("/blobs/", Fault{Delay: 50 * time.Millisecond, Body: []byte("other")})
	if _, body, err := get(t, url); string(body) != "other" || err != nil {
		t.Errorf("with Body: %q, %v, want other", body, err)
	}
	p.Repair()
	p.Forget()
	if _, body, err := get(t, url); len(body) != len(module) || err != nil {
		t.Errorf("repaired: %d bytes, %v, want the module", len(body), err)
	}
	if got := len(p.Requests("/blobs/")); got != 1 {
		t.Errorf("Requests = %d, want 1", got)
	}
}
