package e2e

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"syscall"
	"testing"
	"time"
)

// TestPilotAgentPod puts a gateway pod with the real pilot-agent beside one with this agent: same image, environment, mounts, istiod, Envoy. What
// a control plane or a user sees of them is the same, but for the differences that are listed.
func TestPilotAgentPod(t *testing.T) {
	if !inSpace(t) {
		return
	}
	d := newDuel(t, fourth)
	d.compare("usual", surroundings{}, seenByIstiod, seenSecrets, seenOverHTTP, seenOfCommands)
	wantUsed(t, "usual: ")
}

// TestPilotAgentNodes compares what istiod is told in other surroundings.
func TestPilotAgentNodes(t *testing.T) {
	if !inSpace(t) {
		return
	}
	d := newDuel(t, fourth)
	for _, name := range slices.Sorted(maps.Keys(environments)) {
		d.compare(name, environments[name], seenByIstiod)
		wantUsed(t, name+": ")
	}
	wantUsed(t, ".*: csr/")
}

// TestPilotAgentStarts compares what keeps a gateway from starting.
func TestPilotAgentStarts(t *testing.T) {
	if !inSpace(t) {
		return
	}
	d := newDuel(t, fourth)
	for _, name := range slices.Sorted(maps.Keys(starts)) {
		d.compare(name, starts[name])
	}
	wantUsed(t, ".*: start")
	wantUsed(t, "(a bad level")
}

// TestPilotAgentEnds compares how a gateway ends.
func TestPilotAgentEnds(t *testing.T) {
	if !inSpace(t) {
		return
	}
	d := newDuel(t, fourth)
	short := surroundings{env: map[string]string{"PROXY_CONFIG": "terminationDrainDuration: 1s"}}
	for name, end := range ends {
		d.compare("end by "+name, short, end)
	}
	wantUsed(t, "end by ")
}

func TestPilotAgentOfIPv6(t *testing.T) {
	if !inSpaceOf(t, sixth) {
		return
	}
	d := newDuel(t, sixth)
	d.agent.status, d.agent.ready = "[fd00::3]:15020", "[fd00::3]:15021"
	d.compare("IPv6", surroundings{}, seenByIstiod)
}

// compare runs both sides and judges what differs.
func (d *duel) compare(where string, s surroundings, looks ...func(*duel, seen)) {
	d.t.Helper()
	a := d.run(realPilot, s, looks...)
	b := d.run(thisAgent, s, looks...)
	if len(a) < 1 || len(b) < 1 {
		d.t.Fatalf("%s: nothing was seen", where)
	}
	for _, name := range slices.Sorted(maps.Keys(union(a, b))) {
		was, is := a.at(name), b.at(name)
		if was != is && !listed(where+": "+name, was, is) {
			d.t.Errorf("%s: %s: %s says %s, %s %s: mend that, or list it in podDifferences", where, name, realPilot.name, was, thisAgent.name, is)
		}
	}
}

