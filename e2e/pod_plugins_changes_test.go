package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gateway-agent/gateway-agent/internal/registrytest"
	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

// TestPodWasmChanges: what istiod changes of plugins that run.
func TestPodWasmChanges(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			if !inSpace(t) {
				return
			}
			reg, private, c := startRegistry(t), startPrivateRegistry(t), newWasmPod(t)
			reg.pushBytes("moving:tag", padded("one"))
			private.pushBytes("private:v1", padded("private"))
			c.proxy["proxyStatsMatcher"] = map[string]any{"inclusionSuffixes": []string{"config_reload"}}
			const reference = "kubernetes://ingress/regcred"
			c.istiod.SetPullSecret(reference, []byte(private.dockerConfig(wrongPassword)))
			c.add(&wasmPlugin{name: "kept", uri: reg.uri("moving:tag"), value: "kept"})
			secret := c.add(&wasmPlugin{name: "secret", uri: private.uri("private:v1"), env: map[string]string{pullSecret: reference}})
			moving := c.add(&wasmPlugin{name: "moving", uri: reg.uri("moving:tag"), env: map[string]string{pullPolicy: "Always"}})
			c.publish()
			c.start("--xds-mode=" + mode)
			c.agent.waitReady()
			c.wantSecretFollowed(private, secret, reference)
			c.wantTagFollowed(reg, moving)
			c.wantRemoved(moving)
			c.wantClean(registrytest.Password, wrongPassword)
		})
	}
}

// wantSecretFollowed changes the Secret alone: from a wrong one to the right one, to none, and back.
func (c *wasmPod) wantSecretFollowed(private *registry, p *wasmPlugin, reference string) {
	t, live := c.t, func() error { return c.live(p, padded("private")) }
	t.Helper()
	c.agent.eventually(soon, "the wrong secret is told", func() error { return c.state(p, "policy", "refused the credentials") })
	right := []byte(private.dockerConfig(registrytest.Password))
	c.istiod.SetPullSecret(reference, right)
	t.Logf("live %v after the Secret was right", c.agent.eventually(soon, "the right secret is used", live))
	if err := p.place().passes(); err != nil {
		t.Error(err)
	}
	c.istiod.SetPullSecret(reference, nil)
	c.agent.eventually(soon, "a Secret that is gone is told", func() error { return c.state(p, "degraded", "empty pull secret") })
	if err := p.place().passes(); err != nil {
		t.Errorf("what worked is to stay: %v", err)
	}
	c.istiod.SetPullSecret(reference, append(right, '\n'))
	c.agent.eventually(soon, "the right secret is used again", live)
}

// wantTagFollowed moves a tag that is to be pulled Always: istiod says when, by the version of the resource.
func (c *wasmPod) wantTagFollowed(reg *registry, p *wasmPlugin) {
	t := c.t
	t.Helper()
	c.agent.eventually(soon, "the tag is pulled", func() error { return c.live(p, padded("one")) })
	reg.pushBytes("moving:tag", padded("two"))
	reg.proxy.Forget()
	p.value = "of the same version"
	c.publish()
	c.wantInDump(p.value)
	c.agent.eventually(soon, "with the same version, which is none, the same module is live", func() error { return c.live(p, padded("one")) })
	if asked := reg.proxy.Requests("/"); len(asked) > 0 {
		t.Errorf("the registry was asked though the version has not changed: %v", asked)
	}
	p.env[resourceVersion] = "8"
	c.publish()
	c.agent.eventually(soon, "the moved tag is live", func() error { return c.live(p, padded("two")) })
	reg.proxy.Forget()
	before := c.reloads(p)
	p.env[resourceVersion] = "9"
	c.publish()
	c.agent.eventually(soon, "the registry is asked once more", func() error {
		if n := len(reg.proxy.Requests("/manifests/")); n != 1 {
			return fmt.Errorf("%d requests", n)
		}
		return nil
	})
	c.agent.eventually(soon, "the same module is live", func() error { return c.live(p, padded("two")) })
	if after := c.reloads(p); before == "" || after != before {
		t.Errorf("a tag that has not moved: Envoy's %q became %q", before, after)
	}
	if err := c.live(c.plugins[0], padded("one")); err != nil {
		t.Errorf("who did not say Always: %v", err)
	}
}

// reloads is Envoy's count of what it was given for a plugin.
func (c *wasmPod) reloads(p *wasmPlugin) string {
	c.t.Helper()
	_, stats, _, err := get("http://" + podAdmin + "/stats?filter=config_reload$")
	if err != nil {
		c.t.Fatal(err)
	}
	for line := range strings.Lines(stats) {
		if strings.Contains(line, p.resource()) {
			return line
		}
	}
	return ""
}

func (c *wasmPod) wantInDump(text string) {
	c.t.Helper()
	c.agent.eventually(soon, text+" is in Envoy's configuration", func() error {
		if dump := c.dump(); !strings.Contains(dump, text) {
			return fmt.Errorf("it is not, in %d bytes", len(dump))
		}
		return nil
	})
}

// wantRemoved deletes a plugin, of which istiod says nothing but in the listeners.
func (c *wasmPod) wantRemoved(p *wasmPlugin) {
	t := c.t
	t.Helper()
	c.remove(p)
	c.publish()
	c.agent.eventually(soon, "Envoy and the agent have forgotten the plugin", func() error {
		if _, there := c.agent.plugins()[p.resource()]; there {
			return fmt.Errorf("it is in the status")
		}
		if strings.Contains(c.dump(), p.resource()) {
			return fmt.Errorf("it is in Envoy's configuration")
		}
		return nil
	})
	c.agent.eventually(soon, "istiod is told", func() error {
		all := c.istiod.Requests(xdstest.ECDS)
		dropped := slices.ContainsFunc(all, func(r xdstest.Request) bool { return slices.Contains(r.Unnames, p.resource()) })
		if last := all[len(all)-1]; !dropped && (len(last.Names) == 0 || slices.Contains(last.Names, p.resource())) {
			return fmt.Errorf("the last request was %v", last)
		}
		return nil
	})
	if err := c.plugins[0].place().passes(); err != nil {
		t.Errorf("another plugin: %v", err)
	}
}
