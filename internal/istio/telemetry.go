package istio

import (
	"net"
	"net/netip"
	"strings"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
)

// hostIP may stand in an address for the node's: an agent of a tracer that runs on every node.
const hostIP = "$(HOST_IP)"

// mapTelemetry says where Envoy sends traces, metrics and access logs.
func (m *mapping) mapTelemetry() {
	t := &m.out.Telemetry
	t.Statsd = m.serviceAddress("statsdUdpAddress", m.proxy.GetStatsdUdpAddress())
	if _, err := netip.ParseAddrPort(t.Statsd); err != nil && t.Statsd != "" {
		m.warn("ProxyConfig statsdUdpAddress %q is ignored: Envoy resolves no names for it, want IP:PORT", t.Statsd)
		t.Statsd = ""
	}
	t.MetricsService = m.remote("envoyMetricsService", m.proxy.GetEnvoyMetricsService())
	t.AccessLogService = m.remote("envoyAccessLogService", m.proxy.GetEnvoyAccessLogService())
	t.OnlyIPv6 = m.onlyIPv6()
	m.mapTracing(t)
}

func (m *mapping) mapTracing(t *Telemetry) {
	const removed = "ProxyConfig tracing.%s is ignored: Envoy has no such tracer any more; use an extension provider of the mesh"
	tracing := m.proxy.GetTracing()
	switch tracer := tracing.GetTracer().(type) {
	case *meshv1alpha1.Tracing_Zipkin_:
		t.Tracer, t.Trace.Address = "zipkin", m.serviceAddress("tracing.zipkin", tracer.Zipkin.GetAddress())
	case *meshv1alpha1.Tracing_Datadog_:
		t.Tracer, t.Trace.Address = "datadog", m.serviceAddress("tracing.datadog", tracer.Datadog.GetAddress())
	case *meshv1alpha1.Tracing_Lightstep_:
		m.warn(removed, "lightstep")
	case *meshv1alpha1.Tracing_Stackdriver_:
		m.warn(removed, "stackdriver")
	case *meshv1alpha1.Tracing_OpenCensusAgent_:
		m.warn(removed, "openCensusAgent")
	}
	if t.Trace.Address == "" {
		t.Tracer = ""
		return
	}
	t.Trace.TLS = m.tls("tracing", tracing.GetTlsSettings())
}

func (m *mapping) remote(field string, service *meshv1alpha1.RemoteService) Remote {
	address := m.serviceAddress(field, service.GetAddress())
	if address == "" {
		return Remote{}
	}
	keepalive := service.GetTcpKeepalive()
	return Remote{
		Address: address,
		TLS:     m.tls(field, service.GetTlsSettings()),
		Keepalive: Keepalive{
			Probes: keepalive.GetProbes(), Time: keepalive.GetTime().AsDuration(), Interval: keepalive.GetInterval().AsDuration(),
		},
	}
}

// serviceAddress checks host:port. What cannot be an address would keep Envoy from starting.
func (m *mapping) serviceAddress(field, address string) string {
	if address == "" {
		return ""
	}
	host, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil || host == "" {
		m.warn("ProxyConfig %s %q is ignored: want HOST:PORT", field, address)
		return ""
	}
	if host == hostIP {
		if host = m.in.Env["HOST_IP"]; host == "" {
			m.warn("ProxyConfig %s %q is ignored: HOST_IP is not set", field, address)
			return ""
		}
	}
	return net.JoinHostPort(host, port)
}

func (m *mapping) tls(field string, settings *networkingv1alpha3.ClientTLSSettings) *TLS {
	if settings.GetMode() == networkingv1alpha3.ClientTLSSettings_DISABLE {
		return nil
	}
	tls := &TLS{
		ServerName: settings.GetSni(), SANs: settings.GetSubjectAltNames(),
		RootFile: m.abs(m.metaText("TLS_CLIENT_ROOT_CERT", settings.GetCaCertificates())),
	}
	switch settings.GetMode() {
	case networkingv1alpha3.ClientTLSSettings_MUTUAL:
		tls.CertFile = m.abs(m.metaText("TLS_CLIENT_CERT_CHAIN", settings.GetClientCertificate()))
		tls.KeyFile = m.abs(m.metaText("TLS_CLIENT_KEY", settings.GetPrivateKey()))
		if tls.CertFile == "" || tls.KeyFile == "" {
			m.warn("ProxyConfig %s has TLS mode MUTUAL without a certificate and a key: no certificate is shown", field)
			tls.CertFile, tls.KeyFile = "", ""
		}
	case networkingv1alpha3.ClientTLSSettings_ISTIO_MUTUAL:
		tls.Workload, tls.RootFile = true, ""
	}
	if strings.HasPrefix(settings.GetCredentialName(), "kubernetes") || settings.GetCaCrl() != "" {
		m.warn("ProxyConfig %s: credentialName and caCrl are ignored here, name the files", field)
	}
	return tls
}
