package istio

import (
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
)

const (
	defaultReadyPort      = 15021
	defaultPrometheusPort = 15090
)

// mapPlaces says where sockets, files and ports are.
func (m *mapping) mapPlaces() {
	dir := m.abs(m.proxy.GetConfigPath())
	m.out.RunDir = dir
	m.out.DataDir = m.abs(dataDir)
	m.out.BootstrapFile = filepath.Join(dir, bootstrapName)
	m.out.XDSSocket = filepath.Join(dir, xdsSocketName)
	if socket := m.abs(credentialSDS); m.in.Answers(socket) {
		m.out.CredentialSocket = socket
	}
	loopback, wildcard := netip.MustParseAddr("127.0.0.1"), netip.IPv4Unspecified()
	if m.onlyIPv6() {
		loopback, wildcard = netip.IPv6Loopback(), netip.IPv6Unspecified()
	}
	m.out.AdminAddress = hostPort(loopback, int(m.proxy.GetProxyAdminPort()))
	if m.out.StatusAddress = hostPort(wildcard, int(m.proxy.GetStatusPort())); wildcard.Is4() && m.out.StatusAddress != "" {
		m.out.StatusAddress = ":" + strconv.Itoa(int(m.proxy.GetStatusPort())) // IPv6 too, where there is any
	}
	m.out.ReadyAddress = hostPort(wildcard, m.readyPort())
	m.out.PrometheusAddress = hostPort(wildcard, m.prometheusPort())
	m.out.MetricsLocalOnly = m.flag("METRICS_LOCALHOST_ACCESS_ONLY")
	m.out.EnvoyNone = m.flag("DISABLE_ENVOY")
	m.out.Envoy = m.abs(m.proxy.GetBinaryPath())
}

func (m *mapping) readyPort() int {
	return m.number("ENVOY_STATUS_PORT", defaultReadyPort, 1, 65535)
}

func (m *mapping) prometheusPort() int {
	return m.number("ENVOY_PROMETHEUS_PORT", defaultPrometheusPort, 1, 65535)
}

// hostPort is "" for port 0: not served.
func hostPort(host netip.Addr, port int) string {
	if port == 0 {
		return ""
	}
	return net.JoinHostPort(host.String(), strconv.Itoa(port))
}

func (m *mapping) onlyIPv6() bool {
	for _, address := range m.addresses() {
		if ip, err := netip.ParseAddr(address); err == nil && ip.Is4() {
			return false
		}
	}
	return true
}
