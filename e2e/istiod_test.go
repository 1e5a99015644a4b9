package e2e

import (
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/gateway-agent/gateway-agent/internal/registrytest"
	"github.com/gateway-agent/gateway-agent/internal/testca"
	"github.com/gateway-agent/gateway-agent/internal/wasmtest"
	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

const istiodName = "istiod.istio-system.svc"

// mesh is an istiod and a gateway pod's mounts: the root of its certificate and the token.
type mesh struct {
	t      *testing.T
	ca     *testca.CA
	istiod *xdstest.Istiod
	agent  *agent
	roots  string
	token  string
}

var ingress = xdstest.Identity{Namespace: "ingress", ServiceAccount: "gw"}

func newMesh(t *testing.T, config xdstest.IstiodConfig) *mesh {
	t.Helper()
	m := &mesh{t: t, ca: testca.New(t, "cluster"), agent: newAgent(t)}
	m.roots, m.token = filepath.Join(m.agent.dir, "root-cert.pem"), filepath.Join(m.agent.dir, "istio-token")
	writeFile(t, m.roots, m.ca.PEM)
	writeFile(t, m.token, []byte("token-1\n"))
	config.TLS = m.certificate(m.ca)
	config.Tokens = map[string]xdstest.Identity{"token-1": ingress}
	config.NoHealth = true
	if config.Address == "" {
		config.Address = freeAddress(t)
	}
	m.istiod = xdstest.NewIstiod(t, config)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("istiod:\n%s", tail(m.istiod.Transcript(), 100))
		}
	})
	return m
}

func (m *mesh) certificate(ca *testca.CA) *tls.Certificate {
	m.t.Helper()
	pair := ca.Issue(m.t, testca.Leaf{Hosts: []string{istiodName}})
	cert, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		m.t.Fatal(err)
	}
	return &cert
}

// start runs the gateway as its pod would.
func (m *mesh) start(mode string, args ...string) {
	m.t.Helper()
	m.agent.start(append([]string{
		"--xds-address", m.istiod.Address, "--xds-mode", mode, "--xds-ca", m.roots, "--xds-server-name", istiodName, "--xds-token-file", m.token,
		"--xds-header", "ClusterID=Kubernetes", "--node-id", "router~127.0.0.1~gw-abc.ingress~ingress.svc.cluster.local",
		"--node-metadata", "NAMESPACE=ingress", "--node-metadata", "SERVICE_ACCOUNT=gw", "--node-metadata", "CLUSTER_ID=Kubernetes",
		"--node-metadata", "INSTANCE_IPS=127.0.0.1", "--node-metadata", "ISTIO_VERSION=1.32.0",
	}, args...)...)
}

func (m *mesh) set(items ...string) {
	m.t.Helper()
	var messages []proto.Message
	for _, item := range items {
		messages = append(messages, decodeItem(m.t, item))
	}
	m.istiod.Set(messages...)
}

// gateway is what istiod sends a gateway: everything by name over ADS.
type gateway struct {
	address, origin, secret string
	plugins                 []plugin
	header                  string // that the route adds
}

