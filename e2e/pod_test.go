package e2e

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/gateway-agent/gateway-agent/internal/registrytest"
	"github.com/gateway-agent/gateway-agent/internal/testca"
	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

// TestPodServes: from the start of a container to its end, with Istio's command line, mounts, ports and names, and under both of the
// program's names.
func TestPodServes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		mode    string
		program []string
		args    []string
	}{
		{"delta", []string{"/usr/local/bin/pilot-agent"}, nil},
		{"sotw", []string{"/usr/local/bin/gateway-agent"}, []string{"--xds-mode=sotw"}},
	} {
		t.Run(tt.mode, func(t *testing.T) {
			if !inSpace(t) {
				return
			}
			reg := startPrivateRegistry(t)
			reg.push("private:v1", helloModule(t, "v1"))
			c := newContainer(t)
			c.program, c.proxy["terminationDrainDuration"] = tt.program, "1s"
			c.proxy["discoveryAddress"] = istiodName + ":15012" // this and the next as meshes have them
			c.proxy["tracing"] = map[string]any{"zipkin": map[string]any{"address": "zipkin.istio-system:9411"}}
			c.proxy["proxyMetadata"] = map[string]any{"ISTIO_META_IDLE_TIMEOUT": "1h"}
			c.proxy["proxyStatsMatcher"] = map[string]any{"inclusionPrefixes": []string{"wasm"}}
			p := istioPlugin("hello", reg.uri("private:v1"), "of the mesh", "1")
			p.env[pullSecret] = "kubernetes://ingress/regcred"
			c.istiod.SetPullSecret(p.env[pullSecret], []byte(reg.dockerConfig(registrytest.Password)+"\n"))
			edge := c.ca.Issue(t, testca.Leaf{Hosts: []string{"edge.test"}})
			c.istiod.SetSecret(edgeSecret, "ingress", edge.CertPEM, edge.KeyPEM)
			c.start(tt.args...)
			c.wantIdentityFirst()
			c.wantConfined()
			c.wantNode()

			c.secured, c.plugin = true, &p
			c.publish()
			c.agent.eventually(compiled, "the plugin serves", func() error { return wantHeader("http://"+podPlain+"/", "x-hello", "of the mesh") })
			c.agent.waitReady()
			c.wantMutual()
			c.wantEdge(edge)
			next := c.ca.Issue(t, testca.Leaf{Hosts: []string{"edge.test"}})
			c.istiod.SetSecret(edgeSecret, "ingress", next.CertPEM, next.KeyPEM)
			c.wantEdge(next)
			c.wantCommands()
			words := secretWords(registrytest.Password)
			words[0] = "ISTIO_META_WASM_" // there are others in ProxyConfig
			c.wantNoSecrets(slices.Concat(words, keyWords(edge.KeyPEM), keyWords(next.KeyPEM))...)
			c.wantScrapes()
			c.wantEndpoints()
			c.wantQuiet()
		})
	}
}

// wantIdentityFirst: there is no listener yet, so that Envoy cannot have asked for a certificate.
func (c *container) wantIdentityFirst() {
	t := c.t
	t.Helper()
	c.agent.eventually(10*time.Second, "the CA has certified the gateway", func() error {
		if all := c.authority.Requests(); len(all) != 1 || !all[0].Granted {
			return fmt.Errorf("requests %+v", all)
		}
		return nil
	})
	request := c.authority.Requests()[0]
	if request.Token != "token-1" || request.Peer != "" || request.Life != 24*time.Hour {
		t.Errorf("the request had token %q, certificate %q, a life of %v; want the token alone and a day", request.Token, request.Peer, request.Life)
	}
	if _, err := handshake(podMutual); err == nil {
		t.Error("something listens already")
	}
}

