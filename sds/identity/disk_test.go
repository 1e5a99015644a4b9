package identity

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/testca"
	"github.com/gateway-agent/gateway-agent/internal/xdstest"
)

// A restart while the authority is away finds the certificate, the bundle, and the roots that overlap, and keeps to the time of the issue.
func TestRestart(t *testing.T) {
	bubble(t, xdstest.CAConfig{}, func(t *testing.T, r *rig) {
		r.cfg.Keep, r.cfg.Jitter, r.cfg.Poll, r.cfg.RootFiles = filepath.Join(t.TempDir(), "data", "identity"), -1, time.Minute, nil
		w := r.run()
		synctest.Wait()
		next := testca.New(t, "next")
		r.write(r.root, append(r.Signer().PEM, next.PEM...))
		r.SignWith(next)
		time.Sleep(13 * time.Hour)
		if err := w.SetTrustBundle([]string{string(testca.New(t, "bundled").PEM)}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		first, grants := w.leaf(t), len(r.grants())
		w.stop()
		info, err := os.Stat(r.cfg.Keep)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Fatalf("kept identity: %v, %v, want mode 0600", info, err)
		}

		r.gate().shut(errRefused)
		w = r.run()
		synctest.Wait()
		if got := w.leaf(t); !got.Equal(first) {
			t.Error("another certificate after the restart")
		}
		if got := w.roots(t); got != "next bundled root" {
			t.Errorf("roots after the restart: %q", got)
		}
		if st := w.Status(); st.State != StateOK || st.RenewAt.Sub(st.Issued) != 12*time.Hour {
			t.Errorf("status after the restart: %+v", st)
		}
		time.Sleep(10 * time.Hour)
		if n := len(r.grants()); n != grants {
			t.Errorf("%d certificates issued, want %d", n, grants)
		}
		time.Sleep(13*time.Hour + 10*time.Minute)
		if got := w.roots(t); got != "next bundled" {
			t.Errorf("roots after the overlap: %q", got)
		}
		if err := w.SetTrustBundle(nil); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := w.roots(t); got != "next" {
			t.Errorf("roots after the control plane has taken the bundle away: %q", got)
		}
	})
}

// What the control plane says before the kept identity is read counts, not what it said before the restart.
func TestRestartAfterTheControlPlaneSpoke(t *testing.T) {
	bubble(t, xdstest.CAConfig{}, func(t *testing.T, r *rig) {
		r.cfg.Keep = filepath.Join(t.TempDir(), "identity")
		say := func(name string) func(*Workload) {
			return func(w *Workload) {
				if err := w.SetTrustBundle([]string{string(testca.New(t, name).PEM)}); err != nil {
					t.Fatal(err)
				}
			}
		}
		w := r.run(say("before"))
		synctest.Wait()
		w.stop()
		w = r.run(say("now"))
		synctest.Wait()
		if got := w.roots(t); got != "root now" || len(r.grants()) != 1 {
			t.Errorf("roots %q after %d certificates, want what is kept, and what the control plane says now", got, len(r.grants()))
		}
	})
}

// A root file that changed while the agent was not running counts as changed.
func TestRestartAfterRootChange(t *testing.T) {
	bubble(t, xdstest.CAConfig{}, func(t *testing.T, r *rig) {
		r.cfg.Keep = filepath.Join(t.TempDir(), "identity")
		w := r.run()
		synctest.Wait()
		w.stop()
		next := testca.New(t, "next")
		r.SignWith(next)
		r.write(r.root, next.PEM)
		w = r.run()
		time.Sleep(15 * time.Second)
		if got := w.leaf(t).Issuer.CommonName; got != "next" {
			t.Errorf("issuer %q, want the new root", got)
		}
	})
}

