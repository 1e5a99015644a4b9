package relay

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	connected, sessions, age, unacked *prometheus.Desc
	responses, rejects                *prometheus.CounterVec
	stuck                             prometheus.Counter
	last                              atomic.Pointer[time.Time] // of the last response
}

func newMetrics() *metrics {
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"type"})
	}
	return &metrics{
		connected: prometheus.NewDesc("gateway_agent_xds_connected", "Whether a stream to the control plane is open.", nil, nil),
		sessions:  prometheus.NewDesc("gateway_agent_xds_sessions", "ADS streams that Envoy has open.", nil, nil),
		age: prometheus.NewDesc("gateway_agent_xds_last_response_age_seconds",
			"Time since the control plane's last response; absent before the first.", nil, nil),
		unacked: prometheus.NewDesc("gateway_agent_xds_unacked_age_seconds",
			"Age of the oldest response that Envoy has not answered; 0: it has answered all.", []string{"type"}, nil),
		stuck: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "gateway_agent_xds_stuck_streams_total", Help: "Streams to the control plane that were cut because nothing moved.",
		}),
		responses: counter("gateway_agent_xds_responses_total", "Responses of the control plane."),
		rejects:   counter("gateway_agent_xds_rejects_total", "Responses that Envoy rejected."),
	}
}

func (m *metrics) reject(short string) { m.rejects.WithLabelValues(short).Inc() }

func (m *metrics) lastResponse() time.Time {
	if last := m.last.Load(); last != nil {
		return *last
	}
	return time.Time{}
}

// Describe implements prometheus.Collector.
func (s *Server) Describe(ch chan<- *prometheus.Desc) {
	ch <- s.metrics.connected
	ch <- s.metrics.sessions
	ch <- s.metrics.age
	ch <- s.metrics.unacked
	s.metrics.stuck.Describe(ch)
	s.metrics.responses.Describe(ch)
	s.metrics.rejects.Describe(ch)
}

// Collect implements prometheus.Collector.
func (s *Server) Collect(ch chan<- prometheus.Metric) {
	s.mu.Lock()
	live, sessions := len(s.live), len(s.sessions)
	s.mu.Unlock()
	gauge := func(d *prometheus.Desc, v float64) { ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	gauge(s.metrics.connected, float64(min(live, 1)))
	gauge(s.metrics.sessions, float64(sessions))
	if last := s.metrics.lastResponse(); !last.IsZero() {
		gauge(s.metrics.age, time.Since(last).Seconds())
	}
	for short, age := range s.unackedAges() {
		ch <- prometheus.MustNewConstMetric(s.metrics.unacked, prometheus.GaugeValue, age, short)
	}
	s.metrics.stuck.Collect(ch)
	s.metrics.responses.Collect(ch)
	s.metrics.rejects.Collect(ch)
}

// unackedAges are the seconds that the oldest unanswered response of each type has waited for Envoy.
func (s *Server) unackedAges() map[string]float64 {
	ages := make(map[string]float64)
	for _, session := range s.Status().Sessions {
		for _, t := range session.Types {
			age := 0.0
			if !t.Unanswered.IsZero() {
				age = time.Since(t.Unanswered).Seconds()
			}
			if t.Asked {
				ages[t.Type] = max(ages[t.Type], age)
			}
		}
	}
	return ages
}
