package envoy

import (
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
)

// oomWatch notices that the OOM killer struck in the agent's memory cgroup, which is Envoy's too.
type oomWatch struct {
	root   fs.FS // "/"
	before int   // -1: cannot be known here
}

func newOOMWatch() oomWatch { return watchOOM(os.DirFS("/")) }

func watchOOM(root fs.FS) oomWatch { return oomWatch{root: root, before: oomKills(root)} }

func (w oomWatch) happened() bool { return w.before >= 0 && oomKills(w.root) > w.before }

// oomKills reads how often the OOM killer struck in the memory cgroup of this process, or -1. In a container the path that the
// kernel gives may be that of the host, while the mount shows only the container's own cgroup: then it is at the root.
func oomKills(root fs.FS) int {
	cgroups, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return -1
	}
	for line := range strings.Lines(string(cgroups)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		dir, file, ok := memoryCgroup(parts[1])
		if !ok {
			continue
		}
		for _, sub := range []string{parts[2], ""} {
			if n, ok := oomCounter(root, path.Join(dir, sub, file)); ok {
				return n
			}
		}
	}
	return -1
}

// memoryCgroup is the mount and the file with the counter, for one hierarchy of /proc/self/cgroup; v2 has no controllers there.
func memoryCgroup(controllers string) (dir, file string, ok bool) {
	if controllers == "" {
		return "sys/fs/cgroup", "memory.events", true
	}
	for c := range strings.SplitSeq(controllers, ",") {
		if c == "memory" {
			return "sys/fs/cgroup/memory", "memory.oom_control", true
		}
	}
	return "", "", false
}

func oomCounter(root fs.FS, name string) (int, bool) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
			n, err := strconv.Atoi(value)
			return n, err == nil
		}
	}
	return 0, false
}