func TestKeptIdentityThatIsNoGood(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil func(t *testing.T, path string, k *kept)
		want  string
	}{
		"expired":         {func(*testing.T, string, *kept) { time.Sleep(25 * time.Hour) }, "has expired"},
		"open to others":  {func(t *testing.T, path string, _ *kept) { chmod(t, path, 0o640) }, "others may have read"},
		"other authority": {func(_ *testing.T, _ string, k *kept) { k.Authority = "x" }, "it is from"},
		"other id":        {func(_ *testing.T, _ string, k *kept) { k.ID = "x" }, "it is for"},
		"later version":   {func(_ *testing.T, _ string, k *kept) { k.Version = 99 }, "version is 99"},
		"other key":       {func(t *testing.T, _ string, k *kept) { k.Key = otherKey(t) }, "not for the key"},
		"half a key":      {func(_ *testing.T, _ string, k *kept) { k.Key = k.Key[:80] }, "not PEM"},
		"no roots":        {func(_ *testing.T, _ string, k *kept) { k.Roots = "" }, "there is no certificate"},
		"half a file":     {nil, "damaged"},
		"a link":          {nil, "too many levels"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, xdstest.CAConfig{}, func(t *testing.T, r *rig) {
				r.cfg.Keep = filepath.Join(t.TempDir(), "identity")
				w := r.run()
				synctest.Wait()
				w.stop()
				key, _, _ := w.get(Certificate)
				secret := string(key.GetTlsCertificate().GetPrivateKey().GetInlineBytes())
				spoilKept(t, name, r.cfg.Keep, tc.spoil)
				door := r.gate()
				door.shut(errRefused)
				w = r.run()
				time.Sleep(time.Second)
				if secret, _, _ := w.get(Certificate); secret != nil {
					t.Error("the spoilt identity is served")
				}
				log := r.log.String()
				if !strings.Contains(log, "kept identity cannot be used") || !strings.Contains(log, tc.want) {
					t.Errorf("the log does not say %q", tc.want)
				}
				if strings.Contains(log, strings.Split(secret, "\n")[1][:20]) {
					t.Error("the log holds the key")
				}
				door.shut(nil)
				time.Sleep(16 * time.Second)
				w.leaf(t)
				w.stop()
				if _, err := readKept(r.cfg.Keep); err != nil {
					t.Errorf("the spoilt file has not been replaced: %v", err)
				}
			})
		})
	}
}

func spoilKept(t *testing.T, name, path string, spoil func(*testing.T, string, *kept)) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	switch name {
	case "half a file":
		data = data[:len(data)/2]
	case "a link":
		if err := errors.Join(os.Rename(path, path+".real"), os.Symlink(path+".real", path)); err != nil {
			t.Fatal(err)
		}
		return
	default:
		k := new(kept)
		if err := json.Unmarshal(data, k); err != nil {
			t.Fatal(err)
		}
		spoil(t, path, k)
		if data, err = json.Marshal(k); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func otherKey(t *testing.T) string {
	t.Helper()
	return string(testca.KeyPEM(t, testca.NewKey(t, testca.P256), testca.SEC1))
}

func FuzzKept(f *testing.F) {
	key := testca.NewKey(f, testca.P256)
	ca := testca.New(f, "root")
	_, leaf, err := ca.Sign(key.Public(), testca.Leaf{Hosts: []string{testID}, NotAfter: time.Now().AddDate(1, 0, 0)})
	if err != nil {
		f.Fatal(err)
	}
	seed, err := json.Marshal(kept{
		Version: 1, ID: testID, Authority: "a", Issued: time.Now(), Key: string(testca.KeyPEM(f, key, testca.SEC1)), Chain: string(leaf), Roots: string(ca.PEM),
		Bundle: string(ca.PEM), Previous: []keptRoot{{Root: string(ca.PEM), Until: time.Now().Add(time.Hour)}},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add(seed[:len(seed)/2])
	w, err := New(Config{Server: newRecorder(), Choice: Choice{Source: CA}, Signer: &gate{}, ID: testID, Authority: "a"})
	if err != nil {
		f.Fatal(err)
	}
	path := filepath.Join(f.TempDir(), "kept")
	w.cfg.Keep = path
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		l := &loop{Workload: &Workload{cfg: w.cfg, id: w.id, times: w.times, log: slog.New(slog.NewTextHandler(&log, nil))}}
		l.restore(time.Now())
		if l.current != nil && (l.current.leaf.URIs[0].Path != w.id.Path || l.current.pair() == nil || l.after <= 0) {
			t.Errorf("restored %+v", l.current)
		}
		if log.Len() > 4000 || strings.Contains(log.String(), "-----BEGIN") {
			t.Errorf("log: %d bytes: %.500s", log.Len(), &log)
		}
	})
}

func TestOutput(t *testing.T) {
	bubble(t, xdstest.CAConfig{}, func(t *testing.T, r *rig) {
		r.cfg.Output, r.cfg.Poll = filepath.Join(t.TempDir(), "certs"), time.Minute
		w := r.run()
		synctest.Wait()
		for i := range 3 {
			pair, err := tls.LoadX509KeyPair(filepath.Join(r.cfg.Output, outputChain), filepath.Join(r.cfg.Output, outputKey))
			if err != nil || !pair.Leaf.Equal(w.leaf(t)) {
				t.Fatalf("output %d: %v, want the certificate in use", i, err)
			}
			roots, err := os.ReadFile(filepath.Join(r.cfg.Output, outputRoots))
			if err != nil || string(roots) != string(r.Signer().PEM) {
				t.Errorf("output of the roots: %v", err)
			}
			if info, err := os.Stat(filepath.Join(r.cfg.Output, outputKey)); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("key: %v, %v, want mode 0600", info, err)
			}
			time.Sleep(15 * time.Hour)
		}
		if err := os.RemoveAll(r.cfg.Output); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(r.cfg.Output, nil, 0o600); err != nil { // a file where the directory should be
			t.Fatal(err)
		}
		before := w.leaf(t)
		time.Sleep(15 * time.Hour)
		if st := w.Status(); st.Output == "" || st.State != StateOK || w.leaf(t).Equal(before) {
			t.Errorf("with an output that cannot be written: %+v, want it said and the certificate renewed", st)
		}
		if n := strings.Count(r.log.String(), "cannot be written to the output"); n != 1 {
			t.Errorf("%d warnings, want 1", n)
		}
		if err := os.Remove(r.cfg.Output); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		if st := w.Status(); st.Output != "" {
			t.Errorf("after the repair: %s", st.Output)
		}
	})
}

