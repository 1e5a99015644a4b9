package e2e

import (
	"flag"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/gateway-agent/gateway-agent/internal/doctable"
)

// podDifference is one that is meant, as docs/istio.md tells it.
type podDifference struct {
	what, theirs, ours, why string
	details                 []detail
}

// detail is how a difference is seen: regular expressions of its whole name and of what either side has.
type detail struct{ name, theirs, ours string }

const (
	nothing    = "nothing"
	anything   = ".*"
	textPlain  = "text/plain; charset=utf-8"
	exposition = `text/plain; version=0\.0\.4; charset=utf-8`
)

var podDifferences = []podDifference{
	{
		"`POST /quitquitquit`", "ends at once", "ends after the drain, as by SIGTERM", "nothing is cut that could end",
		[]detail{{`end by quitquitquit: end`, "at once", "after the drain"}},
	},
	{
		"`POST /drain`", "stays ready; SIGTERM then ends at once", "readiness fails; SIGTERM then ends when the delay since is over", "load balancers learn of it",
		[]detail{
			{`end by drain and SIGTERM: end`, "at once", "after the drain"},
			{`end by drain and SIGTERM: ready after the drain at .*`, "200 <nil>", "503 <nil>"},
		},
	},
	{
		"mistakes in settings", "exit code 255, log on stdout", "exit code 2 with every mistake in one message on stderr", "one look is enough",
		[]detail{{`.*: start`, "ends with 255", "ends with 2"}},
	},
	{
		"nonsense in metadata, levels, drainDuration or WORKLOAD_IDENTITY_SOCKET_FILE", "does not start", "told and left out", "a gateway that serves is worth more",
		[]detail{{`(a bad level|a boolean that is none|a path for a socket|no drain duration|ports that are none): start`, `ends with (0|255)`, "serves"}},
	},
	{
		"`--serviceCluster`", "ignored, unless ProxyConfig's is empty", "obeyed under ProxyConfig", "who sets it means it",
		[]detail{{`arguments: node/cluster`, `gw\.ingress`, "flagged"}, {`arguments: node/metadata/PROXY_CONFIG/serviceCluster`, `"istio-proxy"`, `"flagged"`}},
	},
	{
		"`proxy sidecar`", "runs", "refused, exit code 2", "this agent runs gateways",
		[]detail{{`usual: command/proxy sidecar --dry-run`, nothing, "2"}},
	},
	{
		"a pod without `ISTIO_META_CLUSTER_ID`", "ClusterID is empty, which istiod refuses", "Kubernetes", "it is what istiod calls its own cluster",
		[]detail{{`bare: (csr|xds)/header/clusterid`, "", "Kubernetes"}, {`bare: node/metadata/CLUSTER_ID`, nothing, `"Kubernetes"`}},
	},
	{
		"`ISTIO_VERSION` in the node", "its release", "the release whose contract this agent follows, unless `ISTIO_META_ISTIO_VERSION` says another", "istiod chooses features by it",
		[]detail{{`.*: node/metadata/ISTIO_VERSION`, `"unknown"`, `"1\.\d+\.\d+"`}},
	},
	{
		"requests for PCDS", "with `PROXY_CONFIG_XDS_AGENT=true`", "always, after the first one for listeners", "the mesh's roots reach the gateway",
		[]detail{{`.*: xds/order of types`, "Cluster( ClusterLoadAssignment)? Listener", "Cluster( ClusterLoadAssignment)? Listener ProxyConfig"}},
	},
	{
		"the certificate request", "RSA 2048, subject `O=`, SAN critical", "ECDSA P-256, empty subject; RSA when asked for", "the CA takes names from the token, faster handshakes",
		[]detail{
			{`.*: csr/key`, "RSA 2048", "ECDSA P-256"},
			{`.*: csr/subject`, "O=", ""},
			{`.*: csr/extension/2\.5\.29\.17`, "critical: true", "critical: false"},
		},
	},
	{
		"secret `default` on the SDS socket", "chain with the root", "chain without it", "peers have the root, or it is worth nothing",
		[]detail{{`usual: sds/default`, `.*chain of 2, key "-----BEGIN RSA PRIVATE KEY-----"`, `.*chain of 1, key "-----BEGIN EC PRIVATE KEY-----"`}},
	},
	{
		"other names on the SDS socket", "the workload's certificate, whatever the name", "no answer until there is one, and `status` names it", "a name that is misspelt is not the workload's",
		[]detail{{`usual: sds/(nonsense)?`, `.*chain of 2.*`, "no answer: DeadlineExceeded"}},
	},
	{
		"Envoy's command line", "relative paths, `--local-address-ip-version v4`", "absolute paths, no defaults spelled out, `--log-format`, levels of `--proxyLogLevel` and `--proxyComponentLogLevel` together", "Envoy's lines come in the agent's log",
		[]detail{
			{`.*: envoy/argument/-c`, "etc/istio/proxy/envoy-rev.json", "/etc/istio/proxy/envoy-rev.json"},
			{`.*: envoy/argument/--local-address-ip-version`, "v4", nothing},
			{`.*: envoy/argument/--log-format`, anything, `\{"time":.*`},
			{`arguments: envoy/argument/--component-log-level`, "upstream:debug", "upstream:debug,http:warning"},
		},
	},
	{
		"text of 15020's and 15021's answers", "readiness without a body", "`ok`, or the reason; `Content-Type` and `Allow` are said", "people ask too",
		[]detail{
			{`usual: http/(GET|HEAD) .*healthz/ready`, `200, ""`, `200, "ok"`},
			{`usual: http/(GET|HEAD) .*healthz/ready -> Content-Type`, nothing, textPlain},
			{`usual: http/.* -> Allow`, nothing, "POST|GET, HEAD"},
			{`usual: http/.*/(metrics|stats/prometheus).* -> Content-Type`, exposition, exposition + "; escaping=underscores"},
			{`usual: http/GET 127\.0\.0\.1:15020/debug/ndsz -> Content-Type`, textPlain, "application/json"},
		},
	},
	{
		"other methods than GET and HEAD for readiness and metrics", "as GET", "405", "they change nothing, so nobody means them",
		[]detail{
			{`usual: http/POST .*/(healthz/ready|stats/prometheus)`, `200, .*`, `405, .*`},
			{`usual: http/POST .*/(healthz/ready|stats/prometheus) -> Content-Type`, nothing + "|" + exposition, textPlain},
		},
	},
	{
		"more pages on 15020", "none", "`/` lists the pages, `/healthz/live`, `/readyz?verbose`", "for people, and for a probe that may restart",
		[]detail{
			{`usual: http/GET 127\.0\.0\.1:15020/`, "404, .*", `200, "gateway-agent.*`},
			{`usual: http/GET 127\.0\.0\.1:15020/healthz/live`, "404, .*", `200, "ok"`},
		},
	},
	{
		"pages that 15020 has not", "`/debug/pprof/`, `/app-health/`, `/app-lifecycle/`", "404; profiles are on the control socket", "a gateway has no application beside it, and a public port no profiles",
		[]detail{
			{`usual: http/GET .*/debug/pprof/.*`, "(200|403), .*", "404, .*"},
			{`usual: http/GET .*/app-(health|lifecycle)/.*`, "400, .*", "404, .*"},
		},
	},
	{
		"metric families", "`istio_agent_xds_proxy_requests`, `…_outgoing_latency`, `…_pilot_xds_…`", "others instead, below", "see there",
		[]detail{{`usual: metric/(15020|15090)/.*`, nothing, "there"}, {`usual: metric/15020/istio_agent_xds_proxy_requests`, "there", nothing}},
	},
	{
		"`request`, `wait` and `version`", "`wait` logs to stdout; a final newline always; flags that are unknown fail", "`wait` is silent; a newline is added to no answer; unknown flags are skipped; methods in any case", "stdout is the answer and nothing else",
		[]detail{
			{`usual: command/request .* -> stdout`, `"LIVE\\n\\n"`, `"LIVE\\n"`},
			{`usual: command/request .* -> stdout`, `"\\n"`, `"ok\\n"`},
			{`usual: command/request .*server_info.* -> stdout`, "JSON, ends with a line: false", "JSON, ends with a line: true"},
			{`usual: command/(request GET server_info|version) --neverHeardOf`, "255", "0"},
			{`usual: command/(request GET server_info|version) --neverHeardOf -> stdout`, nothing, anything},
			{`usual: command/request get /server_info`, "255", "0"},
			{`usual: command/request get /server_info -> stdout`, nothing, "JSON.*"},
			{`usual: command/wait.* -> stdout`, "text", `""`},
			{`usual: command/version.* -> stdout`, ".*unknown.*", ".*gateway-agent-.*|text"},
		},
	},
	{
		"exit codes of commands", "255", "1, for bad usage 2", "a script can tell them apart",
		[]detail{{`usual: command/(request|wait|version|proxy|neverHeardOf).*`, "255", "[12]"}},
	},
}

