package wasmcache

import (
	"cmp"
	"path"
	"slices"
	"strings"
	"time"
)

// Status is the state of the store for people.
type Status struct {
	Dir        string             `json:"dir"`
	Writable   bool               `json:"writable"`
	Bytes      int64              `json:"bytes"` // of modules, damaged ones included
	Quota      int64              `json:"quota"`
	Modules    []ModuleStatus     `json:"modules"`
	Pulls      []PullStatus       `json:"pulls,omitempty"`
	Quarantine []QuarantineStatus `json:"quarantine,omitempty"`
}

// ModuleStatus is one stored module.
type ModuleStatus struct {
	Digest   string    `json:"digest"`
	Size     int64     `json:"size"`
	Refs     []string  `json:"refs,omitempty"`
	LastUsed time.Time `json:"last_used,omitzero"`
	// Pinned says that a process that shares the store uses it now.
	Pinned bool `json:"pinned,omitempty"`
	// Preloaded says that the operator put it there, for everybody.
	Preloaded bool `json:"preloaded,omitempty"`
	// Damaged says that it is in the quarantine, and since when instead of when it was used; only Prune tells of such ones.
	Damaged  bool            `json:"damaged,omitempty"`
	Verdicts []VerdictStatus `json:"verdicts,omitempty"`
}

// VerdictStatus is what the checker said of a module.
type VerdictStatus struct {
	Host    string `json:"host"`
	Outcome string `json:"outcome"`
	Reason  string `json:"reason,omitempty"`
}

// PullStatus is a pull that is running.
type PullStatus struct {
	Ref   string    `json:"ref"`
	Since time.Time `json:"since"`
	Done  int64     `json:"done"`
	// Total is -1 while it is unknown.
	Total int64 `json:"total"`
}

// QuarantineStatus is a damaged blob.
type QuarantineStatus struct {
	Digest string    `json:"digest"`
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
}

// Status reads the directory; it does not hash anything.
func (s *Store) Status() Status {
	st := Status{Dir: s.dir, Writable: s.writable.Load(), Bytes: s.quarantineSize(), Quota: s.cfg.Quota, Modules: []ModuleStatus{}}
	refs, pins, preloaded := s.refsByDigest(), s.pinned(), s.preloaded()
	for _, digest := range s.names(blobDir) {
		info, err := s.root.Lstat(blobName(digest))
		if err != nil {
			continue
		}
		st.Bytes += info.Size()
		st.Modules = append(st.Modules, ModuleStatus{
			Digest: digest, Size: info.Size(), Refs: refs[digest], LastUsed: s.lastUse(digest, info),
			Pinned: pins[digest] || s.inUse(digest), Preloaded: preloaded[digest], Verdicts: s.verdicts(digest),
		})
	}
	for _, f := range s.pulls.running() {
		st.Pulls = append(st.Pulls, PullStatus{Ref: f.label, Since: f.since, Done: f.bytes.Load(), Total: f.total.Load()})
	}
	slices.SortFunc(st.Pulls, func(a, b PullStatus) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Ref, b.Ref)) })
	for _, name := range s.names(quarantineDir) {
		var q quarantined
		if strings.HasSuffix(name, ".json") && s.readJSON(path.Join(quarantineDir, name), &q) {
			st.Quarantine = append(st.Quarantine, QuarantineStatus(q))
		}
	}
	return st
}

func (s *Store) refsByDigest() map[string][]string {
	refs := map[string][]string{}
	s.eachRecord(func(r *record) {
		for _, v := range r.Versions {
			if !slices.Contains(refs[v.Digest], r.Ref) {
				refs[v.Digest] = append(refs[v.Digest], r.Ref)
			}
		}
	})
	for _, list := range refs {
		slices.Sort(list)
	}
	return refs
}

func (s *Store) verdicts(digest string) []VerdictStatus {
	var out []VerdictStatus
	for _, name := range s.names(path.Join(verdictDir, digest)) {
		var j judgement
		if s.readJSON(path.Join(verdictDir, digest, name), &j) {
			out = append(out, VerdictStatus{Host: j.Host, Outcome: j.Outcome.String(), Reason: j.Reason})
		}
	}
	for _, name := range s.judgedHere.Keys() {
		if v, ok := s.judgedHere.Peek(name); ok && path.Dir(name) == path.Join(verdictDir, digest) {
			out = append(out, VerdictStatus{Outcome: v.Outcome.String(), Reason: v.Reason})
		}
	}
	return out
}
