package relay

import (
	"crypto/tls"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/gateway-agent/gateway-agent/internal/testca"
	"github.com/gateway-agent/gateway-agent/internal/upstream"
	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

// istiodRig is a relay between a fake Envoy and the fake istiod, over TLS.
type istiodRig struct {
	*rig
	istiod    *xdstest.Istiod
	nds, pcds chan []*anypb.Any // of each response
}

func newIstiodRig(t *testing.T, delta bool, config xdstest.IstiodConfig, change ...func(*upstream.Config)) *istiodRig {
	t.Helper()
	ca := testca.New(t, "cluster")
	pair := ca.Issue(t, testca.Leaf{Hosts: []string{"istiod.istio-system.svc"}})
	cert, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	config.TLS = &cert
	config.Tokens = map[string]xdstest.Identity{"a-token": {Namespace: "ingress", ServiceAccount: "gw"}}
	r := &istiodRig{
		istiod: xdstest.NewIstiod(t, config),
		nds:    make(chan []*anypb.Any, 16), pcds: make(chan []*anypb.Any, 16), // more than any test makes
	}
	r.istiod.Set(&clusterv3.Cluster{Name: "c"}, &listenerv3.Listener{Name: "l"})
	dial := upstream.Config{
		Address: r.istiod.Address, ServerName: "istiod.istio-system.svc", Roots: func() ([]byte, error) { return ca.PEM, nil },
		Token: func() (string, error) { return "a-token", nil }, Header: map[string]string{"ClusterID": "Kubernetes"},
	}
	for _, f := range change {
		f(&dial)
	}
	conn, err := upstream.Open(dial)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	to := func(ch chan []*anypb.Any) func([]*anypb.Any) error {
		return func(resources []*anypb.Any) error { ch <- resources; return nil }
	}
	r.rig = newRigWith(t, nil, delta, false, func(c *Config) {
		c.Upstream, c.Redial = conn, conn.Redial
		c.Own = []Own{{TypeURL: typeNDS, Handle: to(r.nds)}, {TypeURL: typePCDS, Handle: to(r.pcds)}}
	})
	r.envoy.Node = gatewayNode(map[string]string{"NAMESPACE": "ingress", "SERVICE_ACCOUNT": "gw", "CLUSTER_ID": "Kubernetes"})
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("istiod:\n%s", r.istiod.Transcript())
		}
	})
	return r
}

func gatewayNode(metadata map[string]string) *corev3.Node {
	fields := make(map[string]*structpb.Value)
	for key, value := range metadata {
		fields[key] = structpb.NewStringValue(value)
	}
	return &corev3.Node{Id: "router~10.0.0.1~gw.ingress~ingress.svc.cluster.local", Metadata: &structpb.Struct{Fields: fields}}
}

// start opens Envoy's stream and takes clusters and listeners.
func (r *istiodRig) start() {
	r.t.Helper()
	r.envoy.Open()
	for _, typeURL := range []string{xdstest.CDS, xdstest.LDS} {
		r.envoy.Again(typeURL)
		got := r.envoy.Recv()
		if got.Type != typeURL || len(got.Resources) != 1 {
			r.t.Fatalf("got %v, want one %s", got, typeURL)
		}
		r.envoy.ACK(got)
	}
}

func (r *istiodRig) wantRoots(want string) {
	r.t.Helper()
	got := <-r.pcds
	var config meshv1alpha1.ProxyConfig
	if len(got) != 1 || got[0].UnmarshalTo(&config) != nil || strings.Join(config.GetCaCertificatesPem(), "") != want {
		r.t.Errorf("PCDS gave %v, want the roots %q", got, want)
	}
}

func TestIstiodOwnTypes(t *testing.T) {
	for _, delta := range []bool{false, true} {
		t.Run(protocolName(delta), func(t *testing.T) {
			r := newIstiodRig(t, delta, xdstest.IstiodConfig{})
			r.server.Health(true, "")
			r.start()
			if got := <-r.nds; len(got) != 1 || got[0].GetTypeUrl() != typeNDS {
				t.Errorf("NDS gave %v, want one table", got)
			}
			r.wantRoots("")
			r.istiod.SetRoots("one", "two") // pushes everything
			r.wantRoots("onetwo")
			for range 2 {
				r.envoy.ACK(r.envoy.Recv())
			}
			r.istiod.SetRoots("three")
			r.wantRoots("three") // it would not come with an answer that istiod ignores
			r.envoy.Close()
		})
	}
}

func TestIstiodWithoutPCDS(t *testing.T) {
	for _, delta := range []bool{false, true} {
		t.Run(protocolName(delta), func(t *testing.T) {
			r := newIstiodRig(t, delta, xdstest.IstiodConfig{NoPCDS: true, NoHealth: true})
			r.start()
			r.istiod.Set(&clusterv3.Cluster{Name: "c2"}, &listenerv3.Listener{Name: "l2"})
			for range 2 {
				r.envoy.ACK(r.envoy.Recv())
			}
			if len(r.pcds) != 0 {
				t.Error("PCDS was answered")
			}
			r.envoy.Close()
		})
	}
}

// What istiod says of a proxy that it does not take reaches Envoy's stream, and so the status.
func TestIstiodRefusals(t *testing.T) {
	for _, refusal := range []struct {
		name   string
		change func(*upstream.Config)
		node   map[string]string
		id     string
		want   string
	}{
		{"no token", func(c *upstream.Config) { c.Token = nil }, nil, "", "Unauthenticated: authentication failure (are the token"},
		{"wrong token", func(c *upstream.Config) { c.Token = func() (string, error) { return "b-token", nil } }, nil, "", "Unauthenticated"},
		{"unknown cluster", func(c *upstream.Config) { c.Header = map[string]string{"clusterid": "x"} }, nil, "", "Unauthenticated"},
		{"another namespace", nil, map[string]string{"NAMESPACE": "kube-system"}, "", "PermissionDenied"},
		{"another account", nil, map[string]string{"SERVICE_ACCOUNT": "admin"}, "", "PermissionDenied"},
		{"three parts", nil, nil, "router~10.0.0.1~gw.ingress", "InvalidArgument"},
		{"unknown type", nil, nil, "gateway~10.0.0.1~gw.ingress~d", "InvalidArgument"},
		{"no address", nil, nil, "router~gw~gw.ingress~d", "InvalidArgument"},
	} {
		t.Run(refusal.name, func(t *testing.T) {
			var change []func(*upstream.Config)
			if refusal.change != nil {
				change = append(change, refusal.change)
			}
			r := newIstiodRig(t, true, xdstest.IstiodConfig{}, change...)
			r.envoy.Node = gatewayNode(refusal.node)
			if refusal.id != "" {
				r.envoy.Node.Id = refusal.id
			}
			r.envoy.Open()
			r.envoy.Want(xdstest.CDS)
			if err := r.envoy.End(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), refusal.want) {
				t.Errorf("Envoy's stream ended with %v, want Unavailable and %s", err, refusal.want)
			}
			if st := r.server.Status(); !strings.Contains(st.LastError, refusal.want) {
				t.Errorf("the status says %q, want %s", st.LastError, refusal.want)
			}
		})
	}
}
