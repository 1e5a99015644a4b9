package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/gateway-agent/gateway-agent/bootstrap"
	"github.com/gateway-agent/gateway-agent/internal/istio"
)

// envoySettings are what Envoy is given, and how it is run.
type envoySettings struct {
	xdsSocket     string
	sdsSocket     string
	sdsExternal   string
	bootstrapFile string
	adminAddress  string
	socketUsers   []uint

	envoyLogLevel     string
	envoyComponentLog string
	envoyArgs         []string
	listenerDrain     time.Duration
	onCrash           string
	dualStack         bool
	readyProxy        bool
	localCluster      bool
	securePrometheus  string
	secureMetrics     string
	compress          bool
	readyMinListeners int
	maxConnections    int

	nodeMetaJSON string
	nodeLocality string
	overlays     []string
	runtime      []string

	statsTags        []string
	statsDefaultTags bool
	statsPrefixes    []string
	statsSuffixes    []string
	statsRegexps     []string
	statsUsedOnly    bool
	statsFlush       time.Duration
	statsEviction    time.Duration
	statsBuckets     []bootstrap.Buckets // no flag

	tracing          string
	statsd           string
	metricsService   string
	accessLogService string
	outlierLog       string
	remotes          bootstrap.Telemetry // TLS, keepalive and IP family of the four above; no flag
	loadReports      string              // JSON of Envoy's load_stats_config; no flag
	hostIP           string              // what $(HOST_IP) in an overlay stands for; no flag

	localControl   bool
	metricsLocal   bool
	istioMetrics   bool
	istioExtras    bool // clusters and extensions that istiod's configuration may use; no flag
	peerDiscovery  bool // no flag
	reportHealth   bool // to the control plane; no flag
	trustFromPlane bool // the control plane says whom to trust, too (PCDS); no flag
}

func (s *envoySettings) socketFlags(f *pflag.FlagSet) {
	f.StringVar(&s.xdsSocket, "xds-socket", "", "unix socket on which Envoy gets its configuration (default xds.sock in --run-dir)")
	f.StringVar(&s.sdsSocket, "sds-socket", "", "unix socket on which Envoy gets its certificates (default: --xds-socket)")
	f.StringVar(&s.sdsExternal, "sds-external", "", "unix socket of somebody else's SDS server, which Envoy reaches as cluster sds-external")
	f.StringVar(&s.bootstrapFile, "bootstrap-file", "", "where Envoy's bootstrap is written (default bootstrap.json in --run-dir)")
	f.StringVar(&s.adminAddress, "admin-address", "", "IP:PORT of Envoy's admin; whoever reaches it can stop Envoy (default: the unix socket admin.sock in --run-dir)")
	f.UintSliceVar(&s.socketUsers, "socket-users", nil, "numbers of more users who may use the agent's sockets (default: root and the agent's own)")
}

func (s *envoySettings) processFlags(f *pflag.FlagSet) {
	f.StringVar(&s.envoyLogLevel, "envoy-log-level", "", "Envoy's own level: trace, debug, info, warning, error, critical or off (default: as --log-level)")
	f.StringVar(&s.envoyComponentLog, "envoy-component-log-level", "", "Envoy's levels by component, as upstream:debug,misc:error")
	f.StringArrayVar(&s.envoyArgs, "envoy-arg", nil, "one more argument for Envoy; may be repeated")
	f.DurationVar(&s.listenerDrain, "listener-drain", 10*time.Minute, "how long connections live on a listener that an update changed or removed")
	f.StringVar(&s.onCrash, "on-crash", "restart", "when Envoy dies: restart it, or exit with an error")
	f.IntVar(&s.readyMinListeners, "ready-min-listeners", 0, "not ready before Envoy has had this many listeners")
	f.IntVar(&s.maxConnections, "max-connections", 0, "most connections of clients (default: no limit)")
}

