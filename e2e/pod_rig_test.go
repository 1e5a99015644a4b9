package e2e

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gateway-agent/gateway-agent/internal/testbuffer"
	"github.com/gateway-agent/gateway-agent/internal/testca"
	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

// The container's ports, which are Istio's, and those of its gateway.
const (
	podAdmin      = "127.0.0.1:15000"
	podStatus     = podAddress + ":15020"
	podReady      = podAddress + ":15021"
	podPrometheus = podAddress + ":15090"
	podPlain      = podAddress + ":8080"
	podMutual     = podAddress + ":8443"
	podEdge       = podAddress + ":8444"
)

const edgeSecret = "kubernetes://ingress/edge-cert"

// container is the container of a gateway pod that Istio has injected, in namespaces of its own, and an istiod that is also its CA.
type container struct {
	*mesh
	authority *xdstest.CA
	program   []string // what the container runs
	volumes   string   // directory of what is mounted
	root      string   // of the container
	seal      func()   // makes the root read-only
	env       map[string]string
	proxy     map[string]any // ProxyConfig
	plugin    *plugin        // of the plain listener, if any
	header    string
	origin    string
	secured   bool // the listeners with TLS too
}

// volumesOf are those that the injector and the gateway chart mount; what is true can be written.
var volumesOf = map[string]bool{
	"var/run/secrets/workload-spiffe-uds": true, "var/run/secrets/credential-uds": true, "var/run/secrets/workload-spiffe-credentials": true,
	"var/run/secrets/istio": false, "var/run/secrets/tokens": false, "var/lib/istio/data": true, "etc/istio/pod": false,
}

// newContainer makes one that has not started. Nothing in its environment or its mounts is there for the test: addresses are Istio's
// defaults.
func newContainer(t *testing.T) *container { return newContainerIn(t, fourth) }

func newContainerIn(t *testing.T, n network) *container { return newContainerFrom(t, n, image) }

// newContainerFrom makes one whose root a function has made, as image does.
func newContainerFrom(t *testing.T, n network, image func(t *testing.T, root, hosts string) (seal func())) *container {
	t.Helper()
	space := os.Getenv(spaceVariable)
	c := &container{
		mesh:    &mesh{t: t, ca: testca.New(t, "cluster"), agent: &agent{t: t, dir: space, status: podStatus, ready: podReady, log: &testbuffer.Buffer{}}},
		volumes: filepath.Join(space, "volumes"), root: filepath.Join(space, "root"), program: []string{"/usr/local/bin/gateway-agent"},
		proxy: map[string]any{}, origin: startOrigin(t), header: "one",
	}
	t.Cleanup(func() {
		c.agent.kill()
		if t.Failed() {
			t.Logf("istiod:\n%s\nthe container:\n%s", tail(c.istiod.Transcript(), 100), tail(c.agent.log.String(), 200))
		}
	})
	c.authority = xdstest.NewCA(t, xdstest.CAConfig{ID: gatewayID, Tokens: []string{"token-1"}})
	c.authority.SignWith(c.ca)
	c.istiod = xdstest.NewIstiod(t, xdstest.IstiodConfig{
		Address: net.JoinHostPort(n.istiod, "15012"), TLS: c.certificate(c.ca), CA: c.authority, NoHealth: true,
		Tokens: map[string]xdstest.Identity{"token-1": ingress},
	})
	c.seal = image(t, c.root, n.hosts())
	c.mountVolumes()
	c.env = podEnvironment(n.pod)
	return c
}

