package standalone

import (
	"cmp"
	"path/filepath"
	"slices"

	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/proto"
)

// Reference is a Wasm module that a configuration names and the agent brings.
type Reference struct {
	// URL is oci://, https:// or http://, or file:// for a local file.
	URL string
	// SHA256 is the digest that the configuration wants, as it is written there; "": none.
	SHA256 string
	// File and Line are where it is written.
	File string
	Line int
	// Resource names what it stands in: "listener l1".
	Resource string
}

// References lists the modules that the configuration files in dir name, by place. Modules that Envoy fetches itself are left out. The error
// holds every problem that may hide a reference, each as "file:line: reason"; what was found is returned with it.
func References(dir string) ([]Reference, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	contents, err := readDir(abs)
	if err != nil {
		return nil, err
	}
	c := newConfig(abs)
	c.read(contents.files)
	c.absolutePaths()
	c.checkModules()
	var found []Reference
	for _, r := range c.resources {
		movable := c.movable(r)
		c.tree.Walk(r.msg, func(m proto.Message) bool {
			p, ok := m.(*wasmv3.PluginConfig)
			if !ok {
				return true
			}
			if ref := c.moduleOf(r, p); ref.URL != "" && movable[p] && !isBuiltIn(p) {
				found = append(found, ref)
			}
			return false
		})
	}
	slices.SortFunc(found, func(a, b Reference) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.URL, b.URL),
			cmp.Compare(a.SHA256, b.SHA256), cmp.Compare(a.Resource, b.Resource))
	})
	return slices.Compact(found), joined(sorted(c.problems))
}

// moduleOf returns what p names; its URL is empty when that is nothing the agent brings.
func (c *config) moduleOf(r *resource, p *wasmv3.PluginConfig) Reference {
	code := p.GetVmConfig().GetCode()
	if remote := code.GetRemote(); remote != nil {
		n := c.fieldNode(remote.GetHttpUri(), "uri", r)
		return Reference{URL: remote.GetHttpUri().GetUri(), SHA256: remote.GetSha256(), File: n.File, Line: n.Line, Resource: r.String()}
	}
	if name := code.GetLocal().GetFilename(); name != "" {
		n := c.fieldNode(code.GetLocal(), "filename", r)
		return Reference{URL: "file://" + name, File: n.File, Line: n.Line, Resource: r.String()}
	}
	return Reference{}
}
