package main

import (
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/spf13/pflag"

	"github.com/gateway-agent/gateway-agent/internal/istio"
)

// dnsSettings are those of the DNS server.
type dnsSettings struct {
	dnsAddress    string
	dnsDomain     string
	dnsResolvConf string
	dnsParallel   bool
	dnsTimeout    time.Duration
}

func (s *dnsSettings) dnsFlags(f *pflag.FlagSet) {
	f.StringVar(&s.dnsAddress, "dns-address", "", "HOST:PORT, UDP and TCP, of a DNS server that answers from istiod's name table and passes on the rest; localhost is both loopback addresses (default: none)")
	f.StringVar(&s.dnsDomain, "dns-domain", "", "NAMESPACE.svc.CLUSTERDOMAIN of this gateway: services there have short names too")
	f.StringVar(&s.dnsResolvConf, "dns-resolv-conf", "/etc/resolv.conf", "file that names the DNS servers for the rest")
	f.BoolVar(&s.dnsParallel, "dns-forward-parallel", false, "ask all of them at once, not one after the other")
	f.DurationVar(&s.dnsTimeout, "dns-forward-timeout", 5*time.Second, "how long to wait for one of them")
}

func (s *settings) completeDNS() error {
	if s.dnsAddress == "" {
		return nil
	}
	problems := []error{checkAddress("--dns-address", s.dnsAddress)}
	if s.xdsAddress == "" {
		problems = append(problems, errors.New("--dns-address: only with --xds-address: the names come from the control plane"))
	}
	if host, _, err := net.SplitHostPort(s.dnsAddress); err == nil && host != "" && host != "localhost" {
		if _, err := netip.ParseAddr(host); err != nil {
			problems = append(problems, errors.New("--dns-address: the host must be an IP address or localhost: nobody resolves names before it does"))
		}
	}
	if s.dnsTimeout <= 0 {
		problems = append(problems, errors.New("--dns-forward-timeout: it must be more than 0"))
	}
	s.dnsResolvConf = defaultPath(s.dnsResolvConf, "")
	return errors.Join(problems...)
}

func dnsFromIstio(s *settings, in istio.Settings) {
	if in.DNSAddress == "" {
		return
	}
	s.dnsAddress, s.dnsDomain, s.dnsParallel = in.DNSAddress, in.DNSDomain, in.DNSParallel
	if in.DNSTimeout > 0 {
		s.dnsTimeout = in.DNSTimeout
	}
}