// sometimes are details of "metric families" that depend on time.
var sometimes = []detail{
	{`usual: metric/15020/istio_agent_(outgoing_latency|pilot_xds_.*)`, "there", nothing},
}

// used are the details that this process has seen.
var used = map[detail]bool{}

// listed tells whether a difference is meant.
func listed(name, was, is string) bool {
	for _, one := range sometimes {
		if whole(one.name, name) && whole(one.theirs, was) && whole(one.ours, is) {
			return true
		}
	}
	for _, d := range podDifferences {
		for _, one := range d.details {
			if whole(one.name, name) && whole(one.theirs, was) && whole(one.ours, is) {
				used[one] = true
				return true
			}
		}
	}
	return false
}

func whole(expression, text string) bool {
	return regexp.MustCompile("(?s)^(?:" + expression + ")$").MatchString(text)
}

// wantUsed reports details that no test has seen: what is listed and is not so any more goes. prefix is where that test looks.
func wantUsed(t *testing.T, prefix string) {
	t.Helper()
	for _, d := range podDifferences {
		for _, one := range d.details {
			if strings.HasPrefix(one.name, prefix) && !used[one] {
				t.Errorf("%s (%s: %q, %q) was not seen: take it from the list", d.what, one.name, one.theirs, one.ours)
			}
		}
	}
}

var updateDifferences = flag.Bool("update-differences", false, "rewrite the table of differences in docs/istio.md")

// TestPilotAgentDocs keeps the table in the documentation.
func TestPilotAgentDocs(t *testing.T) {
	t.Parallel()
	var table strings.Builder
	table.WriteString("| what | pilot-agent | here | why |\n|---|---|---|---|\n")
	for _, d := range podDifferences {
		fmt.Fprintf(&table, "| %s | %s | %s | %s |\n", d.what, d.theirs, d.ours, d.why)
	}
	doctable.Check(t, "../docs/istio.md", "differences", table.String(), *updateDifferences)
}
