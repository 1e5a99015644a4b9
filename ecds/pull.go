package ecds

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

func (m *machine) startPull(now time.Time, e *entry) {
	e.pull, e.retryAt, e.lastTry = m.next(), time.Time{}, now
	e.attempts++
	m.pulls[e.pull] = e
	ref := *e.wanted.ref
	ref.Node = e.node
	m.do(startPull{e.pull, ref})
}

// retryDue starts a planned retry whose time has come.
func (m *machine) retryDue(now time.Time, e *entry) {
	if e.retryAt.IsZero() || e.retryAt.After(now) || e.pull != 0 {
		return
	}
	if e.wanted == nil || e.wanted.ref == nil {
		e.retryAt = time.Time{}
		return
	}
	m.startPull(now, e)
}

// recheck has the store look again for the module of every subscribed resource with that URL. What Envoy has stays until the answer, and for
// good when that is the same module.
func (m *machine) recheck(now time.Time, url string) {
	for _, e := range m.sortedEntries() {
		if len(e.sessions) == 0 || e.pull != 0 || now.Before(e.notBefore) {
			continue
		}
		if w := e.wanted; w != nil && w.ref != nil && w.fatal == nil && w.ref.URL == url {
			m.startPull(now, e)
		}
	}
}

// pulled is the end of a pull. One that was overtaken or cancelled is not in the table any more.
func (m *machine) pulled(now time.Time, pull uint64, mod Module, err error) {
	e := m.pulls[pull]
	if e == nil {
		return
	}
	delete(m.pulls, pull)
	e.pull = 0
	if err == nil {
		err = m.convert(e, mod)
	}
	if err != nil {
		m.pullFailed(now, e, err)
	}
	m.reconcile(now, e)
	for _, s := range sorted(e.sessions) {
		m.settleOffers(now, s)
	}
}

// convert makes the form of e.wanted with its module.
func (m *machine) convert(e *entry, mod Module) error {
	f, err := m.form(e, mod)
	if err != nil {
		return err
	}
	e.failure, e.attempts, e.notBefore = nil, 0, time.Time{}
	f.warning = mod.Warning
	e.ready = f
	return nil
}

// form builds what Envoy is to get, in a spelling that no Envoy has refused.
func (m *machine) form(e *entry, mod Module) (*form, error) {
	salt := 0
	switch {
	case e.ready != nil:
		salt = e.ready.salt
	case e.good != nil && e.good.origin == e.wanted.public:
		salt = e.good.salt
	}
	for range maxSalt {
		body, err := e.wanted.build(mod.Path, salt)
		if err != nil {
			return nil, err
		}
		f := m.newForm(e, body)
		f.digest, f.path, f.salt = mod.Digest, mod.Path, salt
		if e.wanted.plugin == nil || !e.refused(f.hash) {
			return f, nil
		}
		salt = (salt + 1) % maxSalt
	}
	return nil, errors.New("Envoy refused this plugin in every spelling")
}

// maxSalt is more than the number of rejections that are remembered for one stream: there is always one left.
const maxSalt = maxRejects + 3

// refused says whether Envoy remembers having refused this very form.
func (e *entry) refused(hash sum) bool {
	if e.rejected != nil && e.rejected.hash == hash || e.unsure != nil && e.unsure.hash == hash {
		return true
	}
	for _, s := range e.sessions {
		if s.subs[e.name].refused(hash) != nil {
			return true
		}
	}
	return false
}

func (sub *subscription) refused(hash sum) *reject {
	for i := range sub.rejects {
		if sub.rejects[i].hash == hash {
			return &sub.rejects[i]
		}
	}
	return nil
}

func (m *machine) newForm(e *entry, body *anypb.Any) *form {
	w := e.wanted
	f := &form{hash: sha256.Sum256(body.GetValue()), seq: m.next(), origin: w.public, kind: w.kind, upstream: w.version}
	if w.ref != nil {
		f.url = publicURL(w.ref.URL)
	}
	f.res = proto.CloneOf(w.wrapper)
	f.res.Resource, f.res.Version = body, versionOf(w.version, f.hash)
	return f
}

