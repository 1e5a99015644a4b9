package relay

import (
	"errors"
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

const serviceName = "envoy.service.discovery.v3.AggregatedDiscoveryService"

// fields are the field numbers of one message; 0: it has no such field.
type fields struct {
	message                                                             string
	hashed                                                              bool // everything but the nonce
	typeURL, version, nonce, errorDetail, node, names, unnames, initial protowire.Number
}

// protocol is all that differs between state-of-the-world and delta.
type protocol struct {
	name, method      string
	delta             bool
	request, response fields
	encodeAsk         func(*ask) proto.Message
	decodeAsk         func([]byte) (*ask, error)
	encodePush        func(push) proto.Message
	decodeOffer       func([]byte) (*reply, error)
	decodeOwn         func([]byte) ([]*anypb.Any, error)
}

// ask is a request of a terminated or an own type, in either protocol. In state-of-the-world, subscribe holds all names.
type ask struct {
	typeURL                string
	version, nonce         string
	err                    error
	subscribe, unsubscribe []string
}

// reply is a response of a terminated type, in either protocol.
type reply struct {
	version, nonce string
	resources      []*discoveryv3.Resource
	removed        []string
	problem        error // resources that could not be read; they are not in the list
}

// push is one resource on its way to Envoy.
type push struct {
	nonce    string
	resource *discoveryv3.Resource // Resource nil: removed
}

func sotwProtocol() *protocol {
	return &protocol{
		name: "sotw", method: "StreamAggregatedResources",
		request:   fields{message: "DiscoveryRequest", version: 1, node: 2, names: 3, typeURL: 4, nonce: 5, errorDetail: 6},
		response:  fields{message: "DiscoveryResponse", hashed: true, version: 1, typeURL: 4, nonce: 5},
		encodeAsk: sotwAsk, decodeAsk: readSotwAsk, encodePush: sotwPush, decodeOffer: readSotwOffer, decodeOwn: readSotwOwn,
	}
}

func deltaProtocol() *protocol {
	return &protocol{
		name: "delta", method: "DeltaAggregatedResources", delta: true,
		request:   fields{message: "DeltaDiscoveryRequest", node: 1, typeURL: 2, names: 3, unnames: 4, initial: 5, nonce: 6, errorDetail: 7},
		response:  fields{message: "DeltaDiscoveryResponse", hashed: true, version: 1, typeURL: 4, nonce: 5},
		encodeAsk: deltaAsk, decodeAsk: readDeltaAsk, encodePush: deltaPush, decodeOffer: readDeltaOffer, decodeOwn: readDeltaOwn,
	}
}

// errorDetail is a NACK's text as Envoy would send it.
func errorDetail(err error) *status.Status {
	if err == nil {
		return nil
	}
	return &status.Status{Code: int32(codes.Internal), Message: bounded(err.Error(), 4*maxText)}
}

func detailError(s *status.Status) error {
	if s == nil {
		return nil
	}
	return errors.New(bounded(s.GetMessage(), maxDetail))
}

func sotwAsk(a *ask) proto.Message {
	return &discoveryv3.DiscoveryRequest{
		TypeUrl: a.typeURL, VersionInfo: a.version, ResponseNonce: a.nonce,
		ResourceNames: a.subscribe, ErrorDetail: errorDetail(a.err),
	}
}

func deltaAsk(a *ask) proto.Message {
	return &discoveryv3.DeltaDiscoveryRequest{
		TypeUrl: a.typeURL, ResponseNonce: a.nonce, ErrorDetail: errorDetail(a.err),
		ResourceNamesSubscribe: a.subscribe, ResourceNamesUnsubscribe: a.unsubscribe,
	}
}

func readSotwAsk(b []byte) (*ask, error) {
	var m discoveryv3.DiscoveryRequest
	if err := proto.Unmarshal(b, &m); err != nil {
		return nil, err
	}
	return &ask{version: m.GetVersionInfo(), nonce: m.GetResponseNonce(), err: detailError(m.GetErrorDetail()), subscribe: m.GetResourceNames()}, nil
}

func readDeltaAsk(b []byte) (*ask, error) {
	var m discoveryv3.DeltaDiscoveryRequest
	if err := proto.Unmarshal(b, &m); err != nil {
		return nil, err
	}
	return &ask{
		nonce: m.GetResponseNonce(), err: detailError(m.GetErrorDetail()),
		subscribe: m.GetResourceNamesSubscribe(), unsubscribe: m.GetResourceNamesUnsubscribe(),
	}, nil
}

func sotwPush(p push) proto.Message {
	return &discoveryv3.DiscoveryResponse{
		TypeUrl: typeECDS, VersionInfo: p.resource.GetVersion(), Nonce: p.nonce,
		Resources: []*anypb.Any{p.resource.GetResource()},
	}
}

func deltaPush(p push) proto.Message {
	m := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeECDS, SystemVersionInfo: p.resource.GetVersion(), Nonce: p.nonce}
	if p.resource.GetResource() == nil {
		m.RemovedResources = []string{p.resource.GetName()}
	} else {
		m.Resources = []*discoveryv3.Resource{p.resource}
	}
	return m
}

