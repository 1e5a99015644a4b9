package envoy

import (
	"os"
	"syscall"
)

func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// killGroup ends a process that leads its own group, and all in the group.
func killGroup(p *os.Process) error { return signalGroup(p, syscall.SIGKILL) }

// signalGroup must only be called while the leader has not been reaped.
func signalGroup(p *os.Process, sig syscall.Signal) error { return syscall.Kill(-p.Pid, sig) }
