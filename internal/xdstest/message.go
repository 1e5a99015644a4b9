package xdstest

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Type URLs that tests use.
const (
	CDS  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	EDS  = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	LDS  = "type.googleapis.com/envoy.config.listener.v3.Listener"
	RDS  = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
	ECDS = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"
	SDS  = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"

	NDS    = "type.googleapis.com/istio.networking.nds.v1.NameTable"
	PCDS   = "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig"
	Health = "type.googleapis.com/istio.v1.HealthInformation"
)

var short = map[string]string{CDS: "CDS", EDS: "EDS", LDS: "LDS", RDS: "RDS", ECDS: "ECDS", SDS: "SDS", NDS: "NDS", PCDS: "PCDS", Health: "health"}

// Request is a request in either protocol.
type Request struct {
	Type, Version, Nonce string
	Error                string   // of the error_detail
	Names                []string // delta: subscribed
	Unnames              []string // delta: unsubscribed
	Initial              map[string]string
	Node                 *corev3.Node
	Raw                  []byte // as received
}

// Response is a response in either protocol.
type Response struct {
	Type, Version, Nonce string
	Resources            []Resource
	Removed              []string
	Raw                  []byte // as received
}

// Resource is a name, a version (delta) and a text that stands for the content.
type Resource struct{ Name, Version, Text string }

// R makes resources of "name=text" with one version.
func R(version string, pairs ...string) []Resource {
	var rs []Resource
	for _, pair := range pairs {
		name, text, _ := strings.Cut(pair, "=")
		rs = append(rs, Resource{name, version, text})
	}
	return rs
}

// Pack makes the resource that stands for a text: for extension configs a real TypedExtensionConfig around it, whose name is where a secret
// has its own, too.
func Pack(typeURL, name, text string) *anypb.Any {
	content, err := anypb.New(wrapperspb.String(text))
	if err != nil {
		panic(err)
	}
	if typeURL != ECDS && typeURL != SDS {
		value, err := proto.Marshal(&discoveryv3.Resource{Name: name, Resource: content}) // any message that holds both will do
		if err != nil {
			panic(err)
		}
		return &anypb.Any{TypeUrl: typeURL, Value: value}
	}
	packed, err := anypb.New(&corev3.TypedExtensionConfig{Name: name, TypedConfig: content})
	if err != nil {
		panic(err)
	}
	packed.TypeUrl = typeURL
	return packed
}

// Unpack reverses Pack.
func Unpack(packed *anypb.Any) (name, text string) {
	var content *anypb.Any
	if t := packed.GetTypeUrl(); t == ECDS || t == SDS {
		var extension corev3.TypedExtensionConfig
		if proto.Unmarshal(packed.GetValue(), &extension) != nil {
			return "?", "?"
		}
		name, content = extension.GetName(), extension.GetTypedConfig()
	} else {
		var resource discoveryv3.Resource
		if proto.Unmarshal(packed.GetValue(), &resource) != nil {
			return "?", "?"
		}
		name, content = resource.GetName(), resource.GetResource()
	}
	var s wrapperspb.StringValue
	if content.UnmarshalTo(&s) != nil {
		return name, "?"
	}
	return name, s.GetValue()
}

// String is the request's line in a transcript.
func (r Request) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s names=%v", shortType(r.Type), r.Names)
	if len(r.Unnames) > 0 {
		fmt.Fprintf(&b, " unsubscribe=%v", r.Unnames)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Initial)) {
		fmt.Fprintf(&b, " has %s@%s", name, r.Initial[name])
	}
	if r.Version != "" {
		fmt.Fprintf(&b, " version=%s", r.Version)
	}
	if r.Nonce != "" {
		fmt.Fprintf(&b, " nonce=%s", r.Nonce)
	}
	if r.Error != "" {
		fmt.Fprintf(&b, " NACK %q", r.Error)
	}
	if r.Node != nil {
		fmt.Fprintf(&b, " node=%s", r.Node.GetId())
	}
	return b.String()
}

