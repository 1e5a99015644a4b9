package standalone

import (
	"path/filepath"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
)

// absolutePaths resolves the relative names of files that Envoy or the agent will read.
func (c *config) absolutePaths() {
	for _, r := range c.resources {
		c.tree.Walk(r.msg, func(m proto.Message) bool {
			switch m := m.(type) {
			case *corev3.DataSource:
				if f, ok := m.GetSpecifier().(*corev3.DataSource_Filename); ok {
					f.Filename = c.absolute(f.Filename)
				}
			case *corev3.WatchedDirectory:
				m.Path = c.absolute(m.GetPath())
			case *corev3.PathConfigSource:
				m.Path = c.absolute(m.GetPath())
			}
			return true
		})
	}
}

func (c *config) absolute(path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(c.dir, path)
}
