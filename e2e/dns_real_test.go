package e2e

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

// TestDNSOfRealIstiod: answers from the table of the real istiod. It sends gateways an empty one, unless a sidecar of their namespace has come
// before them; so this one calls itself a sidecar.
func TestDNSOfRealIstiod(t *testing.T) {
	if !inSpace(t) {
		return
	}
	startClusterNames(t)
	c := newContainer(t)
	c.istiod.Stop()
	kube := newKubeAPI(t, map[string]xdstest.Identity{"token-1": ingress}, "ingress")
	kube.crds()
	service := func(namespace, name, address string) {
		kube.apply("Service", namespace, name, object{"spec": object{
			"type": "ClusterIP", "clusterIP": address, "clusterIPs": []string{address}, "ports": []object{{"name": "http", "port": 80, "protocol": "TCP"}},
		}})
	}
	service("ingress", "web", "10.8.0.1")
	service("shop", "db", "10.8.0.2")
	kube.apply("ServiceEntry", "ingress", "partner", object{"spec": object{
		"hosts": []string{"api.partner.example", "*.wild.partner.example"}, "addresses": []string{"240.240.9.9"}, "location": "MESH_EXTERNAL",
		"resolution": "NONE", "ports": []object{{"number": 80, "name": "http", "protocol": "HTTP"}},
	}})
	istiod := newRealIstiod(t, kube, c.ca, net.JoinHostPort(istiodAddress, "15012"), net.JoinHostPort(istiodAddress, "15010"))
	istiod.strict()
	istiod.start()
	c.env["ISTIO_META_ENABLE_DNS_SERVER"], c.env["GATEWAY_AGENT_NODE_ID"] = "true", "sidecar~"+podAddress+"~gw-abc.ingress~ingress.svc.cluster.local"
	c.proxy["terminationDrainDuration"] = "0s"
	makeFile(t, filepath.Join(c.root, "etc/resolv.conf"), "nameserver "+clusterNames+"\n", 0o644)
	c.start()
	for name, want := range map[string]string{
		"web.": "10.8.0.1", "web.ingress.": "10.8.0.1", "web.ingress.svc.cluster.local.": "10.8.0.1", "db.shop.svc.": "10.8.0.2",
		"api.partner.example.": "240.240.9.9", "x.wild.partner.example.": "240.240.9.9", "db.": "", "www.example.org.": outside,
	} {
		c.agent.eventually(20*time.Second, "the real istiod's table is answered", func() error { return wantName("udp", name, dns.TypeA, want) })
	}
	service("shop", "late", "10.8.0.3")
	c.agent.eventually(5*time.Second, "a new service is answered", func() error { return wantName("tcp", "late.shop.", dns.TypeA, "10.8.0.3") })
}