func (g gateway) items() []string {
	socket := ""
	if g.secret != "" {
		socket = tlsContext(fmt.Sprintf("tls_certificate_sds_secret_configs: [{ name: %q, sds_config: { ads: {}, resource_api_version: V3 } }]", g.secret))
	}
	var filters []string
	for _, p := range g.plugins {
		filters = append(filters, p.discovered())
	}
	name := "0.0.0.0_" + port(g.address)
	items := []string{
		fmt.Sprintf(`- "@type": type.googleapis.com/envoy.config.listener.v3.Listener
  name: %q
  address: { socket_address: { address: 127.0.0.1, port_value: %s } }
  filter_chains:
  - filters:
    - name: envoy.filters.network.http_connection_manager
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
        stat_prefix: %q
        rds: { config_source: { ads: {}, resource_api_version: V3 }, route_config_name: "http.%s" }
        http_filters:
%s
        - name: envoy.filters.http.router
          typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }
%s`, name, port(g.address), name, port(g.address), indented(8, strings.Join(filters, "\n")), indented(4, socket)),
		fmt.Sprintf(`- "@type": type.googleapis.com/envoy.config.route.v3.RouteConfiguration
  name: "http.%s"
  response_headers_to_add: [{ header: { key: x-route, value: %q } }]
  virtual_hosts:
  - name: all
    domains: ["*"]
    routes:
    - match: { prefix: / }
      route: { cluster: "outbound|80||origin" }
`, port(g.address), g.header),
		`- "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
  name: "outbound|80||origin"
  type: EDS
  connect_timeout: 1s
  eds_cluster_config: { eds_config: { ads: {}, resource_api_version: V3 } }
`,
		fmt.Sprintf(`- "@type": type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment
  cluster_name: "outbound|80||origin"
  endpoints:
  - lb_endpoints:
    - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: %s } } }
`, port(g.origin)),
	}
	for _, p := range g.plugins {
		items = append(items, p.extension())
	}
	return items
}

// istioPlugin is a plugin as istiod describes it.
func istioPlugin(name, uri, value, version string) plugin {
	return plugin{
		name: "extensions.istio.io/trafficextension/ingress." + name + "~istio-translated-wasmplugin", uri: uri, value: value, policy: "FAIL_CLOSED",
		env: map[string]string{pullPolicy: "IfNotPresent", resourceVersion: version},
	}
}

func TestIstiod(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			reg := startPrivateRegistry(t)
			reg.pushBytes("private:v1", wasmtest.SmallHello("v1"))
			m := newMesh(t, xdstest.IstiodConfig{})
			const reference = "kubernetes://ingress/regcred"
			m.istiod.SetPullSecret(reference, []byte(reg.dockerConfig(registrytest.Password)+"\n"))
			p := istioPlugin("hello", reg.uri("private:v1"), "from istiod", "1")
			p.env[pullSecret] = reference
			g := gateway{address: freeAddress(t), origin: startOrigin(t), plugins: []plugin{p}, header: "one"}
			m.set(g.items()...)
			m.start(mode, "--log-level", "debug")
			m.agent.waitReady()
			url := "http://" + g.address + "/"
			if err := wantHeader(url, "x-hello", "from istiod"); err != nil {
				t.Error(err)
			}
			if err := wantHeader(url, "x-route", "one"); err != nil {
				t.Error(err)
			}

			g.header = "two"
			g.plugins[0].value = "changed"
			m.set(g.items()...)
			m.agent.eventually(2*time.Second, "a changed route is live", func() error { return wantHeader(url, "x-route", "two") })
			m.agent.eventually(compiled, "a changed plugin is live", func() error { return wantHeader(url, "x-hello", "changed") })

			// The plugin is deleted: of that istiod says nothing but in the listener.
			g.plugins = nil
			m.set(g.items()...)
			m.agent.eventually(5*time.Second, "the deleted plugin is gone", func() error { return wantHeader(url, "x-hello", "") })
			// Another has no Secret any more, which istiod shows as a secret that is present but empty.
			orphan := istioPlugin("orphan", reg.uri("private:v1"), "x", "1")
			orphan.env[pullSecret] = "kubernetes://ingress/deleted"
			g.plugins = []plugin{orphan}
			m.set(g.items()...)
			m.agent.eventually(5*time.Second, "a plugin whose secret is empty refuses", func() error { return wantCode(url, 403) })
			if _, streams := m.istiod.Connected(); streams != 1 {
				t.Errorf("%d streams to istiod, want 1", streams)
			}
			m.agent.wantNoTrace(&transcript{}, secretWords(registrytest.Password)...)
		})
	}
}

