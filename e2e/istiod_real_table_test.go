package e2e

import "strings"

const (
	nodeID    = "router~10.1.2.3~gw-abc.ingress~ingress.svc.cluster.local"
	edgeName  = "kubernetes://edge-cert"
	openName  = "extensions.istio.io/trafficextension/ingress.open~istio-translated-wasmplugin"
	closeName = "extensions.istio.io/trafficextension/ingress.closed~istio-translated-wasmplugin"
	noneName  = "extensions.istio.io/trafficextension/ingress.none~istio-translated-wasmplugin"
	routeName = "http.8080"
	edsName   = "outbound|80||origin.test"
)

// conversation is what one client says on one stream.
type conversation struct {
	name    string
	way     string            // "secure" with a token; "plain"; "certificate" instead of a token
	headers map[string]string // over the usual ones; "" removes one
	id      string            // node id; default nodeID
	node    map[string]any    // metadata over the usual one
	silent  bool              // the first request has no node
	only    string            // "delta" or "sotw"; default both
	asks    []ask
}

var conversations = []conversation{
	{name: "no node", silent: true, asks: []ask{{kind: "CDS"}}},
	{name: "an id of one part", id: "gw-abc", asks: []ask{{kind: "CDS"}}},
	{name: "an id of five parts", id: nodeID + "~x", asks: []ask{{kind: "CDS"}}},
	{name: "an unknown type of node", id: strings.Replace(nodeID, "router", "gateway", 1), asks: []ask{{kind: "CDS"}}},
	{name: "no address", id: strings.Replace(nodeID, "10.1.2.3", "x", 1), node: map[string]any{"INSTANCE_IPS": nil}, asks: []ask{{kind: "CDS"}}},
	{name: "an address in the id alone", node: map[string]any{"INSTANCE_IPS": nil}, asks: []ask{{kind: "CDS"}}},
	{name: "an address in INSTANCE_IPS alone", id: strings.Replace(nodeID, "10.1.2.3", "x", 1), asks: []ask{{kind: "CDS"}}},
	{name: "bad INSTANCE_IPS", node: map[string]any{"INSTANCE_IPS": "x"}, asks: []ask{{kind: "CDS"}}},
	{name: "one of INSTANCE_IPS bad", id: strings.Replace(nodeID, "10.1.2.3", "x", 1), node: map[string]any{"INSTANCE_IPS": "10.1.2.3,x"}, asks: []ask{{kind: "CDS"}}},
	{name: "metadata of a wrong type", node: map[string]any{"NAMESPACE": 1.0}, asks: []ask{{kind: "CDS"}}},
	{name: "another namespace", node: map[string]any{"NAMESPACE": "other"}, asks: []ask{{kind: "CDS"}}},
	{name: "no namespace", node: map[string]any{"NAMESPACE": nil}, asks: []ask{{kind: "CDS"}}},
	{
		name: "no namespace, another domain", id: strings.Replace(nodeID, "ingress.svc", "other.svc", 1), node: map[string]any{"NAMESPACE": nil},
		asks: []ask{{kind: "CDS"}},
	},
	{
		name: "no namespace, a domain of one part", id: strings.Replace(nodeID, "ingress.svc.cluster.local", "local", 1),
		node: map[string]any{"NAMESPACE": nil}, asks: []ask{{kind: "CDS"}},
	},
	{name: "another service account", node: map[string]any{"SERVICE_ACCOUNT": "other"}, asks: []ask{{kind: "CDS"}}},
	{name: "no service account", node: map[string]any{"SERVICE_ACCOUNT": nil}, asks: []ask{{kind: "CDS"}}},
	{name: "no version", node: map[string]any{"ISTIO_VERSION": nil}, asks: []ask{{kind: "LDS"}}},
	{name: "no token", headers: map[string]string{"authorization": ""}, asks: []ask{{kind: "CDS"}}},
	{name: "a wrong token", headers: map[string]string{"authorization": "Bearer other"}, asks: []ask{{kind: "CDS"}}},
	{name: "a token without a scheme", headers: map[string]string{"authorization": "token-1"}, asks: []ask{{kind: "CDS"}}},
	{name: "an unknown cluster", headers: map[string]string{"clusterid": "elsewhere"}, asks: []ask{{kind: "CDS"}}},
	{name: "no cluster header", headers: map[string]string{"clusterid": ""}, asks: []ask{{kind: "CDS"}}},
	{name: "a certificate", way: "certificate", headers: map[string]string{"authorization": ""}, asks: []ask{{kind: "CDS"}, {kind: "SDS", names: []string{edgeName}}}},
	{
		name: "a certificate, an unknown cluster", way: "certificate", headers: map[string]string{"authorization": "", "clusterid": "elsewhere"},
		asks: []ask{{kind: "CDS"}},
	},
	{name: "a certificate and another namespace", way: "certificate", node: map[string]any{"NAMESPACE": "other"}, asks: []ask{{kind: "CDS"}}},
	{name: "plain", way: "plain", headers: map[string]string{"authorization": ""}, asks: []ask{
		{kind: "CDS"},
		{kind: "SDS", names: []string{edgeName}},
		{kind: "ECDS", names: []string{openName, closeName}},
	}},
	{name: "plain, an unknown cluster, a wrong token", way: "plain", headers: map[string]string{"authorization": "Bearer x", "clusterid": "elsewhere"}, asks: []ask{{kind: "CDS"}}},
	{name: "plain, another namespace", way: "plain", node: map[string]any{"NAMESPACE": "other"}, asks: []ask{{kind: "CDS"}}},
	{name: "what a gateway asks", asks: []ask{
		{kind: "CDS"},
		{kind: "CDS", nonce: "last"},
		{kind: "LDS"},
		{kind: "LDS", nonce: "last"},
		{kind: "RDS", names: []string{routeName}},
		{kind: "EDS", names: []string{edsName}},
		{kind: "ECDS", names: []string{openName}},
		{kind: "SDS", names: []string{edgeName}},
		{kind: "PCDS"},
		{kind: "health"},
	}},
	{name: "health first", silent: true, asks: []ask{{kind: "health", hasty: true}, {kind: "CDS", node: routerNode(nodeID, nil)}}},
	{name: "a type nobody knows", asks: []ask{{kind: "CDS"}, {kind: "other"}, {kind: "other", names: []string{"x"}}}},
	{name: "the node again", asks: []ask{{kind: "CDS"}, {kind: "LDS", node: routerNode(nodeID, nil)}}},
	{name: "names that are not there", asks: []ask{
		{kind: "RDS", names: []string{"http.9999"}},
		{kind: "EDS", names: []string{"outbound|80||nobody.test"}},
		{kind: "ECDS", names: []string{"nobody"}},
		{kind: "SDS", names: []string{"kubernetes://nobody"}},
	}},
	{name: "names of which one is there", asks: []ask{
		{kind: "RDS", names: []string{"http.9999", routeName}},
		{kind: "EDS", names: []string{"outbound|80||nobody.test", edsName}},
		{kind: "ECDS", names: []string{"nobody", openName}},
		{kind: "SDS", names: []string{"kubernetes://nobody", edgeName}},
	}},
	{name: "secrets", asks: []ask{
		{kind: "SDS", names: []string{"kubernetes://ingress/edge-cert"}},
		{kind: "SDS", names: []string{edgeName}},
		{kind: "SDS", names: []string{"kubernetes://other/edge-cert"}},
		{kind: "SDS", names: []string{"kubernetes://broken"}},
		{kind: "SDS", names: []string{"default"}},
		{kind: "SDS", names: []string{"kubernetes://edge-cert-cacert"}},
	}},
	{name: "secrets without CLUSTER_ID", node: map[string]any{"CLUSTER_ID": nil}, asks: []ask{{kind: "SDS", names: []string{edgeName}}}},
	{name: "plugins without CLUSTER_ID", node: map[string]any{"CLUSTER_ID": nil}, asks: []ask{
		{kind: "ECDS", names: []string{openName}},
		{kind: "ECDS", names: []string{openName, closeName}},
	}},
	{name: "plugins of another cluster", node: map[string]any{"CLUSTER_ID": "elsewhere"}, asks: []ask{{kind: "ECDS", names: []string{closeName}}}},
	{name: "plugins and their secrets", asks: []ask{{kind: "ECDS", names: []string{closeName, noneName}}}},
	{name: "an old nonce", asks: []ask{
		{kind: "ECDS", names: []string{openName}},
		{kind: "ECDS", names: []string{openName, closeName}, nonce: "old"},
		{kind: "ECDS", names: []string{openName, closeName}, nonce: "last"},
	}},
	{name: "NACK", asks: []ask{
		{kind: "ECDS", names: []string{openName}},
		{kind: "ECDS", names: []string{openName, closeName}, nonce: "last", err: "no"},
		{kind: "ECDS", names: []string{openName}, nonce: "last"},
		{kind: "ECDS", names: []string{openName, closeName}, nonce: "last"},
	}},
	{name: "without a nonce again", asks: []ask{
		{kind: "ECDS", names: []string{openName}},
		{kind: "ECDS", names: []string{openName}},
		{kind: "ECDS", names: []string{openName, closeName}},
		{kind: "LDS"},
		{kind: "LDS"},
	}},
	{name: "a nonce at once", asks: []ask{{kind: "CDS", nonce: "of another stream"}, {kind: "ECDS", names: []string{openName}, nonce: "of another stream"}}},
	{name: "fewer names", only: "sotw", asks: []ask{
		{kind: "ECDS", names: []string{openName, closeName}},
		{kind: "ECDS", names: []string{openName}, nonce: "last"},
		{kind: "ECDS", nonce: "last"},
		{kind: "ECDS", names: []string{openName}, nonce: "last"},
	}},
	{name: "no names at once", asks: []ask{{kind: "ECDS"}, {kind: "RDS"}, {kind: "ECDS", names: []string{openName}}}},
	{name: "unsubscribe", only: "delta", asks: []ask{
		{kind: "ECDS", names: []string{openName, closeName}},
		{kind: "ECDS", unnames: []string{closeName}},
		{kind: "ECDS", unnames: []string{closeName}},
		{kind: "ECDS", names: []string{closeName}},
		{kind: "RDS", names: []string{routeName}},
		{kind: "RDS", unnames: []string{routeName}},
		{kind: "SDS", names: []string{edgeName}},
		{kind: "SDS", unnames: []string{edgeName}},
		{kind: "EDS", names: []string{edsName}},
		{kind: "EDS", unnames: []string{edsName}},
	}},
	{name: "a name and without another", only: "delta", asks: []ask{
		{kind: "ECDS", names: []string{openName}},
		{kind: "ECDS", names: []string{closeName}, unnames: []string{openName}},
		{kind: "ECDS", names: []string{openName}, nonce: "last"},
	}},
	{name: "what the client has", only: "delta", asks: []ask{
		{kind: "CDS", initial: []string{"outbound|80||gone.test"}},
		{kind: "LDS", names: []string{"*"}, initial: []string{"0.0.0.0_8080", "0.0.0.0_9999"}},
		{kind: "ECDS", names: []string{openName}, initial: []string{closeName, "nobody"}},
		{kind: "SDS", names: []string{edgeName}, initial: []string{edgeName, "kubernetes://nobody"}},
		{kind: "RDS", names: []string{routeName}, initial: []string{"http.9999"}},
		{kind: "EDS", initial: []string{edsName}},
	}},
	{name: "endpoints before clusters", asks: []ask{
		{kind: "EDS", names: []string{edsName}},
		{kind: "EDS", names: []string{edsName}, nonce: "last"},
		{kind: "CDS"},
		{kind: "EDS", names: []string{edsName}, nonce: "last"},
		{kind: "EDS", names: []string{edsName}, nonce: "last"},
	}},
	{name: "routes before listeners", asks: []ask{
		{kind: "RDS", names: []string{routeName}},
		{kind: "LDS"},
		{kind: "RDS", names: []string{routeName}, nonce: "last"},
	}},
}
