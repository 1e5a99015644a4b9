package sds

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Without inotify everything works by polling, and it is said once how to get it. The test runs itself again in a user
// namespace, whose limit is its own: exhausting the real one would disturb everything else on the machine.
func TestInotifyExhausted(t *testing.T) {
	const inside = "SDS_TEST_WITHOUT_INOTIFY"
	if os.Getenv(inside) == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestInotifyExhausted$", "-test.v")
		cmd.Env = append(os.Environ(), inside+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS: TestInotifyExhausted") {
			t.Fatalf("in a user namespace (this test needs them): %v\n%s", err, out)
		}
		return
	}
	must(t, os.WriteFile("/proc/sys/user/max_inotify_instances", []byte("0"), 0))
	if fd, err := syscall.InotifyInit1(syscall.IN_CLOEXEC); err == nil {
		syscall.Close(fd)
		t.Fatal("inotify still works")
	}
	rotations(t, "..data swap, as Kubernetes does", Config{Poll: 100 * time.Millisecond}, 5*time.Second)
	r := newServerRig(t, Config{})
	time.Sleep(50 * time.Millisecond)
	if got := strings.Count(r.log.String(), "fs.inotify.max_user_instances"); got != 1 {
		t.Errorf("%d warnings that name the setting, want 1:\n%s", got, r.log)
	}
	if got := metric(t, r.Server, "gateway_agent_sds_inotify"); got != 0 {
		t.Errorf("metric says %v, want 0", got)
	}
}
