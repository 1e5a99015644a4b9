package istio

import (
	"bytes"
	"encoding/json"
	"math"
	"net/netip"
	"slices"
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
	m.out.Discovery = m.discovery()
	m.mapBootstrap()
	m.mapListeners()
}

// discovery: an ambient mesh wants it, too.
func (m *mapping) discovery() bool {
	if m.in.Env["PEER_METADATA_DISCOVERY"] == "" {
		return m.metaFlag("ENABLE_HBONE")
	}
	return m.flag("PEER_METADATA_DISCOVERY")
}

const (
	overrideVariable = "ISTIO_BOOTSTRAP_OVERRIDE"
	// mostConnections is pilot-agent's limit where nobody sets one; without any, Envoy warns at each start.
	mostConnections    = math.MaxInt32
	maxConnectionsKey  = "GLOBAL_DOWNSTREAM_MAX_CONNECTIONS"
	maxConnectionsFlag = "overload.global_downstream_max_connections" // Envoy's, of runtime values
)

// mapBootstrap says what else the bootstrap has.
func (m *mapping) mapBootstrap() {
	if override := m.in.Env[overrideVariable]; override != "" {
		if m.exists(override) {
			m.out.Overlays = []string{m.abs(override)}
		} else {
			m.warn("%s=%s cannot be read: ignored", overrideVariable, override)
		}
	}
	m.out.HostIP = m.in.Env["HOST_IP"] // for overlays of `run`, too
	m.out.MaxConnections = mostConnections
	for _, limit := range []struct{ name, value string }{
		{metaPrefix + maxConnectionsKey, m.metaText(maxConnectionsKey, "")},
		{maxConnectionsFlag, m.proxy.GetRuntimeValues()[maxConnectionsFlag]},
	} {
		if limit.value == "" {
			continue
		}
		if n, err := strconv.ParseInt(limit.value, 10, 32); err == nil && n > 0 {
			m.out.MaxConnections = int(n)
			break
		}
		m.warn("%s=%q is not a number of connections: ignored", limit.name, limit.value)
	}
	m.out.LocalCluster = m.metaFlag("ENABLE_SELF_DISCOVERY")
	if reports := m.metaText("LOAD_STATS_CONFIG_JSON", ""); json.Valid([]byte(reports)) {
		m.out.LoadReports = reports
	} else if reports != "" {
		m.warn("%sLOAD_STATS_CONFIG_JSON is not JSON: ignored", metaPrefix)
	}
}

// WithHostIP puts the node's address into a file that speaks of it, in brackets if it is one of IPv6.
func WithHostIP(data []byte, address string) []byte {
	if strings.Contains(address, ":") {
		address = "[" + address + "]"
		data = bytes.ReplaceAll(data, []byte("["+hostIP+"]"), []byte(address))
	}
	return bytes.ReplaceAll(data, []byte(hostIP), []byte(address))
}

// mapListeners says where Envoy's own listeners are, besides their ports.
func (m *mapping) mapListeners() {
	wildcard := netip.IPv4Unspecified()
	if m.onlyIPv6() {
		wildcard = netip.IPv6Unspecified()
	}
	m.out.SecurePrometheusAddress = hostPort(wildcard, m.number("ENVOY_SECURE_METRICS_PORT", 0, 0, 65535))
	m.out.SecureMetricsAddress = hostPort(wildcard, m.number("ENVOY_SECURE_MERGED_METRICS_PORT", 0, 0, 65535))
	m.out.DualStack = m.flag("ISTIO_DUAL_STACK") && m.bothFamilies()
	m.out.ReadyProxyProtocol = m.flag("ENVOY_STATUS_PORT_ENABLE_PROXY_PROTOCOL")
	if value := m.proxy.GetStatsCompression(); value != nil {
		m.out.PlainMetrics = !value.GetValue()
	}
	if m.proxy.GetProxyMetadata()["METRICS_LOCALHOST_ACCESS_ONLY"] == "true" {
		loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
		if m.onlyIPv6() {
			loopback = netip.IPv6Loopback()
		}
		m.out.PrometheusAddress = hostPort(loopback, m.prometheusPort())
	}
}

// bothFamilies: the pod has addresses of IPv4 and of IPv6.
func (m *mapping) bothFamilies() bool {
	return !m.onlyIPv6() && slices.ContainsFunc(m.addresses(), func(address string) bool { return strings.Contains(address, ":") })
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

func (m *mapping) metaFlag(key string) bool {
	on, err := strconv.ParseBool(m.metaText(key, "false"))
	return err == nil && on
}
