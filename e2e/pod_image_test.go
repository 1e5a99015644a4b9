package e2e

import (
	"archive/tar"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/gateway-agent/gateway-agent/internal/testbuffer"
)

// unpack makes a container's root of the image, as container runtimes do.
func (b *builtImage) unpack(t *testing.T, root, hosts string) (seal func()) {
	t.Helper()
	makeDirs(t, root)
	mountAt(t, "image", root, "tmpfs", 0, "mode=0755")
	content := mutate.Extract(b)
	defer content.Close()
	eachEntry(t, content, func(h *tar.Header, r io.Reader) { unpackEntry(t, filepath.Join(root, h.Name), h, r) })
	return furnish(t, root, hosts)
}

// unpackEntry leaves the owner alone where there is only one user.
func unpackEntry(t *testing.T, name string, h *tar.Header, r io.Reader) {
	t.Helper()
	makeDirs(t, filepath.Dir(name))
	switch h.Typeflag {
	case tar.TypeSymlink:
		link(t, h.Linkname, name)
		return
	case tar.TypeDir:
		makeDirs(t, name)
	case tar.TypeReg:
		file, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(file, r); err != nil {
			t.Fatal(err)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
	default:
		t.Fatalf("/%s is of type %q", h.Name, h.Typeflag)
	}
	if isRoot() {
		if err := os.Chown(name, h.Uid, h.Gid); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(name, h.FileInfo().Mode()); err != nil {
		t.Fatal(err)
	}
}

// environment is that of the image, under what a pod says.
func (b *builtImage) environment(pod map[string]string) map[string]string {
	env := map[string]string{}
	for _, pair := range b.config.Config.Env {
		name, value, _ := strings.Cut(pair, "=")
		env[name] = value
	}
	for name, value := range pod {
		if name != "PATH" { // the image's
			env[name] = value
		}
	}
	return env
}

// TestPodImage: the image in a gateway pod, as the kubelet starts it.
func TestPodImage(t *testing.T) {
	if !inSpace(t) {
		return
	}
	b := openImage(t, runtime.GOARCH)
	c := newContainerFrom(t, fourth, b.unpack)
	c.program, c.env = b.config.Config.Entrypoint, b.environment(c.env)
	c.proxy["terminationDrainDuration"] = "1s"
	c.publish()
	c.start()
	c.agent.waitReady()
	c.wantConfined()
	c.agent.eventually(5*time.Second, "the gateway serves", func() error { return wantHeader(podURL, "x-route", "one") })
	if out, stderr, err := c.exec("request", "GET", "server_info"); err != nil || !strings.Contains(out, `"state": "LIVE"`) {
		t.Errorf("request GET server_info: %v, %s%s", err, out, stderr)
	}
	c.wantQuiet()
	c.agent.signal(syscall.SIGTERM)
	if code := c.agent.wait(10 * time.Second); code != 0 {
		t.Errorf("exit code %d after SIGTERM, want 0", code)
	}
}

// TestPodImageAlone: `docker run IMAGE run --config-dir DIR`, which mounts nothing else.
func TestPodImageAlone(t *testing.T) {
	if !inSpace(t) {
		return
	}
	b := openImage(t, runtime.GOARCH)
	space := os.Getenv(spaceVariable)
	a := &agent{t: t, dir: space, status: "127.0.0.1:15020", log: &testbuffer.Buffer{}}
	t.Cleanup(func() {
		a.kill()
		if t.Failed() {
			t.Logf("the container:\n%s", tail(a.log.String(), 100))
		}
	})
	root := filepath.Join(space, "root")
	b.unpack(t, root, fourth.hosts())
	makeDirs(t, filepath.Join(root, "etc/edge"))
	makeFile(t, filepath.Join(root, "etc/edge/edge.yaml"), resources(listener("front", "127.0.0.1:8080"), cluster("origin", startOrigin(t))), 0o644)
	var env []string
	for name, value := range b.environment(map[string]string{"HOME": "/"}) {
		env = append(env, name+"="+value)
	}
	run := func(args ...string) []string { return append(slices.Clone(b.config.Config.Entrypoint), args...) }
	a.begin(containerCommand(t, root, env, run("run", "--config-dir", "/etc/edge")...))
	a.waitReady()
	a.eventually(5*time.Second, "the listener serves", func() error { return wantCode("http://127.0.0.1:8080/", 200) })
	if out, err := containerCommand(t, root, env, run("status")...).CombinedOutput(); err != nil {
		t.Errorf("status: %v, %s", err, out)
	}
	for _, name := range []string{"var/lib/gateway-agent/wasm", "run/gateway-agent/bootstrap.json"} {
		if _, err := os.Stat(filepath.Join(root, name)); err != nil {
			t.Errorf("%v: want the agent to use the directories that the image has for it", err)
		}
	}
	a.signal(syscall.SIGTERM)
	if code := a.wait(15 * time.Second); code != 0 {
		t.Errorf("exit code %d after SIGTERM, want 0", code)
	}
}
