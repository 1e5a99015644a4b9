package ecds

import "time"

const (
	saveEvery = time.Second      // changes within it share one write
	saveRetry = 10 * time.Second // after a write that failed
)

// wait is how long there is nothing to do.
func (r *run) wait() (time.Duration, bool) {
	r.mu.Lock()
	first := r.m.deadline()
	r.mu.Unlock()
	if r.unsaved && !r.saving && (first.IsZero() || r.nextSave.Before(first)) {
		first = r.nextSave
	}
	if first.IsZero() {
		return 0, false
	}
	return max(0, time.Until(first)), true
}

// save writes the state beside the loop when it has changed, at most once a second.
func (r *run) save() {
	if r.cfg.State == nil {
		r.unsaved = false
	}
	if !r.unsaved || r.saving || time.Now().Before(r.nextSave) {
		return
	}
	data, err := r.snapshotBytes()
	r.unsaved, r.saving = false, true
	r.wg.Go(func() {
		if err == nil {
			err = r.cfg.State.Save(data)
		}
		r.put(event{saved: &savedResult{err}})
	})
}

func (r *run) snapshotBytes() ([]byte, error) {
	r.mu.Lock()
	data, left, err := r.m.snapshot()
	r.mu.Unlock()
	if left > 0 {
		r.cfg.Log.Warn("extension state is too large, some resources will not outlive a restart", "resources", left)
	}
	return data, err
}

func (r *run) saveDone(err error) {
	r.saving = false
	r.nextSave = time.Now().Add(saveEvery)
	if err != nil {
		r.unsaved = true
		r.nextSave = time.Now().Add(saveRetry)
		r.cfg.Log.Error("extension state cannot be saved, trying again", "err", err)
	}
}

// lastSave writes what is not on disk when everything else has ended. That it cannot, on a full disk perhaps, is no reason to end with an error
// when asked to stop: the last state that could be saved is there.
func (r *run) lastSave() {
	if r.cfg.State == nil || !r.unsaved && !r.saving {
		return // a save that was under way may have failed, so it is repeated
	}
	data, err := r.snapshotBytes()
	if err == nil {
		err = r.cfg.State.Save(data)
	}
	if err != nil {
		r.cfg.Log.Error("extension state cannot be saved, the next start does without the last changes", "err", err)
	}
}

// findPolicyModules asks for the built-in modules before they are needed, and outside the lock: the module store may ask
// for pins meanwhile.
func (r *run) findPolicyModules() {
	if r.cfg.PolicyModule == nil || time.Now().Before(r.nextPolicy) {
		return
	}
	r.nextPolicy = time.Now().Add(saveRetry)
	for i, allow := range []bool{false, true} {
		if p := &r.policies[i]; p.path == "" {
			if p.path, p.err = r.cfg.PolicyModule(allow); p.err != nil {
				r.cfg.Log.Error("built-in policy module cannot be had, trying again", "err", p.err)
			}
		}
	}
}

func (r *run) policyModule(allow bool) (string, error) {
	p := r.policies[0]
	if allow {
		p = r.policies[1]
	}
	return p.path, p.err
}
