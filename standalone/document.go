package standalone

import (
	"path/filepath"
	"strings"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/gateway-agent/gateway-agent/standalone/protoyaml"

	// Every "@type" that Envoy users have.
	_ "github.com/gateway-agent/gateway-agent/standalone/envoytypes"
)

// kind is a type of resource, in words.
type kind string

const (
	listeners  kind = "listener"
	routes     kind = "route configuration"
	clusters   kind = "cluster"
	endpoints  kind = "endpoints"
	extensions kind = "extension config"
	secrets    kind = "secret"
)

// resource is one resource of the configuration.
type resource struct {
	kind kind
	name string
	node *protoyaml.Node // where it is written
	msg  proto.Message
}

func (r *resource) String() string { return string(r.kind) + " " + r.name }

// config is everything that one load read.
type config struct {
	findings
	dir       string // absolute
	tree      protoyaml.Tree
	resources []*resource
	byName    map[kind]map[string]*resource
	// incomplete: something could not be read at all, so what is missing elsewhere may have stood there.
	incomplete bool
}

func newConfig(dir string) *config {
	c := &config{dir: dir, byName: map[kind]map[string]*resource{}}
	c.tree.Tolerate = tolerated
	return c
}

// read takes in all files.
func (c *config) read(files []file) {
	budget := &protoyaml.Budget{Nodes: maxNodes}
	for _, f := range files {
		path := filepath.Join(c.dir, f.name)
		if f.err != nil {
			c.problems = append(c.problems, Problem{File: path, Reason: f.err.Error()})
			c.incomplete = true
			continue
		}
		docs, errs := protoyaml.Parse(path, f.data, budget)
		c.addErrors(errs)
		c.incomplete = c.incomplete || len(errs) > 0
		for _, doc := range docs {
			c.document(doc)
		}
	}
	c.addErrors(c.tree.Errors)
	c.tree.Errors = nil
}

// document is either (part of) an envoy.yaml or one of Envoy's filesystem-xDS files.
func (c *config) document(n *protoyaml.Node) {
	switch {
	case n.Kind != protoyaml.Map:
		c.add(n, "", "a document must be a mapping with static_resources or resources, not %s", n.Kind)
	case n.Get("resources") != nil:
		c.discovery(n)
	default:
		c.bootstrap(n)
	}
}

// discovery reads the form of a DiscoveryResponse.
func (c *config) discovery(n *protoyaml.Node) {
	for i, key := range n.Keys {
		switch key.Value {
		case "resources":
			for _, item := range c.list(n.Items[i], "resources") {
				c.packed(item)
			}
		case "version_info", "versionInfo", "type_url", "typeUrl", "nonce", "control_plane", "controlPlane":
		default:
			c.add(key, "", "unknown field %q beside resources", key.Value)
		}
	}
}

func (c *config) list(n *protoyaml.Node, name string) []*protoyaml.Node {
	if n.Kind != protoyaml.List && n.Kind != protoyaml.Null {
		c.add(n, "", "%s needs a list, not %s", name, n.Kind)
		return nil
	}
	return n.Items
}

// packed reads one entry of resources, which may stand in Envoy's Resource wrapper.
func (c *config) packed(n *protoyaml.Node) {
	var a anypb.Any
	if t := n.Get("@type"); t != nil && strings.HasSuffix(t.Value, "/envoy.service.discovery.v3.Resource") && n.Get("resource") != nil {
		n = n.Get("resource")
	}
	failed := len(c.tree.Errors)
	c.tree.Decode(n, &a)
	m := c.tree.Inner(&a)
	k := kindOf(m)
	switch {
	case len(c.tree.Errors) > failed:
		c.broken(k, n)
		return
	case k != "":
		c.keep(k, n, m)
		return
	}
	c.add(n, "", "%s cannot be a resource here: known are Listener, RouteConfiguration, Cluster, ClusterLoadAssignment, TypedExtensionConfig and Secret",
		strings.TrimPrefix(a.GetTypeUrl(), "type.googleapis.com/"))
}

