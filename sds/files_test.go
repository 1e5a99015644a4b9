package sds

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/testca"
)

// layouts are the ways in which certificates come to lie on disk. Each returns where the secret is named and how it is replaced.
var layouts = map[string]func(t *testing.T, dir string) (named string, rotate func(testca.Pair)){
	"in place": func(t *testing.T, dir string) (string, func(testca.Pair)) {
		return dir, func(p testca.Pair) { p.Write(t, dir) }
	},
	"rename": func(t *testing.T, dir string) (string, func(testca.Pair)) {
		return dir, func(p testca.Pair) {
			tmp := t.TempDir()
			p.Write(t, tmp)
			for _, f := range []string{"tls.crt", "tls.key"} {
				must(t, os.Rename(filepath.Join(tmp, f), filepath.Join(dir, f)))
			}
		}
	},
	"..data swap, as Kubernetes does": func(t *testing.T, dir string) (string, func(testca.Pair)) {
		n := 0
		return dir, func(p testca.Pair) {
			n++
			version := fmt.Sprintf("..v%d", n)
			swapLink(t, dir, version, "..data", p)
			for _, f := range []string{"tls.crt", "tls.key"} {
				if n == 1 {
					must(t, os.Symlink("..data/"+f, filepath.Join(dir, f)))
				}
			}
			must(t, os.RemoveAll(filepath.Join(dir, fmt.Sprintf("..v%d", n-1))))
		}
	},
	"chain of links to another directory, as certbot does": func(t *testing.T, dir string) (string, func(testca.Pair)) {
		live, archive := filepath.Join(dir, "live"), filepath.Join(dir, "archive")
		must(t, os.Mkdir(live, 0o700))
		must(t, os.Mkdir(archive, 0o700))
		n := 0
		return live, func(p testca.Pair) {
			n++
			swapLink(t, archive, fmt.Sprintf("v%d", n), "current", p)
			for _, f := range []string{"tls.crt", "tls.key"} {
				if n == 1 {
					must(t, os.Symlink(filepath.Join(archive, "current", f), filepath.Join(live, f)))
				}
			}
		}
	},
	"delete and create again": func(t *testing.T, dir string) (string, func(testca.Pair)) {
		return dir, func(p testca.Pair) {
			_ = os.Remove(filepath.Join(dir, "tls.crt"))
			_ = os.Remove(filepath.Join(dir, "tls.key"))
			p.Write(t, dir)
		}
	},
	"directory deleted and created again": func(t *testing.T, dir string) (string, func(testca.Pair)) {
		sub := filepath.Join(dir, "sub")
		return sub, func(p testca.Pair) {
			must(t, os.RemoveAll(sub))
			must(t, os.Mkdir(sub, 0o700))
			p.Write(t, sub)
		}
	},
	"directory replaced by rename": func(t *testing.T, dir string) (string, func(testca.Pair)) {
		sub := filepath.Join(dir, "sub")
		return sub, func(p testca.Pair) {
			fresh := filepath.Join(dir, "fresh")
			must(t, os.Mkdir(fresh, 0o700))
			p.Write(t, fresh)
			must(t, os.RemoveAll(sub))
			must(t, os.Rename(fresh, sub))
		}
	},
}

// swapLink writes a version directory and points the link at it, atomically.
func swapLink(t *testing.T, dir, version, link string, p testca.Pair) {
	t.Helper()
	must(t, os.Mkdir(filepath.Join(dir, version), 0o700))
	p.Write(t, filepath.Join(dir, version))
	tmp := filepath.Join(dir, link+"_tmp")
	must(t, os.Symlink(version, tmp))
	must(t, os.Rename(tmp, filepath.Join(dir, link)))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func rotations(t *testing.T, layout string, cfg Config, limit time.Duration) {
	ca := testca.New(t, "ca")
	named, rotate := layouts[layout](t, t.TempDir())
	first := ca.Issue(t, testca.Leaf{})
	rotate(first)
	r := newServerRig(t, cfg)
	in := newInbox(t, r, "sotw", nil)
	in.subscribe(certPrefix + named + "/tls.crt~" + named + "/tls.key")
	a := in.next(limit)
	if chainOf(a) != string(first.CertPEM) {
		t.Fatal("first answer is not the first certificate")
	}
	in.ack(a)
	time.Sleep(2 * stillness) // notifications are on
	for i := range 5 {
		next := ca.Issue(t, testca.Leaf{})
		rotate(next)
		a := in.next(limit)
		in.ack(a)
		if a.secret == nil || chainOf(a) != string(next.CertPEM) || string(a.secret.GetTlsCertificate().GetPrivateKey().GetInlineBytes()) != string(next.KeyPEM) {
			t.Fatalf("rotation %d: what was pushed is not the new pair", i)
		}
		time.Sleep(2 * stillness)
	}
}

func TestRotationByPolling(t *testing.T) {
	for layout := range layouts {
		t.Run(layout, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { rotations(t, layout, pollOnly, time.Second+2*stillness) })
		})
	}
}

