package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	spaceVariable = "GATEWAY_AGENT_E2E_SPACE" // directory for mounts: the test runs in namespaces of its own
	rootVariable  = "GATEWAY_AGENT_E2E_ROOT"  // root of a container: this process becomes it
	proxyID       = 1337                      // user and group of Istio's proxies
	softFiles     = 1024                      // open files, until a process asks for more
)

// inSpace runs the test once more, in a process with its own mounts, network and processes, and reports whether it is that process. Only so
// can every gateway pod have Istio's fixed ports and paths.
func inSpace(t *testing.T) bool { return inSpaceOf(t, fourth) }

func inSpaceOf(t *testing.T, n network) bool {
	t.Helper()
	t.Parallel()
	if os.Getenv(spaceVariable) != "" {
		enterSpace(t, n)
		return true
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for name := range strings.SplitSeq(t.Name(), "/") {
		names = append(names, "^"+regexp.QuoteMeta(name)+"$")
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.v", "-test.timeout=4m", "-test.run="+strings.Join(names, "/"))
	cmd.Env = append(os.Environ(), spaceVariable+"="+t.TempDir())
	if !isRoot() {
		cmd.Env = append(cmd.Env, "TMPDIR="+t.TempDir()) // others' files look like nobody's there
	}
	cmd.SysProcAttr = namespaces(syscall.CLONE_NEWNET, 0)
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("this test makes a pod out of namespaces: run it as root, or allow user namespaces: %v", err)
	}
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()+" ") {
		t.Errorf("in its namespaces: %v\n%s", err, out)
	}
	return false
}

// namespaces is a process that may mount, which dies with its parent. Without root it is the user id in a user namespace.
func namespaces(more uintptr, id int) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | more, Pdeathsig: syscall.SIGKILL}
	if !isRoot() {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: id, HostID: os.Geteuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: id, HostID: os.Getegid(), Size: 1}}
	}
	return attr
}

// isRoot says whether there are other users here than one.
func isRoot() bool {
	ids, err := os.ReadFile("/proc/self/uid_map")
	return os.Geteuid() == 0 && err == nil && strings.HasSuffix(strings.TrimSpace(string(ids)), "4294967295")
}

const (
	podAddress    = "10.1.2.3"
	istiodAddress = "10.1.2.4"
)

// network is where the pod and istiod are.
type network struct{ pod, istiod string }

var (
	fourth = network{podAddress, istiodAddress}
	sixth  = network{"fd00::3", "fd00::4"}
)

// hosts takes the place of DNS.
func (n network) hosts() string {
	return fmt.Sprintf("127.0.0.1 localhost\n::1 localhost\n%s gw-abc\n%s %s\n", n.pod, n.istiod, istiodName)
}

// enterSpace gives this process its own /proc, and a network of the pod's and istiod's addresses.
func enterSpace(t *testing.T, n network) {
	t.Helper()
	mountAt(t, "", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	mountAt(t, "proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	mountAt(t, "space", os.Getenv(spaceVariable), "tmpfs", 0, "mode=0755")
	if err := loopbackUp(); err != nil {
		t.Fatalf("loopback interface: %v", err)
	}
	for device, address := range map[string]string{"lo:0": n.pod, "lo:1": n.istiod} {
		if err := addAddress(device, netip.MustParseAddr(address)); err != nil {
			t.Fatalf("address %s: %v", address, err)
		}
	}
}

// loopbackUp also brings the addresses that it has in every network.
func loopbackUp() error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, request)
}

// addAddress gives the loopback interface another address, under an alias if it is one of IPv4.
func addAddress(alias string, address netip.Addr) error {
	if address.Is6() {
		return addAddress6(address)
	}
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	request, err := unix.NewIfreq(alias)
	if err != nil {
		return err
	}
	return errors.Join(
		request.SetInet4Addr(address.AsSlice()), unix.IoctlIfreq(socket, unix.SIOCSIFADDR, request),
		request.SetInet4Addr([]byte{255, 255, 255, 255}), unix.IoctlIfreq(socket, unix.SIOCSIFNETMASK, request),
	)
}

func addAddress6(address netip.Addr) error { return addAddress6To("lo", address) }

func addAddress6To(name string, address netip.Addr) error {
	device, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	socket, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	request := struct { // in6_ifreq
		address [16]byte
		prefix  uint32
		index   int32
	}{address.As16(), 128, int32(device.Index)}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), unix.SIOCSIFADDR, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return errno
	}
	return nil
}

func mountAt(t *testing.T, source, target, kind string, flags uintptr, data string) {
	t.Helper()
	if err := unix.Mount(source, target, kind, flags, data); err != nil {
		t.Fatalf("mount %s on %s: %v (run this test as root, or allow user namespaces)", kind, target, err)
	}
}

// bind shows a file or directory of this machine in the container, as it is there or read-only.
func bind(t *testing.T, source, target string, flags uintptr) {
	t.Helper()
	mountAt(t, source, target, "", unix.MS_BIND, "")
	var info unix.Statfs_t
	if err := unix.Statfs(target, &info); err != nil {
		t.Fatal(err)
	}
	kept := uintptr(info.Flags) & (unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC) // a user namespace may not take these away
	mountAt(t, "", target, "", unix.MS_BIND|unix.MS_REMOUNT|kept|flags, "")
}

