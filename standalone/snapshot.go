package standalone

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/proto"
)

// served are the kinds that go to Envoy over ADS; secrets go through the agent's secret service.
var served = []kind{clusters, endpoints, listeners, routes, extensions}

var typeURLs = map[kind]string{
	clusters:   resourcev3.ClusterType,
	endpoints:  resourcev3.EndpointType,
	listeners:  resourcev3.ListenerType,
	routes:     resourcev3.RouteType,
	extensions: resourcev3.ExtensionConfigType,
}

func kindOfURL(typeURL string) kind {
	for k, url := range typeURLs {
		if url == typeURL {
			return k
		}
	}
	return ""
}

// entry is one resource as it is served, with the place it came from.
type entry struct {
	msg  proto.Message
	sum  string
	file string
	line int
}

// snapshot is a state of the configuration; it is never changed.
type snapshot map[kind]map[string]entry

func (c *config) snapshot() (snapshot, error) {
	s := snapshot{}
	for _, k := range served {
		s[k] = map[string]entry{}
	}
	for _, r := range c.resources {
		if s[r.kind] == nil {
			continue
		}
		bytes, err := proto.MarshalOptions{Deterministic: true}.Marshal(r.msg)
		if err != nil {
			return nil, fmt.Errorf("marshal %s: %w", r, err)
		}
		sum := sha256.Sum256(bytes)
		s[r.kind][r.name] = entry{msg: r.msg, sum: string(sum[:]), file: r.node.File, line: r.node.Line}
	}
	return s, nil
}

// version depends on the content of one kind only.
func (s snapshot) version(k kind) string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(s[k])) {
		fmt.Fprintf(h, "%q", name)
		h.Write([]byte(s[k][name].sum))
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// total is the version of everything.
func (s snapshot) total() string {
	h := sha256.New()
	for _, k := range served {
		fmt.Fprintln(h, k, s.version(k))
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// over is s with what only old has of the given kinds added.
func (s snapshot) over(old snapshot, kinds ...kind) snapshot {
	merged := maps.Clone(s)
	for _, k := range kinds {
		merged[k] = maps.Clone(old[k])
		if merged[k] == nil {
			merged[k] = map[string]entry{}
		}
		maps.Copy(merged[k], s[k])
	}
	return merged
}

// with is s, except that the given kinds are taken from other.
func (s snapshot) with(other snapshot, kinds ...kind) snapshot {
	mixed := maps.Clone(s)
	for _, k := range kinds {
		mixed[k] = other[k]
	}
	return mixed
}

// cached is the snapshot in the form of the cache that serves it.
func (s snapshot) cached() *cachev3.Snapshot {
	out := &cachev3.Snapshot{}
	for _, k := range served {
		items := make([]types.Resource, 0, len(s[k]))
		for _, e := range s[k] {
			items = append(items, e.msg)
		}
		out.Resources[cachev3.GetResponseType(typeURLs[k])] = cachev3.NewResources(s.version(k), items)
	}
	return out
}

func (s snapshot) counts() map[string]int {
	return map[string]int{
		"listeners": len(s[listeners]), "routes": len(s[routes]), "clusters": len(s[clusters]),
		"endpoints": len(s[endpoints]), "extension_configs": len(s[extensions]),
	}
}

func (s snapshot) addresses() map[string]string {
	out := map[string]string{}
	for name, e := range s[listeners] {
		out[name] = addressText(e.msg.(*listenerv3.Listener).GetAddress())
	}
	return out
}

// newEndpoints are the endpoints that clusters of s will ask for and those of old did not.
func (s snapshot) newEndpoints(old snapshot) []string {
	var names []string
	for name, e := range s[clusters] {
		c := e.msg.(*clusterv3.Cluster)
		if _, had := old[clusters][name]; had || c.GetType() != clusterv3.Cluster_EDS {
			continue
		}
		if service := c.GetEdsClusterConfig().GetServiceName(); service != "" {
			name = service
		}
		if _, ok := s[endpoints][name]; ok {
			names = append(names, name)
		}
	}
	return names
}