// The poll is set so far off that only notifications can be the cause.
func TestRotationByNotification(t *testing.T) {
	for layout := range layouts {
		t.Run(layout, func(t *testing.T) {
			t.Parallel()
			rotations(t, layout, Config{Poll: time.Hour}, 10*time.Second)
		})
	}
}

// A pair that does not match is never pushed, however long it lies there.
func TestMismatchedPairStaysOnDisk(t *testing.T) {
	each(t, func(t *testing.T, protocol string) {
		s := subscribed(t, protocol, pollOnly)
		s.ack(s.next(time.Second))
		second := s.ca.Issue(t, testca.Leaf{})
		must(t, os.WriteFile(s.dir+"/tls.crt", second.CertPEM, 0o600))
		s.silence(10 * time.Minute)
		st := s.status(t, s.name)
		if st.State != StateDegraded || !strings.Contains(st.Reason, "does not match") || st.Serial != serialOf(s.pair.Cert) {
			t.Errorf("status: %+v", st)
		}
		if got := strings.Count(s.log.String(), "the old one is kept"); got != 1 {
			t.Errorf("%d warnings, want one", got)
		}
		must(t, os.WriteFile(s.dir+"/tls.key", second.KeyPEM, 0o600))
		if a := s.next(2 * time.Second); chainOf(a) != string(second.CertPEM) {
			t.Error("after the key came: not the second certificate")
		}
	})
}

// While a file is being written in many steps nothing of it is pushed; neither is a file rewritten with the same content.
func TestSlowWriterAndSameContent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca, dir := testca.New(t, "ca"), t.TempDir()
		path := filepath.Join(dir, "ca.pem")
		must(t, os.WriteFile(path, ca.PEM, 0o600))
		r := newServerRig(t, Config{PollOnly: true, Poll: 300 * time.Millisecond})
		in := newInbox(t, r, "sotw", nil)
		in.subscribe(rootPrefix + path)
		in.ack(in.next(time.Second))
		bundle := cat(ca.PEM, testca.New(t, "two").PEM, testca.New(t, "three").PEM)
		f, err := os.Create(path)
		must(t, err)
		for b := range slices.Chunk(bundle, 10) {
			_, err := f.Write(b)
			must(t, err)
			time.Sleep(stillness / 2)
		}
		must(t, f.Close())
		a := in.next(time.Second)
		in.ack(a)
		if got := a.secret.GetValidationContext().GetTrustedCa().GetInlineBytes(); string(got) != string(bundle) {
			t.Errorf("pushed a part of the file, %d of %d bytes", len(got), len(bundle))
		}
		must(t, os.WriteFile(path, cat([]byte("# a comment\n"), bundle), 0o600))
		in.silence(time.Minute)
	})
}

