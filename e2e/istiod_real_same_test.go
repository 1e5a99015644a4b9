package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/gateway-agent/gateway-agent/internal/testca"
	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

var updateIstiod = flag.Bool("update-istiod", false, "write what the real istiod does to testdata/istiod.txt")

// shorten makes transcripts easier to read.
var shorten = strings.NewReplacer("extensions.istio.io/trafficextension/ingress.", "", "~istio-translated-wasmplugin", "")

// side is one istiod, real or not, and how to get to it.
type side struct {
	secure, plain string
	roots         *x509.CertPool
	cert          tls.Certificate // of the gateway's identity
	setEdge       func(name string, pair testca.Pair)
	setPull       func(config string)
}

// pushes is the transcript of what changes of Secrets bring to a gateway that waits for one more.
func (s side) pushes(t *testing.T, ca *testca.CA, delta bool) string {
	t.Helper()
	stream := openStream(t, s.dial(t, ""), delta, metadata.New(usualHeaders(nil)))
	missing := "kubernetes://late-" + fmt.Sprint(delta)
	for _, a := range []ask{
		{kind: "CDS", node: routerNode(nodeID, nil)},
		{kind: "LDS"},
		{kind: "ECDS", names: []string{openName, closeName}},
		{kind: "SDS", names: []string{edgeName, missing}},
	} {
		stream.ask(a)
	}
	var b strings.Builder
	for _, change := range []struct {
		name string
		do   func()
	}{
		{"the certificate", func() { s.setEdge(edgeName, ca.Issue(t, testca.Leaf{})) }},
		{"the missing certificate", func() { s.setEdge(missing, ca.Issue(t, testca.Leaf{})) }},
		{"the pull secret", func() { s.setPull(`{"auths":{"` + missing + `":{}}}`) }},
	} {
		change.do()
		fmt.Fprintf(&b, "  %s changes\n", change.name)
		for _, r := range stream.pushed() {
			fmt.Fprintf(&b, "      %s\n", shorten.Replace(r.String()))
		}
	}
	return b.String()
}

func (s side) dial(t *testing.T, way string) *grpc.ClientConn {
	t.Helper()
	config := &tls.Config{RootCAs: s.roots, ServerName: istiodName}
	switch way {
	case "plain":
		return dialPeer(t, s.plain, nil)
	case "certificate":
		config.Certificates = []tls.Certificate{s.cert}
	}
	return dialPeer(t, s.secure, config)
}

// run is the transcript of a conversation.
func (s side) run(t *testing.T, c conversation, delta bool) string {
	t.Helper()
	stream := openStream(t, s.dial(t, c.way), delta, metadata.New(usualHeaders(c.headers)))
	var b strings.Builder
	for i, a := range c.asks {
		if i == 0 && !c.silent {
			id := c.id
			if id == "" {
				id = nodeID
			}
			a.node = routerNode(id, c.node)
		}
		replies := stream.ask(a)
		fmt.Fprintf(&b, "  %s\n", shorten.Replace(a.String()))
		for _, r := range replies {
			fmt.Fprintf(&b, "      %s\n", shorten.Replace(r.String()))
			if r.err != nil {
				return b.String()
			}
		}
		if len(replies) == 0 && !a.hasty {
			b.WriteString("      nothing\n")
		}
	}
	return b.String()
}

// all is the transcript of everything.
func (s side) all(t *testing.T, ca *testca.CA) string {
	t.Helper()
	var b strings.Builder
	for _, mode := range modes {
		for _, c := range conversations {
			if c.only == "" || c.only == mode {
				fmt.Fprintf(&b, "%s: %s\n%s", mode, c.name, s.run(t, c, mode == "delta"))
			}
		}
	}
	for _, mode := range modes {
		fmt.Fprintf(&b, "%s: pushes\n%s", mode, s.pushes(t, ca, mode == "delta"))
	}
	for _, p := range petitions {
		fmt.Fprintf(&b, "certificate: %s\n%s", p.name, s.petition(t, p))
	}
	return b.String()
}

func structOf(fields map[string]any) *structpb.Struct {
	s, err := structpb.NewStruct(fields)
	if err != nil {
		panic(err)
	}
	return s
}

// TestFakeIstiodIsLikeTheRealOne asks both the same.
func TestFakeIstiodIsLikeTheRealOne(t *testing.T) {
	t.Parallel()
	ca := testca.New(t, "cluster")
	real := newRealSide(t, ca)
	got := real.all(t, ca)
	const golden = "testdata/istiod.txt"
	if *updateIstiod {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("the real istiod does not do what %s says (-file +istiod; -update-istiod writes it):\n%s", golden, diff)
	}
	if diff := cmp.Diff(strings.Split(got, "\n"), strings.Split(newFakeSide(t, ca, real).all(t, ca), "\n")); diff != "" {
		t.Errorf("the fake istiod is not like the real one (-real +fake):\n%s", diff)
	}
}

