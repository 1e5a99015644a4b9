package oci

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gateway-agent/gateway-agent/internal/oci/registries"
	"github.com/gateway-agent/gateway-agent/internal/registrytest"
	"github.com/gateway-agent/gateway-agent/internal/testca"
)

// R19, from the operator's files on: the registry cannot be resolved, the mirror with a CA of its own that they name serves.
func TestOperatorsFiles(t *testing.T) {
	r := registrytest.New(t)
	module := []byte("module")
	digest := r.Push(t, "team/app", "v1", registrytest.WasmToOCI(module))
	ca := testca.New(t, "site")
	front := registrytest.NewProxy(t, r.Addr)
	mirror := serveTLS(t, ca, front, nil, "127.0.0.1")
	dir := t.TempDir()
	write := func(name, body string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	caFile := write("ca.pem", string(ca.PEM))
	write("certs.d/registry.invalid/hosts.toml", "server = \"https://registry.invalid\"\n[host.\"https://"+mirror+"\"]\n  capabilities = [\"pull\", \"resolve\"]\n  ca = \""+caFile+"\"\n")
	conf := write("registries.conf", "[[registry]]\nprefix = \"registry.invalid\"\nlocation = \"registry.invalid\"\n[[registry.mirror]]\nlocation = \""+r.Addr+"\"\ninsecure = true\n")
	for _, path := range []string{filepath.Join(dir, "certs.d"), conf} {
		regs, err := registries.Load(registries.Config{Paths: []string{path}})
		if err != nil {
			t.Fatalf("Load(%s) = %v", path, err)
		}
		c, repo := New(Config{Registries: regs}), repository(t, "registry.invalid/team/app")
		if m, err := read(t, c, repo, nil); err != nil || m.Digest.String() != digest {
			t.Errorf("%s: Manifest = %s, %v, want %s", filepath.Base(path), m.Digest, err, digest)
		}
		if body, err := readBlob(t, c, repo, module); err != nil || body != string(module) {
			t.Errorf("%s: Blob = %q, %v", filepath.Base(path), body, err)
		}
	}
	if len(front.Requests("/blobs/")) != 1 {
		t.Errorf("the mirror saw %+v, want one request for the blob", front.Requests(""))
	}
}