func (s *envoySettings) bootstrapFlags(f *pflag.FlagSet) {
	f.StringVar(&s.nodeMetaJSON, "node-metadata-json", "", "JSON object to add to Envoy's node metadata")
	f.StringVar(&s.nodeLocality, "node-locality", "", "REGION/ZONE/SUBZONE of Envoy's node")
	f.StringArrayVar(&s.overlays, "bootstrap-overlay", nil, "YAML or JSON file merged over the bootstrap, as Envoy merges; may be repeated")
	f.StringArrayVar(&s.runtime, "runtime", nil, "NAME=VALUE in Envoy's static runtime layer; may be repeated")
	f.StringArrayVar(&s.statsTags, "stats-tag", nil, "NAME=EXPRESSION that takes a label out of statistics' names: the first group is cut out, the second is the value; may be repeated")
	f.BoolVar(&s.statsDefaultTags, "stats-default-tags", true, "with the labels that Envoy knows by itself")
	f.StringArrayVar(&s.statsPrefixes, "stats-prefix", nil, "keep only statistics that begin so, or have one of the suffixes or expressions; may be repeated")
	f.StringArrayVar(&s.statsSuffixes, "stats-suffix", nil, "see --stats-prefix")
	f.StringArrayVar(&s.statsRegexps, "stats-regexp", nil, "see --stats-prefix; RE2, of the whole name")
	f.BoolVar(&s.statsUsedOnly, "stats-used-only", true, "leave statistics that were never touched out of /metrics; a scraper's query decides for itself")
	f.DurationVar(&s.statsFlush, "stats-flush-interval", 0, "how often Envoy takes its statistics and sends them on (default: Envoy's 5s)")
	f.DurationVar(&s.statsEviction, "stats-eviction-interval", 0, "forget statistics that nothing touched for this long, a multiple of --stats-flush-interval (default: never)")
	f.StringVar(&s.tracing, "tracing", "", "zipkin=HOST:PORT or datadog=HOST:PORT, for listeners that ask for tracing without naming a provider")
	f.StringVar(&s.statsd, "statsd", "", "IP:PORT of a statsd server, UDP")
	f.StringVar(&s.metricsService, "metrics-service", "", "HOST:PORT of an Envoy metrics service (gRPC)")
	f.StringVar(&s.accessLogService, "access-log-service", "", "HOST:PORT of an Envoy access log service (gRPC), as cluster envoy_accesslog_service")
	f.StringVar(&s.outlierLog, "outlier-log", "", "file for ejections by outlier detection")
	f.BoolVar(&s.localCluster, "local-cluster", false, "a cluster local_cluster of gateways like this one, which the control plane fills, for zone-aware balancing")
}

// listenerFlags are of Envoy's own listeners, besides their addresses.
func (s *envoySettings) listenerFlags(f *pflag.FlagSet) {
	f.StringVar(&s.securePrometheus, "secure-prometheus-address", "", "as --prometheus-address, for clients with a certificate of the same roots as this workload's only")
	f.StringVar(&s.secureMetrics, "secure-metrics-address", "", "the same for /metrics of --status-address")
	f.BoolVar(&s.compress, "prometheus-compression", true, "compress Envoy's metrics on its own listeners for clients that accept it")
	f.BoolVar(&s.readyProxy, "ready-proxy-protocol", false, "a PROXY header may come first on --ready-address")
	f.BoolVar(&s.dualStack, "dual-stack", false, "Envoy's own listeners on both IP families, where their address is loopback or all addresses")
}

func (s *envoySettings) statusFlags(f *pflag.FlagSet) {
	f.BoolVar(&s.localControl, "local-control", false, "POST /quitquitquit and /drain on --status-address, from this host only")
	f.BoolVar(&s.metricsLocal, "metrics-local", false, "metrics on --status-address only for this host")
	f.BoolVar(&s.istioMetrics, "istio-metrics", false, "the agent's metrics also under pilot-agent's names")
}

