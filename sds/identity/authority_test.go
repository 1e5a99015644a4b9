package identity

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gateway-agent/gateway-agent/internal/testca"
	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

var errRefused = status.Error(codes.Unavailable, "the authority is being upgraded")

// bubble runs a test with a clock of its own.
func bubble(t *testing.T, cfg xdstest.CAConfig, test func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newRig(t, cfg)) })
}

func TestFirstCertificate(t *testing.T) {
	bubble(t, xdstest.CAConfig{}, func(t *testing.T, r *rig) {
		w := r.run()
		synctest.Wait()
		if got := w.leaf(t); len(got.URIs) != 1 || got.URIs[0].String() != testID {
			t.Errorf("certificate for %v", got.URIs)
		}
		if got := w.roots(t); got != "root" {
			t.Errorf("roots %q, want the authority's", got)
		}
		if w.order[0] != Roots {
			t.Errorf("order %v, want the roots first", w.order)
		}
		if w.TLS() == nil {
			t.Error("TLS: none")
		}
		if got := r.Requests(); len(got) != 1 || got[0].Life != 24*time.Hour {
			t.Errorf("requests %+v, want one for a day", got)
		}
		st := w.Status()
		if st.State != StateOK || st.ID != testID || st.Source != CA || st.Authority != "istiod" || len(st.Roots) != 1 || st.Serial == "" {
			t.Errorf("Status: %+v", st)
		}
		if text := r.log.String() + fmt.Sprintf("%+v", st); strings.Contains(text, "BEGIN") || strings.Contains(text, "good") {
			t.Errorf("log or status holds a secret:\n%s", text)
		}
	})
}

// Renewals come when half of the life is over, give or take the jitter, and never late.
func TestRenewalTimes(t *testing.T) {
	for name, tc := range map[string]struct {
		life          time.Duration
		grace, jitter float64
		from, to      float64 // share of the life between two grants
	}{
		"a day":             {24 * time.Hour, 0, 0, 0.39, 0.61},
		"late":              {24 * time.Hour, 0.2, -1, 0.79, 0.81},
		"as late as can be": {24 * time.Hour, -1, -1, 0.94, 0.96},
		"as early":          {24 * time.Hour, 1, -1, 0.04, 0.06},
		"minutes":           {5 * time.Minute, 0, 0, 0.39, 0.64},
		"less than backdat": {90 * time.Second, 0, 0, 0.39, 0.66}, // its authority lets it begin two minutes before the issue
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, xdstest.CAConfig{Life: tc.life}, func(t *testing.T, r *rig) {
				r.cfg.GraceRatio, r.cfg.Jitter, r.cfg.Poll = tc.grace, tc.jitter, tc.life/200
				w := r.run()
				for range 80 {
					time.Sleep(tc.life / 20)
					if left := time.Until(w.leaf(t).NotAfter); left < time.Duration(float64(tc.life)*(1-tc.to)) {
						t.Fatalf("%v left of %v", left, tc.life)
					}
				}
				at := r.grants()
				if len(at) < 5 {
					t.Fatalf("%d certificates in 4 lives", len(at))
				}
				spread := map[time.Duration]bool{}
				for i := range at[1:] {
					gap := at[i+1].Sub(at[i])
					spread[gap] = true
					if share := float64(gap) / float64(tc.life); share < tc.from || share > tc.to {
						t.Errorf("renewal after %.3f of the life, want %v to %v", share, tc.from, tc.to)
					}
				}
				if tc.jitter == 0 && len(spread) < 3 {
					t.Errorf("all renewals after the same time: %v", spread)
				}
				if _, _, pushes := w.get(Roots); pushes != 1 {
					t.Errorf("roots pushed %d times, want once", pushes)
				}
			})
		})
	}
}

// Not even certificates of a second make a storm of requests.
func TestAbsurdlyShortLife(t *testing.T) {
	bubble(t, xdstest.CAConfig{Life: time.Second}, func(t *testing.T, r *rig) {
		w := r.run()
		time.Sleep(20 * time.Second)
		if n := len(r.grants()); n < 15 || n > 21 {
			t.Errorf("%d certificates in 20 s, want one a second at most", n)
		}
		w.leaf(t)
	})
}

