package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/network/dns_resolver/cares/v3" // for what istiod sends
	"github.com/miekg/dns"

	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

const (
	podNames     = "127.0.0.1:15053"
	clusterNames = "127.0.0.53" // the name server of the cluster
	outside      = "192.0.2.7"  // what that says of every name outside the cluster
)

// TestPodDNS: a gateway with Istio's DNS server. Envoy and others resolve names of the mesh through it, and everything else.
func TestPodDNS(t *testing.T) {
	if !inSpace(t) {
		return
	}
	startClusterNames(t)
	c := newContainer(t)
	c.env["ISTIO_META_ENABLE_DNS_SERVER"], c.proxy["terminationDrainDuration"] = "true", "0s"
	makeFile(t, filepath.Join(c.root, "etc/resolv.conf"), "search ingress.svc.cluster.local svc.cluster.local cluster.local\nnameserver "+clusterNames+"\noptions ndots:5\n", 0o644)
	makeFile(t, filepath.Join(c.root, "etc/nsswitch.conf"), "hosts: files dns\n", 0o644) // Envoy's resolver reads it too
	c.istiod.SetNames(meshNames("10.8.0.1"))
	c.set(throughNames(c.origin)...)
	c.start()
	c.agent.waitReady()
	c.agent.eventually(4*time.Second, "Envoy resolves a short name of the mesh at its first try; the next comes after 5 s", func() error { return wantHeader("http://"+podPlain+"/", "x-route", "one") })
	c.wantAnswers("10.8.0.1")
	c.wantNameTable()

	c.istiod.SetNames(meshNames("10.8.0.2"))
	c.agent.eventually(2*time.Second, "a change of the table is answered", func() error { return wantName("udp", "web.ingress.svc.cluster.local.", dns.TypeA, "10.8.0.2") })
	c.istiod.Stop()
	c.agent.eventually(5*time.Second, "the agent knows that istiod is away", func() error {
		if open, _ := c.istiod.Connected(); open > 0 {
			return fmt.Errorf("%d streams", open)
		}
		return nil
	})
	c.wantAnswers("10.8.0.2")
	c.istiod.SetNames(meshNames("10.8.0.3"))
	c.istiod.Start()
	c.agent.eventually(10*time.Second, "the table of a restarted istiod is answered", func() error { return wantName("tcp", "web.", dns.TypeA, "10.8.0.3") })
	c.agent.signal(syscall.SIGTERM)
	if code := c.agent.wait(10 * time.Second); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	c.wantQuiet()
}

func meshNames(web string) map[string]xdstest.Name {
	return map[string]xdstest.Name{
		"web.ingress.svc.cluster.local": {IPs: []string{web}, Registry: "Kubernetes", Shortname: "web", Namespace: "ingress"},
		"origin.shop.svc.cluster.local": {IPs: []string{"127.0.0.1"}, Registry: "Kubernetes", Shortname: "origin", Namespace: "shop"},
		"*.partner.example":             {IPs: []string{"240.240.0.1"}, Registry: "External"},
	}
}

// throughNames is a gateway to an origin that Envoy has to resolve, as a user's EnvoyFilter or ServiceEntry with DNS has it.
func throughNames(origin string) []string {
	items := gateway{address: podPlain, origin: origin, header: "one"}.items()[:2]
	items[0] = strings.Replace(items[0], "address: 127.0.0.1", "address: 0.0.0.0", 1)
	return append(items, fmt.Sprintf(`- "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
  name: "outbound|80||origin"
  type: STRICT_DNS
  connect_timeout: 1s
  dns_lookup_family: V4_ONLY
  typed_dns_resolver_config:
    name: envoy.network.dns_resolver.cares
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig
      resolvers: [{ socket_address: { address: 127.0.0.1, port_value: 15053 } }]
  load_assignment:
    cluster_name: "outbound|80||origin"
    endpoints: [{ lb_endpoints: [{ endpoint: { address: { socket_address: { address: origin.shop, port_value: %s } } } }] }]
`, port(origin)))
}

