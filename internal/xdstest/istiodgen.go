package xdstest

import (
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	netwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/wasm/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	pluginv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

// pullSecretKey is the variable of a plugin's VM that holds its pull secret: a reference in istiod, its content on the way to the proxy.
const pullSecretKey = "ISTIO_META_WASM_IMAGE_PULL_SECRET"

// generate makes the resources of a type for one client; false: istiod sends no response at all.
func (n *istiodConn) generate(now world, typeURL string, names []string) (map[string]*anypb.Any, bool) {
	switch typeURL {
	case NDS:
		return map[string]*anypb.Any{"": {TypeUrl: NDS, Value: now.names}}, true
	case PCDS:
		if n.c.config.NoPCDS {
			return nil, false
		}
		return map[string]*anypb.Any{"": pack(&meshv1alpha1.ProxyConfig{CaCertificatesPem: now.roots})}, true
	case SDS:
		return n.secrets(now, names)
	case ECDS:
		return n.extensions(now, names)
	}
	found := make(map[string]*anypb.Any)
	for name, r := range now.byType[typeURL] {
		if wildcard(typeURL) || slices.Contains(names, name) {
			found[name] = pack(r)
		}
	}
	for _, name := range names {
		if found[name] == nil && !wildcard(typeURL) {
			found[name] = pack(empty(typeURL, name))
		}
	}
	return found, wildcard(typeURL) || len(found) > 0
}

// empty is what istiod says of endpoints and routes that it does not know.
func empty(typeURL, name string) proto.Message {
	if typeURL == EDS {
		return &endpointv3.ClusterLoadAssignment{ClusterName: name}
	}
	return &routev3.RouteConfiguration{Name: name, VirtualHosts: []*routev3.VirtualHost{{Name: "blackhole:80", Domains: []string{"*"}}}}
}

// secrets: what a client may not have, or what does not exist, gets no answer.
func (n *istiodConn) secrets(now world, names []string) (map[string]*anypb.Any, bool) {
	if !n.who.verified || !n.clusterKnown() {
		return nil, false
	}
	found := make(map[string]*anypb.Any)
	for _, name := range names {
		s, known := now.secrets[secretKey(name, n.who.Namespace)]
		if !known || s.namespace != n.who.Namespace {
			continue
		}
		found[name] = pack(&tlsv3.Secret{Name: name, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
			CertificateChain: inline(s.cert), PrivateKey: inline(s.key),
		}}})
	}
	return found, len(found) > 0
}

// secretKey is the same for kubernetes://namespace/name and for kubernetes://name in that namespace.
func secretKey(name, namespace string) string {
	rest, ok := strings.CutPrefix(name, "kubernetes://")
	if ok && !strings.Contains(rest, "/") {
		return "kubernetes://" + namespace + "/" + rest
	}
	return name
}

func inline(data []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: data}}
}

// extensions puts pull secrets in place of their references: present but empty when there is none for this client. A client whose cluster
// is not known gets no answer at all when any of what it asks for has one. What does not exist is missing from a response that comes all
// the same.
func (n *istiodConn) extensions(now world, names []string) (map[string]*anypb.Any, bool) {
	found := make(map[string]*anypb.Any)
	for _, name := range names {
		r, known := now.byType[ECDS][name]
		if !known {
			continue
		}
		config := proto.Clone(r).(*corev3.TypedExtensionConfig)
		if filter := wasmFilter(config.GetTypedConfig()); filter != nil {
			values := filter.GetConfig().GetVmConfig().GetEnvironmentVariables().GetKeyValues()
			if reference, has := values[pullSecretKey]; has {
				if !n.clusterKnown() {
					return nil, false
				}
				values[pullSecretKey] = ""
				if n.who.verified {
					values[pullSecretKey] = string(now.pulls[reference])
				}
				config.TypedConfig = pack(filter)
			}
		}
		found[name] = pack(config)
	}
	return found, true
}

type wasmMessage interface {
	proto.Message
	GetConfig() *pluginv3.PluginConfig
}

// wasmFilter decodes a plugin of layer 7 or 4; nil: it is something else.
func wasmFilter(box *anypb.Any) wasmMessage {
	for _, filter := range []wasmMessage{new(wasmv3.Wasm), new(netwasmv3.Wasm)} {
		if box.UnmarshalTo(filter) == nil {
			return filter
		}
	}
	return nil
}

func pack(m proto.Message) *anypb.Any {
	return &anypb.Any{TypeUrl: "type.googleapis.com/" + string(m.ProtoReflect().Descriptor().FullName()), Value: marshal(m)}
}