// wantConfined makes sure that this is what a restricted pod allows, and no more.
func (c *container) wantConfined() {
	t := c.t
	t.Helper()
	var envoy int
	c.agent.eventually(10*time.Second, "Envoy runs", func() error {
		if _, envoy = c.processes(); envoy == 0 {
			return fmt.Errorf("no process")
		}
		return nil
	})
	for _, pid := range []int{c.agent.cmd.Process.Pid, envoy} {
		dir := fmt.Sprintf("/proc/%d", pid)
		status := readProc(t, pid, "status")
		for _, want := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
			if want += ":\t" + strings.Repeat("0", 16); !strings.Contains(status, "\n"+want+"\n") {
				t.Errorf("%s/status lacks %q:\n%s", dir, want, status)
			}
		}
		if !strings.Contains(status, "\nNoNewPrivs:\t1\n") {
			t.Errorf("process %d may get new privileges", pid)
		}
		if isRoot() && !strings.Contains(status, "\nUid:\t1337\t1337\t1337\t1337\nGid:\t1337\t1337\t1337\t1337\n") {
			t.Errorf("%s/status is of another user:\n%s", dir, status)
		}
		if cwd, err := os.Readlink(filepath.Join(dir, "cwd")); err != nil || cwd != "/" {
			t.Errorf("working directory %s, %v; want /", cwd, err)
		}
		for line := range strings.Lines(readProc(t, pid, "limits")) {
			if f := strings.Fields(line); strings.HasPrefix(line, "Max open files") && f[3] != f[4] {
				t.Errorf("process %d may have %s open files of %s", pid, f[3], f[4])
			}
		}
		c.wantMounts(dir)
	}
	for _, socket := range []string{"etc/istio/proxy/XDS", "var/run/secrets/workload-spiffe-uds/socket"} {
		if info, err := os.Stat(filepath.Join(c.root, socket)); err != nil || info.Mode() != os.ModeSocket|0o600 {
			t.Errorf("%s: %v, %v; want a socket for its user alone", socket, info, err)
		}
	}
}

func (c *container) wantMounts(dir string) {
	t := c.t
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "mountinfo"))
	if err != nil {
		t.Fatal(err)
	}
	var writable []string
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if place := fields[4]; !strings.HasPrefix(fields[5], "ro") && !strings.HasPrefix(place, "/dev/") && place != "/proc" {
			writable = append(writable, strings.TrimPrefix(strings.TrimPrefix(place, "/"), "var/"))
		}
	}
	slices.Sort(writable)
	want := []string{
		"etc/istio/proxy", "lib/istio/data",
		"run/secrets/credential-uds", "run/secrets/workload-spiffe-credentials", "run/secrets/workload-spiffe-uds",
	}
	if !slices.Equal(writable, want) {
		t.Errorf("what can be written to is %q, want %q", writable, want)
	}
}

// wantNode checks what istiod is told of the gateway.
func (c *container) wantNode() {
	t := c.t
	t.Helper()
	c.agent.eventually(10*time.Second, "istiod is asked for clusters", func() error {
		if len(c.istiod.Requests(xdstest.CDS)) == 0 {
			return fmt.Errorf("no request")
		}
		return nil
	})
	node := c.istiod.Requests(xdstest.CDS)[0].Node
	if id := "router~" + podAddress + "~gw-abc.ingress~ingress.svc.cluster.local"; node.GetId() != id || node.GetCluster() != "gw.ingress" {
		t.Errorf("node %q of %q, want %q of gw.ingress", node.GetId(), node.GetCluster(), id)
	}
	got := node.GetMetadata().GetFields()
	for name, want := range map[string]any{
		"NAMESPACE": "ingress", "SERVICE_ACCOUNT": "gw", "CLUSTER_ID": "Kubernetes", "NAME": "gw-abc", "WORKLOAD_NAME": "gw", "NODE_NAME": "node-1",
		"IDLE_TIMEOUT": "1h", "MESH_ID": "cluster.local", "OWNER": c.env["ISTIO_META_OWNER"], "UNPRIVILEGED_POD": "true",
		"POD_PORTS":         c.env["ISTIO_META_POD_PORTS"],
		"ENVOY_STATUS_PORT": 15021.0, "ENVOY_PROMETHEUS_PORT": 15090.0, "INSTANCE_IPS": podAddress,
		"LABELS":      map[string]any{"app": "gw", "istio": "ingress", "service.istio.io/canonical-name": "gw"},
		"ANNOTATIONS": map[string]any{"inject.istio.io/templates": "gateway", "prometheus.io/port": "15020"},
	} {
		if text, wanted := asJSON(got[name].AsInterface()), asJSON(want); text != wanted {
			t.Errorf("metadata %s = %s, want %s", name, text, wanted)
		}
	}
	if got["ISTIO_VERSION"].GetStringValue() == "" || got["PROXY_CONFIG"].GetStructValue() == nil {
		t.Errorf("metadata lacks ISTIO_VERSION or PROXY_CONFIG: %v", asJSON((&structpb.Struct{Fields: got}).AsMap()))
	}
}

