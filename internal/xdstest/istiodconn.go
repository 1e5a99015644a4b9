package xdstest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

// istiodConn is one stream. Its fields belong to its goroutine, but for changed.
type istiodConn struct {
	c       *Istiod
	id      int
	who     caller
	delta   bool
	send    func(any) error
	node    *corev3.Node
	watched map[string]*watch
	nonces  int
	changed chan struct{} // one token is enough: it says that there is something new
	dirty   dirty         // what that is; the istiod's mutex guards it
}

// watch is what one client asks for of one type.
type watch struct {
	names  []string // delta, clusters and listeners: those that the client has
	nonce  string   // sent last
	always bool     // the next request is answered, whatever it asks
}

// pushOrder is the order in which istiod pushes.
var pushOrder = []string{CDS, EDS, LDS, RDS, SDS, ECDS, NDS, PCDS}

func (c *Istiod) serve(s grpc.ServerStream, delta bool) error {
	conn := &istiodConn{c: c, delta: delta, send: s.SendMsg, watched: make(map[string]*watch), changed: make(chan struct{}, 1), dirty: dirty{}}
	var err error
	c.checkHeader(s.Context())
	if conn.who, err = c.authenticate(s.Context()); err != nil {
		c.notef(conn, "refused: %v", err)
		return err
	}
	c.mu.Lock()
	c.count++
	conn.id = c.count
	c.conns[conn] = struct{}{}
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.conns, conn)
	}()
	err = conn.run(s.Context(), pump(s.Context(), s.RecvMsg))
	c.notef(conn, "ends: %v", err)
	return err
}

