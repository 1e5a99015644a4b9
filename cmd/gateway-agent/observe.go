package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/gateway-agent/gateway-agent/status"
)

// buildStatus gives the status server its views of the parts.
func (g *gateway) buildStatus() (err error) {
	config := status.Config{
		Ready:        g.readyChecks,
		Live:         g.liveChecks,
		Notes:        g.pluginNotes,
		Status:       func(ctx context.Context) any { return g.report(ctx) },
		Debug:        g.debugViews(),
		LogLevel:     func() string { return strings.ToLower(g.level.Level().String()) },
		SetLogLevel:  g.setLogLevel,
		MetricsLocal: g.settings.metricsLocal,
		Log:          g.part("status"),
	}
	if g.settings.localControl {
		config.Quit, config.Drain = func() { g.stop(nil) }, g.announceDrain
	}
	if g.dns != nil {
		config.NameTable = g.dns.NameTable
	}
	registry, err := g.metrics()
	if err != nil {
		return err
	}
	config.Gatherer = registry
	if g.settings.istioMetrics {
		config.Gatherer = istioNames{registry}
	}
	if g.envoy != nil {
		config.EnvoyMetrics = g.envoyMetrics
	}
	if g.status, err = status.New(config); err != nil {
		return err
	}
	return registry.Register(g.status)
}

func (g *gateway) debugViews() map[string]func() any {
	views := map[string]func() any{
		"xds": func() any { return g.relay.Status() },
		"sds": func() any { return g.secrets.Status() },
	}
	if g.identity != nil {
		views["identity"] = func() any { return g.identity.Status() }
	}
	if g.plugins != nil {
		views["wasm"] = func() any { return map[string]any{"plugins": g.plugins.Status(), "store": g.store.Status()} }
	}
	if g.dns != nil {
		views["dns"] = func() any { return g.dns.Status() }
	}
	if g.source != nil {
		views["config"] = func() any { return g.source.Status() }
	}
	return views
}

// metrics gathers the parts' metrics and those of the process and the Go runtime.
func (g *gateway) metrics() (*prometheus.Registry, error) {
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "gateway_agent_build_info", Help: "1, with the agent's version as label.", ConstLabels: prometheus.Labels{"version": version},
	})
	build.Set(1)
	all := []prometheus.Collector{
		build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), g.relay, g.secrets,
		newStartup(func() time.Duration { return time.Duration(g.readyAfter.Load()) }),
	}
	if g.plugins != nil {
		all = append(all, g.plugins, g.store)
	}
	if g.source != nil {
		all = append(all, g.source)
	}
	if g.envoy != nil {
		all = append(all, g.envoy)
	}
	if g.identity != nil {
		all = append(all, g.identity)
	}
	if g.dns != nil {
		all = append(all, g.dns)
	}
	registry := prometheus.NewRegistry()
	for _, collector := range all {
		if err := registry.Register(collector); err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
	}
	return registry, nil
}

// envoyMetrics asks for what the scraper asks for, or for all of Envoy's statistics that are worth a line.
func (g *gateway) envoyMetrics(ctx context.Context, query url.Values) (io.ReadCloser, error) {
	if query == nil && !g.settings.statsUsedOnly {
		query = url.Values{}
	}
	return g.envoy.Admin().PrometheusMetrics(ctx, query)
}

// announceDrain is POST /drain: everything a stop begins with, but no stop.
func (g *gateway) announceDrain(ctx context.Context) error {
	if g.envoy == nil {
		g.draining.Store(true)
		return nil
	}
	return g.envoy.Announce(ctx)
}

// setLogLevel changes the agent's level, and Envoy's with it.
func (g *gateway) setLogLevel(ctx context.Context, level string) error {
	if err := setLevel(g.level, level); err != nil {
		return err
	}
	g.log.Info("log level changed", "level", level)
	if g.envoy == nil || g.settings.envoyLogLevel != "" {
		return nil
	}
	return g.envoy.SetLogLevel(ctx, envoyLevel(level))
}

const listenersTimeout = 500 * time.Millisecond // Envoy's main thread may be busy; the status does without then

// envoyListeners asks Envoy on which addresses it listens, as "name address".
func (g *gateway) envoyListeners(ctx context.Context) []string {
	if g.envoy == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, listenersTimeout)
	defer cancel()
	body, err := g.envoy.Admin().Get(ctx, "/listeners")
	if err != nil {
		return nil
	}
	defer body.Close()
	var all []string
	for lines := bufio.NewScanner(body); lines.Scan(); {
		if name, address, ok := strings.Cut(lines.Text(), "::"); ok {
			all = append(all, name+" "+address)
		}
	}
	slices.Sort(all)
	return all
}
