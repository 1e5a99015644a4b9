package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gateway-agent/gateway-agent/bootstrap"
	"github.com/gateway-agent/gateway-agent/internal/istio"
	"github.com/gateway-agent/gateway-agent/sds/identity"
)

// istiodStreamAge: istiod itself ends streams after half an hour. One that it has lost, but whose pings it answers, keeps a gateway stale for
// no longer than this (istio#57064).
const istiodStreamAge = time.Hour

// fromIstio says what pilot-agent was told as settings of `run`.
func fromIstio(s *settings, in istio.Settings) {
	nodeFromIstio(s, in)
	planeFromIstio(s, in)
	identityFromIstio(s, in)
	envoyFromIstio(s, in)
	statisticsFromIstio(s, in)
	telemetryFromIstio(s, in.Telemetry)
	dnsFromIstio(s, in)

	s.insecureRegistries = in.InsecureRegistries
	if in.ModuleExpiry > 0 {
		s.wasmExpiry = in.ModuleExpiry
	}
	if in.ModuleSize > 0 {
		s.wasmMaxSize = byteSize(in.ModuleSize)
	}
}

func nodeFromIstio(s *settings, in istio.Settings) {
	s.nodeID, s.nodeCluster = in.NodeID, in.NodeCluster
	data, _ := json.Marshal(in.Metadata) // made from JSON and plain values
	s.nodeMetaJSON = string(data)
	if l := in.Locality; l != (istio.Locality{}) {
		s.nodeLocality = strings.TrimRight(l.Region+"/"+l.Zone+"/"+l.SubZone, "/")
	}
}

func planeFromIstio(s *settings, in istio.Settings) {
	plane := in.ControlPlane
	if s.xdsMode = "delta"; in.StateOfTheWorld {
		s.xdsMode = "sotw"
	}
	s.xdsAddress, s.xdsPlaintext = plane.Address, plane.Plaintext
	if !plane.Plaintext || plane.PlaintextToken { // else it is not sent
		s.xdsTokenFile, s.xdsTokenOptional, s.xdsTokenPlaintext = plane.TokenFile, true, plane.PlaintextToken
	}
	s.xdsAnswers, s.xdsMaxAge = true, istiodStreamAge
	s.xdsHeader = headerPairs(plane.Header)
	if !plane.Plaintext {
		s.xdsCA, s.xdsServerName, s.xdsCert, s.xdsKey = plane.RootFile, plane.ServerName, plane.CertFile, plane.KeyFile
	}
	s.reportHealth, s.trustFromPlane = in.ReportHealth, true
	s.denied = append(s.denied, filepath.Dir(plane.TokenFile))
}

// headerPairs are NAME=VALUE in a stable order.
func headerPairs(header map[string]string) []string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(header)) {
		all = append(all, name+"="+header[name])
	}
	return all
}

func identityFromIstio(s *settings, in istio.Settings) {
	w := in.Workload
	s.identity, s.identitySocket = identity.Auto, in.WorkloadSocket
	switch {
	case in.WorkloadSocketMust:
		s.identity = identity.External
	case in.WorkloadGKE:
		s.identity = identity.Files
	}
	s.identityOpen, s.identityShared, s.identityTrust = true, w.OutputShared, in.TrustToo
	s.identityLife, s.identityGrace, s.identityJitter = w.TTL, w.GraceRatio, w.GraceJitter
	s.identityKey, s.identityBits = keyKind(w), w.RSABits
	s.identityPKCS8, s.identityOutput, s.identityCRL = w.PKCS8, w.OutputDir, w.CRLFile
	if in.CA.Address == "" {
		return
	}
	s.caAddress, s.caPlaintext, s.caSigner = in.CA.Address, in.CA.Plaintext, w.CertSigner
	s.identityID = identity.ID(w.TrustDomain, w.Namespace, w.ServiceAccount)
	s.caCA, s.caServerName, s.caCert, s.caKey = in.CA.RootFile, in.CA.ServerName, in.CA.CertFile, in.CA.KeyFile
	s.caTokenFile, s.caTokenOptional, s.caTokenPlaintext = in.CA.TokenFile, true, in.CA.PlaintextToken
	s.caHeader = headerPairs(in.CA.Header)
}

// mountedFiles is where the workload's certificate may be mounted, below the working directory.
func mountedFiles(in istio.Settings, dir string) []identity.Triple {
	if in.WorkloadGKE {
		return []identity.Triple{identity.MountedByGKE(dir)}
	}
	return identity.Mounted(dir)
}

func keyKind(w istio.Workload) string {
	switch {
	case w.KeyType == "rsa":
		return identity.KeyRSA
	case w.Curve == "P384":
		return identity.KeyP384
	}
	return identity.KeyP256
}

