package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gateway-agent/gateway-agent/internal/wasmtest"
)

// TestLockfileDecidesWhatATagMeans: the tag has moved, the lockfile has not; then an edit of the lockfile alone brings the new module.
func TestLockfileDecidesWhatATagMeans(t *testing.T) {
	t.Parallel()
	reg, a, elsewhere := startRegistry(t), newAgent(t), newAgent(t)
	lock := filepath.Join(t.TempDir(), "modules.lock")
	update := func() {
		t.Helper()
		if out, errs, code := elsewhere.pull("--lockfile", lock, reg.uri("hello:tag")); code != 0 {
			t.Fatalf("wasm pull --lockfile: exit code %d, stdout %q, stderr %q", code, out, errs)
		}
	}
	reg.pushBytes("hello:tag", wasmtest.SmallHello("v1"))
	update()
	reg.pushBytes("hello:tag", wasmtest.SmallHello("v2"))
	reg.proxy.Forget()

	address := freeAddress(t)
	p := plugin{name: "hello", uri: reg.uri("hello:tag"), value: "locked"}
	a.startConfig(map[string]string{
		"all.yaml": resources(listener("main", address, p.inline()), cluster("origin", startOrigin(t))),
	}, "--lockfile", lock)
	if err := wantHeader("http://"+address+"/", "x-hello-version", "v1"); err != nil {
		t.Error(err)
	}
	if asked := reg.proxy.Requests("/manifests/tag"); len(asked) > 0 {
		t.Errorf("the registry was asked about the tag: %v", asked)
	}
	update()
	a.eventually(compiled, "the edit of the lockfile is live", func() error { return wantHeader("http://"+address+"/", "x-hello-version", "v2") })

	// What it lacks is refused, with the remedy.
	if err := os.WriteFile(lock, []byte("version: 1\nmodules: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a.eventually(compiled, "status says what is missing", func() error {
		if got := a.plugins()["hello"]; got.State != "degraded" || !strings.Contains(got.Reason, "is not in lockfile") {
			return fmt.Errorf("plugin = %+v", got)
		}
		return nil
	})
	if err := wantHeader("http://"+address+"/", "x-hello-version", "v2"); err != nil {
		t.Errorf("the module that ran before: %v", err)
	}
}
