package wasmcache

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// damaged gets a module, damages it and has that found out.
func damaged(t *testing.T, s *Store, url string) Module {
	t.Helper()
	m := mustGet(t, s, url)
	damage(t, m.Path, func(f *os.File) error { _, err := f.WriteAt([]byte{1}, 900); return err })
	if path, err := s.Whole(t.Context(), m.Digest); path != "" || err != nil {
		t.Fatalf("Whole of a damaged module = %q, %v", path, err)
	}
	return m
}

func quarantineFiles(t *testing.T, s *Store) int {
	t.Helper()
	files, err := os.ReadDir(filepath.Join(s.dir, "quarantine"))
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

// TestQuarantineCountsForTheQuota: what cannot be used goes before anything that can.
func TestQuarantineCountsForTheQuota(t *testing.T) {
	inBubble(t, func(c *Config) {
		c.Quota, c.Pins = 3000, func() []string { return nil }
	}, func(t *testing.T, s *Store) {
		first := damaged(t, s, "oci://r.test/first:v1")
		time.Sleep(time.Second)
		second := damaged(t, s, "oci://r.test/second:v1")
		if got := s.Status(); got.Bytes != 2000 || len(got.Quarantine) != 2 {
			t.Errorf("Status = %d bytes, %+v; want 2000 in quarantine", got.Bytes, got.Quarantine)
		}
		if got := gather(t, s)["gateway_agent_wasm_store_bytes"]; got != 2000 {
			t.Errorf("store_bytes = %v, want 2000", got)
		}
		a := mustGet(t, s, "oci://r.test/a:v1")
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if got := s.Status(); len(got.Quarantine) != 2 || !stored(a) {
			t.Errorf("within the quota: quarantine %+v, stored %v; want everything there", got.Quarantine, stored(a))
		}
		b := mustGet(t, s, "oci://r.test/b:v1")
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if got := s.Status(); got.Bytes != 3000 || len(got.Quarantine) != 1 || got.Quarantine[0].Digest != second.Digest || !stored(a) || !stored(b) {
			t.Errorf("over the quota: %+v; want the first one damaged, %s, gone, and nothing else", got, first.Digest)
		}
		c := mustGet(t, s, "oci://r.test/c:v1")
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if !stored(a) || !stored(b) || !stored(c) || quarantineFiles(t, s) != 0 {
			t.Errorf("stored %v %v %v, %d files in quarantine; want the modules only", stored(a), stored(b), stored(c), quarantineFiles(t, s))
		}
	})
}

func TestQuarantineExpires(t *testing.T) {
	inBubble(t, func(c *Config) {
		c.Expiry = time.Hour
		c.Pins = func() []string { return nil }
	}, func(t *testing.T, s *Store) {
		damaged(t, s, "oci://r.test/m:v1")
		time.Sleep(50 * time.Minute)
		synctest.Wait()
		if quarantineFiles(t, s) != 2 {
			t.Error("it went before its time")
		}
		time.Sleep(15 * time.Minute)
		synctest.Wait()
		if n := quarantineFiles(t, s); n != 0 {
			t.Errorf("%d files are left", n)
		}
	})
}

// TestPruneOfTheQuarantine: also of what a store that cannot be written, or a stranger, has left there.
func TestPruneOfTheQuarantine(t *testing.T) {
	s := open(t, t.TempDir(), func(c *Config) { c.Fetch = inline{size: 1000} })
	m := damaged(t, s, "oci://r.test/m:v1")
	lone := filepath.Join(s.dir, "quarantine", hexOf([]byte("lone")))
	odd := filepath.Join(s.dir, "quarantine", "directory")
	if err := os.WriteFile(lone, make([]byte, 10), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(odd, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, dry := range []bool{true, false} {
		removed, err := s.Prune(PruneOptions{All: true, DryRun: dry})
		if err != nil || len(removed) != 3 {
			t.Fatalf("Prune(dry: %v) = %+v, %v; want three", dry, removed, err)
		}
		bytes := int64(0)
		for _, r := range removed {
			bytes += r.Size
			if !r.Damaged || r.LastUsed.IsZero() {
				t.Errorf("Prune removes %+v, which is damaged and of a time", r)
			}
		}
		if bytes != 1010 {
			t.Errorf("Prune(dry: %v) frees %d bytes, want 1010", dry, bytes)
		}
	}
	if n := quarantineFiles(t, s); n != 0 {
		t.Errorf("%d files are left", n)
	}
	if again := mustGet(t, s, "oci://r.test/m:v1"); again.Digest != m.Digest || !stored(again) {
		t.Errorf("pulled again: %+v", again)
	}
}
