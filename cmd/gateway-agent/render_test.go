package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gateway-agent/gateway-agent/dns"
	"github.com/gateway-agent/gateway-agent/ecds"
	"github.com/gateway-agent/gateway-agent/envoy"
	"github.com/gateway-agent/gateway-agent/relay"
	"github.com/gateway-agent/gateway-agent/sds"
	"github.com/gateway-agent/gateway-agent/sds/identity"
	"github.com/gateway-agent/gateway-agent/standalone"
	"github.com/gateway-agent/gateway-agent/status"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// The screens of an agent at three in the morning: all well, everything wrong, and an Envoy that something else runs.
func TestRenderReport(t *testing.T) {
	now := time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	good := report{
		Version: "v1.2.3", PID: 41, StartedAt: ago(26 * time.Hour), Ready: true, Checks: []status.Check{{Name: "envoy live", OK: true}},
		Envoy:        &envoy.Status{Version: "1.40.0", State: envoy.StateLive, PID: 42, StartedAt: ago(time.Hour)},
		ConfigDir:    &standalone.Status{Dir: "/etc/edge", Version: "0123456789abcdef", LoadedAt: ago(90 * time.Second)},
		XDS:          relay.Status{Connected: true},
		Listeners:    []string{"http 0.0.0.0:80", "https 0.0.0.0:443"},
		Plugins:      []ecds.ResourceStatus{{Name: "waf", State: ecds.StateLive, DigestLive: strings.Repeat("ab", 32), URL: "oci://r/waf:v1"}},
		Certificates: []sds.SecretStatus{{Name: "edge", State: sds.StateOK, NotAfter: now.AddDate(0, 2, 0), SANs: []string{"a.example", "b.example"}}},
	}
	good.Identity = &identity.Status{
		Source: identity.CA, Authority: "istiod:15012", State: identity.StateOK, ID: "spiffe://cluster.local/ns/a/sa/b",
		RenewAt: now.Add(11 * time.Hour), NotAfter: now.Add(23 * time.Hour),
	}
	good.DNS = &dns.Status{Addresses: []string{"127.0.0.1:15053", "[::1]:15053"}, Hosts: 120, ReceivedAt: ago(3 * time.Minute), Servers: []string{"10.96.0.10:53"}}
	bad := good
	bad.DNS = &dns.Status{Addresses: []string{"127.0.0.1:15053"}, Error: "other name servers: /etc/resolv.conf names no server: add a nameserver line with an address"}
	bad.Identity = &identity.Status{
		Source: identity.CA, Authority: "istiod:15012", State: identity.StatePending, Reason: "connection refused",
		Keep: "keep identity: no space left on device", Output: "write the identity to /etc/certs: read-only file system",
	}
	bad.Ready = false
	bad.Checks = []status.Check{{Name: "configuration accepted", Reason: "waiting for the first LDS answer"}}
	bad.Envoy = &envoy.Status{Version: "1.40.0", State: envoy.StateBackoff, Restarts: 3, AdminUnresponsiveSince: ago(20 * time.Second)}
	bad.ConfigDir = nil
	bad.ControlPlane = "10.0.0.5:15010"
	bad.XDS = relay.Status{LastError: "connection refused", Sessions: []relay.SessionStatus{{
		Types: []relay.TypeStatus{{Type: "LDS", Error: "cannot bind '0.0.0.0:80': Permission denied\nmore"}, {Type: "CDS"}},
	}}}
	bad.Plugins = []ecds.ResourceStatus{
		{Name: "waf", State: ecds.StateDegraded, DigestLive: "abc", URL: "oci://r/waf:v2", Reason: "404 Not Found", NextRetry: now.Add(40 * time.Second), Attempts: 4},
		{Name: "a-longer-name", State: ecds.StatePolicy, URL: "oci://r/x:v2", Reason: "refused", EnvoyError: "Unable to create Wasm plugin x"},
	}
	bad.Certificates = []sds.SecretStatus{{Name: "edge", State: sds.StatePending, Reason: "open /certs/tls.crt: no such file or directory"}}
	other := good
	other.DNS = nil
	other.Identity = &identity.Status{Source: identity.Files, State: identity.StateOK}
	other.Envoy, other.Listeners, other.Plugins, other.Certificates = nil, nil, nil, nil
	other.ConfigDir = &standalone.Status{
		Dir: "/etc/edge", Problems: []standalone.Problem{{File: "/etc/edge/a.yaml", Line: 7, Resource: "cluster c", Reason: "unknown field \"typo\"", Since: ago(time.Minute)}},
	}
	for name, r := range map[string]report{"good": good, "bad": bad, "other": other} {
		var out strings.Builder
		renderReport(&out, r, now, false)
		golden(t, name, out.String())
	}
	var out strings.Builder
	renderReport(&out, bad, now, true)
	if !strings.Contains(out.String(), "\x1b[31mNOT READY\x1b[0m") {
		t.Errorf("on a terminal NOT READY is red, got %q", firstLine(out.String()))
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", "status", name+".txt")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got):\n%s", file, diff)
	}
}

func TestByteSize(t *testing.T) {
	for text, want := range map[string]byteSize{"1": 1, "64MiB": 64 << 20, "1GiB": 1 << 30, "3KiB": 3 << 10} {
		var b byteSize
		if err := b.Set(text); err != nil || b != want || b.String() != text {
			t.Errorf("Set(%q) = %v, %d (%s), want %d", text, err, b, &b, want)
		}
	}
	for _, text := range []string{"", "-1", "0", "1MB", "MiB", "9999999999GiB", "1.5MiB"} {
		b := byteSize(7)
		if err := b.Set(text); err == nil || b != 7 {
			t.Errorf("Set(%q) = %v, %d, want an error and no change", text, err, b)
		}
	}
}