// complete gives paths their defaults and checks what no part checks.
func (s *settings) completeEnvoy() error {
	s.xdsSocket = defaultPath(s.xdsSocket, s.path("xds.sock"))
	s.sdsSocket = defaultPath(s.sdsSocket, s.xdsSocket)
	s.sdsExternal = defaultPath(s.sdsExternal, "")
	s.bootstrapFile = defaultPath(s.bootstrapFile, s.path("bootstrap.json"))
	s.outlierLog = defaultPath(s.outlierLog, "")
	problems := []error{
		oneOf("--on-crash", s.onCrash, "restart", "exit"),
		atLeastZero("--listener-drain", s.listenerDrain),
		atLeastZero("--stats-flush-interval", s.statsFlush),
		atLeastZero("--stats-eviction-interval", s.statsEviction),
		checkAddress("--secure-prometheus-address", s.securePrometheus),
		checkAddress("--secure-metrics-address", s.secureMetrics),
		checkAddress("--admin-address", s.adminAddress),
	}
	if s.envoyLogLevel != "" {
		problems = append(problems, oneOf("--envoy-log-level", s.envoyLogLevel, "trace", "debug", "info", "warning", "error", "critical", "off"))
	}
	if s.readyMinListeners < 0 || s.maxConnections < 0 {
		problems = append(problems, errors.New("--ready-min-listeners and --max-connections cannot be negative"))
	}
	for _, user := range s.socketUsers {
		if uint64(user) > 1<<32-2 {
			problems = append(problems, fmt.Errorf("--socket-users: %d is not a user's number", user))
		}
	}
	_, errMeta := s.metadata()
	_, errStats := s.statistics()
	_, errRuntime := s.runtimeValues()
	_, errTelemetry := s.telemetry()
	return errors.Join(append(problems, errMeta, errStats, errRuntime, errTelemetry)...)
}

func defaultPath(path, without string) string {
	if path == "" {
		return without
	}
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// admin is where Envoy's admin is: an address, or the path of a socket.
func (s *settings) admin() string {
	if s.adminAddress != "" {
		return dialable(s.adminAddress)
	}
	return s.path("admin.sock")
}

// dialable is where something that listens on an address can be reached from this host.
func dialable(address string) string {
	ap, err := netip.ParseAddrPort(address)
	if err != nil || !ap.Addr().IsUnspecified() {
		return address
	}
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if ap.Addr().Is6() {
		loopback = netip.IPv6Loopback()
	}
	return netip.AddrPortFrom(loopback, ap.Port()).String()
}

func (s *settings) metadata() (map[string]any, error) {
	all := map[string]any{}
	if s.nodeMetaJSON != "" {
		if err := json.Unmarshal([]byte(s.nodeMetaJSON), &all); err != nil {
			return nil, fmt.Errorf("--node-metadata-json is not a JSON object: %w", err)
		}
	}
	for _, pair := range s.nodeMeta {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("--node-metadata is %q: want K=V", pair)
		}
		all[key] = value
	}
	return all, nil
}

func (s *settings) locality() bootstrap.Locality {
	parts := append(strings.SplitN(s.nodeLocality, "/", 3), "", "")
	return bootstrap.Locality{Region: parts[0], Zone: parts[1], SubZone: parts[2]}
}

func (s *settings) statistics() (bootstrap.Statistics, error) {
	statistics := bootstrap.Statistics{
		NoDefaultTags: !s.statsDefaultTags, Prefixes: s.statsPrefixes, Suffixes: s.statsSuffixes, Expressions: s.statsRegexps, Buckets: s.statsBuckets,
		Flush: s.statsFlush, Eviction: s.statsEviction, Lazy: s.istioExtras,
	}
	for _, text := range s.statsTags {
		name, expression, ok := strings.Cut(text, "=")
		if !ok || name == "" || expression == "" {
			return statistics, fmt.Errorf("--stats-tag is %q: want NAME=EXPRESSION", text)
		}
		statistics.Tags = append(statistics.Tags, bootstrap.Tag{Name: name, Expression: expression})
	}
	return statistics, nil
}