// podEnvironment is that of a container injected by Istio's gateway template.
func podEnvironment(address string) map[string]string {
	return map[string]string{
		"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOSTNAME": "gw-abc", "HOME": "/",
		"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443", "GW_SERVICE_HOST": "10.96.1.1",
		"PILOT_CERT_PROVIDER": "istiod", "CA_ADDR": istiodName + ":15012", "POD_NAME": "gw-abc", "POD_NAMESPACE": "ingress",
		"INSTANCE_IP": address, "HOST_IP": "10.1.0.1", "SERVICE_ACCOUNT": "gw", "ISTIO_CPU_LIMIT": "2",
		"ISTIO_META_POD_PORTS": `[{"name":"http","containerPort":8080,"protocol":"TCP"}]`, "ISTIO_META_APP_CONTAINERS": "",
		"GOMEMLIMIT": "1073741824", "GOMAXPROCS": "2", "ISTIO_META_CLUSTER_ID": "Kubernetes", "ISTIO_META_NODE_NAME": "node-1",
		"ISTIO_META_INTERCEPTION_MODE": "REDIRECT", "ISTIO_META_WORKLOAD_NAME": "gw", "ISTIO_META_MESH_ID": "cluster.local",
		"ISTIO_META_OWNER": "kubernetes://apis/apps/v1/namespaces/ingress/deployments/gw", "TRUST_DOMAIN": "cluster.local",
		"ISTIO_META_UNPRIVILEGED_POD": "true",
	}
}

func (c *container) mountVolumes() {
	t := c.t
	t.Helper()
	for name, writable := range volumesOf {
		source, target := filepath.Join(c.volumes, name), filepath.Join(c.root, name)
		makeDirs(t, source, target)
		flags := uintptr(unix.MS_RDONLY)
		if writable {
			own(t, source, 0o777|os.ModeSetgid)
			flags = 0
		}
		bind(t, source, target, flags)
	}
	memory := filepath.Join(c.root, "etc/istio/proxy")
	makeDirs(t, memory)
	mountAt(t, "memory", memory, "tmpfs", 0, "size=4m,mode=0777")
	c.project("var/run/secrets/istio", map[string]string{"root-cert.pem": string(c.ca.PEM)})
	c.project("var/run/secrets/tokens", map[string]string{"istio-token": "token-1"})
	c.project("etc/istio/pod", map[string]string{
		"labels":      "app=\"gw\"\nistio=\"ingress\"\npod-template-hash=\"5d9\"\nservice.istio.io/canonical-name=\"gw\"\n",
		"annotations": "inject.istio.io/templates=\"gateway\"\nprometheus.io/port=\"15020\"\n",
	})
}

// project writes a volume as the kubelet does: a new directory, to which a link is turned.
func (c *container) project(volume string, files map[string]string) {
	t := c.t
	t.Helper()
	dir := filepath.Join(c.volumes, volume)
	current, err := os.MkdirTemp(dir, "..2026_")
	if err != nil {
		t.Fatal(err)
	}
	own(t, current, 0o755)
	for name, text := range files {
		makeFile(t, filepath.Join(current, name), text, 0o640)
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			link(t, filepath.Join("..data", name), filepath.Join(dir, name))
		}
	}
	before, _ := os.Readlink(filepath.Join(dir, "..data"))
	link(t, filepath.Base(current), filepath.Join(dir, "..data_tmp"))
	if err := os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
	if before != "" {
		os.RemoveAll(filepath.Join(dir, before))
	}
}

// start runs the container as the gateway chart has it.
func (c *container) start(args ...string) {
	c.t.Helper()
	if c.seal != nil {
		c.seal()
		c.seal = nil
	}
	line := append(c.program, "proxy", "router", "--domain", "ingress.svc.cluster.local",
		"--proxyLogLevel=warning", "--proxyComponentLogLevel=misc:error", "--log_output_level=default:info")
	c.agent.begin(containerCommand(c.t, c.root, c.environment(), append(line, args...)...))
}

func (c *container) environment() (env []string) {
	config, err := json.Marshal(c.proxy)
	if err != nil {
		c.t.Fatal(err)
	}
	env = append(env, "PROXY_CONFIG="+string(config))
	for name, value := range c.env {
		env = append(env, name+"="+value)
	}
	return env
}

