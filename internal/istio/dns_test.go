package istio

import (
	"strings"
	"testing"
	"time"
)

func TestDNSServer(t *testing.T) {
	on := func(pairs ...string) func(*pod) {
		return func(p *pod) {
			p.env[enableDNS] = "true"
			for i := 0; i < len(pairs); i += 2 {
				p.env[pairs[i]] = pairs[i+1]
			}
		}
	}
	for name, tt := range map[string]struct {
		change   func(*pod)
		address  string
		domain   string
		told     string // to istiod, as DNS_PROXY_ADDR
		warnings string
	}{
		"default":      {on(), "localhost:15053", "ingress.svc.cluster.local", "", ""},
		"nothing said": {func(*pod) {}, "", "", "", ""},
		"in proxyMetadata": {
			func(p *pod) { p.env["PROXY_CONFIG"] = `{proxyMetadata: {ISTIO_META_ENABLE_DNS_SERVER: "true"}}` },
			"localhost:15053", "ingress.svc.cluster.local", "", "",
		},
		"captured": {func(p *pod) { p.env["ISTIO_META_DNS_CAPTURE"] = "true" }, "", "", "", "ISTIO_META_DNS_CAPTURE is ignored"},
		"not on": {
			func(p *pod) { p.env["DNS_PROXY_ADDR"], p.env["DNS_FORWARD_PARALLEL"] = "10.0.0.1:53", "true" },
			"", "", "10.0.0.1:53", "DNS_PROXY_ADDR is ignored: there is no DNS server without ISTIO_META_ENABLE_DNS_SERVER=true; DNS_FORWARD_PARALLEL is ignored",
		},
		"nonsense":      {func(p *pod) { p.env[enableDNS] = "ja" }, "", "", "", `ISTIO_META_ENABLE_DNS_SERVER="ja" is not a boolean`},
		"address":       {on("DNS_PROXY_ADDR", "[::1]:5353"), "[::1]:5353", "ingress.svc.cluster.local", "[::1]:5353", ""},
		"all addresses": {on("DNS_PROXY_ADDR", ":5353"), ":5353", "ingress.svc.cluster.local", ":5353", ""},
		"no address":    {on("DNS_PROXY_ADDR", "here:5353"), "localhost:15053", "ingress.svc.cluster.local", "localhost:15053", `DNS_PROXY_ADDR="here:5353" is not HOST:PORT`},
		"no port":       {on("DNS_PROXY_ADDR", "127.0.0.1"), "localhost:15053", "ingress.svc.cluster.local", "localhost:15053", `DNS_PROXY_ADDR="127.0.0.1" is not HOST:PORT`},
		"bad port":      {on("DNS_PROXY_ADDR", ":70000"), "localhost:15053", "ingress.svc.cluster.local", "localhost:15053", `DNS_PROXY_ADDR=":70000" is not HOST:PORT`},
		"port of root":  {on("DNS_PROXY_ADDR", "localhost:53"), "localhost:15053", "ingress.svc.cluster.local", "localhost:15053", "port 53 is for root alone"},
		"domain": {func(p *pod) {
			on()(p)
			p.args = []string{"--domain", "svc.other.example"}
		}, "localhost:15053", "ingress.svc.other.example", "", ""},
		"no domain": {func(p *pod) {
			on()(p)
			p.args = nil
		}, "localhost:15053", "ingress.svc.cluster.local", "", ""},
		"no namespace": {func(p *pod) {
			on()(p)
			p.args = nil
			p.env["POD_NAMESPACE"] = ""
		}, "localhost:15053", ".svc.cluster.local", "", "POD_NAMESPACE is not set"},
	} {
		s, warnings, err := try(t, tt.change)
		told, _ := s.Metadata["DNS_PROXY_ADDR"].(string)
		if err != nil || s.DNSAddress != tt.address || s.DNSDomain != tt.domain || told != tt.told {
			t.Errorf("%s: at %q, domain %q, istiod is told %q, %v; want %q, %q, %q", name, s.DNSAddress, s.DNSDomain, told, err, tt.address, tt.domain, tt.told)
		}
		if text := strings.Join(warnings, "; "); !strings.Contains(text, tt.warnings) || tt.warnings == "" && text != "" {
			t.Errorf("%s: warnings %q, want %q", name, text, tt.warnings)
		}
	}
	p := gateway()
	on("DNS_PROXY_ADDR", "127.0.0.1:53", "DNS_FORWARD_PARALLEL", "1", "DNS_FORWARD_TIMEOUT", "750ms")(&p)
	in := p.input(t)
	in.Root = true
	if s, _, err := Map(in); err != nil || s.DNSAddress != "127.0.0.1:53" || !s.DNSParallel || s.DNSTimeout != 750*time.Millisecond {
		t.Errorf("root: %q, parallel %v, timeout %v, %v", s.DNSAddress, s.DNSParallel, s.DNSTimeout, err)
	}
}
