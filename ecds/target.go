package ecds

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// reconcile pushes to every stream that wants e what it is to have by now, where that is not what it has.
func (m *machine) reconcile(now time.Time, e *entry) {
	if e == nil {
		return
	}
	for _, s := range sorted(e.sessions) {
		sub := s.subs[e.name]
		f := m.target(e, s, sub)
		if f == nil {
			continue
		}
		if !sub.again && sub.sent.same(f) {
			m.adopt(e, sub, f)
			continue
		}
		sub.again = false
		sub.sent = f
		sub.inflight = append(sub.inflight, f)
		if len(sub.inflight) > maxInflight {
			sub.inflight = slices.Delete(sub.inflight, 0, 1)
		}
		if f.policy && e.wanted != nil {
			e.held = true
		}
		m.do(push{s.id, f.res})
	}
	m.note(now, e)
}

// adopt takes note that what a stream has is also what a newer resource comes to.
func (m *machine) adopt(e *entry, sub *subscription, f *form) {
	sub.sent = f
	if sub.acked.same(f) {
		sub.acked = f
		m.accept(e, f)
	}
}

// same says whether two forms are the same to Envoy.
func (f *form) same(g *form) bool { return f != nil && g != nil && f.hash == g.hash }

// runs says whether Envoy runs what upstream wants.
func (e *entry) runs(sub *subscription) bool {
	f := sub.acked
	if f == nil || f.policy || !f.same(sub.sent) {
		return false
	}
	return f.same(e.ready) || e.ready == nil && f.origin == e.wanted.public
}

// target is section 4 of the design in one place: what one stream is to have for one name, nil meaning nothing (yet).
func (m *machine) target(e *entry, s *session, sub *subscription) *form {
	if sub.removed {
		return nil
	}
	if e.wanted == nil && !sub.due && sub.sent == nil {
		return nil // upstream has until the hold time to say something
	}
	if e.ready != nil && !e.rejects(sub, e.ready) {
		return e.ready
	}
	if f := e.fallback(sub); f != nil {
		return f
	}
	if !e.policyDue(sub) {
		return nil
	}
	return m.policyForm(e, s, sub)
}

// rejects says whether f is of no use for this stream. What it runs, and what another stream of the same node runs, is
// worth a try; what was refused here is not.
func (e *entry) rejects(sub *subscription, f *form) bool {
	if sub.refused(f.hash) != nil {
		return true
	}
	if sub.acked.same(f) || e.good.same(f) {
		return false
	}
	return e.rejected != nil && e.rejected.hash == f.hash
}

// fallback is a version that worked, best first: the one on its way to this Envoy, the one it runs, the one this node ran.
func (e *entry) fallback(sub *subscription) *form {
	for _, f := range []*form{sub.sent, sub.acked, e.good} {
		if f != nil && !f.policy && sub.refused(f.hash) == nil {
			return f
		}
	}
	return nil
}

// policyDue says whether the policy filter may stand in by now for a plugin that never worked.
func (e *entry) policyDue(sub *subscription) bool {
	switch {
	case sub.due, e.held, len(sub.rejects) > 0:
		return true
	case e.wanted == nil:
		return false
	case e.wanted.err != nil:
		return true
	case e.failure != nil && e.failure.permanent:
		return true
	}
	return e.ready != nil // and refused
}

// policyForm makes the stand-in, or nil when Envoy would not take it (or has not).
func (m *machine) policyForm(e *entry, s *session, sub *subscription) *form {
	sub.noPolicy = ""
	p := policy{name: e.name, allowed: s.learnt.names[e.name]}
	if e.wanted != nil {
		p.kind, p.allow, p.runtime = e.wanted.kind, e.wanted.allow, e.wanted.runtime
		if e.wanted.err == nil && e.wanted.plugin == nil && p.allowed == nil {
			sub.noPolicy = "no policy filter possible: it is not known which types the listener takes under this name"
			return nil
		}
	}
	if p.kind == kindOther {
		p.kind = guessKind(p.allowed)
	}
	body, err := p.filter(m.policyModule)
	if err != nil {
		sub.noPolicy = err.Error()
		return nil
	}
	f := &form{hash: sha256.Sum256(body.GetValue()), policy: true, kind: p.kind}
	if r := sub.refused(f.hash); r != nil {
		sub.noPolicy = "Envoy refused the policy filter too: " + r.text
		return nil
	}
	f.res = &discoveryv3.Resource{Name: e.name, Version: versionOf("policy-"+p.word(), f.hash), Resource: body}
	return f
}

// guessKind is for resources that could not be read: the listener tells.
func guessKind(allowed []string) string {
	for _, name := range allowed {
		if strings.Contains(name, ".filters.network.") {
			return kindNetwork
		}
	}
	return kindHTTP
}

func (m *machine) rejectedNow(e *entry) bool {
	return e.rejected != nil && e.ready != nil && e.rejected.hash == e.ready.hash
}

// worked says whether an earlier version serves in place of what upstream wants.
func (e *entry) worked(sub *subscription) bool {
	return sub.sent != nil && !sub.sent.policy && sub.refused(sub.sent.hash) == nil || e.good != nil && sub.refused(e.good.hash) == nil
}

// problem is why e.wanted does not run, in words.
func (e *entry) problem(hold time.Duration) string {
	switch {
	case e.wanted == nil:
		return fmt.Sprintf("the control plane has not sent this resource (waited %s): see whether the plugin exists there, "+
			"and whether it knows this node's cluster (metadata CLUSTER_ID)", hold)
	case e.wanted.err != nil:
		return e.wanted.err.Error()
	case e.rejected != nil && e.ready != nil && e.rejected.hash == e.ready.hash:
		return "Envoy refused it: " + e.rejected.text
	case e.failure != nil:
		return e.failure.text
	case e.pull != 0:
		return "the module is still being pulled"
	case e.ready != nil:
		return "Envoy has not answered yet"
	}
	return "nothing is being done"
}
