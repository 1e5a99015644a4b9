package wasmtest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// Root returns the root of the repository, which a test's working directory is in.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatalf("wasmtest: %v", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("wasmtest: no go.mod above the working directory")
		}
		dir = filepath.Dir(dir)
	}
}

// Plugin builds testdata/plugins/<name> for Envoy and returns the path of the module. Each of vars is set as with -ldflags -X, like
// "main.version=v2". Builds are kept in the temporary directory by a hash of their sources, for all packages and processes. Do not change the file.
func Plugin(t testing.TB, name string, vars ...string) string {
	t.Helper()
	root := Root(t)
	dir := filepath.Join(root, "testdata", "plugins", name)
	key, err := sourceKey(dir, vars)
	if err != nil {
		t.Fatalf("wasmtest: plugin %s: %v", name, err)
	}
	cache, err := cacheDir()
	if err != nil {
		t.Fatalf("wasmtest: %v", err)
	}
	out := filepath.Join(cache, name+"-"+key+".wasm")
	if err := buildOnce(t, root, "./testdata/plugins/"+name, out, vars); err != nil {
		t.Fatalf("wasmtest: plugin %s: %v", name, err)
	}
	return out
}

// PluginBytes builds like Plugin and returns the module.
func PluginBytes(t testing.TB, name string, vars ...string) []byte {
	t.Helper()
	b, err := os.ReadFile(Plugin(t, name, vars...))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// cacheDir is this user's directory for builds; nobody else may write to it.
func cacheDir() (string, error) {
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("gateway-agent-plugins-%d", os.Getuid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || info.Mode().Perm() != 0o700 || !ok || int(owner.Uid) != os.Getuid() {
		return "", fmt.Errorf("%s is not a directory of mode 0700 of this user", dir)
	}
	return dir, nil
}

// sourceKey hashes everything that a build depends on.
func sourceKey(dir string, vars []string) (string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) == 0 {
		return "", fmt.Errorf("no sources in %s", dir)
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%q\n", runtime.Version(), vars)
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n", filepath.Base(file), len(b))
		h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// buildOnce builds unless out exists, under a lock that other processes respect.
func buildOnce(t testing.TB, root, pkg, out string, vars []string) error {
	lock, err := os.OpenFile(out+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	if _, err := os.Stat(out); err == nil {
		return nil
	}
	var flags strings.Builder
	flags.WriteString("-s -w")
	for _, v := range vars {
		flags.WriteString(" -X " + v)
	}
	temp := out + ".new"
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildmode=c-shared", "-ldflags="+flags.String(), "-o", temp, pkg)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0", "GOFLAGS=", "GOWASM=")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, strings.TrimSpace(string(text)))
	}
	return os.Rename(temp, out)
}
