package standalone

import "github.com/prometheus/client_golang/prometheus"

var (
	lastLoadOK = prometheus.NewDesc("gateway_agent_config_last_load_ok",
		"Whether the configuration directory could be used when it was last read (1) or has a problem (0).", nil, nil)
	problemCount = prometheus.NewDesc("gateway_agent_config_problems",
		"Problems in the configuration directory, those that Envoy reported included.", nil, nil)
	loadCount = prometheus.NewDesc("gateway_agent_config_loads_total",
		"Times that the configuration directory was read after a change.", []string{"result"}, nil)
)

// Describe implements prometheus.Collector.
func (s *Source) Describe(ch chan<- *prometheus.Desc) {
	ch <- lastLoadOK
	ch <- problemCount
	ch <- loadCount
}

// Collect implements prometheus.Collector.
func (s *Source) Collect(ch chan<- prometheus.Metric) {
	s.mu.Lock()
	ok, problems := 0.0, len(s.problemsLocked())
	if len(s.found) == 0 && s.target != nil {
		ok = 1
	}
	counts := map[string]uint64{"ok": s.loads["ok"], "failed": s.loads["failed"]}
	s.mu.Unlock()
	ch <- prometheus.MustNewConstMetric(lastLoadOK, prometheus.GaugeValue, ok)
	ch <- prometheus.MustNewConstMetric(problemCount, prometheus.GaugeValue, float64(problems))
	for result, n := range counts {
		ch <- prometheus.MustNewConstMetric(loadCount, prometheus.CounterValue, float64(n), result)
	}
}
