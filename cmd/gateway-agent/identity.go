package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/gateway-agent/gateway-agent/envoy"
	"github.com/gateway-agent/gateway-agent/internal/upstream"
	"github.com/gateway-agent/gateway-agent/relay"
	"github.com/gateway-agent/gateway-agent/sds/ca"
	"github.com/gateway-agent/gateway-agent/sds/identity"
)

// typePCDS is the type in which istiod says whom to trust besides its own roots.
const typePCDS = "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig"

// decideIdentity looks who provides the identity. A foreign server may sit on our SDS socket: then Envoy asks on the other one, and the
// agent passes on what that server says.
func (g *gateway) decideIdentity() error {
	s := g.settings
	choice, err := identity.Decide(identity.Places{
		Mode: s.identity, Files: s.identityFiles, Socket: s.identitySocket, CA: s.caAddress != "", Output: s.identityOutput,
	})
	if err != nil {
		return fmt.Errorf("--identity: %w", err)
	}
	if choice.Source == identity.External && choice.Socket == s.sdsSocket {
		s.sdsSocket = s.xdsSocket
	}
	g.choice = choice
	return nil
}

func (g *gateway) buildIdentity() (err error) {
	if err := g.decideIdentity(); err != nil || g.choice.Source == identity.None {
		return err
	}
	s := g.settings
	config := identity.Config{
		Server: g.secrets, Choice: g.choice, CRL: s.identityCRL, Log: g.part("identity"),
		Authority: s.caAddress, ID: s.identityID, OpenID: s.identityOpen, Life: s.identityLife, GraceRatio: s.identityGrace, Jitter: s.identityJitter,
		Key: s.identityKey, RSABits: s.identityBits, PKCS8: s.identityPKCS8, Output: s.identityOutput,
		OutputShared: s.identityShared, BundleToo: s.identityTrust,
		Tokens: nonEmpty(s.caTokenFile, s.caCert), RootFiles: nonEmpty(s.caCA), Node: g.node(),
	}
	if s.identityJitter == 0 {
		config.Jitter = -1
	}
	if s.identityGrace == 0 {
		config.GraceRatio = -1
	}
	if s.identityKeep && g.dataLock != nil {
		config.Keep = s.data("identity.pem")
	}
	if g.choice.Source == identity.CA {
		client, err := ca.New(s.caConfig(g.choice.Files.Root))
		if err != nil {
			return fmt.Errorf("--ca-address: %w", err)
		}
		config.Signer = client
	}
	g.identity, err = identity.New(config)
	return err
}

// node is what Envoy would say of itself if it asked for its certificates where the agent does.
func (g *gateway) node() *corev3.Node {
	s := g.settings
	all, _ := s.metadata() // checked by completeEnvoy
	metadata, _ := structpb.NewStruct(all)
	number := envoy.MinVersion // at least, where somebody else runs it
	if g.envoy != nil {
		number = g.envoy.Status().Version
	}
	var major, minor, patch uint32
	_, _ = fmt.Sscanf(number, "%d.%d.%d", &major, &minor, &patch)
	return &corev3.Node{
		Id: s.nodeID, Cluster: s.nodeCluster, Metadata: metadata, UserAgentName: "envoy",
		UserAgentVersionType: &corev3.Node_UserAgentBuildVersion{UserAgentBuildVersion: &corev3.BuildVersion{
			Version: &typev3.SemanticVersion{MajorNumber: major, MinorNumber: minor, Patch: patch},
		}},
	}
}

// caConfig is how the CA is reached.
func (s *settings) caConfig(root string) ca.Config {
	header, _ := pairs("--ca-header", s.caHeader) // checked by completeIdentity
	config := upstream.Config{
		Address: s.caAddress, Plaintext: s.caPlaintext, ServerName: s.caServerName, Header: header, PlaintextToken: s.caTokenPlaintext,
	}
	if root = cmp.Or(s.caCA, root); root != "" {
		config.Roots = upstream.RootsFile(root)
	}
	if s.caCert != "" {
		config.Certificate = upstream.CertificateFiles(s.caCert, s.caKey)
	}
	if s.caTokenFile != "" {
		config.Token = upstream.TokenFile(s.caTokenFile, s.caTokenOptional)
	}
	return ca.Config{Upstream: config, CertSigner: s.caSigner}
}

// provisioned says whether the control plane and the CA know the agent by the same certificate: one for the first steps, which nobody need
// renew once there is an own one.
func (g *gateway) provisioned() bool {
	s := g.settings
	return g.choice.Source == identity.CA && s.configDir == "" && s.xdsCert != "" && s.xdsCert == s.caCert
}

// orOwn is a certificate from files or, when that has expired or cannot be read, the own one, if there is one.
func orOwn(files func() (*tls.Certificate, error), own func() *tls.Certificate) func() (*tls.Certificate, error) {
	return func() (*tls.Certificate, error) {
		certificate, err := files()
		if err == nil && (certificate.Leaf == nil || time.Now().Before(certificate.Leaf.NotAfter)) {
			return certificate, nil
		}
		if mine := own(); mine != nil {
			return mine, nil
		}
		return certificate, err
	}
}

// ownTypes are what the agent asks the control plane for itself.
func (g *gateway) ownTypes() []relay.Own {
	if g.identity == nil || !g.settings.trustFromPlane {
		return nil
	}
	return []relay.Own{{TypeURL: typePCDS, Handle: g.trust}}
}

// trust takes whom the control plane says to trust. It is a set of one.
func (g *gateway) trust(resources []*anypb.Any) error {
	if len(resources) == 0 {
		return nil
	}
	config := &meshv1alpha1.ProxyConfig{}
	if err := resources[0].UnmarshalTo(config); err != nil {
		return fmt.Errorf("%s: %w", typePCDS, err)
	}
	return g.identity.SetTrustBundle(config.GetCaCertificatesPem())
}

const healthInterval = time.Second

// reportHealth tells the control plane whether this gateway is ready, as often as that changes.
func (g *gateway) reportHealth(ctx context.Context) error {
	ticker := time.NewTicker(healthInterval)
	defer ticker.Stop()
	var said string
	for {
		ready, reason := true, ""
		for _, check := range g.readyChecks(ctx) {
			if !check.OK {
				ready, reason = false, check.Name+": "+check.Reason
				break
			}
		}
		if now := fmt.Sprint(ready, reason); now != said {
			g.relay.Health(ready, reason)
			said = now
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func nonEmpty(paths ...string) []string {
	var all []string
	for _, path := range paths {
		if path != "" {
			all = append(all, path)
		}
	}
	return all
}
