package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/gateway-agent/gateway-agent/internal/lockfile"
	"github.com/gateway-agent/gateway-agent/wasmcache"
	"github.com/gateway-agent/gateway-agent/wasmcache/fetch"
)

// lock says what references mean while a lockfile is obeyed: what it lacks is refused. The file is read again when it changed. It is safe
// for concurrent use.
type lock struct {
	path string
	log  *slog.Logger

	mu    sync.Mutex
	file  *lockfile.File
	stamp lockStamp
	asked *lru.Cache[string, lockfile.Entry] // by URL as requests spell it: what it meant last
}

const (
	lockPoll = 2 * time.Second
	maxAsked = 4096
)

// lockStamp differs when a file may have changed.
type lockStamp struct {
	modified time.Time
	size     int64
}

func openLock(path string, log *slog.Logger) (*lock, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("--lockfile: %w", err)
	}
	l := &lock{path: path, log: log, stamp: stampOf(path)}
	if l.asked, err = lru.New[string, lockfile.Entry](maxAsked); err != nil {
		return nil, err
	}
	if l.file, err = lockfile.Read(path); err != nil {
		return nil, usageError{fmt.Errorf("--lockfile: %w", err)}
	}
	return l, nil
}

// run looks for changes of the file until ctx ends, and tells the URLs that mean something else by then.
func (l *lock) run(ctx context.Context, changed func(url string)) error {
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		file := l.current()
		for _, url := range l.asked.Keys() {
			key, _ := storeKey(url) // it was parsed when it was asked for
			now, _ := file.Find(key)
			if was, ok := l.asked.Peek(url); ok && was != now {
				l.asked.Add(url, now)
				changed(url)
			}
		}
	}
}

func stampOf(path string) lockStamp {
	info, err := os.Stat(path)
	if err != nil {
		return lockStamp{}
	}
	return lockStamp{info.ModTime(), info.Size()}
}

// current returns the file as it is now; one that became unreadable leaves the last good one in force.
func (l *lock) current() *lockfile.File {
	l.mu.Lock()
	defer l.mu.Unlock()
	stamp := stampOf(l.path)
	if stamp == l.stamp {
		return l.file
	}
	l.stamp = stamp
	file, err := lockfile.Read(l.path)
	if err != nil {
		l.log.Error("lockfile cannot be read, its last good content stays in force", "path", l.path, "err", err)
		return l.file
	}
	l.log.Info("lockfile read again", "path", l.path, "modules", file.Len())
	l.file = file
	return file
}

// lockError is a reference that the lockfile does not allow. Only an edit helps.
type lockError struct{ text string }

func (e *lockError) Error() string   { return e.text }
func (e *lockError) Permanent() bool { return true }

// find returns what a reference means.
func (l *lock) find(url string) (lockfile.Entry, error) {
	key, err := storeKey(url)
	if err != nil {
		return lockfile.Entry{}, err
	}
	e, ok := l.current().Find(key)
	l.asked.Add(url, e)
	if !ok {
		return e, &lockError{fmt.Sprintf("%s is not in lockfile %s: add it with 'gateway-agent wasm pull --lockfile %s %s'", key, l.path, filepath.Base(l.path), key)}
	}
	return e, nil
}

// bind makes a request mean what the lockfile says. Local files are not locked.
func (l *lock) bind(req wasmcache.Request) (wasmcache.Request, error) {
	if l == nil || strings.HasPrefix(req.URL, "file://") {
		return req, nil
	}
	e, err := l.find(req.URL)
	if err != nil {
		return req, err
	}
	want, err := fetch.NormalizeSHA256(req.SHA256)
	if err != nil {
		return req, fmt.Errorf("sha256 of %s: %w", e.Ref, err)
	}
	if want != "" && e.Module != "sha256:"+want && e.Manifest != "sha256:"+want {
		return req, &lockError{fmt.Sprintf("%s is wanted with sha256 %s, but lockfile %s says module %s, manifest %s: correct one of them", e.Ref, want, l.path, e.Module, e.Manifest)}
	}
	req.SHA256, req.Always = strings.TrimPrefix(e.Module, "sha256:"), false
	return req, nil
}

