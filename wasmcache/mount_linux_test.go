package wasmcache

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gateway-agent/gateway-agent/internal/registrytest"
)

// mountMark is the argument that tells a test that it runs in a mount namespace of its own.
const mountMark = "in-mount-namespace"

// inMountNamespace runs the test once more, in a process that may mount, and reports whether it is that process.
func inMountNamespace(t *testing.T) bool {
	t.Helper()
	if len(os.Args) > 1 && os.Args[len(os.Args)-1] == mountMark {
		return true
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.v", "-test.run=^"+t.Name()+"$", mountMark)
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EINVAL) {
		t.Fatalf("this test mounts file systems in a namespace of its own: run it as root, or allow user namespaces: %v", err)
	}
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

func mount(t *testing.T, source, target, kind string, flags uintptr, data string) {
	t.Helper()
	if err := syscall.Mount(source, target, kind, flags, data); err != nil {
		t.Fatalf("mount %s on %s: %v (run this test as root, or allow user namespaces)", kind, target, err)
	}
}

// privateTmpfs is a file system that nobody else sees.
func privateTmpfs(t *testing.T, data string) string {
	t.Helper()
	mount(t, "", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, "")
	dir := t.TempDir()
	mount(t, "tmpfs", dir, "tmpfs", 0, data)
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("filling the disk = %v, want ENOSPC", err)
	}
}

func TestFullDisk(t *testing.T) {
	if !inMountNamespace(t) {
		return
	}
	dir := privateTmpfs(t, "size=512k")
	r := registrytest.New(t)
	small, large := core("small", 20_000), core("large", 600_000)
	r.Push(t, "small", "v1", registrytest.Compat(t, small))
	r.Push(t, "small", "v2", registrytest.WasmToOCI(core("small two", 20_000)))
	r.Push(t, "large", "v1", registrytest.WasmToOCI(large))
	s := open(t, dir, func(c *Config) { c.Pins = func() []string { return nil } })
	get := func(ref string) (Module, error) { return s.Get(t.Context(), Request{URL: r.Ref(ref), Host: envoy}) }
	m, err := get("small:v1")
	wantModule(t, m, err, small)
	_, err = get("large:v1")
	wantError(t, err, false, "no space left on device (free space there; what is stored is still served)", dir)
	if left := s.names(tmpDir); len(left) != 0 {
		t.Errorf("%v is left in tmp: it takes the space that is missing", left)
	}
	fill(t, filepath.Join(dir, "filler"))
	_, err = get("small:v2")
	wantError(t, err, false, "no space left on device (free space there")
	m, err = get("small:v1")
	wantModule(t, m, err, small)
	other := open(t, dir) // also in a new process, which has to check it
	m, err = other.Get(t.Context(), Request{URL: r.Ref("small:v1"), Host: mustHost("1.37.0")})
	wantModule(t, m, err, small)
	s.letGo(m.Digest, s.held[m.Digest], 0)
	if removed, err := s.Prune(PruneOptions{All: true}); err != nil || len(removed) != 1 {
		t.Errorf("Prune on the full disk = %+v, %v, want one module removed", removed, err)
	}
	if err := os.Remove(filepath.Join(dir, "filler")); err != nil {
		t.Fatal(err)
	}
	m, err = get("small:v2")
	wantModule(t, m, err, core("small two", 20_000))
}

func TestReadOnlyMount(t *testing.T) {
	if !inMountNamespace(t) {
		return
	}
	dir := privateTmpfs(t, "size=4m")
	r := registrytest.New(t)
	module := core("frozen", 20_000)
	r.Push(t, "frozen", "v1", registrytest.Compat(t, module))
	r.Push(t, "frozen", "v2", registrytest.Compat(t, core("other", 10)))
	s := open(t, dir)
	m, err := s.Get(t.Context(), Request{URL: r.Ref("frozen:v1"), Host: envoy})
	wantModule(t, m, err, module)
	if m, err = s.Get(t.Context(), Request{URL: r.Ref("frozen:v1"), Preload: true}); err != nil {
		t.Fatal(err)
	}
	// The same directory, read-only, as a node's cache is in a pod.
	view := t.TempDir()
	mount(t, dir, view, "", syscall.MS_BIND, "")
	mount(t, "", view, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, "")
	t.Cleanup(func() { _ = syscall.Unmount(view, syscall.MNT_DETACH) })
	var log bytes.Buffer
	frozen := open(t, view, func(c *Config) {
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
		c.Pins = func() []string { return []string{m.Digest} }
	})
	for i := range 3 {
		got, err := frozen.Get(t.Context(), Request{URL: r.Ref("frozen:v1"), Host: mustHost(fmt.Sprint("1.3", 6+i, ".0"))}) // a verdict that is not there yet
		wantModule(t, got, err, module)
		_, err = frozen.Get(t.Context(), Request{URL: r.Ref("frozen:v2")})
		wantError(t, err, false, "read-only file system (make it writable for the agent's user; what is stored is still served)", view)
		frozen.checkWritable()
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 || !strings.Contains(log.String(), "module store cannot be written: it serves what it holds") {
		t.Errorf("%d warnings, want one that says so:\n%s", n, &log)
	}
	got, err := frozen.Get(t.Context(), Request{URL: r.Ref("frozen:v1"), Preload: true, Always: true})
	wantModule(t, got, err, module) // nothing has changed
	if frozen.Status().Writable {
		t.Error("Status().Writable = true")
	}
	if _, err := frozen.Prune(PruneOptions{}); err == nil || !strings.Contains(err.Error(), "make it writable") {
		t.Errorf("Prune = %v, want the remedy", err)
	}
	frozen.publish(t.Context())
	if removed, err := s.Prune(PruneOptions{All: true}); err != nil || len(removed) != 0 {
		t.Errorf("Prune = %+v, %v, want what the reader uses left", removed, err)
	}
	frozen.Close()
	if removed, err := s.Prune(PruneOptions{All: true}); err != nil || len(removed) != 1 {
		t.Errorf("Prune = %+v, %v, want the module removed when nobody uses it", removed, err)
	}
}
