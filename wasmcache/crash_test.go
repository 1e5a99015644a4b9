package wasmcache

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/registrytest"
	"github.com/gateway-agent/gateway-agent/wasmcache/fetch"
)

func damage(t *testing.T, path string, how func(f *os.File) error) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(how(f), f.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestDamagedBlobIsQuarantinedAndPulledAgain(t *testing.T) {
	ways := map[string]func(t *testing.T, path string){
		"one bit": func(t *testing.T, path string) {
			damage(t, path, func(f *os.File) error { _, err := f.WriteAt([]byte{1}, 2000); return err })
		},
		"truncated": func(t *testing.T, path string) { damage(t, path, func(f *os.File) error { return f.Truncate(1000) }) },
		"empty":     func(t *testing.T, path string) { damage(t, path, func(f *os.File) error { return f.Truncate(0) }) },
		"longer": func(t *testing.T, path string) {
			damage(t, path, func(f *os.File) error { _, err := f.WriteAt([]byte{1}, 5000); return err })
		},
		"directory": func(t *testing.T, path string) {
			if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o755)); err != nil {
				t.Fatal(err)
			}
		},
		"symlink": func(t *testing.T, path string) {
			if err := errors.Join(os.Remove(path), os.Symlink("/etc/passwd", path)); err != nil {
				t.Fatal(err)
			}
		},
	}
	r := registrytest.New(t)
	module := core("damage", 3000)
	r.Push(t, "damage", "v1", registrytest.Compat(t, module))
	p := registrytest.NewProxy(t, r.Addr)
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir)
			m, err := s.Get(t.Context(), Request{URL: p.Ref("damage:v1")})
			wantModule(t, m, err, module)
			s.Close()
			way(t, m.Path)
			s = open(t, dir)
			p.Fail("/", registrytest.Fault{Status: 503})
			_, err = s.Get(t.Context(), Request{URL: p.Ref("damage:v1")})
			wantError(t, err, false, "503")
			if q := s.Status().Quarantine; len(q) != 1 || q[0].Digest != m.Digest || q[0].Reason == "" {
				t.Errorf("Status().Quarantine = %+v, want %s", q, m.Digest)
			}
			p.Repair()
			m, err = s.Get(t.Context(), Request{URL: p.Ref("damage:v1")})
			wantModule(t, m, err, module)
			if q := s.Status().Quarantine; len(q) != 0 {
				t.Errorf("after the pull Status().Quarantine = %+v, want none", q)
			}
		})
	}
}

func TestChangedWhileRunningIsSeen(t *testing.T) {
	r := registrytest.New(t)
	module := core("changed", 3000)
	r.Push(t, "changed", "v1", registrytest.Compat(t, module))
	s := open(t, t.TempDir())
	m, err := s.Get(t.Context(), Request{URL: r.Ref("changed:v1")})
	wantModule(t, m, err, module)
	damage(t, m.Path, func(f *os.File) error { _, err := f.WriteAt([]byte{1}, 2000); return err })
	m, err = s.Get(t.Context(), Request{URL: r.Ref("changed:v1")})
	wantModule(t, m, err, module)
}

func TestLeftoversOfACrash(t *testing.T) {
	r, dir := registrytest.New(t), t.TempDir()
	module := core("crash", 3000)
	r.Push(t, "crash", "v1", registrytest.Compat(t, module))
	s := open(t, dir)
	m, err := s.Get(t.Context(), Request{URL: r.Ref("crash:v1")})
	wantModule(t, m, err, module)
	s.Close()
	tmp := filepath.Join(dir, "tmp", "blob-0123")
	if err := os.WriteFile(tmp, module[:100], 0o600); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	if _, err := os.Stat(tmp); err == nil {
		t.Error("Open left an unfinished download")
	}
	s.Close()
	for _, sub := range []string{"refs", "manifests"} {
		for _, garbage := range []string{"", "{", "[1]", `{"versions":[{"digest":"../../../etc/passwd"}],"grants":[{}]}`, `{"digest":"x"}`, strings.Repeat("x", 5<<20)} {
			files, err := filepath.Glob(filepath.Join(dir, sub, "*.json"))
			if err != nil || len(files) != 1 {
				t.Fatalf("%s holds %v, %v, want one file", sub, files, err)
			}
			if err := os.WriteFile(files[0], []byte(garbage), 0o600); err != nil {
				t.Fatal(err)
			}
			s = open(t, dir)
			m, err := s.Get(t.Context(), Request{URL: r.Ref("crash:v1")})
			wantModule(t, m, err, module)
			s.Close()
		}
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "refs", "pipe.json"), 0o600); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	if got := s.Status().Modules; len(got) != 1 { // and it does not wait for a writer
		t.Errorf("Status has %d modules, want one", len(got))
	}
}

// writable is a fetcher that fails as a full disk does.
type fullDisk struct{ err error }

func (fullDisk) Resolve(context.Context, fetch.Request) (*fetch.Resolved, error) {
	return &fetch.Resolved{Size: -1}, nil
}

func (fullDisk) Head(context.Context, fetch.Request) (string, error) {
	return "", errors.ErrUnsupported
}