// TestIstiodSecrets: a gateway's certificate comes over ADS and leaves no trace in the agent.
func TestIstiodSecrets(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			m := newMesh(t, xdstest.IstiodConfig{})
			const name = "kubernetes://gw-cert"
			reg := startRegistry(t)
			reg.pushBytes("hello:v1", wasmtest.SmallHello("v1"))
			p := istioPlugin("hello", reg.uri("hello:v1"), "x", "1")
			g := gateway{address: freeAddress(t), origin: startOrigin(t), secret: name, plugins: []plugin{p}}
			m.set(g.items()...)
			m.start(mode, "--log-level", "debug")
			m.agent.eventually(20*time.Second, "the agent asks for the secret", func() error {
				if len(m.istiod.Requests(xdstest.SDS)) == 0 {
					return fmt.Errorf("no request in\n%s", m.istiod.Transcript())
				}
				return nil
			})
			if _, err := handshake(g.address); err == nil {
				t.Error("a handshake succeeded without a certificate")
			}
			var words []string
			for range 3 {
				pair := m.ca.Issue(t, testca.Leaf{Hosts: []string{"edge.test"}})
				words = append(words, keyWords(pair.KeyPEM)...)
				m.istiod.SetSecret(name, "ingress", pair.CertPEM, pair.KeyPEM)
				m.agent.waitReady() // the first time it waits for the secret
				m.agent.eventually(2*time.Second, "the certificate is served", func() error {
					serial, err := handshake(g.address)
					if err == nil && serial != pair.Cert.SerialNumber.String() {
						err = fmt.Errorf("serial %s, want %s", serial, pair.Cert.SerialNumber)
					}
					return err
				})
			}
			pair, other := m.ca.Issue(t, testca.Leaf{Hosts: []string{"edge.test"}}), m.ca.Issue(t, testca.Leaf{})
			words = append(words, keyWords(other.KeyPEM)...)
			m.istiod.SetSecret(name, "ingress", pair.CertPEM, other.KeyPEM)
			m.agent.eventually(5*time.Second, "status names the secret that Envoy rejects", func() error {
				if text := m.agent.statusText(); !strings.Contains(text, "Envoy rejected SDS: "+name+": ") {
					return fmt.Errorf("status:\n%s", text)
				}
				return nil
			})
			m.agent.wantNoTrace(&transcript{}, words...)
			m.istiod.Stop()
			m.agent.eventually(5*time.Second, "status tells that istiod is gone", func() error {
				if text := m.agent.statusText(); !strings.Contains(text, "connection refused") {
					return fmt.Errorf("status:\n%s", text)
				}
				return nil
			})
			m.agent.wantNoTrace(&transcript{}, words...)
		})
	}
}

// keyWords are what a private key looks like in a text, as it is and in JSON of bytes.
func keyWords(pem []byte) []string {
	lines := strings.Split(strings.TrimSpace(string(pem)), "\n")
	encoded := base64.StdEncoding.EncodeToString(pem)
	return []string{lines[1], encoded[len(encoded)/3 : len(encoded)/3+40]}
}

// TestIstiodOutageUnderLoad: while istiod is away for 10 s its certificate authority, its certificate and the token are replaced, and the
// configuration is changed.
func TestIstiodOutageUnderLoad(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			m := newMesh(t, xdstest.IstiodConfig{})
			g := gateway{address: freeAddress(t), origin: startOrigin(t), header: "before"}
			m.set(g.items()...)
			m.start(mode)
			m.agent.waitReady()
			url := "http://" + g.address + "/"
			l := startLoad(t, url, 100)
			time.Sleep(time.Second)

			m.istiod.Stop()
			time.Sleep(10 * time.Second)
			g.header = "after"
			m.set(g.items()...)
			ca := testca.New(t, "next")
			m.istiod.UseCertificate(m.certificate(ca))
			m.istiod.UseTokens(map[string]xdstest.Identity{"token-2": ingress})
			writeFile(t, m.roots, ca.PEM)
			writeFile(t, m.token, []byte("token-2"))
			m.istiod.Start()
			took := m.agent.eventually(2*time.Second, "the change is live", func() error { return wantHeader(url, "x-route", "after") })
			t.Logf("the change was live %v after istiod was back", took)
			l.wantNoFailure(500)
		})
	}
}