func readSotwOffer(b []byte) (*reply, error) {
	var m discoveryv3.DiscoveryResponse
	if err := proto.Unmarshal(b, &m); err != nil {
		return nil, err
	}
	r := &reply{version: m.GetVersionInfo(), nonce: m.GetNonce()}
	var problems []error
	for i, packed := range m.GetResources() {
		resource, err := named(packed, m.GetVersionInfo())
		if err != nil {
			problems = append(problems, fmt.Errorf("resource %d of %d: %w", i+1, len(m.GetResources()), err))
		} else if resource != nil {
			r.resources = append(r.resources, resource)
		}
	}
	r.problem = errors.Join(problems...)
	return r, nil
}

// named gives a state-of-the-world resource its name and version; nil: the heartbeat of a resource with a time to live.
func named(packed *anypb.Any, version string) (*discoveryv3.Resource, error) {
	if packed.GetTypeUrl() == typeWrap {
		wrapped := new(discoveryv3.Resource)
		if err := proto.Unmarshal(packed.GetValue(), wrapped); err != nil {
			return nil, fmt.Errorf("read the resource wrapper: %w", err)
		}
		if wrapped.GetResource() == nil {
			return nil, nil
		}
		if wrapped.GetVersion() == "" {
			wrapped.Version = version
		}
		if wrapped.GetName() != "" {
			return wrapped, nil
		}
		packed, version = wrapped.GetResource(), wrapped.GetVersion()
	}
	var extension corev3.TypedExtensionConfig
	if packed.GetTypeUrl() != typeECDS {
		return nil, fmt.Errorf("it is a %q, want %q", packed.GetTypeUrl(), typeECDS)
	}
	if err := proto.Unmarshal(packed.GetValue(), &extension); err != nil {
		return nil, fmt.Errorf("read the extension config: %w", err)
	}
	return &discoveryv3.Resource{Name: extension.GetName(), Version: version, Resource: packed}, nil
}

func readDeltaOffer(b []byte) (*reply, error) {
	var m discoveryv3.DeltaDiscoveryResponse
	if err := proto.Unmarshal(b, &m); err != nil {
		return nil, err
	}
	r := &reply{version: m.GetSystemVersionInfo(), nonce: m.GetNonce(), removed: m.GetRemovedResources()}
	for _, resource := range m.GetResources() {
		if resource.GetResource() != nil { // without: a heartbeat
			r.resources = append(r.resources, resource)
		}
	}
	return r, nil
}

func readSotwOwn(b []byte) ([]*anypb.Any, error) {
	var m discoveryv3.DiscoveryResponse
	err := proto.Unmarshal(b, &m)
	return m.GetResources(), err
}

func readDeltaOwn(b []byte) (resources []*anypb.Any, err error) {
	var m discoveryv3.DeltaDiscoveryResponse
	err = proto.Unmarshal(b, &m)
	for _, r := range m.GetResources() {
		if r.GetResource() != nil { // without: a heartbeat
			resources = append(resources, r.GetResource())
		}
	}
	return resources, err
}
