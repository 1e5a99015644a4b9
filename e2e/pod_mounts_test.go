package e2e

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gateway-agent/gateway-agent/internal/testca"
)

// TestPodWithoutMounts: a Deployment that was written by hand, or long ago, lacks what newer ones mount. pilot-agent serves there all the same,
// if without certificates and plugins.
func TestPodWithoutMounts(t *testing.T) {
	if !inSpace(t) {
		return
	}
	reg := startRegistry(t)
	reg.push("hello:v1", helloModule(t, "v1"))
	p := istioPlugin("hello", reg.uri("hello:v1"), "in memory", "1")
	c := newContainer(t)
	c.secured, c.plugin = true, &p
	edge := c.ca.Issue(t, testca.Leaf{Hosts: []string{"edge.test"}})
	c.istiod.SetSecret(edgeSecret, "ingress", edge.CertPEM, edge.KeyPEM)
	c.publish()
	missing := map[string]bool{"var/lib/istio/data": true, spiffeUDS: true}
	for name := range missing {
		if err := unix.Mount("", filepath.Join(c.root, name), "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
	}
	c.start()
	c.agent.eventually(compiled, "everything is served", func() error {
		return errors.Join(wantHeader(podURL, "x-hello", "in memory"), c.peer(c.ca, c.ca))
	})
	c.wantEdge(edge)
	c.agent.waitReady()
	remarks := c.remarks()
	for name := range missing {
		if !strings.Contains(strings.Join(remarks, "\n"), "/"+name+" cannot be written to: ") {
			t.Errorf("nothing is told of %s: %q", name, remarks)
		}
	}
	if len(remarks) != len(missing) {
		t.Errorf("remarks %q, want %d", remarks, len(missing))
	}
	c.agent.kill()
	c.env["GATEWAY_AGENT_DATA_DIR"] = "/var/lib/istio/data"
	c.start()
	if code := c.agent.wait(10 * time.Second); code != 1 || !strings.Contains(c.agent.log.String(), "open module store /var/lib/istio/data") {
		t.Errorf("with a directory that was chosen: exit code %d, want 1 and the reason", code)
	}
}