func envoyFromIstio(s *settings, in istio.Settings) {
	s.dataDir, s.runDir = in.DataDir, in.RunDir
	s.xdsSocket, s.sdsSocket, s.sdsExternal, s.bootstrapFile = in.XDSSocket, in.SDSSocket, in.CredentialSocket, in.BootstrapFile
	s.adminAddress, s.statusAddress = in.AdminAddress, in.StatusAddress
	s.readyAddress, s.prometheusAddress = in.ReadyAddress, in.PrometheusAddress
	s.envoy, s.envoyArgs, s.concurrency = in.Envoy, in.EnvoyArgs, in.Concurrency
	if in.EnvoyNone {
		s.envoy = "none"
	}
	s.envoyLogLevel, s.envoyComponentLog, s.logLevel, s.logFormat = in.EnvoyLogLevel, in.ComponentLogLevel, in.LogLevel, in.LogFormat
	s.drainDelay, s.drainMin, s.drainTimeout, s.listenerDrain = in.DrainDelay, in.DrainMin, in.DrainTimeout, in.ListenerDrain
	s.overlays, s.outlierLog = in.Overlays, in.OutlierLog
	s.localControl, s.metricsLocal, s.istioMetrics = true, in.MetricsLocalOnly, true
	s.istioExtras, s.peerDiscovery = true, in.Discovery
	s.securePrometheus, s.secureMetrics, s.compress = in.SecurePrometheusAddress, in.SecureMetricsAddress, !in.PlainMetrics
	s.dualStack, s.readyProxy = in.DualStack, in.ReadyProxyProtocol
	s.maxConnections, s.localCluster, s.loadReports, s.hostIP = in.MaxConnections, in.LocalCluster, in.LoadReports, in.HostIP
}

func statisticsFromIstio(s *settings, in istio.Settings) {
	s.statsDefaultTags, s.statsUsedOnly = false, false
	for _, tag := range in.Statistics.Tags {
		s.statsTags = append(s.statsTags, tag.Name+"="+tag.Expression)
	}
	s.statsPrefixes, s.statsSuffixes, s.statsRegexps = in.Statistics.Prefixes, in.Statistics.Suffixes, in.Statistics.Expressions
	s.statsFlush, s.statsEviction = in.Statistics.Flush, in.Statistics.Eviction
	for _, b := range in.Statistics.Buckets {
		s.statsBuckets = append(s.statsBuckets, bootstrap.Buckets(b))
	}
	for _, name := range slices.Sorted(maps.Keys(in.Runtime)) {
		s.runtime = append(s.runtime, fmt.Sprintf("%s=%v", name, in.Runtime[name]))
	}
}

func telemetryFromIstio(s *settings, t istio.Telemetry) {
	if t.Tracer != "" {
		s.tracing = t.Tracer + "=" + t.Trace.Address
	}
	s.statsd, s.metricsService, s.accessLogService = t.Statsd, t.MetricsService.Address, t.AccessLogService.Address
	s.remotes = bootstrap.Telemetry{
		Trace: remoteFromIstio(t.Trace), MetricsService: remoteFromIstio(t.MetricsService), AccessLogService: remoteFromIstio(t.AccessLogService),
		OnlyIPv6: t.OnlyIPv6,
	}
}

func remoteFromIstio(r istio.Remote) bootstrap.Remote {
	remote := bootstrap.Remote{Keepalive: bootstrap.Keepalive(r.Keepalive)}
	if r.TLS != nil {
		remote.TLS = new(bootstrap.TLS(*r.TLS))
	}
	return remote
}

// unflagged is what fromIstio sets that `run` has no flags for.
func (s *settings) unflagged() []string {
	all := []string{
		"a token file may be missing",
		"istiod answers the first request of each stream, and says whom to trust, too (PCDS)",
		"certificates that are mounted where Istio has them are found; of --identity-id, the CA may know what is missing",
		"Envoy has a cluster sds-files-grpc, may have listeners inside itself, and makes statistics when they are needed first",
	}
	for _, some := range []struct {
		set  bool
		text string
	}{
		{s.reportHealth, "istiod hears of readiness"},
		{s.xdsTokenPlaintext, "tokens are sent without TLS, too, which 'run' refuses"},
		{s.identityTrust, "whom istiod says to trust counts beside mounted roots"},
		{s.identityShared && s.identityOutput != "", "everybody may read the key in --identity-output"},
		{s.peerDiscovery, "Envoy discovers its peers' metadata"},
		{len(s.statsBuckets) > 0, "histograms have buckets of their own"},
		{s.remotes != bootstrap.Telemetry{}, "services for traces, metrics and access logs have TLS, keep-alives or an IP family of their own"},
		{s.loadReports != "", "Envoy reports its load"},
		{s.hostIP != "", "$(HOST_IP) in --bootstrap-overlay is the node's address"},
	} {
		if some.set {
			all = append(all, some.text)
		}
	}
	return all
}
