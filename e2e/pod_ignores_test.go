package e2e

import (
	"strings"
	"testing"
)

// strange is what a pod may be told that this agent does not know or do: a value for each variable, and what begins the remark on it.
var strange = map[string]string{
	"FILE_DEBOUNCE_DURATION": "1s", "WASM_PURGE_INTERVAL": "1m", "ISTIO_BOOTSTRAP": "/etc/istio/own.json", "CLOUD_PLATFORM": "aws",
	"GCP_METADATA": "a|b|c|d", "XDS_AUTH_PROVIDER": "gcp", "CREDENTIAL_FETCHER_TYPE": "GoogleComputeEngine", "CA_PROVIDER": "Other",
	"ISTIO_META_DNS_CAPTURE": "true", "DNS_PROXY_ADDR": "localhost:15053", "ISTIO_ENVOY_ENABLE_CORE_DUMP": "true", "SECRET_TTL": "soon",
	"GRPC_XDS_BOOTSTRAP": "etc/x.json", "TOKEN_AUDIENCES": "istio-ca",
}

// TestPodIgnores: what this agent does not know or do is told once, and keeps nobody from starting.
func TestPodIgnores(t *testing.T) {
	if !inSpace(t) {
		return
	}
	c := newContainer(t)
	wanted := []string{
		"--stsPort", "--neverHeardOf", "--alsoNot", "--templateFile", "--log_caller", "--log_rotate",
		"the environment variable PROXY_CONFIG has a field", "the pod's annotation proxy.istio.io/config has a field",
	}
	for name, value := range strange {
		c.env[name], wanted = value, append(wanted, name)
	}
	c.env["NOBODY_KNOWS"] = "this"
	c.proxy["neverHeardOf"] = map[string]any{"a": 1}
	c.project("etc/istio/pod", map[string]string{"labels": "", "annotations": "proxy.istio.io/config=\"alsoNot: 1\"\n"})
	c.publish()
	c.start("--stsPort=15463", "--neverHeardOf", "value", "--neverHeardOf=again", "--alsoNot", "--templateFile=/x", "--log_caller=default",
		"--log_rotate", "/tmp/log")
	c.agent.waitReady()
	if err := wantHeader(podURL, "x-route", "one"); err != nil {
		t.Error(err)
	}
	remarks := c.remarks()
	for _, remark := range remarks {
		if strings.Contains(remark, "proto:") {
			t.Errorf("a remark for programmers: %s", remark)
		}
	}
	for _, name := range wanted {
		n := 0
		for _, remark := range remarks {
			if rest, ok := strings.CutPrefix(remark, name); ok && strings.Trim(rest[:1], " =") == "" {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%d remarks on %s, want 1", n, name)
		}
	}
	if len(remarks) != len(wanted) {
		t.Errorf("%d remarks, want %d:\n%s", len(remarks), len(wanted), strings.Join(remarks, "\n"))
	}
}

// remarks are what the log tells of the pod's settings.
func (c *container) remarks() (all []string) {
	for line := range strings.Lines(c.agent.log.String()) {
		if _, note, ok := strings.Cut(line, `msg="istio setting" note=`); ok {
			all = append(all, strings.Trim(note, "\"\n"))
		}
	}
	return all
}
