package main

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// translation is a metric of pilot-agent that says what one of ours says.
type translation struct {
	theirs, ours string
	kind         dto.MetricType
	label        string            // theirs for our only label; "" = summed over it
	values       map[string]string // their label's values for ours; others stay as they are
	fixed        [2]string         // a label of theirs with one value here
	only         string            // counts only our samples whose label has this value; with a leading '!', has not
}

// translations are the metrics that Istio's dashboards and alerts know, as far as this agent has what they say.
var translations = []translation{
	{theirs: "istio_agent_startup_duration_seconds", ours: "gateway_agent_startup_duration_seconds", kind: dto.MetricType_GAUGE},
	{theirs: "istio_agent_cert_expiry_seconds", ours: "gateway_agent_cert_expiry_seconds", kind: dto.MetricType_GAUGE, label: "resource_name"},
	{theirs: "istio_agent_num_outgoing_requests", ours: "gateway_agent_identity_requests_total", kind: dto.MetricType_COUNTER, fixed: [2]string{"request_type", "csr"}},
	{
		theirs: "istio_agent_num_failed_outgoing_requests", ours: "gateway_agent_identity_requests_total", kind: dto.MetricType_COUNTER,
		fixed: [2]string{"request_type", "csr"}, only: "!ok",
	},
	{theirs: "istio_agent_xds_proxy_responses", ours: "gateway_agent_xds_responses_total", kind: dto.MetricType_COUNTER},
	{theirs: "istio_agent_scrapes_total", ours: "gateway_agent_scrapes_total", kind: dto.MetricType_COUNTER},
	{theirs: "istio_agent_scrape_failures_total", ours: "gateway_agent_envoy_scrape_failures_total", kind: dto.MetricType_COUNTER, fixed: [2]string{"type", "envoy"}},
	{theirs: "istio_agent_dns_requests_total", ours: "gateway_agent_dns_requests_total", kind: dto.MetricType_COUNTER},
	{theirs: "istio_agent_dns_upstream_requests_total", ours: "gateway_agent_dns_upstream_requests_total", kind: dto.MetricType_COUNTER},
	{theirs: "istio_agent_dns_upstream_failures_total", ours: "gateway_agent_dns_upstream_failures_total", kind: dto.MetricType_COUNTER},
	{
		theirs: "istio_agent_dns_upstream_request_duration_seconds", ours: "gateway_agent_dns_upstream_request_duration_seconds",
		kind: dto.MetricType_HISTOGRAM,
	},
	{theirs: "istio_agent_wasm_cache_entries", ours: "gateway_agent_wasm_store_modules", kind: dto.MetricType_GAUGE},
	{theirs: "istio_agent_wasm_cache_lookup_count", ours: "gateway_agent_wasm_store_hits_total", kind: dto.MetricType_COUNTER, fixed: [2]string{"hit", "true"}},
	{theirs: "istio_agent_wasm_cache_lookup_count", ours: "gateway_agent_wasm_pulls_total", kind: dto.MetricType_COUNTER, fixed: [2]string{"hit", "false"}},
	{
		theirs: "istio_agent_wasm_remote_fetch_count", ours: "gateway_agent_wasm_pulls_total", kind: dto.MetricType_COUNTER, label: "result",
		values: map[string]string{"downloaded": "success", "unchanged": "success", "temporary": "download_failure", "permanent": "download_failure"},
	},
}

// istioNames adds to what it gathers the same under pilot-agent's names: translations, and the process's own metrics with a prefix.
type istioNames struct{ prometheus.Gatherer }