// versionOf is unique to the content, so that an answer tells what was answered, and shows upstream's version.
func versionOf(upstream string, hash sum) string {
	return shorten(upstream, 64) + "~" + hex.EncodeToString(hash[:4])
}

func (m *machine) pullFailed(now time.Time, e *entry, err error) {
	m.failures++
	fail := &failure{text: e.scrub(shorten(err.Error(), 2*maxEnvoyText))}
	if p, ok := errors.AsType[interface {
		error
		Permanent() bool
	}](err); ok {
		fail.permanent = p.Permanent()
	}
	wait := m.backoff(e.attempts)
	if fail.permanent {
		wait = m.slow()
	}
	e.notBefore = time.Time{}
	if r, ok := errors.AsType[interface {
		error
		RetryAfter() time.Duration
	}](err); ok && r.RetryAfter() > 0 {
		asked := min(r.RetryAfter(), maxRetryAfter)
		e.notBefore = now.Add(asked)
		wait = max(wait, asked)
	}
	e.failure, e.retryAt = fail, now.Add(wait)
}

// backoff is full jitter under a bound that doubles from retryMin to the slow end.
func (m *machine) backoff(attempts int) time.Duration {
	bound := m.retryMax
	if attempts < 32 {
		bound = min(m.retryMax, retryMin<<max(attempts-1, 0))
	}
	// Never at once: with an unlucky row of draws that would be a burst.
	return max(time.Duration(m.rand()*float64(bound)), retryMin/10)
}

// slow is the slow end of the backoff, jittered.
func (m *machine) slow() time.Duration {
	return m.retryMax - time.Duration(m.rand()*float64(m.retryMax)/4)
}

// offered takes one resource of an upstream response.
func (m *machine) offered(now time.Time, s *session, e *entry, res *discoveryv3.Resource) {
	m.setTTL(now, e, res)
	if res.GetResource() == nil {
		return // a heartbeat
	}
	b, err := parse(res)
	if e.wanted != nil && e.wanted.full == b.full && e.wanted.envURL == b.envURL {
		e.wanted.version = b.version
		m.retryNow(now, e)
		return
	}
	m.stop(e)
	e.wanted, e.ready, e.failure, e.held, e.attempts = &wanted{m.next(), b, err}, nil, nil, false, 0
	e.notBefore = time.Time{}
	switch {
	case err != nil:
	case b.fatal != nil:
		e.failure = &failure{b.fatal.Error(), true}
	case b.ref == nil:
		if err := m.convert(e, Module{}); err != nil {
			e.wanted.err = err
		}
	default:
		if e.good != nil && e.good.origin == b.public {
			e.ready = e.good // what runs already; the store is asked all the same
		}
		m.startPull(now, e)
	}
}

// retryNow answers an upstream that insists on a resource whose module could not be had: once a second at most, and not
// before the registry allows it.
func (m *machine) retryNow(now time.Time, e *entry) {
	if e.failure == nil || e.pull != 0 || e.wanted.ref == nil || e.wanted.fatal != nil {
		return
	}
	if now.Before(e.lastTry.Add(retryMin)) || now.Before(e.notBefore) {
		return
	}
	m.startPull(now, e)
}

func (m *machine) setTTL(now time.Time, e *entry, res *discoveryv3.Resource) {
	e.expires = time.Time{}
	if ttl := res.GetTtl(); ttl != nil && ttl.IsValid() && ttl.AsDuration() > 0 {
		e.expires = now.Add(ttl.AsDuration())
	}
}

// removed takes a removal by upstream: there is nothing to fall back to, that is what it means.
func (m *machine) removed(e *entry) {
	m.stop(e)
	for _, s := range sorted(e.sessions) {
		sub := s.subs[e.name]
		m.do(push{s.id, &discoveryv3.Resource{Name: e.name}})
		*sub = subscription{since: sub.since, due: true, removed: true} // a removal also ends Envoy's memory of what it refused
	}
	e.wanted, e.ready, e.good, e.failure, e.rejected, e.held, e.expires = nil, nil, nil, nil, nil, false, time.Time{}
	m.dirty = true
}
