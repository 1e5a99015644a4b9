package wasmcache

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/oci"
)

const tag = "oci://r.test/m:v1"

var theSecret = []byte("a pull secret")

// withTags gives a store whose registry has one tag.
func withTags(t *testing.T, change func(*Config), test func(t *testing.T, s *Store, f *tags)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &tags{}
		f.set(tag, "one")
		test(t, open(t, t.TempDir(), func(c *Config) { c.Fetch = f }, change), f)
	})
}

func none(*Config) {}

func TestAccessExpires(t *testing.T) {
	withTags(t, none, func(t *testing.T, s *Store, f *tags) {
		get := func() (Module, error) { return s.Get(t.Context(), Request{URL: tag, PullSecret: theSecret}) }
		one, err := get()
		if err != nil {
			t.Fatal(err)
		}
		f.fail(errors.New("down"), false)
		time.Sleep(24 * time.Hour)
		if m, err := get(); err != nil || m.Warning != "" {
			t.Fatalf("Get within a day = %+v, %v", m, err)
		}
		if heads, resolves := f.asked(); heads != 0 || resolves != 1 {
			t.Errorf("the registry was asked %d and %d times within a day, want once, by the pull", heads, resolves)
		}
		time.Sleep(time.Second)
		f.set(tag, "two") // asking for access does not update the tag
		f.fail(nil, false)
		if m, err := get(); err != nil || m.Digest != one.Digest || m.Warning != "" {
			t.Errorf("Get after a day = %+v, %v, want the same module", m, err)
		}
		_, _ = get()
		if heads, resolves := f.asked(); heads != 1 || resolves != 1 {
			t.Errorf("the registry was asked for access %d times, and %d for more, want once", heads, resolves-1)
		}
	})
}

func TestAnOutageTakesNoAccess(t *testing.T) {
	for name, down := range map[string]func(f *tags){
		"errors":       func(f *tags) { f.fail(errors.New("connection refused"), false) },
		"hangs":        func(f *tags) { f.fail(nil, true) },
		"rate limited": func(f *tags) { f.fail(refused(oci.RateLimited), false) },
	} {
		t.Run(name, func(t *testing.T) {
			withTags(t, none, func(t *testing.T, s *Store, f *tags) {
				get := func() (Module, error) { return s.Get(t.Context(), Request{URL: tag, PullSecret: theSecret}) }
				_, _ = get()
				time.Sleep(25 * time.Hour)
				down(f)
				start := time.Now()
				m, err := get()
				if err != nil || !stored(m) || !strings.Contains(m.Warning, "could not be asked whether the pull secret is still good for "+tag) {
					t.Fatalf("Get = %+v, %v, want the module with a warning", m, err)
				}
				if d := time.Since(start); d > renewWait {
					t.Errorf("it took %v", d)
				}
				start = time.Now()
				if m, err := get(); err != nil || time.Since(start) != 0 || m.Warning == "" {
					t.Errorf("the next Get = %+v, %v after %v, want it at once, and the warning", m, err, time.Since(start))
				}
				time.Sleep(2 * time.Minute)
				f.fail(refused(oci.Unauthorized), false)
				_, err = get()
				wantError(t, err, true, "ask the registry")
				f.fail(errors.New("down"), false)
				if m, err := get(); err == nil {
					t.Errorf("Get = %+v, want no access after a refusal", m)
				}
				f.fail(nil, false)
				if _, err := get(); err != nil {
					t.Errorf("Get = %v, want the registry's new yes to count", err)
				}
			})
		})
	}
}

