package e2e

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// enterPod makes the container's world: everything is read-only, the injector's empty directories are small file systems in memory, the
// user is 1337 and has no capabilities, and the system's soft limit of open files is low.
const enterPod = `set -e
dir=$1; shift
mount --make-rprivate /
for d in etc/istio/proxy var/lib/istio/data var/run/secrets/workload-spiffe-uds; do
  mount -t tmpfs -o size=4m,uid=1337,gid=1337,mode=0770 tmpfs "$dir/$d"
done
mount -o remount,bind,ro /
if touch "$dir/file" 2>/dev/null; then echo "the root is not read-only" >&2; exit 90; fi
cd "$dir"
ulimit -Sn 256
exec setpriv --reuid 1337 --regid 1337 --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all "$@"
`

// TestProxyInPod runs the gateway as its container would.
func TestProxyInPod(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Fatal("this test mounts file systems in a namespace of its own: run it as root, as CI does")
	}
	p := newPod(t)
	if err := os.Chmod(p.agent.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(p.agent.dir, "enter")
	writeFile(t, script, []byte(enterPod))
	p.agent.launch([]string{"unshare", "--mount", "sh", script, p.agent.dir, p.programs(), "proxy", "router", "--domain", "ingress.svc.cluster.local"})
	p.agent.waitReady()
	p.wantServed()
	pid := envoyOf(t, p.agent.cmd.Process.Pid)
	status := readProc(t, pid, "status")
	for _, want := range []string{"Uid:\t1337\t1337\t1337\t1337", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1"} {
		if !strings.Contains(status, want) {
			t.Errorf("Envoy's process lacks %q", want)
		}
	}
	for line := range strings.Lines(readProc(t, pid, "limits")) {
		if f := strings.Fields(line); strings.HasPrefix(line, "Max open files") && f[3] != f[4] {
			t.Errorf("Envoy may have %s open files of %s", f[3], f[4])
		}
	}
	for _, socket := range []string{"etc/istio/proxy/XDS", "var/run/secrets/workload-spiffe-uds/socket"} {
		path := fmt.Sprintf("/proc/%d/root%s", pid, p.path(socket))
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v; want mode 0600", socket, info, err)
		}
	}
	response, err := http.Post("http://"+p.agent.status+"/quitquitquit", "", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if code := p.agent.wait(20 * time.Second); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

// programs copies the two programs to where user 1337 may run them, and returns the agent's path.
func (p *pod) programs() string {
	p.t.Helper()
	bin := p.path("bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		p.t.Fatal(err)
	}
	for _, program := range []string{agentBinary, envoyBinary} {
		if out, err := exec.Command("cp", "-L", program, bin).CombinedOutput(); err != nil {
			p.t.Fatalf("cp %s: %v\n%s", program, err, out)
		}
	}
	p.proxyConfig["binaryPath"] = filepath.Join(bin, "envoy")
	p.agent.env = p.environ()
	return filepath.Join(bin, "gateway-agent")
}

// envoyOf is the child of a process.
func envoyOf(t *testing.T, parent int) int {
	t.Helper()
	out, err := exec.Command("pgrep", "-P", fmt.Sprint(parent), "envoy").Output()
	var pid int
	if _, scanErr := fmt.Sscan(string(out), &pid); err != nil || scanErr != nil {
		t.Fatalf("no Envoy below process %d: %v", parent, err)
	}
	return pid
}

func readProc(t *testing.T, pid int, name string) string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
