package relay

import (
	"fmt"
	"log/slog"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

// Hundreds of streams, each with its subscriptions, its responses and its end, leave nothing behind.
func TestReconnectsLeaveNothing(t *testing.T) {
	for _, delta := range []bool{false, true} {
		t.Run(protocolName(delta), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				own := Own{TypeURL: typePCDS, Handle: func([]*anypb.Any) error { return nil }}
				r := newRigWith(t, nil, delta, true, func(c *Config) { c.Own, c.Log = []Own{own}, slog.New(slog.DiscardHandler) })
				r.engine.tr = nil
				visit := func(n int) {
					up := r.open()
					r.envoy.Want(xdstest.CDS)
					up.Recv()
					r.envoy.Want(xdstest.LDS)
					up.Recv()
					up.Recv() // PCDS
					version := fmt.Sprint(n)
					r.envoy.ACK(sendAndRecv(r, up, xdstest.Response{Type: xdstest.CDS, Version: version, Resources: xdstest.R(version, "c="+string(make([]byte, 10_000)))}))
					up.Recv()
					up.End(codes.Unavailable, "bye")
					_ = r.envoy.End()
					r.wait()
				}
				goroutines, memory := 0, uint64(0)
				measure := func() (int, uint64) {
					time.Sleep(time.Hour)
					r.wait()
					runtime.GC()
					var m runtime.MemStats
					runtime.ReadMemStats(&m)
					return runtime.NumGoroutine(), m.HeapAlloc
				}
				for n := range 600 {
					if n == 100 {
						goroutines, memory = measure()
					}
					visit(n)
				}
				after, size := measure()
				if after > goroutines+2 {
					t.Errorf("%d goroutines became %d", goroutines, after)
				}
				if size > memory+1<<20 { // what the fakes keep of each stream is less than half of that
					t.Errorf("%d KiB of heap became %d", memory>>10, size>>10)
				}
			})
		})
	}
}
