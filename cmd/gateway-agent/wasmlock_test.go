package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/lockfile"
	"github.com/gateway-agent/gateway-agent/wasmcache"
	"github.com/gateway-agent/gateway-agent/wasmcache/fetch"
)

var (
	sumA = strings.Repeat("a", 64)
	sumB = strings.Repeat("b", 64)
	sumC = strings.Repeat("c", 64)
)

// writeLockfile writes a lockfile; when makes its time differ from an earlier one's.
func writeLockfile(t *testing.T, path string, when int, entries ...lockfile.Entry) {
	t.Helper()
	var f lockfile.File
	for _, e := range entries {
		f.Put(e)
	}
	if err := os.WriteFile(path, f.Marshal(), 0o600); err != nil {
		t.Fatal(err)
	}
	touch(t, path, when)
}

func touch(t *testing.T, path string, when int) {
	t.Helper()
	at := time.Date(2026, 1, 1, 0, 0, when, 0, time.UTC)
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}
}

func TestLockBindsReferences(t *testing.T) {
	path := filepath.Join(t.TempDir(), "modules.lock")
	writeLockfile(t, path, 0,
		lockfile.Entry{Ref: "oci://r.example.org/waf:v1", Manifest: "sha256:" + sumA, Module: "sha256:" + sumB, Size: 1},
		lockfile.Entry{Ref: "oci://r.example.org/waf:latest", Manifest: "sha256:" + sumA, Module: "sha256:" + sumC, Size: 1})
	l, err := openLock(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ url, sha256, want, problem string }{
		{url: "oci://r.example.org/waf:v1", want: sumB},
		{url: "oci://r.example.org/waf", want: sumC},
		{url: "oci://r.example.org/waf:v1", sha256: sumB, want: sumB},
		{url: "oci://r.example.org/waf:v1", sha256: "sha256:" + sumA, want: sumB},
		{url: "oci://r.example.org/waf:v1", sha256: sumC, problem: "correct one of them"},
		{url: "oci://r.example.org/waf:v2", problem: "wasm pull --lockfile modules.lock oci://r.example.org/waf:v2"},
		{url: "https://user:geheim@example.org/x.wasm?token=geheim", problem: "https://example.org/x.wasm"},
		{url: "file:///plugins/x.wasm", want: ""},
	} {
		got, err := l.bind(wasmcache.Request{URL: test.url, SHA256: test.sha256, Always: true})
		if test.problem == "" {
			if err != nil || got.SHA256 != test.want || got.Always != (test.want == "") {
				t.Errorf("bind(%s, %.8s) = %+v, %v, want %.8s", test.url, test.sha256, got, err, test.want)
			}
			continue
		}
		permanent, ok := errors.AsType[*lockError](err)
		if !ok || !permanent.Permanent() || !strings.Contains(err.Error(), test.problem) || strings.Contains(err.Error(), "geheim") {
			t.Errorf("bind(%s, %.8s) = %v, want a permanent error with %q", test.url, test.sha256, err, test.problem)
		}
	}
	if got, err := (*lock)(nil).bind(wasmcache.Request{URL: "oci://x.example.org/y", Always: true}); err != nil || !got.Always {
		t.Errorf("without a lockfile bind = %+v, %v", got, err)
	}
}

// asked is a registry that notes what it is asked.
type asked struct {
	wasmcache.Fetcher
	urls []string
}

func (a *asked) Resolve(_ context.Context, req fetch.Request) (*fetch.Resolved, error) {
	a.urls = append(a.urls, req.URL)
	return &fetch.Resolved{Manifest: "sha256:" + sumA}, nil
}

func TestRegistriesAreAskedByDigest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "modules.lock")
	writeLockfile(t, path, 0,
		lockfile.Entry{Ref: "oci://r.example.org:5000/a/b:v1", Manifest: "sha256:" + sumA, Module: "sha256:" + sumB, Size: 1},
		lockfile.Entry{Ref: "oci://r.example.org:5000/c@sha256:" + sumA, Manifest: "sha256:" + sumA, Module: "sha256:" + sumB, Size: 1},
		lockfile.Entry{Ref: "https://example.org/x.wasm", Module: "sha256:" + sumB, Size: 1})
	l, err := openLock(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	registry := &asked{}
	b := byDigest{registry, l}
	for _, url := range []string{"oci://r.example.org:5000/a/b:v1", "oci://r.example.org:5000/c@sha256:" + sumA, "https://example.org/x.wasm", "file:///x.wasm"} {
		if _, err := b.Resolve(t.Context(), fetch.Request{URL: url}); err != nil {
			t.Errorf("Resolve(%s) = %v", url, err)
		}
	}
	if digest, err := b.Head(t.Context(), fetch.Request{URL: "oci://r.example.org:5000/a/b:v1"}); digest != "sha256:"+sumA || err != nil {
		t.Errorf("Head = %s, %v", digest, err)
	}
	if _, err := b.Resolve(t.Context(), fetch.Request{URL: "oci://r.example.org:5000/other:v1"}); err == nil {
		t.Error("Resolve of what is not in the lockfile asked the registry")
	}
	want := []string{
		"oci://r.example.org:5000/a/b@sha256:" + sumA, "oci://r.example.org:5000/c@sha256:" + sumA, "https://example.org/x.wasm", "file:///x.wasm",
		"oci://r.example.org:5000/a/b@sha256:" + sumA,
	}
	if !slices.Equal(registry.urls, want) {
		t.Errorf("asked %q, want %q", registry.urls, want)
	}
}

// An edit of the lockfile goes live by itself; one that breaks it changes nothing.
func TestLockFollowsItsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "modules.lock")
	a := lockfile.Entry{Ref: "oci://r.example.org/a:v1", Manifest: "sha256:" + sumA, Module: "sha256:" + sumA, Size: 1}
	b := lockfile.Entry{Ref: "oci://r.example.org/b:latest", Manifest: "sha256:" + sumA, Module: "sha256:" + sumA, Size: 1}
	writeLockfile(t, path, 0, a, b)
	synctest.Test(t, func(t *testing.T) {
		l, err := openLock(path, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		var changed []string
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1) // run's result
		go func() { done <- l.run(ctx, func(url string) { changed = append(changed, url) }) }()
		settle := func() { time.Sleep(lockPoll + time.Second); synctest.Wait() }
		means := func(url, want string) {
			t.Helper()
			if got, err := l.bind(wasmcache.Request{URL: url}); err != nil || got.SHA256 != want {
				t.Errorf("%s means %.8s, %v, want %.8s", url, got.SHA256, err, want)
			}
		}
		means("oci://r.example.org/a:v1", sumA)
		means("oci://r.example.org/b", sumA)
		settle()
		if changed != nil {
			t.Errorf("changed = %q before anything did", changed)
		}
		b.Module = "sha256:" + sumB
		writeLockfile(t, path, 1, a, b)
		settle()
		if want := []string{"oci://r.example.org/b"}; !slices.Equal(changed, want) {
			t.Errorf("changed = %q, want %q: as the request spelled it", changed, want)
		}
		means("oci://r.example.org/b", sumB)
		if err := os.WriteFile(path, []byte("version: ["), 0o600); err != nil {
			t.Fatal(err)
		}
		touch(t, path, 2)
		settle()
		means("oci://r.example.org/b", sumB)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		settle()
		means("oci://r.example.org/a:v1", sumA)
		if len(changed) != 1 {
			t.Errorf("changed = %q after the file broke and went", changed)
		}
		stop()
		if err := <-done; err != nil {
			t.Errorf("run = %v", err)
		}
	})
}
