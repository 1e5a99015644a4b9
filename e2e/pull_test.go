package e2e

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// pull runs `wasm pull` into the agent's data directory.
func (a *agent) pull(args ...string) (stdout, stderr string, code int) {
	a.t.Helper()
	cmd := exec.CommandContext(a.t.Context(), agentBinary, append([]string{"wasm", "pull", "--data-dir", filepath.Join(a.dir, "data")}, args...)...)
	cmd.Env = append(os.Environ(), a.env...)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code = exit.ExitCode()
	} else if err != nil {
		a.t.Fatal(err)
	}
	return out.String(), errs.String(), code
}

func TestPullThenRunWithoutTheRegistry(t *testing.T) {
	t.Parallel()
	reg := startRegistry(t)
	reg.push("hello:v1", helloModule(t, "v1"))
	reg.push("hello:v2", helloModule(t, "v2"))
	a := newAgent(t)

	out, errs, code := a.pull(reg.uri("hello:v1"), reg.uri("missing:v1"))
	if code != 1 || !strings.Contains(out, wasmDigest(t, helloModule(t, "v1"))) || !strings.Contains(errs, "missing:v1") || !strings.Contains(errs, "404") {
		t.Errorf("one of two missing: exit code %d, stdout %q, stderr %q", code, out, errs)
	}
	out, errs, code = a.pull("-o", "json", reg.uri("hello:v1"), reg.uri("hello:v2"), reg.uri("missing:v1"))
	var document struct {
		Modules []struct{ Ref, Digest, Error string }
	}
	if err := json.Unmarshal([]byte(out), &document); err != nil || code != 1 || len(document.Modules) != 3 {
		t.Fatalf("-o json: exit code %d, %v, stdout %q, stderr %q", code, err, out, errs)
	}
	if m := document.Modules[1]; m.Ref != reg.uri("hello:v2") || m.Digest != "sha256:"+wasmDigest(t, helloModule(t, "v2")) || document.Modules[2].Error == "" {
		t.Errorf("-o json says %+v", document.Modules)
	}
	if out, errs, code = a.pull(reg.uri("hello:v2")); code != 0 {
		t.Errorf("all there: exit code %d, stdout %q, stderr %q", code, out, errs)
	}

	reg.stop()
	address := freeAddress(t)
	p := plugin{name: "hello", uri: reg.uri("hello:v2"), value: "prefetched"}
	a.startConfig(map[string]string{"all.yaml": resources(listener("main", address, p.inline()), cluster("origin", startOrigin(t)))})
	if err := wantHeader("http://"+address+"/", "x-hello", "prefetched"); err != nil {
		t.Error(err)
	}
}
