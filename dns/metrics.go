package dns

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	requests, forwarded, failures prometheus.Counter
	duration                      prometheus.Histogram
	hosts                         *prometheus.Desc
}

func newMetrics() *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "gateway_agent_dns_" + name, Help: help})
	}
	return &metrics{
		requests:  counter("requests_total", "Queries."),
		forwarded: counter("upstream_requests_total", "Queries that the name table does not answer, for other name servers."),
		failures:  counter("upstream_failures_total", "Queries that no other name server answered."),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "gateway_agent_dns_upstream_request_duration_seconds", Help: "Time until other name servers answered.",
			Buckets: []float64{.001, .005, .01, .1, 1, 5},
		}),
		hosts: prometheus.NewDesc("gateway_agent_dns_hosts", "Hosts of the name table; absent before the first one.", nil, nil),
	}
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.forwarded, m.failures, m.duration}
}

// Describe implements prometheus.Collector.
func (s *Server) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range s.metrics.all() {
		c.Describe(ch)
	}
	ch <- s.metrics.hosts
}

// Collect implements prometheus.Collector.
func (s *Server) Collect(ch chan<- prometheus.Metric) {
	for _, c := range s.metrics.all() {
		c.Collect(ch)
	}
	if t := s.table.Load(); t != nil {
		ch <- prometheus.MustNewConstMetric(s.metrics.hosts, prometheus.GaugeValue, float64(len(t.infos)))
	}
}
