package ecds

import (
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// States of a resource.
const (
	StateLive     = "live"     // Envoy runs what the control plane wants
	StatePending  = "pending"  // being pulled, or Envoy has not answered
	StateDegraded = "degraded" // an earlier version serves, because what is wanted could not be had
	StatePolicy   = "policy"   // the policy filter stands in
	StateRejected = "rejected" // Envoy refused what is wanted
	StatePassed   = "passed"   // not a Wasm filter: passed as it is
)

// ResourceStatus is the state of one resource of one node.
type ResourceStatus struct {
	Name         string    `json:"name"`
	Node         string    `json:"node,omitempty"`
	Kind         string    `json:"kind,omitempty"` // http, network
	URL          string    `json:"url,omitempty"`  // without user information and query
	DigestLive   string    `json:"digest_live,omitempty"`
	DigestWanted string    `json:"digest_wanted,omitempty"`
	State        string    `json:"state"`
	Reason       string    `json:"reason,omitempty"`
	NextRetry    time.Time `json:"next_retry,omitzero"`
	Attempts     int       `json:"attempts,omitempty"` // pulls since the last one that succeeded
	EnvoyError   string    `json:"envoy_error,omitempty"`
	Version      string    `json:"version,omitempty"` // the control plane's
	Warning      string    `json:"warning,omitempty"` // about a module that could not be vouched for
	Since        time.Time `json:"since,omitzero"`
}

// note keeps the state of a resource and reports when it changes.
func (m *machine) note(now time.Time, e *entry) {
	if len(e.sessions) == 0 {
		return
	}
	from, why := e.state, e.why
	e.state, e.reason = m.classify(e)
	if e.state != from {
		e.since = now
	} else if e.why == why || e.why == "" {
		return
	}
	m.do(transition{from, e.status()})
}

func (m *machine) classify(e *entry) (state, reason string) {
	policy, old, refused, removed := false, e.good != nil, m.rejectedNow(e), true
	e.why = ""
	for _, s := range sorted(e.sessions) {
		sub := s.subs[e.name]
		removed = removed && sub.removed
		policy = policy || sub.sent != nil && sub.sent.policy
		refused = refused || e.ready != nil && sub.refused(e.ready.hash) != nil
		if sub.noPolicy != "" {
			e.why = "; " + sub.noPolicy
		}
	}
	switch {
	case removed:
		return StatePending, "the control plane has removed it"
	case e.wanted == nil && !policy && !old:
		return StatePending, "waiting for the control plane to send it" + e.why
	case e.wanted == nil && policy:
		return StatePolicy, e.problem(m.hold) + e.why
	case e.wanted == nil:
		return StateDegraded, e.problem(m.hold)
	case refused:
		return StateRejected, e.problem(m.hold) + e.why
	case e.wanted.err == nil && e.wanted.plugin == nil:
		return StatePassed, ""
	}
	return m.classifyPlugin(e, policy)
}

func (m *machine) classifyPlugin(e *entry, policy bool) (state, reason string) {
	bad := e.failure != nil || e.wanted.err != nil
	switch {
	case e.good.same(e.ready) && !bad:
		return StateLive, ""
	case e.good != nil && bad && !policy:
		return StateDegraded, e.problem(m.hold)
	case policy && !e.good.same(e.ready):
		return StatePolicy, e.problem(m.hold) + e.why
	}
	return StatePending, e.problem(m.hold) + e.why
}

func (e *entry) status() ResourceStatus {
	s := ResourceStatus{Name: e.name, Node: e.key.node, State: e.state, Reason: e.reason, NextRetry: e.retryAt, Attempts: e.attempts, Since: e.since}
	if e.good != nil {
		s.Kind, s.URL, s.Warning = e.good.kind, e.good.url, e.good.warning
	}
	if e.wanted != nil {
		s.Kind, s.Version, s.URL = e.wanted.kind, e.wanted.version, ""
		if e.wanted.ref != nil {
			s.URL = publicURL(e.wanted.ref.URL)
		}
	}
	if e.ready != nil {
		s.DigestWanted, s.Warning = e.ready.digest, e.ready.warning
	}
	for _, session := range sorted(e.sessions) {
		if f := session.subs[e.name].acked; f != nil {
			s.DigestLive = f.digest // none when it is the policy filter
		}
		if rejects := session.subs[e.name].rejects; len(rejects) > 0 && e.state != StateLive {
			s.EnvoyError = rejects[len(rejects)-1].text
		}
	}
	if s.EnvoyError == "" && e.rejected != nil {
		s.EnvoyError = e.rejected.text
	}
	return s
}

// status lists what streams ask for; what is merely kept is not shown.
func (m *machine) status() []ResourceStatus {
	var out []ResourceStatus
	for _, e := range m.sortedEntries() {
		if len(e.sessions) > 0 {
			out = append(out, e.status())
		}
	}
	return out
}

// pins lists the modules that something may still open: Envoy reads the file again whenever a listener that names it is
// rebuilt, so also what it refused counts until something else was sent.
func (m *machine) pins() []string {
	set := map[string]bool{}
	add := func(f *form) {
		if f != nil && f.digest != "" {
			set[f.digest] = true
		}
	}
	for _, e := range m.entries {
		add(e.ready)
		add(e.good)
		for _, s := range e.sessions {
			sub := s.subs[e.name]
			add(sub.sent)
			add(sub.acked)
			for _, f := range sub.inflight {
				add(f)
			}
		}
	}
	return slices.Sorted(maps.Keys(set))
}

var (
	descResources = prometheus.NewDesc("gateway_agent_wasm_resources", "Extension configurations that Envoy subscribes to, by state.", []string{"state"}, nil)
	descDegraded  = prometheus.NewDesc("gateway_agent_wasm_degraded", "1 while an earlier version of a plugin serves because the wanted one could not be had or was refused.", []string{"resource"}, nil)
	descFailures  = prometheus.NewDesc("gateway_agent_wasm_pull_failures_total", "Attempts to get a module that failed.", nil, nil)
	descRejects   = prometheus.NewDesc("gateway_agent_wasm_rejects_total", "Extension configurations that Envoy refused.", nil, nil)
)

// Describe implements prometheus.Collector.
func (e *Engine) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descResources, descDegraded, descFailures, descRejects} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (e *Engine) Collect(ch chan<- prometheus.Metric) {
	e.mu.Lock()
	all, failures, rejects := e.m.status(), e.m.failures, e.m.rejects
	e.mu.Unlock()
	states := map[string]int{StateLive: 0, StatePending: 0, StateDegraded: 0, StatePolicy: 0, StateRejected: 0, StatePassed: 0}
	degraded := map[string]float64{} // one series per resource, whatever the number of nodes
	for _, r := range all {
		states[r.State]++
		v := 0.0
		if r.State == StateDegraded || r.State == StateRejected && r.DigestLive != "" {
			v = 1
		}
		degraded[r.Name] = max(degraded[r.Name], v)
	}
	for state, n := range states {
		ch <- prometheus.MustNewConstMetric(descResources, prometheus.GaugeValue, float64(n), state)
	}
	for name, v := range degraded {
		ch <- prometheus.MustNewConstMetric(descDegraded, prometheus.GaugeValue, v, name)
	}
	ch <- prometheus.MustNewConstMetric(descFailures, prometheus.CounterValue, float64(failures))
	ch <- prometheus.MustNewConstMetric(descRejects, prometheus.CounterValue, float64(rejects))
}