// runtimeValues: true and false are booleans, everything else is text, which Envoy reads as what it needs.
func (s *settings) runtimeValues() (map[string]any, error) {
	all := map[string]any{}
	for _, pair := range s.runtime {
		name, value, ok := strings.Cut(pair, "=")
		switch {
		case !ok || name == "":
			return nil, fmt.Errorf("--runtime is %q: want NAME=VALUE", pair)
		case value == "true" || value == "false":
			all[name] = value == "true"
		default:
			all[name] = value
		}
	}
	return all, nil
}

func (s *settings) telemetry() (bootstrap.Telemetry, error) {
	t := s.remotes
	t.Statsd, t.MetricsService.Address, t.AccessLogService.Address = s.statsd, s.metricsService, s.accessLogService
	if s.tracing == "" {
		return t, nil
	}
	tracer, address, ok := strings.Cut(s.tracing, "=")
	if !ok || !slices.Contains([]string{bootstrap.TracerZipkin, bootstrap.TracerDatadog}, tracer) {
		return t, fmt.Errorf("--tracing is %q: want zipkin=HOST:PORT or datadog=HOST:PORT", s.tracing)
	}
	t.Tracer, t.Trace.Address = tracer, address
	return t, nil
}

// readOverlays reads the files that go over the bootstrap.
func (g *gateway) readOverlays() ([]bootstrap.Overlay, error) {
	s := g.settings
	var all []bootstrap.Overlay
	if s.loadReports != "" {
		data := []byte(`{"cluster_manager": {"load_stats_config": ` + s.loadReports + `}}`)
		all = append(all, bootstrap.Overlay{Name: "load_stats_config", Data: data})
	}
	for _, path := range s.overlays {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("--bootstrap-overlay: %w", err)
		}
		overlay := bootstrap.Overlay{Name: path, Data: data}
		if s.istioExtras {
			overlay.Data = istio.WithHostIP(data, s.hostIP)
			overlay.Tolerate = func(problem error) { g.log.Warn("a part of the bootstrap overlay does nothing", "err", problem) }
		}
		all = append(all, overlay)
	}
	return all, nil
}

// bootstrapConfig is all that the bootstrap is made from.
func (g *gateway) bootstrapConfig() (bootstrap.Config, error) {
	s := g.settings
	metadata, err1 := s.metadata()
	statistics, err2 := s.statistics()
	runtime, err3 := s.runtimeValues()
	telemetry, err4 := s.telemetry()
	overlays, err5 := g.readOverlays()
	config := bootstrap.Config{
		NodeID: s.nodeID, NodeCluster: s.nodeCluster, NodeMetadata: metadata, Locality: s.locality(),
		XDSSocket: s.xdsSocket, SDSSocket: s.sdsSocket, OtherSDS: s.sdsExternal, FilesSDS: s.istioExtras,
		AdminAddress: s.adminAddress, Mode: s.xdsMode,
		StatusAddress: s.statusAddress, ReadyAddress: s.readyAddress, PrometheusAddress: s.prometheusAddress,
		MaxConnections: s.maxConnections,
		Statistics:     statistics, Telemetry: telemetry, Runtime: runtime, OutlierLog: s.outlierLog,
		Internal: s.istioExtras, PeerMetadata: s.peerDiscovery, Overlays: overlays,
		SecurePrometheusAddress: s.securePrometheus, SecureMetricsAddress: s.secureMetrics, Uncompressed: !s.compress,
		DualStack: s.dualStack, ReadyProxyProtocol: s.readyProxy, LocalCluster: s.localCluster, ProfileFile: s.data("envoy.prof"),
	}
	if s.adminAddress == "" {
		config.AdminSocket = s.admin()
	}
	return config, errors.Join(err1, err2, err3, err4, err5)
}