// String is the response's line in a transcript.
func (r Response) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s version=%s nonce=%s", shortType(r.Type), r.Version, r.Nonce)
	for _, one := range r.Resources {
		if fmt.Fprintf(&b, " %s=%s", one.Name, one.Text); one.Version != "" {
			fmt.Fprintf(&b, "@%s", one.Version)
		}
	}
	if len(r.Removed) > 0 {
		fmt.Fprintf(&b, " removed=%v", r.Removed)
	}
	return b.String()
}

func shortType(url string) string {
	if s, ok := short[url]; ok {
		return s
	}
	return url
}

func (r Request) encode(delta bool) []byte {
	var detail *status.Status
	if r.Error != "" {
		detail = &status.Status{Code: 13, Message: r.Error}
	}
	var m proto.Message
	if delta {
		m = &discoveryv3.DeltaDiscoveryRequest{
			Node: r.Node, TypeUrl: r.Type, ResponseNonce: r.Nonce, ErrorDetail: detail,
			ResourceNamesSubscribe: r.Names, ResourceNamesUnsubscribe: r.Unnames, InitialResourceVersions: r.Initial,
		}
	} else {
		m = &discoveryv3.DiscoveryRequest{
			Node: r.Node, TypeUrl: r.Type, ResponseNonce: r.Nonce, ErrorDetail: detail, VersionInfo: r.Version, ResourceNames: r.Names,
		}
	}
	return marshal(m)
}

func decodeRequest(raw []byte, delta bool) (Request, error) {
	if delta {
		var m discoveryv3.DeltaDiscoveryRequest
		err := proto.Unmarshal(raw, &m)
		return Request{
			Type: m.GetTypeUrl(), Nonce: m.GetResponseNonce(), Error: errorText(m.GetErrorDetail()), Node: m.GetNode(), Raw: raw,
			Names: m.GetResourceNamesSubscribe(), Unnames: m.GetResourceNamesUnsubscribe(), Initial: m.GetInitialResourceVersions(),
		}, err
	}
	var m discoveryv3.DiscoveryRequest
	err := proto.Unmarshal(raw, &m)
	return Request{
		Type: m.GetTypeUrl(), Version: m.GetVersionInfo(), Nonce: m.GetResponseNonce(), Error: errorText(m.GetErrorDetail()),
		Node: m.GetNode(), Names: m.GetResourceNames(), Raw: raw,
	}, err
}

func errorText(s *status.Status) string {
	if s != nil && s.GetMessage() == "" {
		return "(no text)"
	}
	return s.GetMessage()
}

func (r Response) encode(delta bool) []byte {
	if !delta {
		m := &discoveryv3.DiscoveryResponse{TypeUrl: r.Type, VersionInfo: r.Version, Nonce: r.Nonce}
		for _, one := range r.Resources {
			m.Resources = append(m.Resources, Pack(r.Type, one.Name, one.Text))
		}
		return marshal(m)
	}
	m := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: r.Type, SystemVersionInfo: r.Version, Nonce: r.Nonce, RemovedResources: r.Removed}
	for _, one := range r.Resources {
		m.Resources = append(m.Resources, &discoveryv3.Resource{Name: one.Name, Version: one.Version, Resource: Pack(r.Type, one.Name, one.Text)})
	}
	return marshal(m)
}

func decodeResponse(raw []byte, delta bool) (Response, error) {
	if delta {
		var m discoveryv3.DeltaDiscoveryResponse
		err := proto.Unmarshal(raw, &m)
		r := Response{Type: m.GetTypeUrl(), Version: m.GetSystemVersionInfo(), Nonce: m.GetNonce(), Removed: m.GetRemovedResources(), Raw: raw}
		for _, one := range m.GetResources() {
			_, text := Unpack(one.GetResource())
			r.Resources = append(r.Resources, Resource{one.GetName(), one.GetVersion(), text})
		}
		return r, err
	}
	var m discoveryv3.DiscoveryResponse
	err := proto.Unmarshal(raw, &m)
	r := Response{Type: m.GetTypeUrl(), Version: m.GetVersionInfo(), Nonce: m.GetNonce(), Raw: raw}
	for _, packed := range m.GetResources() {
		name, text := Unpack(packed)
		r.Resources = append(r.Resources, Resource{Name: name, Text: text})
	}
	return r, err
}

func marshal(m proto.Message) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(fmt.Sprintf("xdstest: marshal %T: %v", m, err))
	}
	return b
}
