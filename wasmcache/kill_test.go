package wasmcache

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gateway-agent/gateway-agent/wasmcache/fetch"
)

const (
	killModules = 24
	killPinned  = 5 // the first ones
	killSize    = 5000
	killNoQuota = 1 << 30 // nothing is collected
)

// killURL names the modules of the test: images, and files of a web server, which have no manifest.
func killURL(i int) string {
	if i%3 == 0 {
		return fmt.Sprintf("https://r.test/m%d.wasm", i)
	}
	return fmt.Sprintf("oci://r.test/m%d:v1", i)
}

func killDigest(i int) string { return hexOf(core(killURL(i), killSize)) }

// loop works at random until the process is killed. It says what it got.
func (v *servant) loop(ctx context.Context, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 0))
	for i := range killPinned {
		v.pins = append(v.pins, killDigest(i))
	}
	for {
		i, err := random.IntN(killModules), error(nil)
		switch random.IntN(16) {
		case 0:
			_, _, err = v.store.Verify(ctx, nil)
		case 1:
			if v.store.cfg.Quota < killNoQuota {
				v.store.collect(v.store.publish(ctx))
			}
		case 2:
			if v.store.cfg.Quota < killNoQuota {
				_, err = v.store.Prune(PruneOptions{MaxBytes: killSize * (killPinned + 3)})
			}
		case 3:
			cfg := v.store.cfg
			v.store.Close()
			if v.store, err = Open(cfg); err != nil {
				panic(err)
			}
		default:
			var m Module
			m, err = v.store.Get(ctx, Request{
				URL: killURL(i), Always: i%2 == 0, Resource: fmt.Sprint(random.IntN(3)), ResourceVersion: fmt.Sprint(random.IntN(3)),
				Preload: i%5 == 0, PullSecret: fmt.Append(nil, "secret", i%4), Host: envoy,
			})
			if err == nil && m.Digest != killDigest(i) {
				err = fmt.Errorf("module %d has the digest %s", i, m.Digest)
			}
			if err == nil {
				v.say(fmt.Sprint("got ", i))
			}
		}
		if err != nil {
			v.say("error " + err.Error())
		}
	}
}

// Two processes that share a store are killed at random moments of pulling, noting, checking, collecting, verifying and opening. Whatever
// the moment: nothing bad is served, and nothing good is lost.
func TestKilledAtRandomMoments(t *testing.T) {
	t.Parallel()
	const rounds = 100
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	dir := t.TempDir()
	has := map[int]bool{} // what must be there
	for round := range rounds {
		collects := round%3 == 0
		cfg := childConfig{Dir: dir, Agent: true, Inline: killSize, Slow: 100 * time.Microsecond, Loop: random.Uint64() | 1, Quota: killNoQuota}
		if collects {
			cfg.Quota = killSize * (killPinned + 6)
		}
		got := killTwo(t, cfg, random)
		for i := range killModules {
			has[i] = has[i] || got[i]
			if collects && i >= killPinned {
				has[i] = false
			}
		}
		checkAfterKill(t, dir, round, has)
		if t.Failed() {
			t.Fatalf("in round %d of seed %d", round, seed)
		}
		if random.IntN(2) == 0 {
			clear(has)
			if _, err := open(t, dir, func(c *Config) { c.Fetch, c.Log = offline{}, nil }).Prune(PruneOptions{All: true}); err != nil {
				t.Errorf("Prune = %v", err)
			}
		}
	}
}

// killTwo returns what two processes said they got before they were killed.
func killTwo(t *testing.T, cfg childConfig, random *rand.Rand) map[int]bool {
	t.Helper()
	victims := []*child{startChild(t, cfg), nil}
	cfg.Loop++
	victims[1] = startChild(t, cfg)
	got := map[int]bool{}
	for _, v := range victims {
		time.Sleep(time.Duration(random.IntN(6000)) * time.Microsecond)
		_ = v.cmd.Process.Kill()
	}
	for _, v := range victims {
		for line, ok := v.line(); ok; line, ok = v.line() {
			var i int
			if _, err := fmt.Sscanf(line, "got %d", &i); err != nil {
				t.Errorf("a process said %q", line)
				continue
			}
			got[i] = true
		}
		_ = v.cmd.Wait()
	}
	return got
}

// offline is a fetcher without a network.
type offline struct{ fullDisk }

func (offline) Resolve(context.Context, fetch.Request) (*fetch.Resolved, error) {
	return nil, errors.New("offline")
}

func checkAfterKill(t *testing.T, dir string, round int, has map[int]bool) {
	t.Helper()
	files, err := os.ReadDir(filepath.Join(dir, "blobs", "sha256"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if body, err := os.ReadFile(filepath.Join(dir, "blobs", "sha256", f.Name())); err != nil || hexOf(body) != f.Name() {
			t.Errorf("blob %s holds %d bytes of %s, %v", f.Name(), len(body), hexOf(body), err)
		}
	}
	s := open(t, dir, func(c *Config) { c.Fetch, c.Log = offline{}, nil })
	defer s.Close()
	if left := s.names(tmpDir); len(left) != 0 {
		t.Errorf("Open left %v in tmp", left)
	}
	if q := s.Status().Quarantine; len(q) != 0 {
		t.Errorf("quarantined: %+v", q)
	}
	for i := range killModules {
		m, err := s.Get(t.Context(), Request{URL: killURL(i), PullSecret: fmt.Append(nil, "secret", i%4), Host: envoy})
		switch {
		case err == nil:
			wantModule(t, m, err, core(killURL(i), killSize))
		case has[i]:
			t.Errorf("module %d is lost: %v", i, err)
		}
	}
	repaired := open(t, dir, func(c *Config) { c.Fetch, c.Log = inline{size: killSize}, nil })
	defer repaired.Close()
	mustGet(t, repaired, killURL(round%killModules))
	repaired.collect(nil)
	if left := repaired.names(lockDir); len(left) != 0 {
		t.Errorf("locks are left: %v", left)
	}
}
