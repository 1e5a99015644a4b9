package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/gateway-agent/gateway-agent/envoy"
	"github.com/gateway-agent/gateway-agent/internal/testca"
	"github.com/gateway-agent/gateway-agent/sds/identity"
)

// Who serves the workload's certificate in a gateway pod: mounted files, else a foreign SDS server, else the CA, unless somebody says more.
func TestWhoseIdentity(t *testing.T) {
	const (
		spiffe = "var/run/secrets/workload-spiffe-credentials/"
		uds    = "var/run/secrets/workload-spiffe-uds/"
		etc    = "etc/certs/"
	)
	mounted := []string{spiffe + "cert-chain.pem", spiffe + "key.pem", spiffe + "root-cert.pem"}
	legacy := []string{etc + "cert-chain.pem", etc + "key.pem", etc + "root-cert.pem"}
	google := []string{spiffe + "certificates.pem", spiffe + "private_key.pem", spiffe + "ca_certificates.pem"}
	for name, tc := range map[string]struct {
		env     map[string]string
		files   []string
		sockets []string // where somebody answers
		source  string
		from    string // file or socket
	}{
		"nothing":                {nil, nil, nil, identity.CA, ""},
		"files before all":       {nil, append(legacy, mounted...), []string{uds + "socket"}, identity.Files, mounted[0]},
		"files in etc":           {nil, legacy, []string{uds + "socket"}, identity.Files, legacy[0]},
		"Google's files":         {nil, google, nil, identity.Files, google[0]},
		"a part of the files":    {nil, mounted[:2], nil, identity.CA, ""},
		"a foreign server":       {nil, nil, []string{uds + "socket"}, identity.External, uds + "socket"},
		"another's socket":       {nil, nil, []string{uds + "spire.sock"}, identity.CA, ""},
		"a named server":         {map[string]string{"WORKLOAD_IDENTITY_SOCKET_FILE": "spire.sock"}, nil, []string{uds + "spire.sock"}, identity.External, uds + "spire.sock"},
		"a named server, later":  {map[string]string{"WORKLOAD_IDENTITY_SOCKET_FILE": "spire.sock"}, mounted, nil, identity.External, uds + "spire.sock"},
		"root alone":             {nil, legacy[2:], nil, identity.CA, legacy[2]},
		"PROV_CERT":              {map[string]string{"PROV_CERT": "/" + etc, "OUTPUT_CERTS": "/" + etc}, legacy, nil, identity.CA, ""},
		"OUTPUT_CERTS":           {map[string]string{"OUTPUT_CERTS": "./" + etc}, legacy, nil, identity.CA, ""},
		"OUTPUT_CERTS elsewhere": {map[string]string{"OUTPUT_CERTS": "./out"}, legacy, nil, identity.Files, legacy[0]},
		"FILE_MOUNTED_CERTS":     {map[string]string{"FILE_MOUNTED_CERTS": "true"}, nil, []string{uds + "socket"}, identity.None, ""},
		"the same with files":    {map[string]string{"FILE_MOUNTED_CERTS": "true"}, legacy, nil, identity.Files, legacy[0]},
		"Google's, later":        {map[string]string{"CA_PROVIDER": "GkeWorkloadCertificate"}, legacy, []string{uds + "socket"}, identity.Files, google[0]},
		"no istiod's CA":         {map[string]string{"GATEWAY_AGENT_IDENTITY": "none"}, mounted, nil, identity.None, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := inPod(t, tc.files, tc.sockets)
			env := environment{"POD_NAME": "gw", "POD_NAMESPACE": "ingress", "SERVICE_ACCOUNT": "gw", "INSTANCE_IP": "10.1.2.3"}
			maps.Copy(env, tc.env)
			for name, value := range env { // "/" is the pod's
				if strings.HasPrefix(value, "/") {
					env[name] = filepath.Join(dir, value)
				}
			}
			settings, _ := mapProxy(t, env)
			g := &gateway{settings: settings, log: slog.New(slog.DiscardHandler)}
			if err := g.decideIdentity(); err != nil {
				t.Fatal(err)
			}
			c := g.choice
			from := map[string]string{identity.Files: c.Files.Cert, identity.External: c.Socket, identity.CA: c.Files.Root}[c.Source]
			if from = strings.TrimPrefix(from, dir+"/"); c.Source != tc.source || from != tc.from {
				t.Errorf("identity from %s %q (%s), want %s %q", c.Source, from, c.Why, tc.source, tc.from)
			}
			if c.Source == identity.External && settings.sdsSocket == c.Socket {
				t.Error("the agent would listen on the foreign server's socket")
			}
		})
	}
}