func TestWhatTheRegistryHidesIsRefused(t *testing.T) {
	withTags(t, func(c *Config) { c.AccessExpiry = time.Hour }, func(t *testing.T, s *Store, f *tags) {
		for _, secret := range [][]byte{theSecret, nil} {
			if _, err := s.Get(t.Context(), Request{URL: tag, PullSecret: secret}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Hour + time.Second)
		f.fail(refused(oci.NotFound), false)
		_, err := s.Get(t.Context(), Request{URL: tag, PullSecret: theSecret})
		wantError(t, err, true, "ask the registry")
		if _, err := s.Get(t.Context(), Request{URL: tag}); err != nil {
			t.Errorf("Get without a secret = %v: this machine's own access does not expire", err)
		}
	})
}

func TestAccessOfADigestIsAskedForToo(t *testing.T) {
	withTags(t, none, func(t *testing.T, s *Store, f *tags) {
		fixed := "oci://r.test/m@sha256:" + hexOf([]byte("one"))
		f.set(fixed, "one")
		req := Request{URL: fixed, PullSecret: theSecret}
		if _, err := s.Get(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		time.Sleep(25 * time.Hour)
		f.fail(refused(oci.Unauthorized), false)
		if m, err := s.Get(t.Context(), req); err == nil {
			t.Errorf("Get = %+v, want the refusal", m)
		}
	})
}

func TestPreloadedModulesAreForEverybody(t *testing.T) {
	for policy, want := range map[string]bool{PreloadedTrust: true, PreloadedVerify: false} {
		t.Run(policy, func(t *testing.T) {
			withTags(t, func(c *Config) { c.Preloaded = policy }, func(t *testing.T, s *Store, f *tags) {
				one, err := s.Get(t.Context(), Request{URL: tag, Preload: true})
				if err != nil {
					t.Fatal(err)
				}
				f.fail(errors.New("down"), false)
				for _, secret := range [][]byte{nil, theSecret} {
					m, err := s.Get(t.Context(), Request{URL: tag, PullSecret: secret})
					if (err == nil) != want || want && m.Digest != one.Digest {
						t.Errorf("Get with secret %q = %+v, %v, want it served: %v", secret, m, err, want)
					}
				}
			})
		})
	}
}

// What one tenant has pulled under the same tag since is not for the others: they keep what was preloaded.
func TestPreloadingOpensOneVersionOnly(t *testing.T) {
	withTags(t, none, func(t *testing.T, s *Store, f *tags) {
		one, err := s.Get(t.Context(), Request{URL: tag, Preload: true})
		if err != nil {
			t.Fatal(err)
		}
		f.set(tag, "two")
		two, err := s.Get(t.Context(), Request{URL: tag, PullSecret: theSecret, Always: true})
		if err != nil || two.Digest == one.Digest {
			t.Fatalf("Get = %+v, %v, want the new one", two, err)
		}
		f.fail(errors.New("down"), false)
		for secret, want := range map[string]string{string(theSecret): two.Digest, "other": one.Digest, "": one.Digest} {
			m, err := s.Get(t.Context(), Request{URL: tag, PullSecret: []byte(secret)})
			if err != nil || m.Digest != want {
				t.Errorf("Get with secret %q = %+v, %v, want %s", secret, m, err, want)
			}
		}
		if m, err := s.Get(t.Context(), Request{URL: tag, SHA256: two.Digest}); err == nil {
			t.Errorf("Get of the private digest = %+v", m)
		}
	})
}

func TestPreloadingWhatATenantPulled(t *testing.T) {
	withTags(t, none, func(t *testing.T, s *Store, f *tags) {
		for _, req := range []Request{{URL: tag}, {URL: tag, Preload: true}} { // the second needs no pull
			if _, err := s.Get(t.Context(), req); err != nil {
				t.Fatal(err)
			}
		}
		f.fail(errors.New("down"), false)
		if _, err := s.Get(t.Context(), Request{URL: tag, PullSecret: theSecret}); err != nil {
			t.Errorf("Get = %v, want the preloaded module", err)
		}
		if _, resolves := f.asked(); resolves != 1 {
			t.Errorf("%d pulls, want one", resolves)
		}
		if st := s.Status().Modules; len(st) != 1 || !st[0].Preloaded {
			t.Errorf("Status = %+v, want it preloaded", st)
		}
	})
}

// Preloading an older version by its digest does not change what the tag means.
func TestPreloadingDoesNotMoveATag(t *testing.T) {
	withTags(t, none, func(t *testing.T, s *Store, f *tags) {
		one, err := s.Get(t.Context(), Request{URL: tag})
		if err != nil {
			t.Fatal(err)
		}
		f.set(tag, "two")
		two, err := s.Get(t.Context(), Request{URL: tag, Always: true})
		if err != nil {
			t.Fatal(err)
		}
		if m, err := s.Get(t.Context(), Request{URL: tag, SHA256: one.Digest, Preload: true}); err != nil || m.Digest != one.Digest {
			t.Fatalf("Get = %+v, %v", m, err)
		}
		if m, err := s.Get(t.Context(), Request{URL: tag}); err != nil || m.Digest != two.Digest {
			t.Errorf("Get = %+v, %v, want the newer one still", m, err)
		}
		f.fail(errors.New("down"), false)
		if m, err := s.Get(t.Context(), Request{URL: tag, PullSecret: theSecret}); err != nil || m.Digest != one.Digest {
			t.Errorf("Get of another caller = %+v, %v, want what was preloaded", m, err)
		}
	})
}

func TestRequireDigest(t *testing.T) {
	withTags(t, func(c *Config) { c.RequireDigest = true }, func(t *testing.T, s *Store, f *tags) {
		sum := strings.Repeat("ab", 32)
		for url, want := range map[string]string{
			tag:                     "end it in @sha256:…, or give the resource its sha256",
			"https://x.test/m.wasm": "--require-digest wants one: give the resource its sha256",
		} {
			_, err := s.Get(t.Context(), Request{URL: url})
			wantError(t, err, true, "module "+url+" names no digest", want)
		}
		for _, req := range []Request{{URL: tag, SHA256: hexOf([]byte("one"))}, {URL: "oci://r.test/m@sha256:" + sum}} {
			if _, err := s.Get(t.Context(), req); err != nil {
				t.Errorf("Get(%+v) = %v", req, err)
			}
		}
	})
}

func TestPreloadedModulesDoNotExpire(t *testing.T) {
	inBubble(t, func(c *Config) { c.CollectEvery = 6 * time.Hour }, func(t *testing.T, s *Store) {
		other := mustGet(t, s, "oci://r.test/other:v1")
		m, err := s.Get(t.Context(), Request{URL: tag, Preload: true})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(9 * 24 * time.Hour)
		synctest.Wait()
		if !stored(m) || stored(other) {
			t.Errorf("preloaded: %v, other: %v, want the preloaded one only", stored(m), stored(other))
		}
		if removed, err := s.Prune(PruneOptions{OlderThan: time.Hour}); err != nil || len(removed) != 1 {
			t.Errorf("Prune = %+v, %v, want what the operator asks for", removed, err)
		}
	})
}
