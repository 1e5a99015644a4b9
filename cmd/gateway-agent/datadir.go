package main

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
)

// ownDataDir takes the data directory for this agent. What an agent keeps there beside the modules is about its own plugins and its own
// identity: a second agent must neither be given it nor write over it, so it goes on without. The kernel frees the directory however its
// owner ends.
func (g *gateway) ownDataDir() {
	dir := g.settings.dataDir
	err := os.MkdirAll(dir, 0o755)
	var file *os.File
	if err == nil {
		file, err = os.OpenFile(filepath.Join(dir, "agent.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	}
	if err != nil {
		g.dataLock, _ = os.Open(dir) // nothing can be kept there, but perhaps something can be read
		return
	}
	if err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
		file.Close()
		g.log.Warn("another agent uses this data directory: nothing of this one outlives a restart. "+
			"Give each agent its own --data-dir; they can share the modules by --wasm-dir", "data_dir", dir)
		return
	}
	g.dataLock = file // also where there are no locks
}