// The authority is away from the issue until a share of the life has passed. The certificate stays in use, tries go on, and a new one is there soon.
func TestOutage(t *testing.T) {
	const life = 6 * time.Hour
	for _, share := range []float64{0.9, 0.98, 1.2} {
		t.Run(fmt.Sprint(share), func(t *testing.T) {
			bubble(t, xdstest.CAConfig{Life: life}, func(t *testing.T, r *rig) {
				door := r.gate()
				r.cfg.Poll = time.Minute
				w := r.run()
				synctest.Wait()
				first := w.leaf(t)
				door.shut(errRefused)
				begin := time.Now()
				back := time.Duration(share * float64(life))
				time.Sleep(back)
				if got := w.leaf(t); !got.Equal(first) {
					t.Fatal("another certificate came from somewhere")
				}
				tries := door.seen()
				for i := range tries[1:] {
					if gap := tries[i+1].Sub(tries[i]); gap > time.Minute+time.Second {
						t.Fatalf("%v between two tries, %v after the issue", gap, tries[i].Sub(begin))
					}
				}
				_, why, _ := w.get(Certificate)
				st := w.Status()
				want, state := "cannot be renewed", StateDegraded
				if share > 1 {
					want, state = "has expired", StateExpired
				}
				if !strings.Contains(why, want) || !strings.Contains(why, "being upgraded") || st.State != state || st.Failures != len(tries) || st.Since.IsZero() {
					t.Errorf("why %q, status %s, %d failures since %v, %d tries", why, st.State, st.Failures, st.Since, len(tries))
				}
				if own := w.TLS(); (own == nil) != (share > 1) {
					t.Errorf("a certificate is shown to the authority and the control plane: %v; want one until it ends", own != nil)
				}
				for stage, when := range map[string]float64{"share=50%": 0.61, "share=20%": 0.8, "share=5%": 0.95, "has expired and": 1} {
					if got := strings.Count(r.log.String(), stage); got != 1 && share > when || got != 0 && share < when {
						t.Errorf("log says %q %d times", stage, got)
					}
				}
				if n := strings.Count(r.log.String(), "level=WARN msg=\"certificate authority does not"); n != 1 {
					t.Errorf("%d warnings of the same refusal, want 1", n)
				}
				door.shut(nil)
				time.Sleep(time.Minute)
				if got := w.leaf(t); got.Equal(first) {
					t.Error("no new certificate a minute after the authority is back")
				}
				if _, why, _ := w.get(Certificate); why != "" || w.Status().State != StateOK || w.Status().Failures != 0 {
					t.Errorf("after the outage: %q, %+v", why, w.Status())
				}
			})
		})
	}
}

// The nearer the end, the more often a request is repeated.
func TestRetriesNearTheEnd(t *testing.T) {
	bubble(t, xdstest.CAConfig{Life: 6 * time.Hour}, func(t *testing.T, r *rig) {
		door := r.gate()
		r.cfg.Poll = time.Minute
		w := r.run()
		synctest.Wait()
		door.shut(errRefused)
		end := w.leaf(t).NotAfter
		count := func(from, to time.Duration) int { // tries in this time before the end
			n := 0
			for _, at := range door.seen() {
				if left := end.Sub(at); left <= from && left > to {
					n++
				}
			}
			return n
		}
		time.Sleep(6*time.Hour + 10*time.Minute)
		early, late, after := count(time.Hour, 50*time.Minute), count(5*time.Minute, 0), count(0, -10*time.Minute)
		if early < 10 || late < early || after < 100 || after > 1000 {
			t.Errorf("tries in ten minutes: %d early, %d in the last five, %d in ten after the end", early, late, after)
		}
	})
}

func TestStartWithoutAuthority(t *testing.T) {
	bubble(t, xdstest.CAConfig{}, func(t *testing.T, r *rig) {
		r.Refuse(errRefused)
		r.cfg.Poll = 30 * time.Second
		w := r.run()
		time.Sleep(20 * time.Minute)
		secret, why, _ := w.get(Certificate)
		if secret != nil || !strings.Contains(why, "being upgraded") {
			t.Errorf("secret %v, why %q", secret, why)
		}
		if _, why, _ := w.get(Roots); !strings.Contains(why, "being upgraded") {
			t.Errorf("roots: why %q", why)
		}
		if st := w.Status(); st.State != StatePending || w.TLS() != nil {
			t.Errorf("status %s", st.State)
		}
		if n := len(r.Requests()); n < 60 || n > 500 {
			t.Errorf("%d tries in 20 minutes", n)
		}
		r.Refuse(nil)
		time.Sleep(16 * time.Second)
		w.leaf(t)
	})
}