func (n *istiodConn) run(ctx context.Context, in <-chan received) error {
	for {
		select {
		case r, ok := <-in:
			if !ok || errors.Is(r.err, io.EOF) {
				return nil
			}
			if r.err != nil {
				return r.err
			}
			if err := n.received(r.raw); err != nil {
				return err
			}
		case <-n.changed:
			if err := n.pushDirty(); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (n *istiodConn) received(raw []byte) error {
	r, err := decodeRequest(raw, n.delta)
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "malformed request: %v", err)
	}
	n.c.notef(n, "gets  %v", r)
	r.Raw = nil
	n.c.mu.Lock()
	n.c.seen = append(n.c.seen, r)
	n.c.mu.Unlock()
	if n.node == nil {
		if r.Type == Health {
			n.mistake("this comes before all other requests", r)
			return nil
		}
		if err := n.accept(r.Node); err != nil {
			return err
		}
	} else if r.Node != nil && !proto.Equal(r.Node, n.node) { // Envoy up to 1.37 repeats it in delta streams
		n.mistake("another node is told", r)
	}
	return n.request(r)
}

// mistake is what the real one logs as an error, or would suffer in silence.
func (n *istiodConn) mistake(what string, r Request) {
	n.c.config.Mistake(fmt.Sprintf("istiod: %s: %v", what, r))
}

// accept checks the node of the first request.
func (n *istiodConn) accept(node *corev3.Node) error {
	if node.GetId() == "" {
		return status.Error(codes.InvalidArgument, "missing node information")
	}
	parts := strings.Split(node.GetId(), "~")
	if len(parts) != 4 {
		return status.Errorf(codes.InvalidArgument, "missing parts in the service node %q", node.GetId())
	}
	if !slices.Contains([]string{"sidecar", "router", "waypoint", "ztunnel"}, parts[0]) {
		return status.Errorf(codes.InvalidArgument, "invalid node type (valid types: sidecar, router, waypoint, ztunnel in the service node %q", node.GetId())
	}
	for _, key := range []string{"INSTANCE_IPS", "NAMESPACE", "SERVICE_ACCOUNT", "CLUSTER_ID"} {
		if value := node.GetMetadata().GetFields()[key]; value != nil && !isText(value) {
			return status.Errorf(codes.InvalidArgument, "failed to unmarshal node metadata: %s is no string", key)
		}
	}
	if !areAddresses(strings.Split(n.text(node, "INSTANCE_IPS"), ",")) && !areAddresses(parts[1:2]) {
		return status.Error(codes.InvalidArgument, "no valid IP address in the service node id or metadata")
	}
	if n.who.verified {
		if namespace := n.namespace(node, parts[3]); namespace != "" && namespace != n.who.Namespace {
			return status.Errorf(codes.PermissionDenied, "authorization failed: no identities (%s) matched %s", n.who.Namespace, namespace)
		}
		if account := n.text(node, "SERVICE_ACCOUNT"); account != "" && account != n.who.ServiceAccount {
			return status.Errorf(codes.PermissionDenied, "authorization failed: no identities (%s) matched %s", n.who.ServiceAccount, account)
		}
	}
	n.node = node
	return nil
}

func isText(value *structpb.Value) bool {
	_, ok := value.GetKind().(*structpb.Value_StringValue)
	return ok
}

// areAddresses says whether all are: one that is not spoils the others.
func areAddresses(all []string) bool {
	return !slices.ContainsFunc(all, func(a string) bool { _, err := netip.ParseAddr(a); return err != nil })
}

// namespace is the node's; without metadata its domain begins with it.
func (n *istiodConn) namespace(node *corev3.Node, domain string) string {
	if namespace := n.text(node, "NAMESPACE"); namespace != "" {
		return namespace
	}
	if first, _, more := strings.Cut(domain, "."); more {
		return first
	}
	return ""
}

func (n *istiodConn) text(node *corev3.Node, key string) string {
	return node.GetMetadata().GetFields()[key].GetStringValue()
}

// clusterKnown tells whether the node's CLUSTER_ID, by which secrets are found, is one that istiod knows.
func (n *istiodConn) clusterKnown() bool {
	return slices.Contains(n.c.config.Clusters, n.text(n.node, "CLUSTER_ID"))
}

func (n *istiodConn) request(r Request) error {
	if r.Type == PCDS || r.Type == Health {
		if n.watched[LDS] == nil {
			n.mistake("this comes before the first request for listeners", r)
		}
	}
	if r.Type == Health {
		if n.c.config.NoHealth || r.Nonce != "" || len(r.Names) > 0 {
			n.mistake("health is told by a workload without a readiness probe, or with names or a nonce", r)
		}
		return nil
	}
	w := n.watched[r.Type]
	if r.Error != "" {
		if r.Nonce == "" {
			n.mistake("it rejects nothing", r)
		}
		return nil // names in a NACK are ignored
	}
	if !slices.Contains(pushOrder, r.Type) {
		return status.Errorf(codes.PermissionDenied, "no resources of type %s for a proxy", r.Type)
	}
	if n.delta {
		return n.deltaRequest(r, w)
	}
	return n.sotwRequest(r, w)
}

func wildcard(typeURL string) bool { return slices.Contains([]string{CDS, LDS, NDS, PCDS}, typeURL) }

func (n *istiodConn) sotwRequest(r Request, w *watch) error {
	names := slices.Sorted(slices.Values(r.Names))
	switch {
	case len(names) == 0 && !wildcard(r.Type):
		delete(n.watched, r.Type)
		return nil
	case w == nil || r.Nonce == "":
		n.watched[r.Type] = &watch{names: names}
		if endpoints := n.watched[EDS]; r.Type == CDS && endpoints != nil {
			endpoints.always = true // Envoy waits for an answer until its clusters are warm
		}
		return n.push(r.Type, nil)
	case r.Nonce != w.nonce:
		n.c.notef(n, "ignores that, names included: its last nonce is %s", w.nonce)
		return nil
	}
	added, always := missing(names, w.names), w.always
	w.names, w.always = names, false
	if always {
		return n.push(r.Type, nil)
	}
	if len(added) == 0 {
		return nil
	}
	return n.push(r.Type, added)
}

func (n *istiodConn) deltaRequest(r Request, w *watch) error {
	asked := append(slices.Clone(r.Names), slices.Sorted(maps.Keys(r.Initial))...)
	asked = missing(asked, append(slices.Clone(r.Unnames), "*"))
	if w == nil {
		n.watched[r.Type] = &watch{names: asked}
		return errors.Join(n.push(r.Type, asked), n.pushEndpoints(r.Type))
	}
	if r.Nonce != "" && r.Nonce != w.nonce {
		n.c.notef(n, "ignores that, names included: its last nonce is %s", w.nonce)
		return nil
	}
	changes := len(missing(asked, w.names)) > 0 || slices.ContainsFunc(r.Unnames, func(name string) bool { return slices.Contains(w.names, name) })
	switch {
	case r.Nonce == "" && !changes:
		n.mistake("a spontaneous request changes no names", r)
	case r.Nonce != "" && changes:
		n.mistake("an answer changes names", r)
	}
	w.names = missing(w.names, r.Unnames)
	w.names = append(w.names, missing(asked, w.names)...)
	if !changes {
		return nil
	}
	return errors.Join(n.push(r.Type, append([]string{}, asked...)), n.pushEndpoints(r.Type))
}

// pushEndpoints follows an answer with clusters: Envoy may wait for it until they are warm.
func (n *istiodConn) pushEndpoints(typeURL string) error {
	if typeURL != CDS {
		return nil
	}
	return n.push(EDS, nil)
}

// pushDirty sends what has changed of what the client watches.
func (n *istiodConn) pushDirty() error {
	n.c.mu.Lock()
	what := n.dirty
	n.dirty = dirty{}
	n.c.mu.Unlock()
	for _, typeURL := range pushOrder {
		names, ok := what[typeURL]
		w := n.watched[typeURL]
		if !ok || w == nil {
			continue
		}
		var only []string
		if names != nil {
			only = slices.DeleteFunc(slices.Clone(w.names), func(name string) bool { return !names[secretKey(name, n.who.Namespace)] })
		}
		if names != nil && len(only) == 0 {
			continue
		}
		if err := n.push(typeURL, only); err != nil {
			return err
		}
	}
	return nil
}

// push sends what the client watches of a type; what it has just asked for alone, if that is not nil. Nothing is sent when there is nothing
// to say.
func (n *istiodConn) push(typeURL string, asked []string) error {
	w := n.watched[typeURL]
	if w == nil {
		return nil
	}
	now := n.c.now()
	names := w.names
	if asked != nil {
		names = asked
	}
	found, answer := n.generate(now, typeURL, names)
	if !answer {
		n.c.notef(n, "says nothing of %s %v", shortType(typeURL), names)
		return nil
	}
	n.nonces++
	w.nonce = fmt.Sprintf("%d-%d-%d", now.version, n.id, n.nonces)
	version := fmt.Sprintf("2026-08-01T00:00:00Z/%d", now.version)
	order := slices.Sorted(maps.Keys(found))
	var m proto.Message
	if n.delta {
		m = n.deltaResponse(w, typeURL, version, found, order, asked)
	} else {
		all := &discoveryv3.DiscoveryResponse{TypeUrl: typeURL, VersionInfo: version, Nonce: w.nonce}
		for _, name := range order {
			all.Resources = append(all.Resources, found[name])
		}
		m = all
	}
	n.c.notef(n, "sends %s version=%s nonce=%s %v", shortType(typeURL), version, w.nonce, order)
	raw := marshal(m)
	return n.send(&raw)
}

// deltaResponse: istiod's resources have no versions. What is gone it says of clusters and listeners; of others that are asked for when the
// answer has any; of extension configs never.
func (n *istiodConn) deltaResponse(w *watch, typeURL, version string, found map[string]*anypb.Any, order, asked []string) proto.Message {
	m := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL, SystemVersionInfo: version, Nonce: w.nonce}
	for _, name := range order {
		m.Resources = append(m.Resources, &discoveryv3.Resource{Name: name, Resource: found[name]})
	}
	had := asked
	if asked == nil && wildcard(typeURL) {
		had = w.names
	}
	if typeURL != ECDS {
		m.RemovedResources = slices.Sorted(slices.Values(missing(had, order)))
	}
	if wildcard(typeURL) {
		w.names = order
	}
	return m
}
