package identity

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

// Our clock is minutes behind everybody else's: certificates that begin in our future are all there is, and good to everybody else.
func TestClockBehind(t *testing.T) {
	bubble(t, xdstest.CAConfig{Life: 4 * time.Hour}, func(t *testing.T, r *rig) {
		r.Ahead(20 * time.Minute)
		w := r.run()
		synctest.Wait()
		first := w.leaf(t)
		if first.NotBefore.Before(time.Now().Add(10 * time.Minute)) {
			t.Fatalf("the certificate begins at %v", first.NotBefore)
		}
		if !strings.Contains(r.log.String(), "one of the clocks is wrong") || w.TLS() == nil {
			t.Errorf("nobody hears of it, or the agent has no certificate itself:\n%s", r.log)
		}
		for range 24 {
			time.Sleep(time.Hour)
			if left := time.Until(w.leaf(t).NotAfter); left < time.Hour {
				t.Errorf("%v left of the certificate in use: it is not renewed in time", left)
			}
		}
		if n := len(r.grants()); n < 8 || n > 15 {
			t.Errorf("%d certificates in a day, want one every two hours or so", n)
		}
		if st := w.Status(); st.State != StateOK {
			t.Errorf("status %+v", st)
		}
	})
}

// What would leave a gap is no replacement of a certificate that is in force.
func TestClockOfTheAuthorityFarAhead(t *testing.T) {
	bubble(t, xdstest.CAConfig{Life: 4 * time.Hour}, func(t *testing.T, r *rig) {
		w := r.run()
		synctest.Wait()
		first := w.leaf(t)
		r.Ahead(48 * time.Hour)
		time.Sleep(3 * time.Hour)
		if st := w.Status(); !w.leaf(t).Equal(first) || st.State != StateDegraded || !strings.Contains(st.Reason, "one of the clocks is wrong") {
			t.Errorf("a certificate of the day after tomorrow is in use, or nobody hears of it: %+v", st)
		}
		r.Ahead(0)
		time.Sleep(time.Minute)
		if st := w.Status(); w.leaf(t).Equal(first) || st.State != StateOK {
			t.Errorf("no new certificate a minute after the clock was mended: %+v", st)
		}
	})
}