// One that answers nothing is given up after the client's time, and asked again.
func TestAuthorityHangs(t *testing.T) {
	bubble(t, xdstest.CAConfig{}, func(t *testing.T, r *rig) {
		r.Delay(time.Hour)
		r.cfg.Poll, r.cfg.Life, r.cfg.Jitter = 30*time.Second, time.Hour, -1
		w := r.run()
		if err := w.SetTrustBundle([]string{string(testca.New(t, "other").PEM)}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		if _, why, _ := w.get(Certificate); !strings.Contains(why, "no answer within 10s") {
			t.Errorf("why %q", why)
		}
		r.Delay(0)
		time.Sleep(30 * time.Second)
		w.leaf(t)
		r.Delay(time.Hour)
		time.Sleep(time.Until(w.Status().RenewAt) + 5*time.Second)
		begin := time.Now()
		w.stop()
		if took := time.Since(begin); took > 0 {
			t.Errorf("stopping took %v", took)
		}
		if st := w.Status(); st.Failures != 0 {
			t.Errorf("%d failures after stopping in the midst of a request, want 0", st.Failures)
		}
	})
}

func TestTokenRefused(t *testing.T) {
	bubble(t, xdstest.CAConfig{}, func(t *testing.T, r *rig) {
		r.cfg.Poll = time.Minute
		w := r.run()
		synctest.Wait()
		first := w.leaf(t)
		r.Accept("next")
		time.Sleep(15 * time.Hour)
		if got := w.leaf(t); got.Equal(first) {
			t.Fatal("the own certificate is not tried when the token is refused")
		}
	})
}

// A retry does not wait when a token changes, though waits have grown long.
func TestPromptRetry(t *testing.T) {
	bubble(t, xdstest.CAConfig{}, func(t *testing.T, r *rig) {
		door := r.gate()
		r.cfg.Jitter, r.cfg.Life = -1, 2*time.Hour
		w := r.run()
		synctest.Wait()
		first := w.leaf(t)
		door.shut(errRefused)
		time.Sleep(70 * time.Minute)
		before := len(door.seen())
		for range 20 {
			r.write(r.token, []byte(time.Now().String()))
			time.Sleep(1600 * time.Millisecond)
		}
		if n := len(door.seen()) - before; n < 20 || n > 30 {
			t.Errorf("%d requests for 20 new tokens", n)
		}
		door.shut(nil)
		r.write(r.token, []byte("good"))
		time.Sleep(1600 * time.Millisecond)
		if got := w.leaf(t); got.Equal(first) {
			t.Error("no new certificate soon after the token has changed")
		}
	})
}

// A new root file means that the authority's root changes: its certificate cannot wait for half a life.
func TestRootFileChanges(t *testing.T) {
	bubble(t, xdstest.CAConfig{}, func(t *testing.T, r *rig) {
		old, next := r.Signer(), testca.New(t, "next")
		r.write(r.root, []byte(string(old.PEM)+string(next.PEM)))
		w := r.run()
		time.Sleep(time.Minute)
		r.write(r.root, []byte(string(next.PEM)+"\n"+string(old.PEM)))
		time.Sleep(time.Hour)
		if n := len(r.Requests()); n != 1 {
			t.Fatalf("%d requests, want 1: the same roots in another order are no change", n)
		}
		r.write(r.root, next.PEM[:100])
		time.Sleep(time.Minute)
		if n := len(r.Requests()); n != 1 {
			t.Fatalf("%d requests, want 1: a file half written is no change", n)
		}
		r.SignWith(next)
		r.write(r.root, next.PEM)
		time.Sleep(12 * time.Second)
		if got := w.roots(t); got != "next root" || w.leaf(t).Issuer.CommonName != "next" {
			t.Errorf("roots %q, issuer %v, want both roots and the new issuer", got, w.leaf(t).Issuer)
		}
	})
}

func TestRootRotation(t *testing.T) {
	for name, tc := range map[string]struct {
		overlap time.Duration
		until   time.Duration // after the change; 0: at once
	}{"default": {0, 24 * time.Hour}, "shorter": {time.Hour, time.Hour}, "none": {-1, 0}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, xdstest.CAConfig{}, func(t *testing.T, r *rig) {
				r.cfg.RootOverlap, r.cfg.Jitter, r.cfg.Poll, r.cfg.RootFiles = tc.overlap, -1, time.Minute, nil
				w := r.run()
				synctest.Wait()
				next := testca.New(t, "next")
				r.write(r.root, []byte(string(r.Signer().PEM)+string(next.PEM)))
				r.SignWith(next.Sub(t, "sub"))
				time.Sleep(12*time.Hour + time.Minute)
				want := "next root"
				if tc.until == 0 {
					want = "next"
				}
				if got := w.roots(t); got != want {
					t.Errorf("roots after the change: %q, want %q", got, want)
				}
				if chain, _, _ := w.get(Certificate); strings.Count(chain.String(), "BEGIN CERTIFICATE") != 2 {
					t.Error("the chain is not leaf and intermediate")
				}
				time.Sleep(tc.until - 5*time.Minute)
				if got := w.roots(t); got != want {
					t.Errorf("roots before the end of the overlap: %q, want %q", got, want)
				}
				time.Sleep(10 * time.Minute)
				if got := w.roots(t); got != "next" {
					t.Errorf("roots after the overlap: %q", got)
				}
			})
		})
	}
}