func TestHostileFiles(t *testing.T) {
	dir, secret := t.TempDir(), t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	ca := testca.New(t, "ca")
	must(t, os.WriteFile(file("good.pem"), ca.PEM, 0o600))
	must(t, os.WriteFile(file("huge.pem"), cat(ca.PEM, make([]byte, maxFile)), 0o600))
	must(t, os.Truncate(file("huge.pem"), 1<<40))
	must(t, syscall.Mkfifo(file("fifo.pem"), 0o600))
	must(t, os.Mkdir(file("dir.pem"), 0o700))
	must(t, os.Symlink("loop2.pem", file("loop.pem")))
	must(t, os.Symlink("loop.pem", file("loop2.pem")))
	must(t, os.Symlink("nowhere.pem", file("dangling.pem")))
	must(t, os.Symlink("/dev/zero", file("zero.pem")))
	must(t, os.WriteFile(filepath.Join(secret, "token.pem"), ca.PEM, 0o600))
	must(t, os.Symlink(filepath.Join(secret, "token.pem"), file("sly.pem")))
	must(t, os.Symlink(secret, file("alias")))
	denied := file("denied-link")
	must(t, os.Symlink(secret, denied))

	r := newServerRig(t, Config{Poll: 50 * time.Millisecond, Wait: time.Second, Deny: []string{denied}})
	in := newInbox(t, r, "delta", nil)
	want := map[string]string{
		file("huge.pem"):                   "larger than 1048576 bytes",
		file("fifo.pem"):                   "not a regular file but a named pipe",
		file("dir.pem"):                    "not a regular file but a directory",
		file("loop.pem"):                   "too many links",
		file("dangling.pem"):               "is a link that leads nowhere",
		file("zero.pem"):                   "not a regular file but a device",
		"/proc/self/mem":                   "",
		"/proc/self/environ":               "",
		file("good.pem") + "/x":            "not a directory",
		dir + "/../" + filepath.Base(dir):  "must be absolute and without",
		dir + "//good.pem":                 "must be absolute and without",
		"good.pem":                         "must be absolute",
		"":                                 "must be absolute",
		file("good.pem") + "\x00":          "must be absolute",
		"/" + strings.Repeat("x", 5000):    "file name too long",
		file("sly.pem"):                    "is refused: files below " + denied + " are never served",
		file("alias/token.pem"):            "is refused: files below",
		filepath.Join(secret, "token.pem"): "is refused: files below",
		filepath.Join(denied, "none.pem"):  "is refused: files below",
		"/proc/self/root" + filepath.Join(secret, "token.pem"): "is refused: files below",
	}
	var names []string
	for path := range want {
		names = append(names, rootPrefix+path)
	}
	in.subscribe(append(names, rootPrefix+file("good.pem"))...)
	if a := in.next(5 * time.Second); a.name != rootPrefix+file("good.pem") {
		t.Fatalf("first answer is for %q, want the good one", a.name)
	}
	for range want {
		if a := in.next(5 * time.Second); a.secret != nil {
			t.Errorf("%q is served", a.name)
		}
	}
	for path, text := range want {
		st := r.status(t, rootPrefix+path)
		if st.State != StatePending || !strings.Contains(st.Reason, text) {
			t.Errorf("%q: %s (%s), want %q", path, st.State, st.Reason, text)
		}
	}
}

func TestUnreadable(t *testing.T) {
	err := explain("/c/tls.key", &os.PathError{Op: "open", Path: "/c/tls.key", Err: syscall.EACCES})
	if got := err.Error(); !strings.Contains(got, "/c/tls.key is not readable by user") || !strings.Contains(got, "change its owner or mode") {
		t.Errorf("explain: %q", got)
	}
}

func TestTrail(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	must(t, os.MkdirAll(dir+"/archive/v1", 0o700))
	must(t, os.WriteFile(dir+"/archive/v1/f", nil, 0o600))
	must(t, os.Symlink("v1", dir+"/archive/current"))
	must(t, os.Symlink(dir+"/archive/current/f", dir+"/f"))
	must(t, os.Symlink("loop", dir+"/loop"))
	for path, want := range map[string][]string{
		"/f":                {"", "/archive", "/archive/v1"},
		"/archive/v1/f":     {"/archive/v1"},
		"/none/deeper/file": {""},
		"/none":             {""},
	} {
		got := trail(dir + path)
		for i := range want {
			want[i] = dir + want[i]
		}
		if !slices.Equal(got, want) {
			t.Errorf("trail(%s): %q, want %q", path, got, want)
		}
	}
	if got := trail(dir + "/loop"); len(got) > 40 {
		t.Errorf("trail of a loop: %d directories", len(got))
	}
}
