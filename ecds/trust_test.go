package ecds

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// What worked before a restart goes to Envoy without waiting for the store, so its file must be known to be whole before.
func TestEngineDistrustsDamagedModules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		q := v2
		q.name = "q"
		damaged := module("oci://r/v1").Digest
		asked := make(chan string, 2) // one for each module
		b := newBench(t, Config{
			State: &disk{data: savedBy(t, v1, q)}, Log: slog.New(slog.NewTextHandler(&out, nil)),
			Whole: func(_ context.Context, digest, _ string) bool {
				time.Sleep(time.Second) // it is large
				asked <- digest
				return digest != damaged
			},
		})
		b.store.set("oci://r/v1", takes(5*time.Second)) // it is pulled again
		b.store.set("oci://r/v2", fails(errBusy))
		v := b.open(1, "p", "q")
		b.offer(1, 1, v1, q)
		time.Sleep(time.Minute)
		v.wantLog("1s q oci://r/v2 c2", "6s p oci://r/v1 c1", "6s ACK 1")
		if len(asked) != 2 {
			t.Errorf("the store was asked %d times, want once for each module", len(asked))
		}
		if text := out.String(); !strings.Contains(text, "gone or damaged") || !strings.Contains(text, damaged) {
			t.Errorf("log: %s", text)
		}
	})
}
