package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/gateway-agent/gateway-agent/dns"
	"github.com/gateway-agent/gateway-agent/ecds"
	"github.com/gateway-agent/gateway-agent/envoy"
	"github.com/gateway-agent/gateway-agent/relay"
	"github.com/gateway-agent/gateway-agent/sds"
	"github.com/gateway-agent/gateway-agent/sds/identity"
	"github.com/gateway-agent/gateway-agent/standalone"
	"github.com/gateway-agent/gateway-agent/status"
)

// report is all that `status` shows; the control socket serves it as /status.
type report struct {
	Version      string                `json:"version"`
	PID          int                   `json:"pid"`
	StartedAt    time.Time             `json:"started_at"`
	Ready        bool                  `json:"ready"`
	Checks       []status.Check        `json:"checks"`
	Envoy        *envoy.Status         `json:"envoy,omitempty"` // absent with --envoy=none
	ControlPlane string                `json:"control_plane,omitempty"`
	ConfigDir    *standalone.Status    `json:"config_dir,omitempty"`
	XDS          relay.Status          `json:"xds"`
	Listeners    []string              `json:"listeners"` // that Envoy has now
	Plugins      []ecds.ResourceStatus `json:"plugins"`
	Certificates []sds.SecretStatus    `json:"certificates"`
	Identity     *identity.Status      `json:"identity,omitempty"` // absent with --identity=none
	DNS          *dns.Status           `json:"dns,omitempty"`      // absent without --dns-address
}

func (g *gateway) report(ctx context.Context) report {
	r := report{
		Version:      version,
		PID:          os.Getpid(),
		StartedAt:    g.started,
		Checks:       g.readyChecks(ctx),
		ControlPlane: g.settings.xdsAddress,
		XDS:          g.relay.Status(),
		Listeners:    g.envoyListeners(ctx),
		Certificates: g.secrets.Status(),
	}
	r.Ready = allOK(r.Checks)
	if g.envoy != nil {
		r.Envoy = new(g.envoy.Status())
	}
	if g.identity != nil {
		r.Identity = new(g.identity.Status())
	}
	if g.dns != nil {
		r.DNS = new(g.dns.Status())
	}
	if g.source != nil {
		r.ConfigDir = new(g.source.Status())
	}
	if g.plugins != nil {
		r.Plugins = g.plugins.Status()
	}
	return r
}

func allOK(checks []status.Check) bool {
	for _, check := range checks {
		if !check.OK {
			return false
		}
	}
	return true
}

// readyChecks say whether traffic should come here. All are answered from memory.
func (g *gateway) readyChecks(context.Context) []status.Check {
	checks := []status.Check{{Name: "not draining", OK: !g.draining.Load(), Reason: "the agent was asked to stop and drains"}}
	pid := 0
	if g.envoy != nil {
		state := g.envoy.Status()
		pid = state.PID
		live := state.PID != 0 && state.State == envoy.StateLive
		checks = append(checks, status.Check{Name: "envoy live", OK: live, Reason: fmt.Sprintf("Envoy is %s", state.State)})
		if least := g.settings.readyMinListeners; least > 0 {
			checks = append(checks, status.Check{
				Name: "listeners", OK: state.Filled, Reason: fmt.Sprintf("Envoy has not had %d listeners yet (--ready-min-listeners)", least),
			})
		}
	}
	ok, reason := g.relay.Ready(pid)
	checks = append(checks, status.Check{Name: "configuration accepted", OK: ok, Reason: withRemedy(reason)})
	if g.identity != nil {
		checks = append(checks, g.atFirst("identity", g.missingIdentity))
	}
	if g.settings.readyWasm {
		checks = append(checks, g.atFirst("plugins", g.missingPlugin))
	}
	if g.dns != nil {
		checks = append(checks, g.atFirst("name table", g.missingNames))
	}
	if allOK(checks) {
		g.readyAfter.CompareAndSwap(0, int64(time.Since(g.started)))
	}
	return checks
}

// withRemedy says what to do about filters that istiod sends by default and Envoy has not.
func withRemedy(reason string) string {
	if strings.Contains(reason, "Didn't find a registered implementation for 'istio.") {
		return reason + " (only Istio's build of Envoy has that: take an image with that one, or have istiod not send it, as docs/istio.md says)"
	}
	return reason
}

// atFirst is a check that only a gateway which was never ready can fail: a rollout must not end those that have what it is about.
func (g *gateway) atFirst(name string, missing func() string) status.Check {
	if g.readyAfter.Load() != 0 {
		return status.Check{Name: name, OK: true}
	}
	reason := missing()
	return status.Check{Name: name, OK: reason == "", Reason: reason}
}

// missingIdentity says why Envoy, which wants the workload's certificate or roots, has not got them: nothing that hangs on them works then.
func (g *gateway) missingIdentity() string {
	for _, name := range []string{identity.Certificate, identity.Roots} {
		if why := g.secrets.Waiting(name); why != "" {
			return "Envoy waits for the secret " + name + ": " + why
		}
	}
	return ""
}

// missingPlugin says which plugin has no module that runs, the first of them.
func (g *gateway) missingPlugin() string {
	if g.plugins == nil {
		return ""
	}
	for _, p := range g.plugins.Status() {
		if p.State != ecds.StateLive && p.State != ecds.StatePassed && p.DigestLive == "" {
			return fmt.Sprintf("%s is %s: %s (--ready-requires-wasm)", p.Name, p.State, p.Reason)
		}
	}
	return ""
}

// pluginNotes say of each plugin that does not run as the control plane wants what is wrong and what comes next.
func (g *gateway) pluginNotes() (notes []string) {
	if g.plugins == nil {
		return nil
	}
	for _, p := range g.plugins.Status() {
		if p.State == ecds.StateLive || p.State == ecds.StatePassed {
			continue
		}
		note := fmt.Sprintf("plugin %s is %s: %s", p.Name, p.State, p.Reason)
		if !p.NextRetry.IsZero() {
			note += fmt.Sprintf("; next try in %s (%d so far)", max(0, time.Until(p.NextRetry)).Round(time.Second), p.Attempts)
		}
		notes = append(notes, note)
	}
	return notes
}

// liveChecks fail only when a restart of the agent would help.
func (g *gateway) liveChecks(context.Context) []status.Check {
	if g.envoy == nil {
		return []status.Check{{Name: "agent", OK: true}}
	}
	hung, reason := g.envoy.Hung()
	return []status.Check{{Name: "envoy answers", OK: !hung, Reason: reason}}
}
