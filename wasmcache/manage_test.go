package wasmcache

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/registrytest"
)

func TestVerify(t *testing.T) {
	s := open(t, t.TempDir(), func(c *Config) { c.Fetch = inline{size: 1000} })
	a, b, c := mustGet(t, s, "oci://r.test/a:v1"), mustGet(t, s, "oci://r.test/b:v1"), mustGet(t, s, "oci://r.test/c:v1")
	damage(t, b.Path, func(f *os.File) error {
		info, err := f.Stat()
		if err != nil {
			return err
		}
		_, err = f.WriteAt([]byte{1}, 500)
		return errors.Join(err, os.Chtimes(b.Path, info.ModTime(), info.ModTime())) // as a disk does it: nothing shows
	})
	if err := os.WriteFile(filepath.Join(s.dir, "blobs", "sha256", "README"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var done, total int64
	damaged, checked, err := s.Verify(t.Context(), func(d, n int64) { done, total = d, n })
	if err != nil || checked != 3 || len(damaged) != 1 || damaged[0].Digest != b.Digest || !strings.Contains(damaged[0].Reason, "its 1000 bytes have the digest") {
		t.Errorf("Verify = %+v, %d, %v, want %s of 3", damaged, checked, err, b.Digest)
	}
	if done != 3000 || total != 3000 {
		t.Errorf("last progress %d of %d, want all of 3000", done, total)
	}
	if !stored(a) || stored(b) || !stored(c) {
		t.Error("want the damaged module out of the way, and no other")
	}
	if again := mustGet(t, s, "oci://r.test/b:v1"); again != b {
		t.Errorf("Get = %+v, want it pulled again", again)
	}
	damaged, checked, err = s.Verify(t.Context(), nil)
	if err != nil || checked != 3 || len(damaged) != 0 {
		t.Errorf("the second Verify = %+v, %d, %v, want all whole", damaged, checked, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := s.Verify(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Verify = %v, want the reason it was ended", err)
	}
}

func TestPrune(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pins []string
		s := open(t, t.TempDir(), func(c *Config) {
			c.Fetch, c.Quota = inline{size: 1000}, 3500
			c.Pins = func() []string { return pins }
		})
		var all []Module
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			all = append(all, mustGet(t, s, "oci://r.test/"+name+":v1"))
			time.Sleep(time.Hour)
			s.publish(t.Context())
		}
		pins = []string{all[0].Digest}
		s.publish(t.Context())
		prune := func(o PruneOptions, want ...int) {
			t.Helper()
			removed, err := s.Prune(o)
			if err != nil {
				t.Errorf("Prune(%+v) = %v", o, err)
			}
			var got []int
			for _, m := range removed {
				i := slices.IndexFunc(all, func(a Module) bool { return a.Digest == m.Digest })
				got = append(got, i)
				if m.Size != 1000 || len(m.Refs) != 1 || m.LastUsed.IsZero() {
					t.Errorf("removed %+v, want its size, reference and time", m)
				}
				if stored(all[i]) != o.DryRun {
					t.Errorf("Prune(%+v): module %d stored %v", o, i, stored(all[i]))
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("Prune(%+v) removed %v, want %v", o, got, want)
			}
		}
		prune(PruneOptions{DryRun: true, All: true}, 1, 2, 3, 4)
		prune(PruneOptions{DryRun: true}, 1, 2)
		prune(PruneOptions{DryRun: true, OlderThan: 3 * time.Hour}, 1)
		prune(PruneOptions{DryRun: true, MaxBytes: 3000}, 1, 2)
		prune(PruneOptions{OlderThan: 3 * time.Hour}, 1)
		prune(PruneOptions{MaxBytes: 2500}, 2, 3)
		prune(PruneOptions{MaxBytes: 1 << 20})
		prune(PruneOptions{All: true}, 4)
		pins = nil
		time.Sleep(2 * time.Minute)
		s.publish(t.Context())
		prune(PruneOptions{All: true}, 0)
	})
}

func TestWhole(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, func(c *Config) { c.Fetch = inline{size: 1000} })
	a, b := mustGet(t, s, "oci://r.test/a:v1"), mustGet(t, s, "oci://r.test/b:v1")
	damage(t, b.Path, func(f *os.File) error { return f.Truncate(999) })
	s = open(t, dir) // another process
	for digest, want := range map[string]string{a.Digest: a.Path, b.Digest: "", hexOf([]byte("none")): "", "x": "", "../../refs": ""} {
		if path, err := s.Whole(t.Context(), digest); path != want || err != nil {
			t.Errorf("Whole(%s) = %q, %v, want %q", digest, path, err, want)
		}
	}
	if q := s.Status().Quarantine; len(q) != 1 || q[0].Digest != b.Digest {
		t.Errorf("quarantine = %+v, want the damaged one", q)
	}
}

func TestFind(t *testing.T) {
	r := registrytest.New(t)
	one, two := core("one", 100), core("two", 100)
	manifest := r.Push(t, "find", "v1", registrytest.WasmToOCI(one))
	index := r.PushIndex(t, "find", "v2", registrytest.Entry{Image: registrytest.WasmToOCI(two)})
	s := open(t, t.TempDir())
	for _, tag := range []string{"v1", "v2"} {
		if _, err := s.Get(t.Context(), Request{URL: r.Ref("find:" + tag)}); err != nil {
			t.Fatal(err)
		}
	}
	r.Stop()
	for ref, want := range map[string]string{
		r.Ref("find:v1"): hexOf(one), hexOf(one): hexOf(one), "sha256:" + hexOf(one): hexOf(one), manifest: hexOf(one),
		r.Ref("find:v2"): hexOf(two), index: hexOf(two), hexOf(two): hexOf(two),
	} {
		m, ok := s.Find(ref)
		if !ok || m.Digest != want || m.Size != 100 || !stored(m) || !strings.HasPrefix(m.Ref, "oci://") || m.ManifestDigest == "" {
			t.Errorf("Find(%s) = %+v, %v, want %s", ref, m, ok, want)
		}
		if (want == hexOf(two)) != (m.Index == index) {
			t.Errorf("Find(%s) has the index %q", ref, m.Index)
		}
	}
	for _, ref := range []string{"", "x", r.Ref("find:v3"), strings.Repeat("ab", 32), "oci://", "file://x"} {
		if m, ok := s.Find(ref); ok {
			t.Errorf("Find(%q) = %+v, want nothing", ref, m)
		}
	}
	if removed, err := s.Prune(PruneOptions{All: true}); err != nil || len(removed) != 2 {
		t.Fatalf("Prune = %+v, %v", removed, err)
	}
	if m, ok := s.Find(r.Ref("find:v1")); ok {
		t.Errorf("Find = %+v after it was removed", m)
	}
}
