package envoy

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestWithoutLater(t *testing.T) {
	all := []string{"--drain-strategy", "immediate", "--file-flush-min-size-kb", "4", "--file-flush-min-size-kb=8", "-l", "off"}
	most := []string{"--drain-strategy", "immediate", "-l", "off"}
	for version, want := range map[string][]string{
		"": all, "1.37.0": all, "1.40.0-dev": all, "2.0.0": all, "1.36.9": most, "1.36.0-dev": most, "1.30.1": most,
	} {
		kept, ignored := withoutLater(all, version)
		if diff := cmp.Diff(want, kept); diff != "" {
			t.Errorf("arguments for %q (-want +got):\n%s", version, diff)
		}
		if told := len(ignored) > 0; told != (len(kept) < len(all)) || len(ignored) > 1 {
			t.Errorf("ignored for %q: %q", version, ignored)
		}
	}
	if kept, ignored := withoutLater([]string{"--file-flush-min-size-kb"}, "1.36.0"); len(kept) > 0 || len(ignored) != 1 {
		t.Errorf("a flag without its value: %q kept, %q ignored", kept, ignored)
	}
}

// TestOldEnvoyIsSparedNewFlags: the stand-in for an Envoy fails when it gets the flag, as a real one does.
func TestOldEnvoyIsSparedNewFlags(t *testing.T) {
	file := script(t, `case "$*" in *flush*) exit 1;; esac; exec sleep 60`)
	r := run(t, Config{Path: file, Version: "1.36.4", Bootstrap: "b", Admin: "/nonexistent", KillGrace: 100 * time.Millisecond, Args: []string{"--file-flush-min-size-kb", "4"}})
	r.awaitState(StateStarting)
	eventually(t, 5*time.Second, "a warning", func() bool { return strings.Contains(r.logs.String(), "flag=--file-flush-min-size-kb") })
	r.stop()
	if err := r.await(5 * time.Second); err != nil || strings.Contains(r.logs.String(), "crashed") {
		t.Errorf("Run = %v; want nil, without a crash", err)
	}
}