// newFakeSide has the resources of the real one.
func newFakeSide(t *testing.T, ca *testca.CA, real side) side {
	t.Helper()
	s := openStream(t, real.dial(t, ""), false, metadata.Pairs("authorization", "Bearer token-1"))
	var all []proto.Message
	for i, a := range []ask{
		{kind: "CDS"},
		{kind: "LDS"},
		{kind: "RDS", names: []string{routeName}},
		{kind: "EDS", names: []string{edsName}},
		{kind: "ECDS", names: []string{openName, closeName, noneName}},
	} {
		if i == 0 {
			a.node = routerNode(nodeID, nil)
		}
		for _, packed := range s.ask(a)[0].resources {
			m, err := packed.UnmarshalNew()
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, unfilled(t, m))
		}
	}
	authority := xdstest.NewCA(t, xdstest.CAConfig{ID: gatewayID, Tokens: []string{"token-1"}, Mistake: func(string) {}})
	authority.SignWith(ca.Sub(t, "istiod"))
	config := xdstest.IstiodConfig{
		TLS: (&mesh{t: t, ca: ca}).certificate(ca), CA: authority, Tokens: map[string]xdstest.Identity{"token-1": ingress}, Mistake: func(string) {},
	}
	secure := xdstest.NewIstiod(t, config)
	config.TLS, config.CA = nil, nil
	plain := xdstest.NewIstiod(t, config)
	edge := ca.Issue(t, testca.Leaf{Hosts: []string{"edge.test"}})
	for _, istiod := range []*xdstest.Istiod{secure, plain} {
		istiod.Set(all...)
		istiod.SetPullSecret("kubernetes://ingress/regcred", []byte(`{"auths":{}}`))
		for _, namespace := range []string{"ingress", "other"} {
			istiod.SetSecret(edgeName, namespace, edge.CertPEM, edge.KeyPEM)
		}
	}
	fake := newSide(t, ca, secure.Address, plain.Address)
	fake.setEdge = func(name string, pair testca.Pair) { secure.SetSecret(name, "ingress", pair.CertPEM, pair.KeyPEM) }
	fake.setPull = func(config string) { secure.SetPullSecret("kubernetes://ingress/regcred", []byte(config)) }
	return fake
}

// unfilled is an extension config with the reference to its secret, which istiod has resolved.
func unfilled(t *testing.T, m proto.Message) proto.Message {
	t.Helper()
	extension, ok := m.(*corev3.TypedExtensionConfig)
	if !ok {
		return m
	}
	filter := new(wasmv3.Wasm)
	if err := extension.GetTypedConfig().UnmarshalTo(filter); err != nil {
		t.Fatal(err)
	}
	values := filter.GetConfig().GetVmConfig().GetEnvironmentVariables().GetKeyValues()
	switch secret, has := values[pullSecret]; {
	case has && secret == "":
		values[pullSecret] = "kubernetes://ingress/missing"
	case has:
		values[pullSecret] = "kubernetes://ingress/regcred"
	}
	var err error
	if extension.TypedConfig, err = anypb.New(filter); err != nil {
		t.Fatal(err)
	}
	return extension
}

func newRealSide(t *testing.T, ca *testca.CA) side {
	t.Helper()
	kube := newKubeAPI(t, map[string]xdstest.Identity{"token-1": ingress}, "ingress")
	kube.crds()
	edge := ca.Issue(t, testca.Leaf{Hosts: []string{"edge.test"}})
	for _, namespace := range []string{"ingress", "other"} {
		kube.apply("Secret", namespace, "edge-cert", tlsSecret(edge))
	}
	kube.apply("Secret", "ingress", "broken", object{"type": "Opaque", "data": object{"x": ""}})
	kube.apply("Secret", "ingress", "regcred", dockerSecret(`{"auths":{}}`))
	m := meshConfig{kube: kube, origin: "127.0.0.1:1", header: "x"}
	m.applyServers()
	m.route()
	for name, secret := range map[string]string{"open": "", "closed": "regcred", "none": "missing"} {
		spec := object{"selector": object{"matchLabels": object{"istio": "ingress"}}, "url": "oci://registry.test/" + name}
		if secret != "" {
			spec["imagePullSecret"] = secret
		}
		kube.apply("WasmPlugin", "ingress", name, object{"spec": spec})
	}
	i := newRealIstiod(t, kube, ca, freeAddress(t), freeAddress(t))
	i.start()
	s := newSide(t, ca, i.secure, i.plain)
	s.setEdge = func(name string, pair testca.Pair) {
		kube.apply("Secret", "ingress", strings.TrimPrefix(name, "kubernetes://"), tlsSecret(pair))
	}
	s.setPull = func(config string) { kube.apply("Secret", "ingress", "regcred", dockerSecret(config)) }
	return s
}

func newSide(t *testing.T, ca *testca.CA, secure, plain string) side {
	t.Helper()
	s := side{secure: secure, plain: plain, roots: x509.NewCertPool()}
	s.roots.AddCert(ca.Cert)
	pair := ca.Issue(t, testca.Leaf{Hosts: []string{gatewayID}})
	var err error
	if s.cert, err = tls.X509KeyPair(pair.CertPEM, pair.KeyPEM); err != nil {
		t.Fatal(err)
	}
	return s
}