// inPod makes a directory with files and sockets the working directory. It is a short one: sockets live below it.
func inPod(t *testing.T, files, sockets []string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gwa")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	t.Chdir(dir)
	for _, path := range append(files, sockets...) {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range files {
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range sockets {
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
	}
	return dir
}

// Istio's settings of the identity that have no flag of `run`.
func TestIdentityOfIstio(t *testing.T) {
	inPod(t, nil, nil)
	base := environment{"POD_NAME": "gw", "POD_NAMESPACE": "ingress", "INSTANCE_IP": "10.1.2.3"}
	s, _ := mapProxy(t, base)
	if !s.identityOpen || s.identityShared || s.identityTrust || s.identityID != "spiffe://cluster.local/ns/ingress/sa/" {
		t.Errorf("identity %q, open %v, shared %v, trust too %v", s.identityID, s.identityOpen, s.identityShared, s.identityTrust)
	}
	base["KUBERNETES_SERVICE_HOST"], base["PROXY_CONFIG_XDS_AGENT"] = "10.0.0.1", "true"
	if s, _ = mapProxy(t, base); !s.identityShared || !s.identityTrust {
		t.Errorf("shared %v, trust too %v, want both", s.identityShared, s.identityTrust)
	}
}

// A foreign server hears of Envoy what Envoy would say itself: SPIRE gives no bundles of other trust domains to one without a version.
func TestNodeForAForeignServer(t *testing.T) {
	s := &settings{}
	s.nodeID, s.nodeCluster, s.nodeMetaJSON, s.nodeMeta = "router~10.1.2.3~gw.ingress~x", "gw.ingress", `{"disable_spiffe_cert_validation":true}`, []string{"A=b"}
	for number, want := range map[string]string{"1.38.3-dev": "1.38.3", "": envoy.MinVersion + ".0"} {
		g := &gateway{settings: s}
		if number != "" {
			var err error
			if g.envoy, err = envoy.New(envoy.Config{Path: "/envoy", Version: number, Bootstrap: "/b", Admin: "/a"}); err != nil {
				t.Fatal(err)
			}
		}
		node := g.node()
		v := node.GetUserAgentBuildVersion().GetVersion()
		if got := fmt.Sprintf("%d.%d.%d", v.GetMajorNumber(), v.GetMinorNumber(), v.GetPatch()); got != want || node.GetUserAgentName() != "envoy" {
			t.Errorf("Envoy %q is %s %s there, want envoy %s", number, node.GetUserAgentName(), got, want)
		}
		m := node.GetMetadata().GetFields()
		if node.GetId() != s.nodeID || node.GetCluster() != s.nodeCluster || !m["disable_spiffe_cert_validation"].GetBoolValue() || m["A"].GetStringValue() != "b" {
			t.Errorf("node %v", node)
		}
	}
}

// Who is asked to stop before it has begun, stops.
func TestProxyIsStoppedAtOnce(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out bytes.Buffer
	began := time.Now()
	if code := run(ctx, []string{"proxy", "router"}, []string{"POD_NAME=gw", "POD_NAMESPACE=ingress"}, io.Discard, &out); code != 0 || time.Since(began) > 10*time.Second {
		t.Errorf("exit code %d after %v: %s", code, time.Since(began), &out)
	}
	call := newProxyCall(&cobra.Command{})
	a := &app{env: environment{}, stdout: io.Discard, stderr: io.Discard}
	if err := a.proxy(ctx, call, []string{"router"}); err == nil {
		t.Error("proxy went on")
	}
}

// A provisioned certificate is shown while it is good; then the own one, if there is one.
func TestOrOwn(t *testing.T) {
	ca := testca.New(t, "ca")
	pair := func(ends time.Time) *tls.Certificate {
		p := ca.Issue(t, testca.Leaf{NotAfter: ends})
		c, err := tls.X509KeyPair(p.CertPEM, p.KeyPEM)
		if err != nil {
			t.Fatal(err)
		}
		return &c
	}
	good, expired, own := pair(time.Now().Add(time.Hour)), pair(time.Now().Add(-time.Minute)), pair(time.Now().Add(time.Hour))
	missing := errors.New("no such file")
	for name, tc := range map[string]struct {
		file *tls.Certificate
		err  error
		own  *tls.Certificate
		want *tls.Certificate
		fail error
	}{
		"good":             {good, nil, own, good, nil},
		"expired":          {expired, nil, own, own, nil},
		"missing":          {nil, missing, own, own, nil},
		"expired, no own":  {expired, nil, nil, expired, nil},
		"missing, nothing": {nil, missing, nil, nil, missing},
	} {
		got, err := orOwn(func() (*tls.Certificate, error) { return tc.file, tc.err }, func() *tls.Certificate { return tc.own })()
		if got != tc.want || !errors.Is(err, tc.fail) {
			t.Errorf("%s: %p, %v; want %p, %v", name, got, err, tc.want, tc.fail)
		}
	}
}
