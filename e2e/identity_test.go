package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/gateway-agent/gateway-agent/internal/testca"
	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

// checkIdentity wants the gateway's certificate from its mesh's authority.
func checkIdentity(state tls.ConnectionState, roots *x509.CertPool) error {
	leaf := state.PeerCertificates[0]
	intermediates := x509.NewCertPool()
	for _, cert := range state.PeerCertificates[1:] {
		intermediates.AddCert(cert)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		return err
	}
	if len(leaf.URIs) != 1 || leaf.URIs[0].String() != gatewayID {
		return fmt.Errorf("certificate of %v, want %s", leaf.URIs, gatewayID)
	}
	return nil
}

// foreignSDS serves a certificate on a socket, as SPIRE's agent does in a mesh: the roots are bundles by trust domain, for Envoy's validator of
// SPIFFE ids, and who does not say which Envoy it is gets nothing.
func foreignSDS(t *testing.T, socket string, pair testca.Pair, roots []byte) {
	t.Helper()
	inline := func(data []byte) *corev3.DataSource {
		return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: data}}
	}
	bundles, err := anypb.New(&tlsv3.SPIFFECertValidatorConfig{TrustDomains: []*tlsv3.SPIFFECertValidatorConfig_TrustDomain{
		{Name: "cluster.local", TrustBundle: inline(roots)},
	}})
	if err != nil {
		t.Fatal(err)
	}
	snapshot, err := cachev3.NewSnapshot("1", map[string][]types.Resource{resourcev3.SecretType: {
		&tlsv3.Secret{Name: "default", Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
			CertificateChain: inline(pair.CertPEM), PrivateKey: inline(pair.KeyPEM),
		}}},
		&tlsv3.Secret{Name: "ROOTCA", Type: &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
			CustomValidatorConfig: &corev3.TypedExtensionConfig{Name: "envoy.tls.cert_validator.spiffe", TypedConfig: bundles},
		}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	cache := cachev3.NewSnapshotCache(false, oneNode{}, nil)
	if err := cache.SetSnapshot(t.Context(), "gateway", snapshot); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	secretv3.RegisterSecretDiscoveryServiceServer(server, serverv3.NewServer(t.Context(), cache, serverv3.CallbackFuncs{StreamRequestFunc: knowsEnvoy}))
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() { server.Stop(); <-served })
}

// knowsEnvoy refuses a stream as SPIRE does when it cannot tell that Envoy has the validator.
func knowsEnvoy(_ int64, request *discoveryv3.DiscoveryRequest) error {
	if v := request.GetNode().GetUserAgentBuildVersion().GetVersion(); request.GetNode() != nil && v.GetMajorNumber() <= 1 && v.GetMinorNumber() < 18 {
		return status.Errorf(codes.Internal, "no validator of SPIFFE ids in Envoy %d.%d", v.GetMajorNumber(), v.GetMinorNumber())
	}
	return nil
}

// TestProxyIdentity: who serves the workload's certificate, when it is not the CA.
func TestProxyIdentity(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(*pod, testca.Pair){
		"mounted files": func(p *pod, pair testca.Pair) {
			const dir = "var/run/secrets/workload-spiffe-credentials/"
			p.mount(dir+"cert-chain.pem", pair.CertPEM)
			p.mount(dir+"key.pem", pair.KeyPEM)
			p.mount(dir+"root-cert.pem", p.ca.PEM)
		},
		"a foreign server on the usual socket": func(p *pod, pair testca.Pair) {
			foreignSDS(p.t, p.path("var/run/secrets/workload-spiffe-uds/socket"), pair, p.ca.PEM)
		},
		"a foreign server on a socket with a name": func(p *pod, pair testca.Pair) {
			p.env["WORKLOAD_IDENTITY_SOCKET_FILE"] = "spire.sock"
			foreignSDS(p.t, p.path("var/run/secrets/workload-spiffe-uds/spire.sock"), pair, p.ca.PEM)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPod(t)
			prepare(p, p.ca.Issue(t, testca.Leaf{Hosts: []string{gatewayID}}))
			p.launch()
			p.agent.waitReady()
			p.wantServed()
			if asked := p.authority.Requests(); len(asked) > 0 {
				t.Errorf("the CA was asked: %+v", asked)
			}
		})
	}
}

// TestProxyWaitsForItsIssuer: who names a foreign server's socket gets no other issuer instead.
func TestProxyWaitsForItsIssuer(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	p.env["WORKLOAD_IDENTITY_SOCKET_FILE"] = "spire.sock"
	p.launch()
	p.agent.eventually(10*time.Second, "the agent says what it waits for", func() error {
		out, _, _ := p.run("status", "--run-dir", "etc/istio/proxy")
		if !strings.Contains(out, "spire.sock") || !strings.Contains(out, "NOT READY") {
			return fmt.Errorf("status:\n%s", out)
		}
		return nil
	})
	if asked := p.authority.Requests(); len(asked) > 0 {
		t.Errorf("the CA was asked: %+v", asked)
	}
	foreignSDS(t, p.path("var/run/secrets/workload-spiffe-uds/spire.sock"), p.ca.Issue(t, testca.Leaf{Hosts: []string{gatewayID}}), p.ca.PEM)
	p.agent.waitReady()
	p.wantServed()
}

// TestProxyReportsHealth: istiod is told when ProxyConfig has a readiness probe; without one, the fake fails the test.
func TestProxyReportsHealth(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	p.istiod.Stop()
	p.istiod = xdstest.NewIstiod(t, xdstest.IstiodConfig{TLS: p.certificate(p.ca), Tokens: map[string]xdstest.Identity{"token-1": ingress}, Address: freeAddress(t)})
	p.set(p.items()...)
	p.proxyConfig["discoveryAddress"] = p.istiod.Address
	p.proxyConfig["readinessProbe"] = map[string]any{"httpGet": map[string]any{"port": 15021, "path": "/healthz/ready"}}
	p.launch()
	p.agent.waitReady()
	p.agent.eventually(10*time.Second, "istiod hears that the gateway is ready", func() error {
		said := p.istiod.Requests("type.googleapis.com/istio.v1.HealthInformation")
		if len(said) == 0 || said[len(said)-1].Error != "" {
			return fmt.Errorf("health so far: %+v", said)
		}
		return nil
	})
}
