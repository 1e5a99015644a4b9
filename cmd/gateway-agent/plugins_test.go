package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/gateway-agent/gateway-agent/policywasm"
)

// The built-in filters are there for Envoy on a disk that is full or read-only, too, once they were written; a damaged one is replaced.
func TestPolicyModuleIsWrittenOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "policy")
	path, err := policyModule(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := policyModule(dir, false); err != nil || again != path {
		t.Errorf("policyModule = %s, %v, want %s again", again, err, path)
	}
	if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
		t.Errorf("the file was written again (%v)", err)
	}
	if allow, err := policyModule(dir, true); err != nil || allow == path {
		t.Errorf("policyModule(allow) = %s, %v", allow, err)
	}
	if err := os.WriteFile(path, []byte("damaged"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := policyModule(dir, false); err != nil {
		t.Error(err)
	}
	if code, err := os.ReadFile(path); err != nil || !bytes.Equal(code, policywasm.Deny()) {
		t.Errorf("the damaged file has %d bytes (%v)", len(code), err)
	}
}
