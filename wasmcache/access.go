package wasmcache

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/oci"
	"github.com/gateway-agent/gateway-agent/wasmcache/fetch"
)

// How the registry is asked again whether a caller still has access.
const (
	renewWait  = 3 * time.Second // a caller waits for the answer; then the store answers
	renewPause = time.Minute     // until the next question after one without an answer
)

// grant says that the registry accepted somebody for this reference. The secret cannot be found from it.
type grant struct {
	// Since is when the registry said so last.
	Since time.Time `json:"since,omitzero"`

	// Salt and Hash of a pull secret, in hex; both "" for this machine's own credentials.
	Salt string `json:"salt,omitzero"`
	Hash string `json:"hash,omitzero"`
}

func newGrant(secret []byte) grant {
	if len(secret) == 0 {
		return grant{Since: time.Now()}
	}
	var salt [16]byte
	_, _ = rand.Read(salt[:]) // never fails
	return grant{Since: time.Now(), Salt: hex.EncodeToString(salt[:]), Hash: secretHash(salt[:], secret)}
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

func (r *record) grant(secret []byte) {
	r.Grants = prepend(r.Grants, newGrant(secret), maxGrants, func(g grant) bool { return g.isFor(secret) })
}

func (r *record) revoke(secret []byte) {
	r.Grants = slices.DeleteFunc(r.Grants, func(g grant) bool { return g.isFor(secret) })
}

// access is what the store may do for a caller without the registry.
type access int

const (
	denied  access = iota
	expired        // the registry said yes long ago
	granted
)

// find returns the newest version that a may have, or denied. The operator preloads for everybody. This machine's own access does not
// expire: there is nobody else from whom it would have to be kept.
func (s *Store) find(r *record, a *ask) (version, access) {
	may := denied
	if i := slices.IndexFunc(r.Grants, func(g grant) bool { return g.isFor(a.secret) }); i >= 0 {
		may = granted
		age := time.Since(r.Grants[i].Since)
		if len(a.secret) > 0 && isImage(a.ref) && (age < 0 || age > s.cfg.AccessExpiry) {
			may = expired
		}
	}
	for _, v := range r.Versions {
		if a.sha256 != "" && !v.is(a.sha256) {
			continue
		}
		if v.Preloaded && s.cfg.Preloaded == PreloadedTrust {
			return v, granted
		}
		if may != denied {
			return v, may
		}
	}
	return version{}, denied
}

// unasked is a question of access that had no answer.
type unasked struct {
	until   time.Time // the registry is left alone
	warning string
}

// renew asks the registry whether a still has access. Its no counts; when it cannot be asked, what it said last counts: an outage must not
// take a module from those who had it.
func (s *Store) renew(ctx context.Context, a *ask) (warning string, err error) {
	if last, ok := s.unasked.Get(a.flightKey()); ok && time.Now().Before(last.until) {
		return last.warning, nil
	}
	soon, cancel := context.WithTimeoutCause(ctx, renewWait, fmt.Errorf("no answer within %v", renewWait))
	defer cancel()
	err = s.ask(soon, a)
	refused, _ := errors.AsType[*oci.Error](err)
	switch {
	case err == nil:
		if err = s.update(ctx, a.ref, func(r *record) { r.grant(a.secret) }); err == nil {
			return "", nil
		}
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case refused != nil && (refused.Kind == oci.Unauthorized || refused.Kind == oci.NotFound): // many hide by 404 what one may not see
		_ = s.update(ctx, a.ref, func(r *record) { r.revoke(a.secret) })
		return "", err
	default:
		warning = fmt.Sprintf("the registry could not be asked whether the pull secret is still good for %s: %v", a.ref, err)
	}
	s.unasked.Add(a.flightKey(), unasked{until: time.Now().Add(renewPause), warning: warning})
	s.cfg.Log.Warn("access to a stored module could not be confirmed: it is served as before", "ref", a.ref.String(), "err", err)
	return warning, nil
}

// ask returns the registry's error for a reference; nil: it is there for this caller.
func (s *Store) ask(ctx context.Context, a *ask) error {
	req := fetch.Request{URL: a.url, PullSecret: a.secret}
	if a.ref.Fixed() {
		_, err := s.cfg.Fetch.Resolve(ctx, req)
		return err
	}
	_, err := s.cfg.Fetch.Head(ctx, req)
	return err
}
