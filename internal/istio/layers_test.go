package istio

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What other places than ProxyConfig say is in the ProxyConfig that istiod is told, too.
func TestFinishedProxyConfig(t *testing.T) {
	for name, tt := range map[string]struct {
		change      func(*pod)
		concurrency any // in the node
		threads     int
	}{
		"limit":            {func(*pod) {}, 2.0, 2},
		"no limit":         {func(p *pod) { delete(p.env, "ISTIO_CPU_LIMIT") }, nil, 0},
		"flag":             {func(p *pod) { p.args = append(p.args, "--concurrency=5") }, 5.0, 5},
		"flag 0":           {func(p *pod) { p.args = append(p.args, "--concurrency", "0") }, 2.0, 2},
		"flag below 0":     {func(p *pod) { p.args = append(p.args, "--concurrency", "-3") }, -1.0, 0},
		"flag too large":   {func(p *pod) { p.args = append(p.args, "--concurrency", "99999999999") }, 2147483647.0, 2147483647},
		"ProxyConfig":      {func(p *pod) { p.env["PROXY_CONFIG"] = "concurrency: 4" }, 4.0, 4},
		"ProxyConfig's 0":  {func(p *pod) { p.env["PROXY_CONFIG"] = "concurrency: 0" }, 0.0, 0},
		"nonsensical flag": {func(p *pod) { p.env["ISTIO_CPU_LIMIT"] = "many" }, nil, 0},
	} {
		s := must(t, tt.change)
		if got := s.Metadata["PROXY_CONFIG"].(map[string]any)["concurrency"]; got != tt.concurrency || s.Concurrency != tt.threads {
			t.Errorf("%s: istiod is told %v, Envoy %d; want %v, %d", name, got, s.Concurrency, tt.concurrency, tt.threads)
		}
	}
}

// Two annotations win over all of ProxyConfig's sources.
func TestAnnotationsOverProxyConfig(t *testing.T) {
	s := must(t, func(p *pod) {
		p.env["PROXY_CONFIG"] = "{discoveryAddress: 'env:1', statusPort: 15030}"
		p.files["/etc/istio/pod/annotations"] = "proxy.istio.io/config=\"{discoveryAddress: 'note:2', statusPort: 15031}\"\n" +
			discoveryAnnotation + "=\"own:3\"\n" + statusPortAnnotation + "=\"15032\"\n"
	})
	if s.ControlPlane.Address != "own:3" || s.CA.Address != "istiod.istio-system.svc:15012" || s.StatusAddress != ":15032" {
		t.Errorf("istiod %s, CA %s, status %s", s.ControlPlane.Address, s.CA.Address, s.StatusAddress)
	}
	s, warnings, err := try(t, func(p *pod) { p.files["/etc/istio/pod/annotations"] = statusPortAnnotation + "=\"http\"\n" })
	if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], statusPortAnnotation+"=\"http\" is not a port: 15020 is used") || s.StatusAddress != ":15020" {
		t.Errorf("no port: %v, warnings %q, status %s", err, warnings, s.StatusAddress)
	}
	if _, _, err := try(t, func(p *pod) { p.files["/etc/istio/pod/annotations"] = statusPortAnnotation + "=\"70000\"\n" }); err == nil {
		t.Error("a port too large is taken")
	}
}

// Every unknown field is named, where it stands, and nothing else is.
func TestUnknownFields(t *testing.T) {
	_, warnings, err := try(t, func(p *pod) {
		p.env["PROXY_CONFIG"] = `
neverHeardOf: 1
alsoNot: {deep: {deeper: 1}}
tracing: {zipkin: {address: "z:1", beyond: 2}, customTags: {a: {literal: {value: ex, wrong: 3}}, b: {literal: {value: why, wrong: 4}}}}
drainDuration: 5s
concurrency: 2
proxyMetadata: {ANYTHING: goes}
readiness_probe: {httpGet: {path: /, httpHeaders: [{name: a, value: b, odd: 5}]}}
`
		p.files["/etc/istio/pod/annotations"] = "proxy.istio.io/config=\"onceMore: 1\"\n"
		p.files["/etc/istio/config/mesh"] = "ofTheMesh: 1\ndefaultConfig: {ofDefaults: 2}\n"
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, warning := range warnings {
		_, name, ok := strings.Cut(warning, "does not know, it is ignored: ")
		if !ok {
			t.Errorf("warning %q", warning)
		}
		got = append(got, name)
	}
	slices.Sort(got)
	want := []string{
		"alsoNot", "defaultConfig.ofDefaults", "neverHeardOf", "ofTheMesh", "onceMore",
		"readiness_probe.httpGet.httpHeaders.odd", "tracing.customTags.literal.wrong", "tracing.zipkin.beyond",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("fields told (-want +got):\n%s", diff)
	}
}

// Headers are the one message that layers share; they are Istio's rules.
func TestLayersOfHeaders(t *testing.T) {
	s := must(t, func(p *pod) {
		p.files["/etc/istio/config/mesh"] = "defaultConfig: {proxyHeaders: {server: {value: mesh}, requestId: {disabled: true}, forwardedClientCert: SANITIZE}, tracing: {sampling: 5}}"
		p.env["PROXY_CONFIG"] = "{proxyHeaders: {server: {value: env}}, tracing: {zipkin: {address: 'z:1'}}}"
	})
	got := s.Metadata["PROXY_CONFIG"].(map[string]any)
	want := map[string]any{"server": map[string]any{"value": "env"}, "requestId": map[string]any{"disabled": true}, "forwardedClientCert": "SANITIZE"}
	if diff := cmp.Diff(want, got["proxyHeaders"]); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]any{"zipkin": map[string]any{"address": "z:1"}}, got["tracing"]); diff != "" {
		t.Errorf("tracing, which is not shared (-want +got):\n%s", diff)
	}
	if s = must(t, func(p *pod) { p.env["PROXY_CONFIG"] = "proxyHeaders: {server: {value: env}}" }); s.Metadata["PROXY_CONFIG"].(map[string]any)["proxyHeaders"] == nil {
		t.Error("headers of one layer are gone")
	}
}