// exec runs a command in the container, as `kubectl exec` does.
func (c *container) exec(args ...string) (stdout, stderr string, err error) {
	cmd := containerCommand(c.t, c.root, c.environment(), append([]string{"/usr/local/bin/pilot-agent"}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// publish has istiod send what the container's fields say.
func (c *container) publish() {
	c.t.Helper()
	g := gateway{address: podPlain, origin: c.origin, header: c.header}
	if c.plugin != nil {
		g.plugins = []plugin{*c.plugin}
	}
	items := g.items()
	g.plugins = nil
	if c.secured {
		g.address, g.secret = podMutual, "default"
		mutual := g.items()[:2]
		mutual[0] = withIdentity(mutual[0])
		g.address, g.secret = podEdge, edgeSecret
		items = append(append(items, mutual...), g.items()[:2]...)
	}
	for i, item := range items {
		if strings.Contains(item, "listener.v3.Listener") {
			items[i] = strings.Replace(item, "address: 127.0.0.1", "address: 0.0.0.0", 1)
		}
	}
	c.set(items...)
}

// withIdentity makes a TLS listener one with the workload's certificate and roots, from the SDS server that istiod knows by a cluster's name.
func withIdentity(listener string) string {
	const source = `{ api_config_source: { api_type: GRPC, transport_api_version: V3, set_node_on_first_message_only: true,
      grpc_services: [{ envoy_grpc: { cluster_name: sds-grpc } }] }, initial_fetch_timeout: 0s, resource_api_version: V3 }`
	listener = strings.ReplaceAll(listener, "{ ads: {}, resource_api_version: V3 } }]", source+` }], combined_validation_context: {
      default_validation_context: {}, validation_context_sds_secret_config: { name: ROOTCA, sds_config: `+source+` } }`)
	return strings.Replace(listener, "common_tls_context:", "require_client_certificate: true\n        common_tls_context:", 1)
}

// peer calls as another workload of the mesh, with a certificate of ca, and wants the gateway's to be of roots.
func (c *container) peer(ca *testca.CA, roots ...*testca.CA) error {
	pool := x509.NewCertPool()
	for _, root := range roots {
		pool.AddCert(root.Cert)
	}
	config := &tls.Config{InsecureSkipVerify: true, VerifyConnection: func(state tls.ConnectionState) error { return checkIdentity(state, pool) }}
	if ca != nil {
		pair := ca.Issue(c.t, testca.Leaf{Hosts: []string{"spiffe://cluster.local/ns/shop/sa/web"}})
		own, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
		if err != nil {
			return err
		}
		config.Certificates = []tls.Certificate{own}
	}
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: config}}
	response, err := client.Get("https://" + podMutual + "/")
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("status %s", response.Status)
	}
	return nil
}

// processes are the container's, as this test numbers them: the first one and its Envoy, 0 when there is none.
func (c *container) processes() (first, envoy int) {
	first = c.agent.cmd.Process.Pid
	entries, err := os.ReadDir("/proc")
	if err != nil {
		c.t.Fatal(err)
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		stat, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "stat"))
		name, rest, _ := strings.Cut(string(stat), ") ")
		fields := strings.Fields(rest)
		if strings.HasSuffix(name, "(envoy") && len(fields) > 1 && fields[0] != "Z" && fields[1] == strconv.Itoa(first) {
			return first, pid
		}
	}
	return first, 0
}

// files are all that the container has written, and what it writes to.
func (c *container) files() map[string]string {
	c.t.Helper()
	all := filesBelow(c.t, filepath.Join(c.root, "etc/istio/proxy"))
	for volume, writable := range volumesOf {
		if writable {
			maps.Copy(all, filesBelow(c.t, filepath.Join(c.volumes, volume)))
		}
	}
	return all
}

func readAll(t *testing.T, response *http.Response) string {
	t.Helper()
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(body))
}
