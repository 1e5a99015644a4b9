package istio

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

const (
	defaultDNSAddress = "localhost:15053"
	defaultDNSTimeout = 5 * time.Second
	enableDNS         = metaPrefix + "ENABLE_DNS_SERVER"
	dnsProxyAddr      = "DNS_PROXY_ADDR"
)

// mapDNS: a gateway captures nobody's queries; it has a DNS server only where it is asked for. istiod, which may point Envoy at it, is told
// where it is.
func (m *mapping) mapDNS() {
	text := m.metaText("ENABLE_DNS_SERVER", "false")
	on, err := strconv.ParseBool(text)
	if err != nil {
		m.warn("%s=%q is not a boolean: ignored", enableDNS, text)
	}
	if address := m.in.Env[dnsProxyAddr]; address != "" {
		m.out.Metadata[dnsProxyAddr] = address
	}
	if !on {
		for _, name := range []string{dnsProxyAddr, "DNS_FORWARD_PARALLEL", "DNS_FORWARD_TIMEOUT"} {
			if m.in.Env[name] != "" {
				m.warn("%s is ignored: there is no DNS server without %s=true", name, enableDNS)
			}
		}
		return
	}
	m.out.DNSAddress, m.out.DNSDomain = m.dnsAddress(), m.dnsDomain()
	m.out.DNSParallel, m.out.DNSTimeout = m.flag("DNS_FORWARD_PARALLEL"), m.duration("DNS_FORWARD_TIMEOUT", defaultDNSTimeout)
	if m.in.Env[dnsProxyAddr] != "" {
		m.out.Metadata[dnsProxyAddr] = m.out.DNSAddress
	}
}

// dnsAddress is where the server listens. Port 53 is for root alone, as with pilot-agent.
func (m *mapping) dnsAddress() string {
	address := m.text(dnsProxyAddr, defaultDNSAddress)
	host, port, err := net.SplitHostPort(address)
	if err == nil && host != "" && host != "localhost" {
		_, err = netip.ParseAddr(host)
	}
	if n, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || n == 0 {
		m.warn("%s=%q is not HOST:PORT with an address or localhost: %s is used", dnsProxyAddr, address, defaultDNSAddress)
		return defaultDNSAddress
	}
	if port == "53" && !m.in.Root {
		m.warn("%s=%q is ignored: port 53 is for root alone: %s is used", dnsProxyAddr, address, defaultDNSAddress)
		return defaultDNSAddress
	}
	return address
}

// dnsDomain is the node's domain, with the namespace in front.
func (m *mapping) dnsDomain() string {
	namespace, domain := m.in.Env["POD_NAMESPACE"], m.domain()
	if first, _, _ := strings.Cut(domain, "."); first != namespace {
		domain = namespace + "." + domain
	}
	return domain
}