func asJSON(value any) string {
	data, _ := json.Marshal(value) // of JSON's own types
	return string(data)
}

// wantMutual: workloads of the mesh are let in, others are not, and they see the gateway's identity.
func (c *container) wantMutual() {
	t := c.t
	t.Helper()
	c.agent.eventually(5*time.Second, "a workload of the mesh is let in", func() error { return c.peer(c.ca, c.ca) })
	if err := c.peer(nil, c.ca); err == nil {
		t.Error("a client without a certificate was let in")
	}
	if err := c.peer(testca.New(t, "stranger"), c.ca); err == nil {
		t.Error("a client of another mesh was let in")
	}
}

func (c *container) wantEdge(pair testca.Pair) {
	c.t.Helper()
	c.agent.eventually(5*time.Second, "the certificate from the Secret is served", func() error {
		serial, err := handshake(podEdge)
		if err == nil && serial != pair.Cert.SerialNumber.String() {
			err = fmt.Errorf("serial %s, want %s", serial, pair.Cert.SerialNumber)
		}
		return err
	})
}

// wantCommands runs what istioctl, hooks and people run in the container.
func (c *container) wantCommands() {
	t := c.t
	t.Helper()
	dump, stderr, err := c.exec("request", "GET", "config_dump")
	if err != nil || stderr != "" || !json.Valid([]byte(dump)) || !strings.Contains(dump, "SecretsConfigDump") {
		t.Errorf("request GET config_dump: %v, stderr %q, %d bytes, JSON: %v; want Envoy's answer alone", err, stderr, len(dump), json.Valid([]byte(dump)))
	}
	if out, stderr, err := c.exec("request", "GET", "server_info"); err != nil || !strings.Contains(out, `"state": "LIVE"`) {
		t.Errorf("request GET server_info: %v, %s%s", err, out, stderr)
	}
	if out, stderr, err := c.exec("wait", "--timeoutSeconds", "5"); err != nil {
		t.Errorf("wait: %v, %s%s", err, out, stderr)
	}
	if out, stderr, err := c.exec("wait", "--timeoutSeconds=1", "--url", "http://localhost:15999/"); err == nil {
		t.Errorf("wait for what nobody serves succeeded: %s%s", out, stderr)
	}
	if out, stderr, err := c.exec("version"); err != nil || out == "" || stderr != "" {
		t.Errorf("version: %v, stdout %q, stderr %q", err, out, stderr)
	}
	if out, stderr, err := c.exec("status", "--run-dir", "/etc/istio/proxy"); err == nil {
		t.Errorf("pilot-agent has no command status: %s%s", out, stderr)
	}
}

