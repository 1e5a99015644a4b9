package ecds

import (
	"context"

	"golang.org/x/sync/errgroup"
)

// maxHashing is how many kept modules are looked at at one time.
const maxHashing = 4

// distrust forgets kept plugins whose modules the store does not hold undamaged any more. What worked before the restart is sent without a
// question to the store, so the question comes first.
func (e *Engine) distrust(ctx context.Context) {
	if e.cfg.Whole == nil {
		return
	}
	kept := map[[2]string][]*entry{} // by digest and path
	e.mu.Lock()
	for _, entry := range e.m.sortedEntries() {
		if entry.good != nil && entry.good.digest != "" {
			file := [2]string{entry.good.digest, entry.good.path}
			kept[file] = append(kept[file], entry)
		}
	}
	e.mu.Unlock()
	var group errgroup.Group
	group.SetLimit(maxHashing)
	for file, entries := range kept {
		group.Go(func() error {
			if !e.cfg.Whole(ctx, file[0], file[1]) && ctx.Err() == nil {
				e.forget(file[0], entries)
			}
			return nil
		})
	}
	_ = group.Wait() // nothing in it fails
}

func (e *Engine) forget(digest string, entries []*entry) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, entry := range entries {
		delete(e.m.entries, entry.key)
		e.m.dirty = true
		e.cfg.Log.Warn("the module of a kept plugin is gone or damaged: the plugin waits until the store has it again", "resource", entry.name, "digest", digest)
	}
}
