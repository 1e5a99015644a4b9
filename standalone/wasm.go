package standalone

import (
	"encoding/hex"
	"fmt"
	"net/url"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	httpwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	netwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/wasm/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"github.com/google/go-containerregistry/pkg/name"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

const remotePath = "envoy.extensions.wasm.v3.VmConfig.code envoy.config.core.v3.AsyncDataSource.remote envoy.config.core.v3.RemoteDataSource."

// tolerated: the agent pulls modules, so what only Envoy's own fetch needs may be absent.
func tolerated(path []string) bool {
	text := strings.Join(path, " ")
	i := strings.LastIndex(text, remotePath)
	if i < 0 {
		return false
	}
	switch text[i+len(remotePath):] {
	case "sha256",
		"http_uri envoy.config.core.v3.HttpUri.cluster",
		"http_uri envoy.config.core.v3.HttpUri.http_upstream_type",
		"http_uri envoy.config.core.v3.HttpUri.timeout":
		return true
	}
	return false
}

// placement is a Wasm filter written in a listener.
type placement struct {
	listener *resource
	chain    any // the *HttpConnectionManager or the filter chain, for order and for routes
	name     string
	config   *anypb.Any
	content  string // type and bytes: equal for equal filters
	derived  string
	move     func(name string, source *corev3.ExtensionConfigSource)
}

// wasmFilters moves the Wasm filters that are written in listeners to extension configs.
func (c *config) wasmFilters() {
	c.checkModules()
	var found []*placement
	for _, r := range c.of(listeners) {
		c.tree.Walk(r.msg, func(m proto.Message) bool {
			switch m := m.(type) {
			case *hcmv3.HttpConnectionManager:
				found = append(found, c.httpFilters(r, m)...)
			case *listenerv3.FilterChain:
				found = append(found, c.networkFilters(r, m)...)
			}
			return true
		})
	}
	c.nameFilters(found)
	c.renameRoutes(found)
	for _, p := range found {
		p.move(p.derived, wasmSource(p.config.GetTypeUrl()))
		if c.byName[extensions][p.derived] == nil {
			c.keep(extensions, p.listener.node, &corev3.TypedExtensionConfig{Name: p.derived, TypedConfig: p.config})
			c.resources[len(c.resources)-1].node = c.lineOf(c.tree.Inner(p.config), p.listener)
		}
	}
}

func (c *config) httpFilters(r *resource, m *hcmv3.HttpConnectionManager) []*placement {
	var found []*placement
	for _, f := range m.GetHttpFilters() {
		w, ok := c.tree.Inner(f.GetTypedConfig()).(*httpwasmv3.Wasm)
		if !ok || isBuiltIn(w.GetConfig()) {
			continue
		}
		found = append(found, &placement{
			listener: r, chain: m, name: f.GetName(), config: f.GetTypedConfig(), content: c.content(f.GetTypedConfig()),
			move: func(name string, s *corev3.ExtensionConfigSource) {
				f.Name, f.ConfigType = name, &hcmv3.HttpFilter_ConfigDiscovery{ConfigDiscovery: s}
			},
		})
	}
	return found
}

func (c *config) networkFilters(r *resource, m *listenerv3.FilterChain) []*placement {
	var found []*placement
	for _, f := range m.GetFilters() {
		w, ok := c.tree.Inner(f.GetTypedConfig()).(*netwasmv3.Wasm)
		if !ok || isBuiltIn(w.GetConfig()) {
			continue
		}
		found = append(found, &placement{
			listener: r, chain: m, name: f.GetName(), config: f.GetTypedConfig(), content: c.content(f.GetTypedConfig()),
			move: func(name string, s *corev3.ExtensionConfigSource) {
				f.Name, f.ConfigType = name, &listenerv3.Filter_ConfigDiscovery{ConfigDiscovery: s}
			},
		})
	}
	return found
}

// isBuiltIn: the null runtime runs code that is linked into Envoy; there is no module.
func isBuiltIn(p *wasmv3.PluginConfig) bool {
	return p.GetVmConfig().GetRuntime() == "envoy.wasm.runtime.null"
}

func (c *config) content(a *anypb.Any) string {
	if err := c.tree.Seal(a); err != nil {
		c.add(c.tree.Node(a), "", "%v", err)
	}
	return a.GetTypeUrl() + "\n" + string(a.GetValue())
}

func wasmSource(typeURL string) *corev3.ExtensionConfigSource {
	rbac := strings.Replace(typeURL, ".wasm.v3.Wasm", ".rbac.v3.RBAC", 1)
	return &corev3.ExtensionConfigSource{
		ConfigSource: &corev3.ConfigSource{
			ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
			ResourceApiVersion:    corev3.ApiVersion_V3,
		},
		TypeUrls: []string{typeURL, rbac},
	}
}

// nameFilters gives each filter the name of its extension config. Envoy asks for a filter by the filter's name, so
// different filters need different names; the user's own is kept where it can be.
func (c *config) nameFilters(found []*placement) {
	contents := map[string]map[string]bool{}
	note := func(name, content string) {
		if contents[name] == nil {
			contents[name] = map[string]bool{}
		}
		contents[name][content] = true
	}
	for _, r := range c.of(extensions) {
		note(r.name, c.content(r.msg.(*corev3.TypedExtensionConfig).GetTypedConfig()))
	}
	for _, p := range found {
		note(p.name, p.content)
	}
	owner := map[string]string{} // derived name → content
	for _, p := range found {
		if len(contents[p.name]) == 1 {
			p.derived = p.name
			continue
		}
		p.derived = p.name + "@" + p.listener.name
		for i := 2; ; i++ {
			if content, used := owner[p.derived]; (!used || content == p.content) && contents[p.derived] == nil {
				break
			}
			p.derived = fmt.Sprintf("%s@%s#%d", p.name, p.listener.name, i)
		}
		owner[p.derived] = p.content
	}
}

// checkModules checks every remote module's reference, wherever it stands, and refuses those that neither the agent nor
// Envoy could fetch.
func (c *config) checkModules() {
	for _, r := range c.resources {
		movable := c.movable(r)
		c.tree.Walk(r.msg, func(m proto.Message) bool {
			if p, ok := m.(*wasmv3.PluginConfig); ok {
				c.module(r, p, movable[p])
				return false
			}
			return true
		})
	}
}

// movable are the plugins that become, or are, extension configs.
func (c *config) movable(r *resource) map[*wasmv3.PluginConfig]bool {
	set := map[*wasmv3.PluginConfig]bool{}
	note := func(a *anypb.Any) {
		if w, ok := c.tree.Inner(a).(interface{ GetConfig() *wasmv3.PluginConfig }); ok {
			set[w.GetConfig()] = true
		}
	}
	c.tree.Walk(r.msg, func(m proto.Message) bool {
		switch m := m.(type) {
		case *hcmv3.HttpConnectionManager:
			for _, f := range m.GetHttpFilters() {
				note(f.GetTypedConfig())
			}
		case *listenerv3.FilterChain:
			for _, f := range m.GetFilters() {
				note(f.GetTypedConfig())
			}
		}
		return true
	})
	if ext, ok := r.msg.(*corev3.TypedExtensionConfig); ok {
		c.tree.Walk(ext, func(m proto.Message) bool {
			if p, ok := m.(*wasmv3.PluginConfig); ok {
				set[p] = true
			}
			return true
		})
	}
	return set
}

func (c *config) module(r *resource, p *wasmv3.PluginConfig, pulled bool) {
	remote := p.GetVmConfig().GetCode().GetRemote()
	if remote == nil {
		return
	}
	uri, sum := remote.GetHttpUri(), remote.GetSha256()
	if err := checkReference(uri.GetUri()); err != nil {
		c.add(c.fieldNode(uri, "uri", r), r.String(), "%v", err)
	}
	if _, err := hex.DecodeString(sum); sum != "" && (err != nil || len(sum) != 64) {
		c.add(c.fieldNode(remote, "sha256", r), r.String(), "sha256 needs 64 hexadecimal digits, not %q", sum)
	}
	if pulled {
		return
	}
	if strings.HasPrefix(uri.GetUri(), "oci://") || sum == "" || uri.GetCluster() == "" || uri.GetTimeout() == nil {
		c.add(c.lineOf(remote, r), r.String(),
			"remote Wasm can be used here only as Envoy fetches it (http, with cluster, timeout and sha256): the agent pulls modules of listeners' HTTP and network filters and of extension configs")
	}
}

// checkReference tells whether the agent could pull this.
func checkReference(ref string) error {
	if image, ok := strings.CutPrefix(ref, "oci://"); ok {
		if _, err := name.ParseReference(image); err != nil {
			return fmt.Errorf("%q is not an image: write oci://host/repository:tag or oci://host/repository@sha256:… (%w)", ref, err)
		}
		return nil
	}
	u, err := url.Parse(ref)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return fmt.Errorf("%q is not where a module can be pulled from: write oci://host/repository:tag, https://… or http://…", ref)
	}
	return nil
}