// Plain files of an earlier agent become a set first, unchanged, so that they are replaced all at once.
func TestOutputTakesOverPlainFiles(t *testing.T) {
	dir := t.TempDir()
	files := []outputFile{{name: outputKey}, {name: outputChain}, {name: outputRoots}}
	for _, f := range files[:2] {
		if err := os.WriteFile(filepath.Join(dir, f.name), []byte("old "+f.name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := takeOver(dir, files, time.Now()); err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		path := filepath.Join(dir, f.name)
		if target, err := os.Readlink(path); err != nil || target != filepath.Join(outputData, f.name) {
			t.Errorf("%s leads to %q, %v", f.name, target, err)
		}
		if data, err := os.ReadFile(path); f.name != outputRoots && string(data) != "old "+f.name {
			t.Errorf("%s holds %q, %v", f.name, data, err)
		}
	}
	before, err := os.Readlink(filepath.Join(dir, outputData))
	if err != nil {
		t.Fatal(err)
	}
	if err := takeOver(dir, files, time.Now()); err != nil {
		t.Fatal(err)
	}
	if after, _ := os.Readlink(filepath.Join(dir, outputData)); after != before {
		t.Errorf("taken over again: %s, was %s", after, before)
	}
}

// Whoever reads through the link sees one set, whole, at any time.
func TestOutputIsAtomic(t *testing.T) {
	dir := t.TempDir()
	ca := testca.New(t, "ca")
	set := func() []outputFile {
		p := ca.Issue(t, testca.Leaf{})
		return []outputFile{{outputKey, p.KeyPEM, 0o600}, {outputChain, p.CertPEM, 0o644}, {outputRoots, ca.PEM, 0o644}}
	}
	if err := writeSet(dir, set(), time.Now()); err != nil {
		t.Fatal(err)
	}
	var stop atomic.Bool
	var wg sync.WaitGroup
	var reads int
	wg.Go(func() {
		for ; !stop.Load(); reads++ {
			target, _ := os.Readlink(filepath.Join(dir, outputData))
			at := filepath.Join(dir, target)
			_, err := tls.LoadX509KeyPair(filepath.Join(at, outputChain), filepath.Join(at, outputKey))
			if now, _ := os.Readlink(filepath.Join(dir, outputData)); err != nil && at == filepath.Join(dir, now) {
				t.Errorf("set %s: %v", at, err)
			}
			if _, err := os.Stat(filepath.Join(dir, outputKey)); err != nil {
				t.Errorf("key: %v", err)
			}
		}
	})
	for range 40 {
		if err := writeSet(dir, set(), time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	stop.Store(true)
	wg.Wait()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 5 {
		t.Errorf("the directory has %v, %v, want three files, the link and one set", entries, err)
	}
	t.Logf("%d reads", reads)
}
