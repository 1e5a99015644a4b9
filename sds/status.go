package sds

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The states of a secret.
const (
	StateOK       = "ok"
	StatePending  = "pending"  // nothing could be served yet
	StateDegraded = "degraded" // the old content is served, the new one cannot be used
	StateExpired  = "expired"  // what is served is out of date, or not valid yet
	StateRejected = "rejected" // Envoy refuses what is served
)

// SecretStatus is what an operator may know about a secret. It never holds any of its content.
type SecretStatus struct {
	Name      string    `json:"name"`
	Kind      string    `json:"kind,omitempty"`
	State     string    `json:"state"`
	Reason    string    `json:"reason,omitempty"`
	Files     []string  `json:"files,omitempty"`
	Serial    string    `json:"serial,omitempty"`
	SHA256    string    `json:"sha256,omitempty"`
	Subject   string    `json:"subject,omitempty"`
	SANs      []string  `json:"sans,omitempty"`
	NotBefore time.Time `json:"not_before,omitzero"`
	NotAfter  time.Time `json:"not_after,omitzero"`
	Version   string    `json:"version,omitempty"`
	Streams   int       `json:"streams"`
	LastPush  time.Time `json:"last_push,omitzero"`
}

// Status lists all secrets by name.
func (s *Server) Status() []SecretStatus {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]SecretStatus, 0, len(s.entries))
	for _, e := range s.entries {
		out = append(out, s.statusLocked(e, now))
	}
	slices.SortFunc(out, func(a, b SecretStatus) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// accepted notes that a client has something of a secret.
func (s *Server) accepted(d *delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d.e.held = d.e.held || d.has
}

// Waiting says why Envoy, which has asked for a secret, has never had it; "" when nobody asked, or a client has accepted it once.
func (s *Server) Waiting(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[name]
	switch {
	case e == nil || !e.asked || e.held:
		return ""
	case e.current == nil:
		return e.reasonLocked()
	}
	return cmp.Or(e.nackLocked(), "envoy has not accepted it yet")
}

func (s *Server) statusLocked(e *entry, now time.Time) SecretStatus {
	st := SecretStatus{
		Name: e.name, Kind: e.kind, Files: slices.Clone(e.files), Version: s.version(e.number),
		Streams: len(e.subs), LastPush: e.lastPush,
	}
	if m := e.current; m != nil && m.cert != nil {
		st.Serial, st.SHA256, st.Subject = serialOf(m.cert), fingerprint(m.cert), m.cert.Subject.String()
		st.SANs, st.NotBefore, st.NotAfter = names(m.cert), m.cert.NotBefore, m.cert.NotAfter
	}
	st.State, st.Reason = e.stateLocked(now)
	return st
}

// stateLocked is the worst that is true of a secret, with every reason there is.
func (e *entry) stateLocked(now time.Time) (state, reason string) {
	if e.current == nil {
		return StatePending, e.reasonLocked()
	}
	var reasons []string
	state = StateOK
	note := func(s, why string) {
		if why == "" {
			return
		}
		if state == StateOK {
			state = s
		}
		reasons = append(reasons, why)
	}
	note(StateRejected, e.nackLocked())
	note(StateExpired, e.current.dates(now))
	if e.problem.err != nil {
		note(StateDegraded, oneLine(e.problem.err))
	}
	return state, strings.Join(append(reasons, e.current.warnings...), "; ")
}

func (e *entry) nackLocked() string {
	for _, d := range e.subs {
		if d.nack != "" {
			return "envoy rejects it: " + d.nack
		}
	}
	return ""
}

func (e *entry) reasonLocked() string {
	if e.problem.err == nil {
		return "secret " + e.name + " has not been read yet"
	}
	return oneLine(e.problem.err)
}

// oneLine writes joined errors on one line.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

var (
	expiryDesc   = prometheus.NewDesc("gateway_agent_cert_expiry_seconds", "Time until the certificate in use expires; negative when it has.", []string{"name"}, nil)
	notAfterDesc = prometheus.NewDesc("gateway_agent_cert_not_after_timestamp_seconds", "When the certificate in use expires.", []string{"name"}, nil)
	pushesDesc   = prometheus.NewDesc("gateway_agent_sds_pushes_total", "Secrets sent to Envoy.", nil, nil)
	rejectsDesc  = prometheus.NewDesc("gateway_agent_sds_rejects_total", "Secrets that Envoy rejected.", nil, nil)
	streamsDesc  = prometheus.NewDesc("gateway_agent_sds_streams", "Open streams of secrets.", nil, nil)
	inotifyDesc  = prometheus.NewDesc("gateway_agent_sds_inotify", "1 when file notifications work, 0 when changes are found by polling only.", nil, nil)
)

// Describe implements prometheus.Collector.
func (s *Server) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{expiryDesc, notAfterDesc, pushesDesc, rejectsDesc, streamsDesc, inotifyDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (s *Server) Collect(ch chan<- prometheus.Metric) {
	now := time.Now()
	for _, st := range s.Status() {
		if st.NotAfter.IsZero() {
			continue
		}
		name := strings.ToValidUTF8(st.Name, "?")
		ch <- prometheus.MustNewConstMetric(expiryDesc, prometheus.GaugeValue, st.NotAfter.Sub(now).Seconds(), name)
		ch <- prometheus.MustNewConstMetric(notAfterDesc, prometheus.GaugeValue, float64(st.NotAfter.Unix()), name)
	}
	s.mu.Lock()
	pushes, rejects, streams := s.pushes, s.rejects, s.streams
	s.mu.Unlock()
	inotify := 0.0
	if s.hints.on() {
		inotify = 1
	}
	ch <- prometheus.MustNewConstMetric(pushesDesc, prometheus.CounterValue, float64(pushes))
	ch <- prometheus.MustNewConstMetric(rejectsDesc, prometheus.CounterValue, float64(rejects))
	ch <- prometheus.MustNewConstMetric(streamsDesc, prometheus.GaugeValue, float64(streams))
	ch <- prometheus.MustNewConstMetric(inotifyDesc, prometheus.GaugeValue, inotify)
}
