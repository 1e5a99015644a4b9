package identity

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/testca"
	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

// inFlight has requests take five seconds, returns when the next one has been on its way for three, and says how many there were.
func (g *gate) inFlight(t *testing.T) int {
	t.Helper()
	g.mu.Lock()
	g.slow = 5 * time.Second
	g.mu.Unlock()
	before := len(g.seen())
	for end := time.Now().Add(2 * time.Hour); len(g.seen()) == before; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no request in two hours")
		}
	}
	time.Sleep(3 * time.Second)
	return len(g.seen())
}

// The authority's root changes while a renewal is on its way: what that brings may be of the old root.
func TestRootChangesInFlight(t *testing.T) {
	bubble(t, xdstest.CAConfig{Life: time.Hour}, func(t *testing.T, r *rig) {
		door := r.gate()
		r.run()
		synctest.Wait()
		before := door.inFlight(t)
		r.write(r.root, append(r.Signer().PEM, testca.New(t, "next").PEM...))
		time.Sleep(time.Minute)
		if n := len(door.seen()) - before; n != 1 {
			t.Errorf("%d requests after the one on its way, want 1", n)
		}
	})
}

// The token is replaced while a request with the old one is on its way, after many refusals.
func TestTokenChangesInFlight(t *testing.T) {
	bubble(t, xdstest.CAConfig{}, func(t *testing.T, r *rig) {
		door := r.gate()
		r.cfg.Jitter, r.cfg.Life = -1, 2*time.Hour
		r.run()
		synctest.Wait()
		door.shut(errRefused)
		time.Sleep(70 * time.Minute)
		before := door.inFlight(t)
		r.write(r.token, []byte("next"))
		time.Sleep(3 * time.Second) // it ends after two
		if n := len(door.seen()) - before; n != 1 {
			t.Errorf("%d requests with the new token as soon as the one with the old token had failed, want 1", n)
		}
	})
}