// image makes the container's root as a small image has it: two programs, what Envoy is linked with, roots, users. It is read-only once the
// returned function was called.
func image(t *testing.T, root, hosts string) (seal func()) {
	t.Helper()
	makeDirs(t, root)
	mountAt(t, "image", root, "tmpfs", 0, "mode=0755")
	in := func(name string) string { return filepath.Join(root, name) }
	makeDirs(t, in("tmp"), in("run"), in("etc/ssl/certs"), in("usr/local/bin"), in("var/lib"))
	for _, name := range []string{"/lib", "/lib64", "/usr/lib", "/usr/lib64"} {
		share(t, name, in(name))
	}
	bind(t, "/etc/ssl/certs", in("etc/ssl/certs"), unix.MS_RDONLY)
	for source, name := range map[string]string{agentBinary: "usr/local/bin/gateway-agent", envoyBinary: "usr/local/bin/envoy"} {
		makeFile(t, in(name), "", 0o755)
		bind(t, source, in(name), unix.MS_RDONLY)
	}
	link(t, "gateway-agent", in("usr/local/bin/pilot-agent"))
	link(t, "../run", in("var/run"))
	makeFile(t, in("etc/passwd"), "root:x:0:0::/:\nistio-proxy:x:1337:1337::/:\n", 0o644)
	makeFile(t, in("etc/nsswitch.conf"), "hosts: files\n", 0o644)
	return furnish(t, root, hosts)
}

// furnish adds what container runtimes add to an image: devices, a place for /proc, the hosts file.
func furnish(t *testing.T, root, hosts string) (seal func()) {
	t.Helper()
	in := func(name string) string { return filepath.Join(root, name) }
	makeDirs(t, in("proc"), in("dev/shm"), in("etc"))
	for _, name := range []string{"null", "zero", "full", "random", "urandom"} {
		makeFile(t, in("dev/"+name), "", 0o666)
		mountAt(t, "/dev/"+name, in("dev/"+name), "", unix.MS_BIND, "")
	}
	mountAt(t, "shm", in("dev/shm"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=64m,mode=1777")
	makeFile(t, in("etc/hosts"), hosts, 0o644)
	return func() { mountAt(t, "", root, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "") }
}

// share is a bind mount, or the same link.
func share(t *testing.T, source, target string) {
	t.Helper()
	info, err := os.Lstat(source)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Type() == os.ModeSymlink {
		to, err := os.Readlink(source)
		if err != nil {
			t.Fatal(err)
		}
		link(t, to, target)
		return
	}
	makeDirs(t, target)
	bind(t, source, target, unix.MS_RDONLY)
}

func makeDirs(t *testing.T, paths ...string) {
	t.Helper()
	for _, path := range paths {
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// makeFile makes a file that the proxy's group may read.
func makeFile(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	own(t, path, mode)
}

// own gives a path to the proxy's group, whose number here is another in a user namespace.
func own(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	group := 0
	if isRoot() {
		group = proxyID
	}
	if err := errors.Join(os.Chown(path, 0, group), os.Chmod(path, mode)); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, to, path string) {
	t.Helper()
	if err := os.Symlink(to, path); err != nil {
		t.Fatal(err)
	}
}

// containerCommand runs a program as the first process of a container: its root, the proxy's user, no capabilities, no way to new ones.
func containerCommand(t *testing.T, root string, env []string, line ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, line...)
	cmd.Env = append(env, rootVariable+"="+root)
	cmd.Dir = "/"
	cmd.SysProcAttr = namespaces(0, proxyID)
	if !isRoot() { // it is the proxy's user already, and needs these until it has become the container
		cmd.SysProcAttr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SETPCAP}
	}
	return cmd
}

// becomeContainer is where such a process begins.
func becomeContainer(root string) {
	runtime.LockOSThread() // capabilities are a thread's; exec takes this one's
	err := errors.Join(
		unix.Mount(root, root, "", unix.MS_BIND|unix.MS_REC, ""), // what comes from another user namespace cannot be turned to
		unix.Mount("proc", filepath.Join(root, "proc"), "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""),
		unix.Chdir(root),
		unix.PivotRoot(".", "."),
		unix.Unmount(".", unix.MNT_DETACH),
		unix.Chdir("/"),
		fewFiles(),
		giveUpCapabilities(),
	)
	if err == nil {
		env := os.Environ()[:0:0]
		for _, pair := range os.Environ() {
			if !strings.HasPrefix(pair, rootVariable+"=") {
				env = append(env, pair)
			}
		}
		err = syscall.Exec(os.Args[1], os.Args[1:], env)
	}
	fmt.Fprintln(os.Stderr, "become a container:", err)
	os.Exit(99)
}

// fewFiles sets the soft limit that container runtimes leave.
func fewFiles() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	limit.Cur = min(limit.Max, softFiles)
	return unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
}

func giveUpCapabilities() error {
	for capability := range uintptr(64) {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("drop capability %d: %w", capability, err)
		}
	}
	if os.Getuid() == 0 {
		if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(proxyID), syscall.Setuid(proxyID)); err != nil {
			return fmt.Errorf("become user %d: %w", proxyID, err)
		}
	}
	header := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	return errors.Join(
		unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0),
		unix.Capset(header, &none[0]),
		unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
	)
}