func TestRootBundleInTheAnswer(t *testing.T) {
	bubble(t, xdstest.CAConfig{}, func(t *testing.T, r *rig) {
		root, extra := string(r.Signer().PEM), testca.New(t, "extra")
		r.SignWith(r.Signer(), extra)
		turn := 0
		r.Mangle(func(chain []string) []string { // the order changes, as that of a map
			if turn++; turn%2 == 0 {
				chain[1] = string(extra.PEM) + root
			}
			return chain
		})
		r.cfg.Poll = time.Minute
		w := r.run()
		time.Sleep(30 * time.Hour)
		if _, _, pushes := w.get(Roots); w.roots(t) != "root extra" || pushes != 1 {
			t.Errorf("roots %q, pushed %d times, want both, once", w.roots(t), pushes)
		}
	})
}

func TestTrustBundle(t *testing.T) {
	bubble(t, xdstest.CAConfig{}, func(t *testing.T, r *rig) {
		w := r.run()
		synctest.Wait()
		a, b := string(testca.New(t, "a").PEM), string(testca.New(t, "b").PEM)
		for _, step := range []struct {
			texts  []string
			roots  string
			pushes int
			refuse string
		}{
			{[]string{a, b}, "root a b", 2, ""},
			{[]string{b + a, a}, "root a b", 2, ""},
			{[]string{"garbage"}, "root a b", 2, "text 1: there is no certificate"},
			{[]string{a, b[:200]}, "root a b", 2, "text 2"},
			{[]string{strings.Replace(a, "BEGIN CERT", "BEGIN SERT", 1)}, "root a b", 2, "text 1"},
			{[]string{strings.Repeat(a, 5000)}, "root a b", 2, "larger than"},
			{[]string{b}, "root b", 3, ""},
			{[]string{a}, "root a", 4, ""},
			{nil, "root", 5, ""},
			{[]string{string(r.Signer().PEM)}, "root", 5, ""},
		} {
			err := w.SetTrustBundle(step.texts)
			if (err == nil) != (step.refuse == "") || err != nil && !strings.Contains(err.Error(), step.refuse) {
				t.Errorf("SetTrustBundle: %v, want %q", err, step.refuse)
			}
			synctest.Wait() // at once: no time passes
			if _, _, pushes := w.get(Roots); w.roots(t) != step.roots || pushes != step.pushes {
				t.Errorf("roots %q, %d pushes, want %q, %d", w.roots(t), pushes, step.roots, step.pushes)
			}
		}
		if n := len(r.Requests()); n != 1 {
			t.Errorf("%d requests, want 1", n)
		}
	})
}

// An authority that answers nonsense never replaces a good certificate.
func TestBrokenAuthority(t *testing.T) {
	bubble(t, xdstest.CAConfig{}, func(t *testing.T, r *rig) {
		r.cfg.Poll, r.cfg.Life = time.Minute, 2*time.Hour
		w := r.run()
		synctest.Wait()
		first := w.leaf(t)
		r.Mangle(func(chain []string) []string { return chain[:1] })
		time.Sleep(80 * time.Minute)
		if got := w.leaf(t); !got.Equal(first) || w.roots(t) != "root" {
			t.Error("the good certificate has been replaced")
		}
		if _, why, _ := w.get(Certificate); !strings.Contains(why, "what istiod answers cannot be used: the answer has 1 texts") {
			t.Errorf("why: %s", why)
		}
		r.Mangle(nil)
		time.Sleep(time.Minute)
		if got := w.leaf(t); got.Equal(first) {
			t.Error("no new certificate from the repaired authority")
		}
	})
}
