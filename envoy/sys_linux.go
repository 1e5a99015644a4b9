package envoy

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// childAttr puts Envoy into a process group of its own, so that Ctrl-C in a terminal reaches only the agent, and has the kernel
// kill it when the thread that started it ends. The kernel forgets that wish for a binary with file capabilities or set-uid bits.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// awaitExit blocks until the process has ended, without reaping it, and then kills what it left in its group: a script around
// Envoy may die without it. Until the leader is reaped nobody else can get the group's number.
func awaitExit(p *os.Process) {
	for {
		err := unix.Waitid(unix.P_PID, p.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	_ = killGroup(p)
}
