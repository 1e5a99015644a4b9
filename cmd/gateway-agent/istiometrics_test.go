package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"

	"github.com/gateway-agent/gateway-agent/internal/doctable"
)

func TestIstioNames(t *testing.T) {
	registry := prometheus.NewRegistry()
	pulls := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gateway_agent_wasm_pulls_total", Help: "h"}, []string{"result"})
	for result, n := range map[string]float64{"downloaded": 3, "unchanged": 2, "temporary": 4, "permanent": 1} {
		pulls.WithLabelValues(result).Add(n)
	}
	hits := prometheus.NewCounter(prometheus.CounterOpts{Name: "gateway_agent_wasm_store_hits_total", Help: "h"})
	hits.Add(7)
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gateway_agent_identity_requests_total", Help: "h"}, []string{"result"})
	requests.WithLabelValues("ok").Add(5)
	requests.WithLabelValues("failed").Add(2)
	expiry := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "gateway_agent_cert_expiry_seconds", Help: "h"}, []string{"name"})
	expiry.WithLabelValues("default").Set(60)
	registry.MustRegister(pulls, hits, requests, expiry, collectors.NewGoCollector())
	families, err := istioNames{registry}.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, family := range families {
		if family.GetName() > "istio" && !strings.HasPrefix(family.GetName(), "istio_agent_go_") {
			for _, m := range family.GetMetric() {
				name := family.GetName()
				for _, l := range m.GetLabel() {
					name += fmt.Sprintf(" %s=%s", l.GetName(), l.GetValue())
				}
				got[name] = valueOf(m)
			}
		}
	}
	want := map[string]float64{
		"istio_agent_wasm_cache_lookup_count hit=true": 7, "istio_agent_wasm_cache_lookup_count hit=false": 10,
		"istio_agent_wasm_remote_fetch_count result=success": 5, "istio_agent_wasm_remote_fetch_count result=download_failure": 5,
		"istio_agent_num_outgoing_requests request_type=csr": 7, "istio_agent_num_failed_outgoing_requests request_type=csr": 2,
		"istio_agent_cert_expiry_seconds resource_name=default": 60, "istio_build component=agent tag=dev": 1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pilot-agent's names (-want +got):\n%s", diff)
	}
	var text strings.Builder
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(&text, family); err != nil {
			t.Errorf("%s: %v", family.GetName(), err)
		}
	}
	if !strings.Contains(text.String(), "istio_agent_go_goroutines ") || !strings.Contains(text.String(), "\ngo_goroutines ") {
		t.Error("the Go runtime's metrics are not there under both names")
	}
}

// TestDocs keeps the table of metrics in the documentation.
func TestDocs(t *testing.T) {
	var table strings.Builder
	table.WriteString("| pilot-agent's | ours |\n|---|---|\n")
	for _, tr := range translations {
		theirs := tr.theirs
		switch {
		case tr.label != "":
			theirs += "{" + tr.label + "}"
		case tr.fixed[0] != "":
			theirs += fmt.Sprintf("{%s=%q}", tr.fixed[0], tr.fixed[1])
		}
		fmt.Fprintf(&table, "| `%s` | `%s` |\n", theirs, tr.ours)
	}
	table.WriteString("| `istio_build{component=\"agent\",tag}` | `gateway_agent_build_info{version}` |\n")
	doctable.Check(t, "../../docs/istio.md", "metrics", table.String(), *update)
}