// startClusterNames is the cluster's name server: it knows every name that ends in .org, and none of the mesh.
func startClusterNames(t *testing.T) {
	t.Helper()
	address := net.JoinHostPort(clusterNames, "53")
	udp, err := net.ListenPacket("udp", address)
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, query *dns.Msg) {
		answer := new(dns.Msg).SetReply(query)
		question := query.Question[0]
		switch {
		case !strings.HasSuffix(question.Name, ".org."):
			answer.Rcode = dns.RcodeNameError
		case question.Qtype == dns.TypeA:
			answer.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: question.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}, A: net.ParseIP(outside)}}
		}
		_ = w.WriteMsg(answer)
	})
	for _, server := range []*dns.Server{{PacketConn: udp, Handler: handler}, {Listener: tcp, Handler: handler}} {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = server.ActivateAndServe()
		}()
		t.Cleanup(func() {
			_, _ = udp.Close(), tcp.Close()
			<-ended
		})
	}
}

// wantAnswers asks with two resolvers, over UDP and TCP, and at both loopback addresses.
func (c *container) wantAnswers(web string) {
	c.t.Helper()
	for name, want := range map[string]string{
		"web.ingress.svc.cluster.local.": web, "web.ingress.svc.": web, "web.": web, "origin.shop.": "127.0.0.1", "origin.": "",
		"a.partner.example.": "240.240.0.1", "a.partner.example.ingress.svc.cluster.local.": "240.240.0.1", "www.example.org.": outside, "nowhere.example.": "",
	} {
		for _, network := range []string{"udp", "tcp", "udp6", "tcp6"} {
			if err := wantName(network, name, dns.TypeA, want); err != nil {
				c.t.Error(err)
			}
		}
	}
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, podNames)
	}}
	if got, err := resolver.LookupHost(c.t.Context(), "web.ingress.svc.cluster.local."); err != nil || !slices.Equal(got, []string{web}) {
		c.t.Errorf("Go's resolver: %q, %v; want %s, though there is no IPv6", got, err, web)
	}
}

// wantName asks for a name, over a 6 at [::1].
func wantName(network, name string, kind uint16, want string) error {
	address := podNames
	if strings.HasSuffix(network, "6") {
		address = "[::1]:15053"
	}
	client := &dns.Client{Net: network, Timeout: 5 * time.Second}
	answer, _, err := client.Exchange(new(dns.Msg).SetQuestion(name, kind), address)
	if err != nil {
		return fmt.Errorf("%s over %s: %w", name, network, err)
	}
	got := ""
	for _, record := range answer.Answer {
		if a, ok := record.(*dns.A); ok {
			got += a.A.String()
		}
	}
	if got != want || want == "" && answer.Rcode != dns.RcodeNameError {
		return fmt.Errorf("%s over %s is %q (%s), want %q", name, network, got, dns.RcodeToString[answer.Rcode], want)
	}
	return nil
}

// wantNameTable looks at the pages that tell of the table.
func (c *container) wantNameTable() {
	t := c.t
	t.Helper()
	if code, body, _, err := get("http://127.0.0.1:15020/debug/ndsz"); code != http.StatusOK || err != nil ||
		!strings.Contains(body, `"web.ingress.svc.cluster.local":{"ips":["10.8.0.1"],"registry":"Kubernetes","shortname":"web","namespace":"ingress"}`) ||
		!strings.Contains(body, `"web.":{"ips":["10.8.0.1"],"registry":"Kubernetes"}`) {
		t.Errorf("/debug/ndsz = %d, %v: %s", code, err, body)
	}
	if code, _, _, err := get("http://" + podStatus + "/debug/ndsz"); code != http.StatusForbidden || err != nil {
		t.Errorf("/debug/ndsz from elsewhere = %d, %v; want 403", code, err)
	}
	_, metrics, _, err := get("http://" + podStatus + "/stats/prometheus")
	for _, want := range []string{"istio_agent_dns_requests_total ", "istio_agent_dns_upstream_request_duration_seconds_count ", "gateway_agent_dns_hosts 3"} {
		if err != nil || !strings.Contains(metrics, want) {
			t.Errorf("the metrics lack %q: %v", want, err)
		}
	}
}