func kindOf(m proto.Message) kind {
	switch m.(type) {
	case *listenerv3.Listener:
		return listeners
	case *routev3.RouteConfiguration:
		return routes
	case *clusterv3.Cluster:
		return clusters
	case *endpointv3.ClusterLoadAssignment:
		return endpoints
	case *corev3.TypedExtensionConfig:
		return extensions
	case *tlsv3.Secret:
		return secrets
	}
	return ""
}

// bootstrap reads an envoy.yaml, of which only static_resources count.
func (c *config) bootstrap(n *protoyaml.Node) {
	known := (&bootstrapv3.Bootstrap{}).ProtoReflect().Descriptor().Fields()
	var static *protoyaml.Node
	for i, key := range n.Keys {
		switch {
		case key.Value == "static_resources" || key.Value == "staticResources":
			static = n.Items[i]
		case known.ByName(protoreflect.Name(key.Value)) != nil || known.ByJSONName(key.Value) != nil:
			c.warn(key, "", "%s is ignored: the agent makes this part of Envoy's bootstrap itself", key.Value)
		default:
			c.add(key, "", "unknown field %q: a document has static_resources (as in an envoy.yaml) or resources (a list with @type)", key.Value)
		}
	}
	if static == nil {
		if len(n.Keys) == 0 {
			c.add(n, "", "a document needs static_resources (as in an envoy.yaml) or resources (a list with @type)")
		}
		return
	}
	c.static(static)
}

func (c *config) static(n *protoyaml.Node) {
	if n.Kind != protoyaml.Map && n.Kind != protoyaml.Null {
		c.add(n, "", "static_resources needs a mapping, not %s", n.Kind)
		return
	}
	for i, key := range n.Keys {
		for _, item := range c.list(n.Items[i], key.Value) {
			switch key.Value {
			case "listeners":
				c.plain(listeners, item, &listenerv3.Listener{})
			case "clusters":
				c.plain(clusters, item, &clusterv3.Cluster{})
			case "secrets":
				c.plain(secrets, item, &tlsv3.Secret{})
			}
		}
		switch key.Value {
		case "listeners", "clusters", "secrets":
		default:
			c.add(key, "", "unknown field %q in static_resources: known are listeners, clusters and secrets", key.Value)
		}
	}
}

func (c *config) plain(k kind, n *protoyaml.Node, m proto.Message) {
	failed := len(c.tree.Errors)
	c.tree.Decode(n, m)
	if len(c.tree.Errors) == failed {
		c.keep(k, n, m)
	} else {
		c.broken(k, n)
	}
}

// broken remembers that a resource is there although it could not be read, so that nothing that names it is blamed.
func (c *config) broken(k kind, n *protoyaml.Node) {
	if name := n.Get("name", "cluster_name", "clusterName"); k != "" && name != nil {
		c.index(&resource{kind: k, name: name.Value, node: n})
		return
	}
	c.incomplete = true
}

func (c *config) keep(k kind, n *protoyaml.Node, m proto.Message) {
	r := &resource{kind: k, name: nameOf(m), node: n, msg: m}
	if r.name == "" {
		c.add(n, "", "a %s needs a name", k)
		return
	}
	c.resources = append(c.resources, r)
	c.index(r)
}

func (c *config) index(r *resource) {
	if c.byName[r.kind] == nil {
		c.byName[r.kind] = map[string]*resource{}
	}
	if first := c.byName[r.kind][r.name]; first != nil {
		c.add(r.node, r.String(), "this name is already used in %s:%d; Envoy would silently take only one of them", first.node.File, first.node.Line)
		return
	}
	c.byName[r.kind][r.name] = r
}

// nameOf also gives a listener without a name one, after its address: Envoy gives such a listener a random one, with
// which an edit would close its connections.
func nameOf(m proto.Message) string {
	switch m := m.(type) {
	case *listenerv3.Listener:
		if m.GetName() == "" {
			m.Name = "listener_" + addressText(m.GetAddress())
		}
		return m.GetName()
	case *endpointv3.ClusterLoadAssignment:
		return m.GetClusterName()
	case interface{ GetName() string }:
		return m.GetName()
	}
	return ""
}
