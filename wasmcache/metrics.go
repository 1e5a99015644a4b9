package wasmcache

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of one store. Results of a pull: downloaded, unchanged, temporary, permanent.
type metrics struct {
	bytes, modules, running *prometheus.Desc

	hits, collected, quarantined prometheus.Counter
	pulls                        *prometheus.CounterVec
	duration                     prometheus.Histogram
}

func newMetrics() *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "gateway_agent_wasm_" + name, Help: help})
	}
	gauge := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("gateway_agent_wasm_"+name, help, nil, nil)
	}
	m := &metrics{
		bytes:       gauge("store_bytes", "Bytes of modules in the store, damaged ones included."),
		modules:     gauge("store_modules", "Modules in the store."),
		running:     gauge("pulls_running", "Pulls that are running now."),
		hits:        counter("store_hits_total", "Requests that the store answered without a network."),
		collected:   counter("store_collected_total", "Unused modules that were removed."),
		quarantined: counter("store_quarantined_total", "Modules that were found damaged on disk."),
		pulls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gateway_agent_wasm_pulls_total", Help: "Pulls that ended, by result.",
		}, []string{"result"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "gateway_agent_wasm_pull_duration_seconds", Help: "Time that a pull took.",
			Buckets: []float64{.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}),
	}
	for _, result := range []string{"downloaded", "unchanged", "temporary", "permanent"} {
		m.pulls.WithLabelValues(result)
	}
	return m
}

func (m *metrics) pulled(start time.Time, downloaded bool, err error) {
	if errors.Is(err, errNobody) {
		return // a newer request took its place
	}
	result := "unchanged"
	switch p, known := errors.AsType[interface {
		error
		Permanent() bool
	}](err); {
	case known && p.Permanent():
		result = "permanent"
	case err != nil:
		result = "temporary"
	case downloaded:
		result = "downloaded"
	}
	m.pulls.WithLabelValues(result).Inc()
	m.duration.Observe(time.Since(start).Seconds())
}

func (m *metrics) parts() []prometheus.Collector {
	return []prometheus.Collector{m.hits, m.collected, m.quarantined, m.pulls, m.duration}
}

// Describe implements prometheus.Collector.
func (s *Store) Describe(out chan<- *prometheus.Desc) {
	out <- s.metrics.bytes
	out <- s.metrics.modules
	out <- s.metrics.running
	for _, c := range s.metrics.parts() {
		c.Describe(out)
	}
}

// Collect implements prometheus.Collector.
func (s *Store) Collect(out chan<- prometheus.Metric) {
	bytes := s.quarantineSize()
	names := s.names(blobDir)
	for _, digest := range names {
		if info, err := s.root.Lstat(blobName(digest)); err == nil {
			bytes += info.Size()
		}
	}
	out <- prometheus.MustNewConstMetric(s.metrics.bytes, prometheus.GaugeValue, float64(bytes))
	out <- prometheus.MustNewConstMetric(s.metrics.modules, prometheus.GaugeValue, float64(len(names)))
	out <- prometheus.MustNewConstMetric(s.metrics.running, prometheus.GaugeValue, float64(len(s.pulls.running())))
	for _, c := range s.metrics.parts() {
		c.Collect(out)
	}
}

var _ prometheus.Collector = (*Store)(nil)
