package identity

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The states of an identity. Whether mounted files and an external server's secrets are good is in the server's status.
const (
	StateOK       = "ok"
	StatePending  = "pending"  // there is no certificate yet
	StateDegraded = "degraded" // the certificate in use cannot be renewed, or an external server is away
	StateExpired  = "expired"  // the certificate in use has expired
)

// Status is what an operator may know.
type Status struct {
	Source    string       `json:"source"`
	Why       string       `json:"why"` // this source was chosen
	State     string       `json:"state"`
	Reason    string       `json:"reason,omitempty"`
	ID        string       `json:"id,omitempty"` // in the certificate; before there is one, asked for
	Authority string       `json:"authority,omitempty"`
	Serial    string       `json:"serial,omitempty"`
	Issued    time.Time    `json:"issued,omitzero"`
	NotAfter  time.Time    `json:"not_after,omitzero"`
	RenewAt   time.Time    `json:"renew_at,omitzero"`
	Failures  int          `json:"failures,omitempty"` // in a row
	Since     time.Time    `json:"failing_since,omitzero"`
	Roots     []RootStatus `json:"roots,omitempty"`
	Keep      string       `json:"keep,omitempty"` // why the identity is not on disk, though it should be
	Output    string       `json:"output,omitempty"`
}

// RootStatus is one certificate that is trusted.
type RootStatus struct {
	Subject  string    `json:"subject"`
	SHA256   string    `json:"sha256"`
	NotAfter time.Time `json:"not_after"`
	From     string    `json:"from"`           // "authority", "bundle" (the control plane's) or "previous"
	Until    time.Time `json:"until,omitzero"` // previous: trusted until then
}

// Status tells how the identity is.
func (w *Workload) Status() Status {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.cfg.Choice
	s := Status{Source: c.Source, Why: c.Why, State: StateOK}
	switch c.Source {
	case CA:
		w.authorityLocked(&s, now)
	case External:
		w.externalLocked(&s)
	case Files:
		s.Output = text(w.written)
	}
	return s
}

func (w *Workload) authorityLocked(s *Status, now time.Time) {
	s.ID, s.Authority, s.Failures, s.Since = w.cfg.ID, w.cfg.Authority, w.failures, w.since
	if w.problem != nil {
		s.State, s.Reason = StateDegraded, w.problem.Error()
	}
	s.Keep, s.Output = text(w.kept), text(w.written)
	if w.current == nil {
		s.State = StatePending
		return
	}
	leaf := w.current.leaf
	if !now.Before(w.current.ends) {
		s.State = StateExpired
	}
	s.ID, s.Serial = leaf.URIs[0].String(), leaf.SerialNumber.Text(16)
	s.Issued, s.NotAfter, s.RenewAt = w.current.issued.Round(0), w.current.ends, w.renewAt.Round(0)
	if w.cfg.Choice.Files.Root == "" {
		s.Roots = w.rootStatusLocked(now)
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (w *Workload) rootStatusLocked(now time.Time) []RootStatus {
	var all []RootStatus
	seen := map[string]bool{}
	add := func(c *x509.Certificate, from string, until time.Time) {
		sum := sha256.Sum256(c.Raw)
		digest := hex.EncodeToString(sum[:])
		if !seen[digest] {
			seen[digest] = true
			all = append(all, RootStatus{c.Subject.String(), digest, c.NotAfter, from, until})
		}
	}
	for _, c := range w.current.roots {
		add(c, "authority", time.Time{})
	}
	for _, c := range w.bundle {
		add(c, "bundle", time.Time{})
	}
	for _, p := range w.previous {
		if now.Before(p.until) {
			add(p.cert, "previous", p.until.Round(0))
		}
	}
	return all
}

func (w *Workload) externalLocked(s *Status) {
	for _, name := range []string{Certificate, Roots} {
		if why := w.notes[name]; why != "" {
			s.State, s.Reason = StateDegraded, why
			return
		}
	}
}

var (
	requestsDesc = prometheus.NewDesc("gateway_agent_identity_requests_total", "Certificates asked for, by result.", []string{"result"}, nil)
	failuresDesc = prometheus.NewDesc("gateway_agent_identity_failures", "Requests for a certificate that have failed in a row.", nil, nil)
	renewalDesc  = prometheus.NewDesc("gateway_agent_identity_renewal_timestamp_seconds", "When the certificate in use is to be renewed.", nil, nil)
	sourceDesc   = prometheus.NewDesc("gateway_agent_identity_info", "Who provides the workload's identity.", []string{"source"}, nil)
)

// Describe implements prometheus.Collector. When a certificate expires is a metric of the server, which knows it for every source.
func (w *Workload) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{requestsDesc, failuresDesc, renewalDesc, sourceDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (w *Workload) Collect(ch chan<- prometheus.Metric) {
	w.mu.Lock()
	granted, refused, failures, renewAt := w.granted, w.refused, w.failures, w.renewAt
	w.mu.Unlock()
	ch <- prometheus.MustNewConstMetric(sourceDesc, prometheus.GaugeValue, 1, w.cfg.Choice.Source)
	if w.cfg.Choice.Source != CA {
		return
	}
	ch <- prometheus.MustNewConstMetric(requestsDesc, prometheus.CounterValue, float64(granted), "ok")
	ch <- prometheus.MustNewConstMetric(requestsDesc, prometheus.CounterValue, float64(refused), "failed")
	ch <- prometheus.MustNewConstMetric(failuresDesc, prometheus.GaugeValue, float64(failures))
	if !renewAt.IsZero() {
		ch <- prometheus.MustNewConstMetric(renewalDesc, prometheus.GaugeValue, float64(renewAt.Unix()))
	}
}