// Settings of Istio's other programs are told when they are set at a gateway, and keep it from nothing.
func TestVariablesOfOtherPrograms(t *testing.T) {
	_, warnings, err := try(t, func(p *pod) {
		p.env["PILOT_HTTP10"], p.env["INBOUND_TPROXY_MARK"], p.env["PILOT_SERVICE_HOST"], p.env["KUBERNETES_SERVICE_HOST"] = "1", "2", "10.0.0.1", "10.0.0.2"
	})
	if err != nil || len(warnings) != 2 || !strings.HasPrefix(warnings[0], "INBOUND_TPROXY_MARK is ignored: ") || !strings.HasPrefix(warnings[1], "PILOT_HTTP10 is ignored: ") {
		t.Errorf("%v, warnings %q", err, warnings)
	}
	for name := range strings.FieldsSeq(otherPrograms) {
		if slices.ContainsFunc(Variables, func(v Variable) bool { return v.Name == name }) {
			t.Errorf("%s is in both tables", name)
		}
	}
}

// A value that an enum has not is refused, as by pilot-agent: left out, it would be the enum's first, which for controlPlaneAuthPolicy is no
// TLS at all.
func TestUnknownValues(t *testing.T) {
	for name, config := range map[string]string{
		`controlPlaneAuthPolicy "NEVER"`:               "controlPlaneAuthPolicy: NEVER",
		`gatewayTopology.forwardClientCertDetails "A"`: "gatewayTopology: {forwardClientCertDetails: A}",
		`proxyHeaders.forwardedClientCert "B"`:         "proxyHeaders: {forwardedClientCert: B}",
		`tracing_service_name "C"`:                     "tracing_service_name: C",
	} {
		_, _, err := try(t, func(p *pod) { p.env["PROXY_CONFIG"] = config })
		if err == nil || !strings.Contains(err.Error(), "PROXY_CONFIG has a value that Istio "+Version+" does not know: "+name) {
			t.Errorf("%s: %v", config, err)
		}
	}
	for _, config := range []string{"controlPlaneAuthPolicy: MUTUAL_TLS", "controlPlaneAuthPolicy: 1", "gatewayTopology: {forwardClientCertDetails: SANITIZE}"} {
		if s, warnings, err := try(t, func(p *pod) { p.env["PROXY_CONFIG"] = config }); err != nil || len(warnings) > 0 || s.ControlPlane.Plaintext {
			t.Errorf("%s: %v, %q, plaintext %v", config, err, warnings, s.ControlPlane.Plaintext)
		}
	}
}

// What pilot-agent refuses to start with, and a gateway can do without, is told.
func TestToldAndLeftOut(t *testing.T) {
	for name, change := range map[string]func(*pod){
		`WORKLOAD_IDENTITY_SOCKET_FILE="a/b" is a path: b is used`: func(p *pod) { p.env["WORKLOAD_IDENTITY_SOCKET_FILE"] = "a/b" },
		"ProxyConfig drainDuration 0s is less than a second: 1s":   func(p *pod) { p.env["PROXY_CONFIG"] = "drainDuration: 0s" },
	} {
		if _, warnings, err := try(t, change); err != nil || len(warnings) != 1 || !strings.HasPrefix(warnings[0], name) {
			t.Errorf("%s: %v, warnings %q", name, err, warnings)
		}
	}
}

// PILOT_SAN is istiod's host, whatever name its certificate shall have, and nothing without TLS: as pilot-agent has it.
func TestNameOfIstiodInTheNode(t *testing.T) {
	for config, want := range map[string]any{
		"discoveryAddress: 'istiod.other:15012'":                                   []any{"istiod.other"},
		"discoveryAddress: 'localhost:15012'":                                      []any{istiodName},
		"{discoveryAddress: 'istiod.other:15010', controlPlaneAuthPolicy: 'NONE'}": nil,
	} {
		s := must(t, func(p *pod) { p.env["PROXY_CONFIG"], p.env["ISTIOD_SAN"] = config, "san" })
		if diff := cmp.Diff(want, s.Metadata["PILOT_SAN"]); diff != "" || s.ControlPlane.ServerName != "san" {
			t.Errorf("%s: server name %q, PILOT_SAN (-want +got):\n%s", config, s.ControlPlane.ServerName, diff)
		}
	}
}