// wantNoSecrets looks for the words in all that the container has written, said and shows.
func (c *container) wantNoSecrets(words ...string) {
	t := c.t
	t.Helper()
	places := c.files()
	for path := range places {
		if info, err := os.Stat(path); err != nil || strings.HasSuffix(path, "/identity.pem") && info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v; want mode 0600", path, info.Mode(), err)
		}
	}
	if len(places) < 3 {
		t.Errorf("the container has only written %d files: is this the right place?", len(places))
	}
	dump, _, err := c.exec("request", "GET", "config_dump?include_eds")
	if err != nil {
		t.Fatal(err)
	}
	_, metrics, _, err := get("http://" + podStatus + "/stats/prometheus")
	if err != nil {
		t.Fatal(err)
	}
	places["Envoy's config_dump"], places["the metrics"], places["the log"] = dump, metrics, c.agent.log.String()
	for place, text := range places {
		for _, word := range append(words, "token-1") {
			if at := strings.Index(text, word); at >= 0 {
				t.Errorf("%s has %q: …%s…", place, word, text[max(0, at-100):min(len(text), at+len(word)+100)])
			}
		}
	}
}

// wantScrapes scrapes as Prometheus does, from another address.
func (c *container) wantScrapes() {
	t := c.t
	t.Helper()
	for url, words := range map[string][]string{
		"http://" + podPrometheus + "/stats/prometheus": {"envoy_server_live", "!istio_agent_"},
		"http://" + podStatus + "/stats/prometheus": {
			"envoy_server_live", "istio_agent_startup_duration_seconds ", `istio_agent_cert_expiry_seconds{resource_name="default"} `,
			`envoy_cluster_upstream_cx_active{cluster_name="xds-grpc"} `,
		},
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("X-Prometheus-Scrape-Timeout-Seconds", "5")
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body := readAll(t, response)
		for _, word := range words {
			word, unwanted := strings.CutPrefix(word, "!")
			if response.StatusCode != http.StatusOK || strings.Contains(body, word) == unwanted {
				t.Errorf("%s = %s; with %q, which is wanted: %v", url, response.Status, word, !unwanted)
			}
		}
	}
}

// wantEndpoints asks the agent's pages from the node and from within; the last question ends the container.
func (c *container) wantEndpoints() {
	t := c.t
	t.Helper()
	const within = "127.0.0.1:15020"
	for _, tt := range []struct {
		method, url string
		want        int
	}{
		{"GET", podStatus + "/healthz/ready", 200},
		{"GET", podReady + "/healthz/ready", 200},
		{"POST", podStatus + "/quitquitquit", 403},
		{"POST", podStatus + "/drain", 403},
		{"GET", within + "/quitquitquit", 405},
		{"GET", within + "/drain", 405},
		{"GET", within + "/debug/ndsz", 404},
		{"GET", podAdmin + "/server_info", 200},
		{"POST", within + "/drain", 200},
		{"GET", podStatus + "/healthz/ready", 503},
		{"GET", podReady + "/healthz/ready", 503},
		{"GET", podPlain + "/", 200},
		{"POST", within + "/quitquitquit", 200},
	} {
		request, err := http.NewRequestWithContext(t.Context(), tt.method, "http://"+tt.url, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		if body := readAll(t, response); response.StatusCode != tt.want || tt.method == "POST" && tt.want == 200 && body != "OK" {
			t.Errorf("%s %s = %s, %q; want %d", tt.method, tt.url, response.Status, body, tt.want)
		}
	}
	if conn, err := tls.Dial("tcp", podAddress+":15000", &tls.Config{InsecureSkipVerify: true}); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("Envoy's admin answers others than loopback: %v, %v", conn, err)
	}
	if code := c.agent.wait(10 * time.Second); code != 0 {
		t.Errorf("exit code %d after /quitquitquit, want 0", code)
	}
}

// wantQuiet: nothing of what an ordinary pod is given is to be remarked upon.
func (c *container) wantQuiet() {
	c.t.Helper()
	if all := c.remarks(); len(all) > 0 {
		c.t.Errorf("remarks on an ordinary pod: %q", all)
	}
}
