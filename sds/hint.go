package sds

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/fsnotify/fsnotify"
)

// hints tells entries that something moved in a directory of theirs, through one inotify instance for all. It may miss
// anything: the poll is what finds changes for certain.
type hints struct {
	log *slog.Logger

	mu     sync.Mutex
	w      *fsnotify.Watcher // nil: none, polls only
	dirs   map[string]map[*entry]bool
	byUser map[*entry]map[string]bool
	warned bool
}

func newHints(log *slog.Logger) *hints {
	return &hints{log: log, dirs: map[string]map[*entry]bool{}, byUser: map[*entry]map[string]bool{}}
}

// run serves until ctx ends.
func (h *hints) run(ctx context.Context) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		h.log.Warn("no file notifications, changes are found by polling: raise fs.inotify.max_user_instances", "err", err)
		return
	}
	defer func() { _ = w.Close() }()
	h.adopt(w)
	defer h.adopt(nil) // before it is closed
	for {
		select {
		case <-ctx.Done():
			return
		case event, ok := <-w.Events:
			if !ok {
				return
			}
			h.notify(event)
		case err, ok := <-w.Errors: // an overflow: everything may have changed, and the poll will see it
			if !ok {
				return
			}
			h.log.Debug("file notifications were lost", "err", err)
		}
	}
}

// adopt takes the watcher into use and watches what was asked for before it existed.
func (h *hints) adopt(w *fsnotify.Watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.w = w
	if w == nil {
		return
	}
	for dir := range h.dirs {
		h.addLocked(dir)
	}
}

func (h *hints) on() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.w != nil
}

// watch replaces the directories an entry wants to hear of; none means it is gone.
func (h *hints) watch(e *entry, dirs []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	wanted := map[string]bool{}
	for _, dir := range dirs {
		wanted[dir] = true
		if h.dirs[dir] == nil {
			h.dirs[dir] = map[*entry]bool{}
			h.addLocked(dir)
		}
		h.dirs[dir][e] = true
	}
	for dir := range h.byUser[e] {
		if !wanted[dir] {
			h.releaseLocked(e, dir)
		}
	}
	if h.byUser[e] = wanted; len(wanted) == 0 {
		delete(h.byUser, e)
	}
}

func (h *hints) releaseLocked(e *entry, dir string) {
	delete(h.dirs[dir], e)
	if len(h.dirs[dir]) > 0 {
		return
	}
	delete(h.dirs, dir)
	if h.w != nil {
		_ = h.w.Remove(dir)
	}
}

func (h *hints) addLocked(dir string) {
	if h.w == nil {
		return
	}
	if err := h.w.Add(dir); err != nil && !h.warned && !isAbsent(err) {
		h.warned = true
		h.log.Warn("directory cannot be watched, changes in it are found by polling: raise fs.inotify.max_user_watches", "path", dir, "err", err)
	}
}

func (h *hints) notify(event fsnotify.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if users := h.dirs[event.Name]; users != nil && event.Has(fsnotify.Remove|fsnotify.Rename) {
		delete(h.dirs, event.Name) // its watch went with it; the next reading asks for a new one
		for e := range users {
			delete(h.byUser[e], event.Name)
			e.nudge()
		}
	}
	for e := range h.dirs[filepath.Dir(event.Name)] {
		e.nudge()
	}
}

func isAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.ENOTDIR)
}
