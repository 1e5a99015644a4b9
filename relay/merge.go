package relay

import (
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
)

// merge makes one request of the waiting delta requests of a type: the last word on each name, and the newest ACK. The type's first
// request, NACKs and whatever holds more than we know stay as they are.
func (m *mailbox) merge(t *typeState) {
	net := newNames()
	var from []*entry
	var nonce string
	for i, e := range t.waiting {
		request, ok := mergeable(e, i == 0 && !t.requested)
		if !ok {
			continue
		}
		for _, name := range request.GetResourceNamesUnsubscribe() {
			net.set(name, false)
		}
		for _, name := range request.GetResourceNamesSubscribe() {
			net.set(name, true)
		}
		if request.GetResponseNonce() != "" {
			nonce = request.GetResponseNonce()
		}
		from = append(from, e)
	}
	merged := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: t.url, ResponseNonce: nonce}
	merged.ResourceNamesSubscribe, merged.ResourceNamesUnsubscribe = net.split()
	b, err := proto.Marshal(merged)
	if err != nil || len(from) < 2 {
		return // an error cannot be: the names came from valid messages
	}
	for _, e := range from[1:] {
		m.drop(e)
	}
	m.replace(from[0], &entry{t: t, frame: frameOf(b), nonce: nonce, changes: len(net.order) > 0})
}

func mergeable(e *entry, firstOfType bool) (*discoveryv3.DeltaDiscoveryRequest, bool) {
	if e.rejects || firstOfType {
		return nil, false
	}
	var request discoveryv3.DeltaDiscoveryRequest
	if err := proto.Unmarshal(e.frame.data.Materialize(), &request); err != nil {
		return nil, false
	}
	if len(request.GetInitialResourceVersions()) > 0 || len(request.GetResourceLocatorsSubscribe()) > 0 ||
		len(request.GetResourceLocatorsUnsubscribe()) > 0 || len(request.ProtoReflect().GetUnknown()) > 0 {
		return nil, false
	}
	return &request, true
}

// names is a set of names with a yes or no each, in the order of their first mention.
type names struct {
	order []string
	on    map[string]bool
}

func newNames() *names { return &names{on: make(map[string]bool)} }

func (n *names) set(name string, on bool) {
	if _, known := n.on[name]; !known {
		n.order = append(n.order, name)
	}
	n.on[name] = on
}

func (n *names) split() (on, off []string) {
	for _, name := range n.order {
		if n.on[name] {
			on = append(on, name)
		} else {
			off = append(off, name)
		}
	}
	return on, off
}
