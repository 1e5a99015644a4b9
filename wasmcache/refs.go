package wasmcache

import (
	"crypto/hmac"
	"crypto/rand"
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
}

func (v version) is(sha256 string) bool {
	return v.Digest == sha256 || v.Manifest == "sha256:"+sha256 || v.Index == "sha256:"+sha256
}

// grant says that the registry accepted somebody for this reference. The secret cannot be found from it.
type grant struct {
	// Salt and Hash of a pull secret, in hex; both "" for this machine's own credentials.
	Salt string `json:"salt,omitzero"`
	Hash string `json:"hash,omitzero"`
}

func newGrant(secret []byte) grant {
	if len(secret) == 0 {
		return grant{}
	}
	var salt [16]byte
	_, _ = rand.Read(salt[:]) // never fails
	return grant{Salt: hex.EncodeToString(salt[:]), Hash: secretHash(salt[:], secret)}
}

func secretHash(salt, secret []byte) string {
	mac := hmac.New(sha256.New, salt)
	mac.Write(secret)
	return hex.EncodeToString(mac.Sum(nil))
}

func (g grant) isFor(secret []byte) bool {
	if len(secret) == 0 || g.Salt == "" {
		return len(secret) == 0 && g.Salt == "" && g.Hash == ""
	}
	salt, err := hex.DecodeString(g.Salt)
	return err == nil && hmac.Equal([]byte(secretHash(salt, secret)), []byte(g.Hash))
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

func (r *record) find(sha256 string) (version, bool) {
	for _, v := range r.Versions {
		if sha256 == "" || v.is(sha256) {
			return v, true
		}
	}
	return version{}, false
}

func (r *record) granted(secret []byte) bool {
	return slices.ContainsFunc(r.Grants, func(g grant) bool { return g.isFor(secret) })
}

func (r *record) add(v version, a *ask) {
	r.Ref = a.ref.String()
	r.Versions = prepend(r.Versions, v, maxVersions, func(o version) bool { return o.Digest == v.Digest && o.Manifest == v.Manifest && o.Index == v.Index })
	if !r.granted(a.secret) {
		r.Grants = prepend(r.Grants, newGrant(a.secret), maxGrants, func(grant) bool { return false })
	}
	if a.always && a.resource.Name != "" {
		r.Resources = prepend(r.Resources, a.resource, maxResources, func(o resource) bool { return o.Name == a.resource.Name })
	}
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
		url: req.URL, ref: ref, sha256: sum, secret: req.PullSecret, always: req.Always,
		resource: resource{Name: req.Resource, Version: req.ResourceVersion}, host: req.Host, progress: req.Progress,
	}, nil
}

// fixed reports that the request can only ever mean one content.
func (a *ask) fixed() bool { return a.sha256 != "" || a.ref.Fixed() }

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

// remember writes what a pull found out. A failure costs only the next start a pull.
func (s *Store) remember(a *ask, v version) {
	s.refMu.Lock()
	defer s.refMu.Unlock()
	r := s.record(a.ref)
	r.add(v, a)
	err := s.writeJSON(refName(a.ref), r)
	if err == nil && v.Manifest != "" {
		err = s.writeJSON(manifestName(v.Manifest), v)
	}
	if err != nil {
		s.cfg.Log.Warn("cannot note a module's reference: it must be pulled again after a restart", "ref", a.ref.String(), "err", s.diskError("note it", err))
	}
}
