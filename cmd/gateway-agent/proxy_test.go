package main

import (
	"io"
	"log/slog"
	"testing"

	"github.com/spf13/cobra"
)

// istiod answers the first request of a stream even when Envoy has what it asks for, so that one that says nothing is stuck; of other control
// planes nobody knows.
func TestProxyKnowsThatIstiodAnswers(t *testing.T) {
	a := &app{env: environment{"POD_NAME": "gw", "POD_NAMESPACE": "ingress", "SERVICE_ACCOUNT": "gw", "INSTANCE_IP": "10.1.2.3"}, stdout: io.Discard, stderr: io.Discard}
	call := newProxyCall(&cobra.Command{})
	call.dryRun = true
	if err := a.proxy(t.Context(), call, []string{"router"}); err != nil {
		t.Fatal(err)
	}
	for who, tt := range map[string]struct {
		settings *settings
		want     bool
	}{
		"istiod":  {call.settings, true},
		"another": {&settings{xdsAddress: "xds.example:1"}, false},
	} {
		g := &gateway{settings: tt.settings, log: slog.New(slog.DiscardHandler)}
		if err := g.openSource(); err != nil {
			t.Fatal(err)
		}
		defer g.upstream.Close()
		if got := g.relayConfig().Answers; got != tt.want {
			t.Errorf("%s always answers: %v, want %v", who, got, tt.want)
		}
	}
}
