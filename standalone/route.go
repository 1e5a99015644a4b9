package standalone

import (
	"slices"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// renameRoutes makes the per-route settings of filters that got another name follow them. Discovered routes may be
// shared by listeners, so there the old name stays beside the new ones.
func (c *config) renameRoutes(found []*placement) {
	for _, p := range found {
		h, ok := p.chain.(*hcmv3.HttpConnectionManager)
		if !ok || p.derived == p.name {
			continue
		}
		keep := slices.ContainsFunc(found, func(o *placement) bool { return o.chain == p.chain && o.derived == p.name })
		if inline := h.GetRouteConfig(); inline != nil {
			c.copySettings(inline, p.name, p.derived)
			if !keep {
				defer c.dropSettings(inline, p.name)
			}
		}
		if r := c.byName[routes][h.GetRds().GetRouteConfigName()]; r != nil && r.msg != nil {
			c.copySettings(r.msg, p.name, p.derived)
		}
	}
}

func (c *config) copySettings(m proto.Message, from, to string) {
	c.perFilter(m, func(settings map[string]*anypb.Any) {
		if v, ok := settings[from]; ok {
			settings[to] = v
		}
	})
}

func (c *config) dropSettings(m proto.Message, name string) {
	c.perFilter(m, func(settings map[string]*anypb.Any) { delete(settings, name) })
}

func (c *config) perFilter(m proto.Message, f func(map[string]*anypb.Any)) {
	c.tree.Walk(m, func(m proto.Message) bool {
		switch m := m.(type) {
		case *routev3.RouteConfiguration:
			f(m.GetTypedPerFilterConfig())
		case *routev3.VirtualHost:
			f(m.GetTypedPerFilterConfig())
		case *routev3.Route:
			f(m.GetTypedPerFilterConfig())
		case *routev3.WeightedCluster_ClusterWeight:
			f(m.GetTypedPerFilterConfig())
		}
		return true
	})
}
