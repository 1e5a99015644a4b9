package wasmcache

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gateway-agent/gateway-agent/wasmcache/abi"
	"github.com/gateway-agent/gateway-agent/wasmcache/fetch"
)

// Bounds of one reference's record.
const (
	maxVersions  = 16
	maxGrants    = 64
	maxResources = 256
)

// version is one content that was seen under a reference.
type version struct {
	Digest   string    `json:"digest"` // of the module, hex
	Size     int64     `json:"size"`
	Manifest string    `json:"manifest,omitzero"` // "sha256:…"
	Index    string    `json:"index,omitzero"`
	Seen     time.Time `json:"seen"`
	// Preloaded says that the operator put it there, for everybody. Only records of references have it.
	Preloaded bool `json:"preloaded,omitzero"`
}

// same reports that two versions are the same image and module.
func (v version) same(o version) bool {
	return v.Digest == o.Digest && v.Manifest == o.Manifest && v.Index == o.Index
}

func (v version) is(sha256 string) bool {
	return v.Digest == sha256 || v.Manifest == "sha256:"+sha256 || v.Index == "sha256:"+sha256
}

// resource is the version of a resource for which the registry was asked last.
type resource struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// record is what is known of a reference, newest first in each list.
type record struct {
	Ref       string     `json:"ref"` // for people
	Versions  []version  `json:"versions"`
	Grants    []grant    `json:"grants"`
	Resources []resource `json:"resources,omitzero"`
}

func (r *record) add(v version, a *ask) {
	r.Ref = a.ref.String()
	v.Preloaded = a.preload || slices.ContainsFunc(r.Versions, func(o version) bool { return o.same(v) && o.Preloaded })
	r.Versions = prepend(r.Versions, v, maxVersions, v.same)
	if !a.preload { // nobody was asked whether others may have it
		r.grant(a.secret)
	}
	if a.always && a.resource.Name != "" {
		r.Resources = prepend(r.Resources, a.resource, maxResources, func(o resource) bool { return o.Name == a.resource.Name })
	}
}

// preload opens a version that is known for everybody.
func (r *record) preload(v version) {
	if i := slices.IndexFunc(r.Versions, v.same); i >= 0 {
		r.Versions[i].Preloaded = true
	}
}

// noted reports that the record says all that add would say, but for the time.
func (r *record) noted(v version, a *ask) bool {
	i := slices.IndexFunc(r.Versions, v.same)
	return i >= 0 && (!a.preload || r.Versions[i].Preloaded) &&
		(!a.always || a.resource.Name == "" || slices.Contains(r.Resources, a.resource))
}

func prepend[T any](list []T, first T, limit int, same func(T) bool) []T {
	list = append([]T{first}, slices.DeleteFunc(list, same)...)
	return list[:min(len(list), limit)]
}

// ask is a checked request.
type ask struct {
	url      string
	ref      fetch.Reference
	sha256   string // hex, "" none
	secret   []byte
	always   bool
	preload  bool
	resource resource
	host     abi.Host
	progress func(done, total int64)
}

func newAsk(req Request) (*ask, error) {
	ref, err := fetch.Parse(req.URL)
	if err != nil {
		return nil, err
	}
	sum, err := fetch.NormalizeSHA256(req.SHA256)
	if err != nil {
		return nil, permanentError(ref.String(), "sha256 of %s: %w: correct it in the resource", ref, err)
	}
	return &ask{
		url: req.URL, ref: ref, sha256: sum, secret: req.PullSecret, always: req.Always, preload: req.Preload,
		resource: resource{Name: req.Resource, Version: req.ResourceVersion}, host: req.Host, progress: req.Progress,
	}, nil
}

// fixed reports that the request can only ever mean one content.
func (a *ask) fixed() bool { return a.sha256 != "" || a.ref.Fixed() }

// isImage reports that a registry is asked for a reference, with the caller's secret.
func isImage(ref fetch.Reference) bool { return strings.HasPrefix(ref.Key(), "oci://") }

// stale reports that the registry must be asked although something is known.
func (a *ask) stale(r *record) bool {
	switch {
	case a.ref.Local():
		return true
	case !a.always || a.ref.Fixed():
		return false
	}
	return a.resource.Name == "" || !slices.Contains(r.Resources, a.resource)
}

// flightKey is equal for requests that one pull can answer: same reference, same content wanted, same caller.
func (a *ask) flightKey() string {
	caller := sha256.Sum256(a.secret)
	return strings.Join([]string{a.ref.Key(), a.sha256, hex.EncodeToString(caller[:])}, "\x00")
}

func refName(ref fetch.Reference) string {
	sum := sha256.Sum256([]byte(ref.Key()))
	return path.Join(refDir, hex.EncodeToString(sum[:])+".json")
}

func manifestName(digest string) string {
	return path.Join(manifestDir, strings.ReplaceAll(digest, ":", "-")+".json")
}

func (s *Store) record(ref fetch.Reference) record {
	var r record
	if !s.readJSON(refName(ref), &r) {
		return record{}
	}
	return r
}

// update changes the record of a reference; no other process's change is lost by it.
func (s *Store) update(ctx context.Context, ref fetch.Reference, change func(r *record)) error {
	l, err := s.lock(ctx, recordLock(refName(ref)), nil)
	if err != nil {
		return s.diskError("change what is known of "+ref.String(), err)
	}
	if l == nil {
		s.refMu.Lock()
		defer s.refMu.Unlock()
	}
	defer l.unlock()
	r := s.record(ref)
	change(&r)
	if err := s.writeJSON(refName(ref), r); err != nil {
		return s.diskError("change what is known of "+ref.String(), err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unsettled[refName(ref)] = true
	return nil
}

// remember writes what a pull found out. A failure costs only the next start a pull, unless it was what the caller wanted.
func (s *Store) remember(ctx context.Context, a *ask, v version) error {
	v.Seen = time.Now()
	err := s.update(ctx, a.ref, func(r *record) { r.add(v, a) })
	if err != nil && a.preload {
		if r := s.record(a.ref); len(r.Versions) > 0 && r.Versions[0].same(v) && r.noted(v, a) {
			return nil // it is what the operator wants there already
		}
		return err
	}
	if err == nil {
		return nil
	}
	if s.writable.Load() { // else that was said
		s.cfg.Log.Warn("cannot note a module's reference: it must be pulled again after a restart", "ref", a.ref.String(), "err", err)
	}
	return nil
}
