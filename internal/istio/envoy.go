package istio

import (
	"math"
	"strconv"
	"strings"
	"time"
)

const (
	// patience is how much longer than pilot-agent's fixed time requests in flight may take to end, but not longer than that itself.
	patience      = 5 * time.Second
	leastPatience = 2 * time.Second
	// kubeletsTurn is the drain's deadline where pilot-agent has none: the pod's terminationGracePeriodSeconds comes first.
	kubeletsTurn = time.Hour
)

// mapEnvoy makes Envoy's own arguments.
func (m *mapping) mapEnvoy() {
	m.out.Concurrency = int(max(0, m.proxy.GetConcurrency().GetValue())) // 0: all cores
	m.out.OutlierLog = m.abs(m.in.Args.OutlierLogPath)
	m.out.EnvoyLogLevel, m.out.ComponentLogLevel = m.envoyLogLevels()
	flush := time.Second
	if d := m.proxy.GetFileFlushInterval(); d != nil {
		flush = d.AsDuration()
	}
	m.out.EnvoyArgs = []string{
		"--drain-strategy", "immediate",
		"--file-flush-interval-msec", strconv.FormatInt(flush.Milliseconds(), 10),
		"--allow-unknown-static-fields",
	}
	if kb := m.proxy.GetFileFlushMinSizeKb(); kb != 0 {
		m.out.EnvoyArgs = append(m.out.EnvoyArgs, "--file-flush-min-size-kb", strconv.FormatUint(uint64(kb), 10))
	}
	if m.onlyIPv6() {
		m.out.EnvoyArgs = append(m.out.EnvoyArgs, "--local-address-ip-version", "v6")
	}
	if m.skipDeprecated() {
		m.out.EnvoyArgs = append(m.out.EnvoyArgs, "--skip-deprecated-logs")
	}
	if override := m.in.Env["ISTIO_BOOTSTRAP_OVERRIDE"]; override != "" {
		m.out.Overlays = []string{m.abs(override)}
	}
	m.out.Discovery = m.flag("PEER_METADATA_DISCOVERY")
}

// skipDeprecated is true unless told otherwise.
func (m *mapping) skipDeprecated() bool {
	return m.flagOr("ENVOY_SKIP_DEPRECATED_LOGS", true)
}

var envoyLevels = map[string]string{
	"trace": "trace", "debug": "debug", "info": "info", "warning": "warning", "warn": "warning", "error": "error",
	"critical": "critical", "off": "off",
}

// envoyLogLevels splits "warning,misc:error" into the level and those of single scopes.
func (m *mapping) envoyLogLevels() (level, scopes string) {
	level = "warning"
	var parts []string
	for _, part := range append(list(m.in.Args.ProxyLogLevel), list(m.in.Args.ProxyComponentLogLevel)...) {
		scope, name, isScope := strings.Cut(part, ":")
		if !isScope {
			scope, name = "", part
		}
		known, ok := envoyLevels[name]
		switch {
		case !ok:
			m.warn("Envoy's log level %q (--proxyLogLevel, --proxyComponentLogLevel) is not one of Envoy's: ignored", part)
		case isScope:
			parts = append(parts, scope+":"+known)
		default:
			level = known
		}
	}
	return level, strings.Join(parts, ",")
}

// mapLogs takes the level of scope default, or of no scope. This agent has no other scopes.
func (m *mapping) mapLogs() {
	m.out.LogLevel, m.out.LogFormat = "info", "text"
	if m.in.Args.Log.AsJSON {
		m.out.LogFormat = "json"
	}
	var ignored []string
	for _, part := range list(m.in.Args.Log.OutputLevel) {
		scope, name, isScope := strings.Cut(part, ":")
		if !isScope {
			scope, name = "default", part
		}
		if scope != "default" && scope != "all" {
			ignored = append(ignored, part)
			continue
		}
		switch name {
		case "debug", "info", "warn", "error":
			m.out.LogLevel = name
		case "fatal", "none":
			m.out.LogLevel = "error"
		default:
			ignored = append(ignored, part)
		}
	}
	if len(ignored) > 0 {
		m.warn("--log_output_level: %s ignored, this agent has one level for all", strings.Join(ignored, ","))
	}
}

// mapLife turns pilot-agent's fixed times into those of a drain that knows what is in flight. New connections are accepted for as
// long as pilot-agent accepts them; then, unlike there, requests in flight get time to end.
func (m *mapping) mapLife() {
	m.out.ListenerDrain = max(time.Second, m.proxy.GetDrainDuration().AsDuration().Truncate(time.Second))
	fixed := m.proxy.GetTerminationDrainDuration().AsDuration()
	if value := m.in.Env["TERMINATION_DRAIN_DURATION_SECONDS"]; value != "" {
		seconds := m.number("TERMINATION_DRAIN_DURATION_SECONDS", int(fixed.Seconds()), 0, 1<<20)
		fixed = time.Duration(seconds) * time.Second
	}
	least := m.duration("MINIMUM_DRAIN_DURATION", 5*time.Second)
	if m.flag("EXIT_ON_ZERO_ACTIVE_CONNECTIONS") {
		m.out.DrainDelay, m.out.DrainTimeout = least, max(kubeletsTurn, 2*least)
		return
	}
	m.out.DrainDelay, m.out.DrainTimeout = fixed, fixed
	if fixed > 0 {
		m.out.DrainTimeout += max(leastPatience, min(fixed, patience))
	}
}

func (m *mapping) mapModules() {
	m.out.ModuleSize = m.number("ISTIO_WASM_MAX_BINARY_SIZE_BYTES", 0, 1, math.MaxInt)
	m.out.InsecureRegistries = m.insecureRegistries()
	m.out.ModuleExpiry = m.duration("WASM_MODULE_EXPIRY", 0)
}