func (g istioNames) Gather() ([]*dto.MetricFamily, error) {
	families, err := g.Gatherer.Gather()
	byName := map[string]*dto.MetricFamily{}
	more := map[string]*dto.MetricFamily{}
	for _, family := range families {
		byName[family.GetName()] = family
		if name := family.GetName(); strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
			more["istio_agent_"+name] = &dto.MetricFamily{
				Name: new("istio_agent_" + name), Help: family.Help, Type: family.Type, Unit: family.Unit, Metric: family.Metric,
			}
		}
	}
	for _, t := range translations {
		ours := byName[t.ours]
		if ours == nil {
			continue
		}
		family := more[t.theirs]
		if family == nil {
			family = &dto.MetricFamily{Name: &t.theirs, Help: new("As " + t.ours + ", under pilot-agent's name."), Type: t.kind.Enum()}
			more[t.theirs] = family
		}
		family.Metric = append(family.Metric, t.metrics(ours)...)
	}
	more["istio_build"] = istioBuild()
	for _, name := range slices.Sorted(maps.Keys(more)) {
		families = append(families, more[name])
	}
	slices.SortFunc(families, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
	return families, err
}

func (t translation) metrics(ours *dto.MetricFamily) []*dto.Metric {
	switch {
	case t.kind == dto.MetricType_HISTOGRAM:
		return ours.GetMetric()
	case t.label != "":
		return t.byLabel(ours)
	}
	sum := 0.0
	for _, m := range ours.GetMetric() {
		not, rest := strings.CutPrefix(t.only, "!")
		if t.only == "" || (firstLabel(m) == not) != rest {
			sum += valueOf(m)
		}
	}
	return []*dto.Metric{t.metric(sum, t.fixed)}
}

// byLabel adds up what has the same value of their label.
func (t translation) byLabel(ours *dto.MetricFamily) []*dto.Metric {
	sums := map[string]float64{}
	for _, m := range ours.GetMetric() {
		value := firstLabel(m)
		if other, ok := t.values[value]; ok {
			value = other
		}
		sums[value] += valueOf(m)
	}
	var all []*dto.Metric
	for _, value := range slices.Sorted(maps.Keys(sums)) {
		all = append(all, t.metric(sums[value], [2]string{t.label, value}))
	}
	return all
}

func (t translation) metric(value float64, label [2]string) *dto.Metric {
	m := &dto.Metric{}
	if label[0] != "" {
		m.Label = []*dto.LabelPair{{Name: &label[0], Value: &label[1]}}
	}
	if t.kind == dto.MetricType_GAUGE {
		m.Gauge = &dto.Gauge{Value: &value}
	} else {
		m.Counter = &dto.Counter{Value: &value}
	}
	return m
}

func firstLabel(m *dto.Metric) string {
	if labels := m.GetLabel(); len(labels) > 0 {
		return labels[0].GetValue()
	}
	return ""
}

func valueOf(m *dto.Metric) float64 {
	if g := m.GetGauge(); g != nil {
		return g.GetValue()
	}
	return m.GetCounter().GetValue()
}

func istioBuild() *dto.MetricFamily {
	label := func(name, value string) *dto.LabelPair { return &dto.LabelPair{Name: &name, Value: &value} }
	return &dto.MetricFamily{
		Name: new("istio_build"), Help: new("The agent's version."), Type: dto.MetricType_GAUGE.Enum(),
		Metric: []*dto.Metric{{Label: []*dto.LabelPair{label("component", "agent"), label("tag", version)}, Gauge: &dto.Gauge{Value: new(1.0)}}},
	}
}

// startup measures the time from the start of the agent until it is ready for the first time.
type startup struct {
	desc  *prometheus.Desc
	taken func() time.Duration // 0: not yet
}

func newStartup(taken func() time.Duration) startup {
	return startup{taken: taken, desc: prometheus.NewDesc("gateway_agent_startup_duration_seconds",
		"Time from the start of the agent until it was ready for the first time.", nil, nil)}
}

func (s startup) Describe(ch chan<- *prometheus.Desc) { ch <- s.desc }

func (s startup) Collect(ch chan<- prometheus.Metric) {
	if d := s.taken(); d > 0 {
		ch <- prometheus.MustNewConstMetric(s.desc, prometheus.GaugeValue, d.Seconds())
	}
}