func (f fullDisk) Fetch(context.Context, *fetch.Resolved, fetch.Sink, func(int64, int64)) (fetch.Result, error) {
	return fetch.Result{}, fmt.Errorf("write: %w", f.err)
}

func TestFullOrReadOnlyDiskServesWhatIsThere(t *testing.T) {
	r, dir := registrytest.New(t), t.TempDir()
	module := core("disk", 3000)
	r.Push(t, "disk", "v1", registrytest.Compat(t, module))
	s := open(t, dir)
	m, err := s.Get(t.Context(), Request{URL: r.Ref("disk:v1"), Host: envoy})
	wantModule(t, m, err, module)
	s.Close()
	for errno, text := range map[syscall.Errno]string{
		syscall.ENOSPC: "no space left on device (free space there; what is stored is still served)",
		syscall.EROFS:  "read-only file system (make it writable for the agent's user",
	} {
		s = open(t, dir, func(c *Config) { c.Fetch = fullDisk{errno} })
		_, err = s.Get(t.Context(), Request{URL: r.Ref("disk:v2")})
		wantError(t, err, false, text, dir)
		m, err = s.Get(t.Context(), Request{URL: r.Ref("disk:v1"), Host: envoy})
		wantModule(t, m, err, module)
		s.Close()
	}
	// Nothing at all can be written (the tests may run as root, for whom permissions do not count).
	for _, sub := range []string{"tmp", "refs", "manifests", "verdicts", "quarantine", "locks"} {
		if err := errors.Join(os.RemoveAll(filepath.Join(dir, sub+".was")), os.Rename(filepath.Join(dir, sub), filepath.Join(dir, sub+".was"))); err != nil {
			t.Fatal(err)
		}
	}
	for _, sub := range []string{"tmp", "manifests", "verdicts", "quarantine", "locks"} {
		if err := os.WriteFile(filepath.Join(dir, sub), nil, 0o400); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(filepath.Join(dir, "refs.was"), filepath.Join(dir, "refs")); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	m, err = s.Get(t.Context(), Request{URL: r.Ref("disk:v1"), Host: envoy})
	wantModule(t, m, err, module)
	r.Push(t, "disk", "v2", registrytest.Compat(t, core("v2", 10)))
	_, err = s.Get(t.Context(), Request{URL: r.Ref("disk:v2"), Host: envoy})
	wantError(t, err, false, "begin a download in module store "+dir)
	if s.Status().Writable {
		t.Error("Status().Writable = true")
	}
}

func TestOpenFailsWithTheReason(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(Config{Dir: path, Fetch: fullDisk{}})
	if err == nil || !strings.Contains(err.Error(), "open module store "+path) {
		t.Errorf("Open = %v, want an error that names %s", err, path)
	}
	_, err = Open(Config{Unvouched: "maybe"})
	for _, text := range []string{"no directory", "no fetcher", "not maybe"} {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("Open = %v, want it to say %q", err, text)
		}
	}
}

func TestASecondStoreLeavesTheDownloadsOfTheFirstAlone(t *testing.T) {
	r, dir := registrytest.New(t), t.TempDir()
	module, slow := core("both", 3000), core("slow", 100_000)
	r.Push(t, "both", "v1", registrytest.Compat(t, module))
	r.Push(t, "slow", "v1", registrytest.WasmToOCI(slow))
	p := registrytest.NewProxy(t, r.Addr)
	p.Fail("/slow/blobs/", registrytest.Fault{Delay: 300 * time.Millisecond})
	running := open(t, dir)
	pulled := make(chan error, 1) // the one result
	go func() {
		_, err := running.Get(t.Context(), Request{URL: p.Ref("slow:v1")})
		pulled <- err
	}()
	for len(p.Requests("/slow/blobs/")) == 0 {
		time.Sleep(time.Millisecond)
	}
	command := open(t, dir) // must not empty tmp under the other
	command.collect(nil)
	m, err := command.Get(t.Context(), Request{URL: r.Ref("both:v1")})
	wantModule(t, m, err, module)
	if err := <-pulled; err != nil {
		t.Errorf("pull during the second Open = %v", err)
	}
	m, err = running.Get(t.Context(), Request{URL: r.Ref("both:v1")})
	wantModule(t, m, err, module)
}

// Somebody cleans up in the directory of an agent that runs.
func TestAnEmptiedDirectoryIsFilledAgain(t *testing.T) {
	s := open(t, t.TempDir(), func(c *Config) { c.Fetch = inline{size: 1000} })
	m := mustGet(t, s, "oci://r.test/a:v1")
	files, err := os.ReadDir(s.dir)
	if err != nil || len(files) < 7 {
		t.Fatalf("the store has %d directories, %v", len(files), err)
	}
	for _, f := range files {
		if err := os.RemoveAll(filepath.Join(s.dir, f.Name())); err != nil {
			t.Fatal(err)
		}
	}
	if again := mustGet(t, s, "oci://r.test/a:v1"); again != m || !stored(again) {
		t.Errorf("Get = %+v, want it back", again)
	}
	if st := s.Status(); len(st.Modules) != 1 || !st.Writable {
		t.Errorf("Status = %+v", st)
	}
}
