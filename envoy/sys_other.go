//go:build !linux

package envoy

import (
	"os"
	"syscall"
)

// childAttr puts Envoy into a process group of its own. Only Linux can also tie its life to the agent's.
func childAttr() *syscall.SysProcAttr { return ownGroup() }

func awaitExit(*os.Process) {}
