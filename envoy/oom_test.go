package envoy

import (
	"maps"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
)

func TestOOM(t *testing.T) {
	tests := map[string]struct{ cgroup, file string }{
		"v2":                      {"0::/a/b\n", "sys/fs/cgroup/a/b/memory.events"},
		"v2 in a container":       {"0::/host/only\n", "sys/fs/cgroup/memory.events"},
		"v2 outside namespace":    {"0::/../../x\n", "sys/fs/cgroup/memory.events"},
		"v1":                      {"5:cpu,cpuacct:/c\n4:memory:/m\n0::/\n", "sys/fs/cgroup/memory/m/memory.oom_control"},
		"v1 in a container":       {"4:memory:/docker/1\n", "sys/fs/cgroup/memory/memory.oom_control"},
		"v2 after v1 without one": {"4:cpu:/c\n0::/b\n", "sys/fs/cgroup/b/memory.events"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			root := fstest.MapFS{
				"proc/self/cgroup": {Data: []byte(tt.cgroup)},
				tt.file:            {Data: []byte("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")},
			}
			w := watchOOM(root)
			if w.before != 2 || w.happened() {
				t.Fatalf("before = %d, happened = %v; want 2, false", w.before, w.happened())
			}
			root[tt.file] = &fstest.MapFile{Data: []byte("oom_kill 3\n")}
			if !w.happened() {
				t.Error("happened = false after the counter went up")
			}
		})
	}
}

func TestOOMUnknown(t *testing.T) {
	files := fstest.MapFS{
		"proc/self/cgroup":            {Data: []byte("0::/a\nrubbish\n")},
		"sys/fs/cgroup/memory.events": {Data: []byte("oom_kill many\n")},
	}
	for _, missing := range []string{"", "proc/self/cgroup", "sys/fs/cgroup/memory.events"} {
		root := maps.Clone(files)
		delete(root, missing)
		w := watchOOM(root)
		if w.before != -1 || w.happened() {
			t.Errorf("without %q: before = %d, happened = %v; want unknown and false", missing, w.before, w.happened())
		}
	}
}

func TestExitString(t *testing.T) {
	for _, tt := range []struct {
		exit   Exit
		want   string
		reason string
	}{
		{Exit{PID: 7, OOM: true, signal: syscall.SIGKILL}, "(OOM)", "oom"},
		{Exit{PID: 7, signal: syscall.SIGKILL}, "not by the agent", "killed"},
		{Exit{PID: 7, signal: syscall.SIGKILL, Asked: true}, "signal killed", "killed"},
		{Exit{PID: 7, signal: syscall.SIGABRT}, "signal aborted", "signal"},
		{Exit{Code: -1}, "could not be started", "exit"},
		{Exit{PID: 7, Code: 3}, "exit status 3", "exit"},
	} {
		if got := tt.exit.String(); !strings.Contains(got, tt.want) || tt.exit.reason() != tt.reason {
			t.Errorf("%+v: String() = %q, reason() = %q; want %q in it, and %q", tt.exit, got, tt.exit.reason(), tt.want, tt.reason)
		}
	}
}