// byDigest asks registries for what the lockfile says and never about a tag.
type byDigest struct {
	wasmcache.Fetcher
	lock *lock
}

// Resolve implements wasmcache.Fetcher.
func (b byDigest) Resolve(ctx context.Context, req fetch.Request) (*fetch.Resolved, error) {
	e, err := b.lock.find(req.URL)
	if strings.HasPrefix(req.URL, "file://") || err == nil && e.Manifest == "" {
		return b.Fetcher.Resolve(ctx, req)
	}
	if err != nil {
		return nil, err
	}
	req.URL = digestURL(e)
	return b.Fetcher.Resolve(ctx, req)
}

// Head implements wasmcache.Fetcher; it tells whether the caller may have what the lockfile says.
func (b byDigest) Head(ctx context.Context, req fetch.Request) (string, error) {
	r, err := b.Resolve(ctx, req)
	if err != nil {
		return "", err
	}
	return cmp.Or(r.Index, r.Manifest), nil
}

// digestURL is an entry's reference with the digest in place of the tag.
func digestURL(e lockfile.Entry) string {
	name, _, _ := strings.Cut(e.Ref, "@")
	if colon := strings.LastIndexByte(name, ':'); colon > strings.LastIndexByte(name, '/') {
		name = name[:colon]
	}
	return name + "@" + e.Manifest
}

// lockEntry is what a lockfile keeps of a module that was brought. An index counts before the manifest that it led to.
func lockEntry(key string, m pulled) lockfile.Entry {
	return lockfile.Entry{Ref: key, Manifest: cmp.Or(m.Index, m.ManifestDigest), Module: m.Digest, Size: m.Size}
}

// writeLock brings a lockfile up to date with what was pulled. With whole the file gets exactly these references, else others stay. What failed
// keeps its old entry.
func (a *app) writeLock(ctx context.Context, o *moduleOptions, results []pulled, whole bool) ([]lockfile.Change, error) {
	named, problems := map[string]*pulled{}, []error(nil)
	for i, m := range results {
		key, err := storeKey(m.url)
		if err != nil {
			continue // its failure was told
		}
		first := named[key]
		if first != nil && m.Digest != "" && first.Digest != "" && first.Digest != m.Digest {
			problems = append(problems, fmt.Errorf("%s was wanted with different contents, %s and %s: a lockfile can hold one; write the digest into the reference", key, first.Digest, m.Digest))
		}
		if first == nil || first.Error != "" {
			named[key] = &results[i]
		}
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	before, after, err := lockfile.Update(ctx, o.lockfile, func(file *lockfile.File) (*lockfile.File, error) {
		for key, m := range named {
			if m.Error == "" {
				file.Put(lockEntry(key, *m))
			}
		}
		if whole {
			file.Keep(func(e lockfile.Entry) bool { _, ok := named[e.Ref]; return ok })
		}
		return file, nil
	})
	if err != nil {
		return nil, err
	}
	return lockfile.Diff(before, after), nil
}

// tellLock shows what changed in the lockfile, as a diff.
func (a *app) tellLock(o *moduleOptions, changes []lockfile.Change) {
	if len(changes) == 0 {
		a.say(o, "%s: unchanged", o.lockfile)
		return
	}
	a.say(o, "%s: %s", o.lockfile, count(len(changes), "change"))
	for _, c := range changes {
		switch {
		case c.Old == nil:
			a.say(o, "  + %s  %s", c.Ref(), shortDigest(c.New))
		case c.New == nil:
			a.say(o, "  - %s  %s", c.Ref(), shortDigest(c.Old))
		case c.Old.Module == c.New.Module:
			a.say(o, "  ~ %s  %s, the same module in another image", c.Ref(), shortDigest(c.New))
		default:
			a.say(o, "  ~ %s  %s -> %s", c.Ref(), shortDigest(c.Old), shortDigest(c.New))
		}
	}
}

func shortDigest(e *lockfile.Entry) string { return short(strings.TrimPrefix(e.Module, "sha256:")) }

// count is "1 module", "2 modules".
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