// TestIstiodStreamsGrowOld: a stream that istiod has lost, though it answers pings, is replaced when it is old. That costs no request, and
// Envoy, which is served anew each time, changes nothing.
func TestIstiodStreamsGrowOld(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			reg := startRegistry(t)
			reg.pushBytes("hello:v1", wasmtest.SmallHello("v1"))
			p := newPod(t)
			p.proxyConfig["proxyStatsMatcher"] = map[string]any{"inclusionPrefixes": []string{"wasm"}}
			plain := gateway{address: freeAddress(t), origin: p.gateway.origin, header: "one", plugins: []plugin{istioPlugin("hello", reg.uri("hello:v1"), "kept", "1")}}
			serve := func() { p.set(append(p.items()[:2], plain.items()...)...) }
			serve()
			p.launch("--xds-mode", mode, "--xds-max-stream-age=1s")
			p.agent.waitReady()
			url := "http://" + plain.address + "/"
			p.agent.eventually(compiled, "the plugin serves", func() error { return wantHeader(url, "x-hello", "kept") })
			l := startLoad(t, url, 100)
			_, before := p.istiod.Connected()
			changes := p.changes()
			p.agent.eventually(15*time.Second, "three streams have come and gone", func() error {
				if _, all := p.istiod.Connected(); all < before+3 {
					return fmt.Errorf("%d streams, there were %d", all, before)
				}
				return nil
			})
			p.agent.eventually(5*time.Second, "Envoy is served", func() error {
				if open, _ := p.istiod.Connected(); open != 1 {
					return fmt.Errorf("%d streams", open)
				}
				return nil
			})
			if got := p.changes(); got != changes {
				t.Errorf("what Envoy has changed: %s; it was %s", got, changes)
			}
			p.istiod.Forget()
			plain.header = "two"
			serve()
			took := p.agent.eventually(5*time.Second, "what the lost stream has not told is live", func() error { return wantHeader(url, "x-route", "two") })
			t.Logf("live after %v; until then Envoy had changed:\n%s", took, changes)
			l.wantNoFailure(100)
		})
	}
}

// changes are how often Envoy has made and dropped something.
func (p *pod) changes() string {
	p.t.Helper()
	_, text, _, err := get("http://" + p.admin + "/stats?filter=(manager|wasm).*(_added|_modified|_removed|_rejected|config_reload$|created)")
	if err != nil {
		p.t.Fatal(err)
	}
	return text
}

// TestIstiodRefusals: what istiod says about a gateway that it does not take is in the status.
func TestIstiodRefusals(t *testing.T) {
	t.Parallel()
	m := newMesh(t, xdstest.IstiodConfig{})
	g := gateway{address: freeAddress(t), origin: startOrigin(t), header: "x"}
	m.set(g.items()...)
	for _, refusal := range []struct {
		name, want string
		args       []string
	}{
		{"namespace", "PermissionDenied", []string{"--node-metadata", "NAMESPACE=other"}},
		{"cluster", "Unauthenticated", []string{"--xds-header", "ClusterID=elsewhere"}},
		{"token", "istio-nothing: no such file", []string{"--xds-token-file", filepath.Join(m.agent.dir, "istio-nothing")}},
		{"node", "InvalidArgument", []string{"--node-id", "gw-abc"}},
	} {
		m.start("delta", refusal.args...)
		m.agent.eventually(15*time.Second, refusal.name+": status tells the reason", func() error {
			if text := m.agent.statusText(); !strings.Contains(text, refusal.want) || !strings.Contains(text, "NOT READY") {
				return fmt.Errorf("want %q in the status:\n%s", refusal.want, text)
			}
			return nil
		})
		m.agent.kill()
	}
	m.start("delta")
	m.agent.waitReady()
}
