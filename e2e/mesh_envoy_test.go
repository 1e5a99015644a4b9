package e2e

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// TestEnvoyIsNotIstios: what istiod sends by default needs Istio's build of Envoy. Who took another hears what to do about it.
func TestEnvoyIsNotIstios(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	items := p.items()
	const statistics = `- name: istio.stats
          typed_config: { "@type": type.googleapis.com/udpa.type.v1.TypedStruct, type_url: type.googleapis.com/stats.PluginConfig }
        - name: envoy.filters.http.router`
	items[0] = strings.Replace(items[0], "- name: envoy.filters.http.router", statistics, 1)
	p.set(items...)
	p.launch()
	p.agent.eventually(20*time.Second, "the remedy is told", func() error {
		_, body, _, err := get("http://" + p.agent.status + "/healthz/ready")
		if err == nil && !(strings.Contains(body, "istio.stats") && strings.Contains(body, "only Istio's build of Envoy has that")) {
			err = errors.New(body)
		}
		return err
	})
}
