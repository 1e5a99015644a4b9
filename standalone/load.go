package standalone

import (
	"path/filepath"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
)

// load reads, checks and rewrites a directory's files. Everything it finds is in the config's findings; the resources
// may be served when there are no problems.
func load(dir string, files []file) *config {
	c := newConfig(dir)
	c.read(files)
	c.absolutePaths()
	c.checkAddresses()
	if c.incomplete {
		c.checkModules()
	} else {
		c.checkListeners()
		c.references()
		c.certificates()
		c.wasmFilters()
	}
	c.seal()
	c.problems, c.warnings = sorted(c.problems), sorted(c.warnings)
	return c
}

// of lists the readable resources of one kind in the order of the files.
func (c *config) of(k kind) []*resource {
	var list []*resource
	for _, r := range c.resources {
		if r.kind == k {
			list = append(list, r)
		}
	}
	return list
}

func (c *config) checkListeners() {
	if len(c.byName[listeners]) > 0 {
		return
	}
	c.problems = append(c.problems, Problem{File: c.dir, Reason: "no listener in any " + filepath.Join(c.dir, "*.yaml|yml|json") +
		": put at least one under static_resources.listeners, or into a resources list with @type type.googleapis.com/envoy.config.listener.v3.Listener"})
}

func (c *config) seal() {
	for _, r := range c.resources {
		if err := c.tree.Seal(r.msg); err != nil {
			c.add(r.node, r.String(), "%v", err)
		}
	}
}

func (c *config) secrets() []*tlsv3.Secret {
	var list []*tlsv3.Secret
	for _, r := range c.of(secrets) {
		list = append(list, r.msg.(*tlsv3.Secret))
	}
	return list
}
