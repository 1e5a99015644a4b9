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
}

// watch is what one client asks for of one type.
type watch struct {
	names []string
	nonce string          // sent last
	sent  map[string]bool // delta: names that the client has
}

// pushOrder is the order in which istiod pushes.
var pushOrder = []string{CDS, EDS, LDS, RDS, ECDS, SDS, NDS, PCDS}

func (c *Istiod) serve(s grpc.ServerStream, delta bool) error {
	conn := &istiodConn{c: c, delta: delta, send: s.SendMsg, watched: make(map[string]*watch), changed: make(chan struct{}, 1)}
	var err error
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
			for _, typeURL := range pushOrder {
				if err := n.push(typeURL, nil); err != nil {
					return err
				}
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
		if err := n.accept(r.Node); err != nil {
			return err
		}
	} else if r.Node != nil && !proto.Equal(r.Node, n.node) { // Envoy up to 1.37 repeats it in delta streams
		n.mistake("another node is told", r)
	}
	return n.request(r)
}

// mistake is what the real one logs as an error, or would suffer in silence.
func (n *istiodConn) mistake(what string, r Request) { n.c.t.Errorf("istiod: %s: %v", what, r) }

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
	addresses := append(strings.Split(n.text(node, "INSTANCE_IPS"), ","), parts[1])
	if !slices.ContainsFunc(addresses, func(a string) bool { _, err := netip.ParseAddr(a); return err == nil }) {
		return status.Error(codes.InvalidArgument, "no valid IP address in the service node id or metadata")
	}
	if n.who.verified {
		if namespace := n.text(node, "NAMESPACE"); namespace != "" && namespace != n.who.Namespace {
			return status.Errorf(codes.PermissionDenied, "authorization failed: no identities (%s) matched %s", n.who.Namespace, namespace)
		}
		if account := n.text(node, "SERVICE_ACCOUNT"); account != "" && account != n.who.ServiceAccount {
			return status.Errorf(codes.PermissionDenied, "authorization failed: no identities (%s) matched %s", n.who.ServiceAccount, account)
		}
	}
	n.node = node
	return nil
}

func (n *istiodConn) text(node *corev3.Node, key string) string {
	return node.GetMetadata().GetFields()[key].GetStringValue()
}

// clusterKnown tells whether the node's CLUSTER_ID, by which secrets are found, is one that istiod knows.
func (n *istiodConn) clusterKnown() bool {
	return slices.Contains(n.c.config.Clusters, n.text(n.node, "CLUSTER_ID"))
}

func (n *istiodConn) request(r Request) error {
	if r.Type == NDS || r.Type == PCDS || r.Type == Health {
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
	case w == nil:
		n.watched[r.Type] = &watch{names: names}
		return n.push(r.Type, nil)
	case r.Nonce != w.nonce:
		n.c.notef(n, "ignores that, names included: its last nonce is %s", w.nonce)
		return nil
	}
	added := missing(names, w.names)
	w.names = names
	if len(added) == 0 {
		return nil
	}
	return n.push(r.Type, nil)
}

func (n *istiodConn) deltaRequest(r Request, w *watch) error {
	if w == nil {
		w = &watch{names: slices.Clone(r.Names), sent: make(map[string]bool)}
		for name := range r.Initial {
			w.sent[name] = true
			if !slices.Contains(w.names, name) {
				w.names = append(w.names, name)
			}
		}
		n.watched[r.Type] = w
		return n.push(r.Type, nil)
	}
	if r.Nonce != "" && r.Nonce != w.nonce {
		n.c.notef(n, "ignores that, names included: its last nonce is %s", w.nonce)
		return nil
	}
	changes := len(missing(r.Names, w.names)) > 0 || slices.ContainsFunc(r.Unnames, func(name string) bool { return slices.Contains(w.names, name) })
	switch {
	case r.Nonce == "" && !changes:
		n.mistake("a spontaneous request changes no names", r)
	case r.Nonce != "" && changes:
		n.mistake("an answer changes names", r)
	}
	w.names = missing(w.names, r.Unnames)
	for _, name := range r.Unnames {
		delete(w.sent, name)
	}
	added := missing(r.Names, w.names)
	w.names = append(w.names, added...)
	if len(added) == 0 {
		return nil
	}
	return n.push(r.Type, added)
}

// push sends what the client watches of a type; only names, when some are given. Nothing is sent when there is nothing to say.
func (n *istiodConn) push(typeURL string, only []string) error {
	w := n.watched[typeURL]
	if w == nil {
		return nil
	}
	now := n.c.now()
	names := w.names
	if only != nil {
		names = only
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
		m = n.deltaResponse(w, typeURL, version, found, order, only != nil)
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

func (n *istiodConn) deltaResponse(w *watch, typeURL, version string, found map[string]*anypb.Any, order []string, partial bool) proto.Message {
	m := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL, SystemVersionInfo: version, Nonce: w.nonce}
	for _, name := range order {
		m.Resources = append(m.Resources, &discoveryv3.Resource{Name: name, Version: version, Resource: found[name]})
	}
	if wildcard(typeURL) && !partial { // for others istiod never says what is gone
		for _, name := range slices.Sorted(maps.Keys(w.sent)) {
			if found[name] == nil {
				m.RemovedResources = append(m.RemovedResources, name)
				delete(w.sent, name)
			}
		}
	}
	for name := range found {
		w.sent[name] = true
	}
	return m
}
