package relay

import (
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
)

// merge makes one request of the waiting delta requests of a type: the last word on each name, and the newest ACK. The type's first
// request, NACKs and whatever holds more than we know stay as they are; nothing is merged across one of those that changes names.
func (m *mailbox) merge(t *typeState) {
	r := run{names: newNames()}
	for i, e := range t.waitingCopy() {
		if request, ok := mergeable(e, i == 0 && !t.requested); ok {
			r.add(e, request)
		} else if e.changes {
			m.mergeRun(r)
			r = run{names: newNames()}
		}
	}
	m.mergeRun(r)
}

// run is a sequence of requests that can become one.
type run struct {
	from  []*entry
	names *names
	nonce string
}

func (r *run) add(e *entry, request *discoveryv3.DeltaDiscoveryRequest) {
	for _, name := range request.GetResourceNamesUnsubscribe() {
		r.names.set(name, false)
	}
	for _, name := range request.GetResourceNamesSubscribe() {
		r.names.set(name, true)
	}
	if request.GetResponseNonce() != "" {
		r.nonce = request.GetResponseNonce()
	}
	r.from = append(r.from, e)
}

func (m *mailbox) mergeRun(r run) {
	if len(r.from) < 2 {
		return
	}
	t := r.from[0].t
	merged := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: t.url, ResponseNonce: r.nonce}
	merged.ResourceNamesSubscribe, merged.ResourceNamesUnsubscribe = r.names.split()
	b, err := proto.Marshal(merged)
	if err != nil {
		return // cannot be: the names came from valid messages
	}
	for _, e := range r.from[1:] {
		m.drop(e)
	}
	m.replace(r.from[0], &entry{t: t, frame: frameOf(b), nonce: r.nonce, changes: len(r.names.order) > 0})
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
