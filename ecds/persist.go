package ecds

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

// stateVersion changes when an older agent could misread the file; another version is not read.
const stateVersion = 1

// maxState bounds the file, in bytes. Only plugins with inline code come near; what does not fit is not kept.
const maxState = 64 << 20

type savedState struct {
	Version int          `json:"version"`
	Owner   string       `json:"owner,omitempty"`
	Entries []savedEntry `json:"entries"`
}

// savedEntry is the last form of a resource that Envoy accepted. The form has no control keys any more, so no pull
// secret; Origin is a checksum that leaves the pull secret out.
type savedEntry struct {
	Node         string    `json:"node"`
	Name         string    `json:"name"`
	Kind         string    `json:"kind"`
	URL          string    `json:"url,omitempty"`
	Digest       string    `json:"digest,omitempty"`
	Path         string    `json:"path,omitempty"`
	Salt         int       `json:"salt,omitempty"`
	Origin       string    `json:"origin"`
	Version      string    `json:"version"`
	Sent         string    `json:"sent"` // version Envoy knows it by
	TypeURL      string    `json:"type_url"`
	Resource     []byte    `json:"resource"`
	Unsubscribed bool      `json:"unsubscribed,omitempty"`
	IdleSince    time.Time `json:"idle_since,omitzero"`
}

// snapshot is what belongs on disk. left counts the resources that did not fit.
func (m *machine) snapshot() (data []byte, left int, err error) {
	out := savedState{Version: stateVersion, Owner: m.owner, Entries: []savedEntry{}}
	size := 0
	for _, e := range m.sortedEntries() {
		if e.good == nil || e.good.kind == kindOther {
			continue // other types may hold secrets of their own and need no module to work
		}
		size += len(e.good.res.GetResource().GetValue())*4/3 + 1024
		if size > m.maxState {
			left++
			continue
		}
		out.Entries = append(out.Entries, saved(e))
	}
	data, err = json.Marshal(out)
	return data, left, err
}

func saved(e *entry) savedEntry {
	f := e.good
	return savedEntry{
		Node: e.key.node, Name: e.name, Kind: f.kind, URL: f.url, Digest: f.digest, Path: f.path, Salt: f.salt,
		Origin: hex.EncodeToString(f.origin[:]), Version: f.upstream, Sent: f.res.GetVersion(), TypeURL: f.res.GetResource().GetTypeUrl(),
		Resource: f.res.GetResource().GetValue(), Unsubscribed: e.forget == forgetUnsubscribed && !e.idleSince.IsZero(), IdleSince: e.idleSince.UTC(),
	}
}

// otherOwner is a snapshot of somebody else's plugins. Their names mean nothing here, and their configuration is nobody's business.
type otherOwner struct{ owner string }

func (e *otherOwner) Error() string { return fmt.Sprintf("it is of %q", e.owner) }

// restore starts from a snapshot. Entries that cannot be used are left out; the error names them.
func (m *machine) restore(now time.Time, data []byte) error {
	if len(data) == 0 {
		return nil
	}
	if len(data) > 2*m.maxState {
		return fmt.Errorf("it has %d bytes, more than this agent ever writes", len(data))
	}
	var in savedState
	if err := json.Unmarshal(data, &in); err != nil {
		return err
	}
	if in.Version != stateVersion {
		return fmt.Errorf("it has version %d, this agent reads %d", in.Version, stateVersion)
	}
	if in.Owner != m.owner && in.Owner != "" && m.owner != "" {
		return &otherOwner{in.Owner}
	}
	var errs []error
	for _, s := range in.Entries {
		e, err := s.entry(now)
		if err != nil {
			errs = append(errs, fmt.Errorf("resource %q: %w", s.Name, err))
			continue
		}
		m.entries[e.key] = e
	}
	m.evict()
	return errors.Join(errs...)
}

func (s savedEntry) entry(now time.Time) (*entry, error) {
	body := &anypb.Any{TypeUrl: s.TypeURL, Value: s.Resource}
	if err := checkConverted(s.Name, body); err != nil {
		return nil, err
	}
	origin, err := hex.DecodeString(s.Origin)
	if err != nil || len(origin) != len(sum{}) {
		return nil, errors.New("its origin is not a checksum")
	}
	if s.Salt < 0 || s.Salt >= maxSalt {
		return nil, fmt.Errorf("its salt is %d", s.Salt)
	}
	if s.Sent == "" {
		return nil, errors.New("it has no version")
	}
	f := &form{
		hash: sha256.Sum256(s.Resource), origin: sum(origin), kind: s.Kind, url: s.URL, digest: s.Digest, path: s.Path,
		upstream: s.Version, salt: s.Salt, res: &discoveryv3.Resource{Name: s.Name, Version: s.Sent, Resource: body},
	}
	e := &entry{key: key{s.Node, s.Name}, good: f, since: now, idleSince: s.idle(now), forget: forgetClosed}
	if s.Unsubscribed {
		e.forget = forgetUnsubscribed
	}
	return e, nil
}

// idle is since when nobody has asked for it: the time the agent was down counts, but leaves loadGrace for Envoy to ask.
func (s savedEntry) idle(now time.Time) time.Time {
	switch {
	case s.IdleSince.IsZero() || s.IdleSince.After(now):
		return now
	case s.Unsubscribed:
		return s.IdleSince
	}
	return later(s.IdleSince, now.Add(loadGrace-forgetClosed))
}