func union(a, b seen) seen {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// at is a detail, "nothing" where there is none.
func (s seen) at(name string) string {
	if value, ok := s[name]; ok {
		return value
	}
	return "nothing"
}

var environments = map[string]surroundings{
	"bare": {env: map[string]string{
		"ISTIO_META_CLUSTER_ID": "-", "ISTIO_META_WORKLOAD_NAME": "-", "ISTIO_CPU_LIMIT": "-", "TRUST_DOMAIN": "-", "CA_ADDR": "-", "PILOT_CERT_PROVIDER": "-",
		"ISTIO_META_MESH_ID": "-", "ISTIO_META_OWNER": "-", "ISTIO_META_NODE_NAME": "-", "ISTIO_META_POD_PORTS": "-", "ISTIO_META_APP_CONTAINERS": "-",
		"ISTIO_META_UNPRIVILEGED_POD": "-", "ISTIO_META_INTERCEPTION_MODE": "-",
	}, labels: "\n", annotations: "\n"},
	"metadata": {env: map[string]string{
		"ISTIO_META_NETWORK": "net-1", "ISTIO_META_REQUESTED_NETWORK_VIEW": "a,b", "ISTIO_META_DNS_CAPTURE": "true", "ISTIO_META_DNS_AUTO_ALLOCATE": "TRUE",
		"ISTIO_META_HTTP10": "1", "ISTIO_META_IDLE_TIMEOUT": "30s", "ISTIO_META_ROUTER_MODE": "sni-dnat", "ISTIO_META_GENERATOR": "",
		"ISTIO_META_ISTIO_VERSION": "1.27.3", "ISTIO_META_ISTIO_REVISION": "canary", "ISTIO_META_EMPTY": "", "ISTIO_META_lower": "x", "ISTIO_META_UTF": "ä \"quoted\"\n",
		"ISTIO_META_NAMESPACE": "other", "ISTIO_META_NAME": "other", "ISTIO_META_SERVICE_ACCOUNT": "other", "ISTIO_META_INSTANCE_IPS": "1.1.1.1",
		"ISTIO_METAJSON_EXTRA":  `{"number": 1.5, "flag": true, "list": [1,"a"], "object": {"a": {"b": null}}, "NETWORK": "net-2"}`,
		"ISTIO_METAJSON_LABELS": `{"static": "yes", "app": "from-json"}`, "ISTIO_META_CLUSTER_ID": "remote-1", "ISTIO_META_CERT_SIGNER": "signer.example",
		"ISTIO_META_POD_PORTS":                       `[{"name":"a","containerPort":1},{"containerPort":2,"protocol":"UDP","hostPort":5}]`,
		"ISTIO_META_OUTBOUND_LISTENER_EXACT_BALANCE": "t", "ISTIO_META_STS_PORT": "1",
		"ISTIO_META_ISTIO_PROXY_SHA": "abc", "ISTIO_META_WORKLOAD_IDENTITY_SOCKET_FILE": "a", "ISTIO_META_XDS_ROOT_CERT": "b",
	}},
	"labels": {
		labels:      "app=\"\"\nistio-locality=\"eu.west.1a\"\nempty=\"\"\nquote=\"a\\\"b=c\"\napp.kubernetes.io/name=\"recommended\"\nservice.istio.io/canonical-name=\"canon\"\nistio.io/rev=\"x\"\n",
		annotations: "a/b=\"multi\\nline\"\nproxy.istio.io/config=\"{tracingServiceName: CANONICAL_NAME_AND_NAMESPACE, concurrency: 3}\"\nsidecar.istio.io/discoveryAddress=\"istiod.istio-system.svc:15012\"\nstatus.sidecar.istio.io/port=\"15020\"\n",
	},
	"locality": {
		labels: "istio-locality=\"region/zone.a/sub\"\n",
		env:    map[string]string{"PROXY_CONFIG": "tracingServiceName: CANONICAL_NAME_ONLY"},
	},
	"topology locality": {
		labels: "topology.kubernetes.io/region=\"r\"\ntopology.kubernetes.io/zone=\"z\"\n", env: map[string]string{"PROXY_CONFIG": "tracingServiceName: APP_LABEL_AND_NAMESPACE"},
	},
	"layers": {
		files: map[string]string{"mesh": `
defaultConfig:
  concurrency: 1
  drainDuration: 10s
  proxyMetadata: {ISTIO_META_A: mesh, ISTIO_META_B: mesh}
  tracing: {zipkin: {address: "zipkin.mesh:9411"}, sampling: 5}
  runtimeValues: {a: mesh, b: mesh}
  extraStatTags: [mesh]
  proxyHeaders: {server: {value: mesh}, requestId: {disabled: true}}
  proxyStatsMatcher: {inclusionPrefixes: [mesh]}
  gatewayTopology: {numTrustedProxies: 2}
trustDomain: other
unknownOfMesh: 1
`},
		env: map[string]string{"PROXY_CONFIG": `
proxyMetadata: {ISTIO_META_B: env, ISTIO_META_C: env}
tracing: {sampling: 7}
runtimeValues: {b: env}
extraStatTags: [env]
proxyHeaders: {server: {value: env}}
holdApplicationUntilProxyStarts: true
image: {imageType: distroless}
environment_variables: {x: y}
zone: {a: 1}
`},
		annotations: "proxy.istio.io/config=\"{gatewayTopology: {forwardClientCertDetails: SANITIZE}, proxyStatsMatcher: {inclusionSuffixes: [note]}, statusPort: 15020, alsoNot: 1}\"\n",
		args:        []string{"--meshConfig=/var/lib/istio/data/mesh"},
	},
	"arguments": {
		args: []string{
			"--domain=example.org", "--serviceCluster=flagged", "--concurrency=1", "--proxyLogLevel=info,upstream:debug", "--proxyComponentLogLevel=http:warn",
			"--outlierLogPath=/var/lib/istio/data/outlier.log", "--log_as_json", "--profiling=false", "--templateFile=", "--stsPort=0",
		},
		env: map[string]string{"PROXY_CONFIG": `{"fileFlushInterval": "2s", "fileFlushMinSizeKb": 64, "drainDuration": "90s"}`},
	},
	"odd": {
		args: []string{"--concurrency=0", "--domain="},
		env: map[string]string{
			"PROXY_CONFIG": "{serviceCluster: '', concurrency: 0, proxyMetadata: {PLAIN: x, ISTIO_META_ODD: 'on'}}", "INSTANCE_IP": "::ffff:10.1.2.3", "SECRET_TTL": "36h", "TRUST_DOMAIN": "td.example", "XDS_HEADER_x-one": "1", "XDS_HEADER_X-Two": "two, 2",
			"CA_HEADER_x-three": "3", "ISTIO_META_CLUSTER_ID": "Kubernetes", "XDS_ROOT_CA": "/var/run/secrets/istio/root-cert.pem", "ISTIOD_SAN": "istiod.istio-system.svc",
			"EXIT_ON_ZERO_ACTIVE_CONNECTIONS": "true", "PEER_METADATA_DISCOVERY": "false", "ENVOY_SKIP_DEPRECATED_LOGS": "false", "WORKLOAD_RSA_KEY_SIZE": "3072",
			"DNS_PROXY_ADDR": "localhost:15054", "WORKLOAD_IDENTITY_SOCKET_FILE": "socket", "GRPC_XDS_BOOTSTRAP": "", "ISTIO_DELTA_XDS": "false",
		},
	},
	"ecc": {env: map[string]string{"ECC_SIGNATURE_ALGORITHM": "ECDSA", "ECC_CURVE": "P384", "PROXY_CONFIG_XDS_AGENT": "true", "CA_ADDR": "", "SECRET_TTL": "90s"}},
}

// starts are surroundings that one might not start in.
var starts = map[string]surroundings{
	"YAML that is none":       {env: map[string]string{"PROXY_CONFIG": "{"}},
	"a number that is none":   {env: map[string]string{"PROXY_CONFIG": "concurrency: many"}},
	"an enum that is none":    {env: map[string]string{"PROXY_CONFIG": "controlPlaneAuthPolicy: NEVER"}},
	"a list for an object":    {env: map[string]string{"PROXY_CONFIG": "[a]"}},
	"a bad annotation":        {annotations: "proxy.istio.io/config=\"{\"\n"},
	"istiod without a port":   {env: map[string]string{"PROXY_CONFIG": "discoveryAddress: istiod"}},
	"no drain duration":       {env: map[string]string{"PROXY_CONFIG": "drainDuration: 0s"}},
	"labels cut off":          {labels: "app=\"gw\"\nistio=\"ingr\n"},
	"an address that is none": {env: map[string]string{"INSTANCE_IP": "here"}},
	"ports that are none":     {env: map[string]string{"ISTIO_META_POD_PORTS": "80"}},
	"metadata that is none":   {env: map[string]string{"ISTIO_METAJSON_A": "[1]", "ISTIO_METAJSON_LABELS": "{"}},
	"a boolean that is none":  {env: map[string]string{"ISTIO_META_HTTP10": "ja", "EXIT_ON_ZERO_ACTIVE_CONNECTIONS": "ja", "ISTIO_META_DNS_AUTO_ALLOCATE": "ja"}},
	"numbers that are none":   {env: map[string]string{"ENVOY_STATUS_PORT": "http", "SECRET_TTL": "soon", "ISTIO_CPU_LIMIT": "2.5", "SECRET_GRACE_PERIOD_RATIO": "half"}},
	"an unknown flag":         {args: []string{"--neverHeardOf", "value", "--alsoNot=1"}},
	"a value that is none":    {args: []string{"--concurrency=many"}},
	"no mesh file":            {args: []string{"--meshConfig=/nowhere"}},
	"a bad mesh file":         {args: []string{"--meshConfig=/var/lib/istio/data/mesh"}, files: map[string]string{"mesh": "defaultConfig: 5"}},
	"a bad level":             {args: []string{"--proxyLogLevel=loud"}},
	"a path for a socket":     {env: map[string]string{"WORKLOAD_IDENTITY_SOCKET_FILE": "a/b"}},
}

// ends are the ways to end a gateway.
var ends = map[string]func(*duel, seen){
	"SIGTERM": func(d *duel, found seen) { d.ending(found, func() { d.agent.signal(syscall.SIGTERM) }) },
	"SIGINT":  func(d *duel, found seen) { d.ending(found, func() { d.agent.signal(syscall.SIGINT) }) },
	"quitquitquit": func(d *duel, found seen) {
		d.ending(found, func() { d.post("/quitquitquit", found) })
	},
	"drain and SIGTERM": func(d *duel, found seen) {
		d.post("/drain", found)
		d.post("/drain", found)
		for _, port := range []string{podReady, podStatus} {
			code, _, _, err := get("http://" + port + "/healthz/ready")
			found["ready after the drain at "+port] = fmt.Sprint(code, err)
		}
		found["served after the drain"] = fmt.Sprint(wantCode(podURL, http.StatusOK))
		d.ending(found, func() { d.agent.signal(syscall.SIGTERM) })
	},
}

func (d *duel) post(path string, found seen) {
	d.t.Helper()
	response, err := client.Post("http://"+fromWithin+path, "", http.NoBody)
	if err != nil {
		d.t.Fatal(err)
	}
	found["POST "+path] = fmt.Sprintf("%d, %q", response.StatusCode, readAll(d.t, response))
}

// ending notes the exit code, and whether the end came at once, after the drain, or later.
func (d *duel) ending(found seen, end func()) {
	d.t.Helper()
	start := time.Now()
	end()
	found["exit code"] = fmt.Sprint(d.agent.wait(15 * time.Second))
	switch took := time.Since(start); {
	case took < 900*time.Millisecond:
		found["end"] = "at once"
	case took < 4*time.Second:
		found["end"] = "after the drain"
	default:
		found["end"] = took.String()
	}
}
