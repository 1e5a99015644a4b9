package wasmcache

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gateway-agent/gateway-agent/wasmcache/fetch"
)

// Get returns a module that is on disk, whole, and judged usable for req.Host. What the store holds needs no network; the rest is pulled.
// Errors are *Error. Nothing is remembered of a failure: the next Get tries again.
func (s *Store) Get(ctx context.Context, req Request) (Module, error) {
	a, err := newAsk(req)
	if err != nil {
		return Module{}, newError(req.LogValue().String(), err)
	}
	if s.cfg.RequireDigest && !a.fixed() && !a.ref.Local() {
		remedy := "give the resource its sha256"
		if isImage(a.ref) {
			remedy = "end it in @sha256:…, or " + remedy
		}
		return Module{}, permanentError(a.ref.String(), "module %s names no digest, and --require-digest wants one: %s", a.ref, remedy)
	}
	m, err := s.get(ctx, a)
	if err != nil {
		return Module{}, newError(a.ref.String(), err)
	}
	s.watch(a, m)
	return m, nil
}

func (s *Store) get(ctx context.Context, a *ask) (Module, error) {
	if m, ok, err := s.serve(ctx, a); ok {
		return m, err
	}
	for range 3 { // somebody may remove it in between
		v, err := s.pull(ctx, a)
		if err != nil {
			return Module{}, err
		}
		if m, ok, err := s.use(ctx, a, v); ok || err != nil {
			return m, err
		}
	}
	return Module{}, fmt.Errorf("module of %s vanishes from store %s right after it was pulled: something else removes its files", a.ref, s.dir)
}

// serve answers from the store; ok is false when the registry must be asked.
func (s *Store) serve(ctx context.Context, a *ask) (m Module, ok bool, err error) {
	r := s.record(a.ref)
	v, may := s.find(&r, a)
	if may == denied || a.stale(&r) {
		return Module{}, false, nil
	}
	v, warning, err := s.renewed(ctx, a, v, may)
	if err != nil {
		return Module{}, true, err
	}
	m, ok, err = s.use(ctx, a, v)
	switch {
	case !ok:
		return Module{}, false, err
	case err == nil:
		m.Warning = joinWarnings(warning, m.Warning)
		if a.preload && !v.Preloaded {
			err = s.update(ctx, a.ref, func(r *record) { r.preload(v) })
		}
		s.metrics.hits.Inc()
		return m, true, err
	case a.fixed() || ctx.Err() != nil:
		return Module{}, true, err
	}
	// Its author may have published a repaired module under the same name.
	fresh, pullErr := s.pull(ctx, a)
	if pullErr != nil {
		return Module{}, true, fmt.Errorf("%w; looking for a repaired one failed: %w", err, pullErr)
	}
	return s.use(ctx, a, fresh)
}

// renewed has the registry confirm what the store would answer, where that is due: an access that expired, a tag that is known to have moved.
// When it cannot, the store answers all the same.
func (s *Store) renewed(ctx context.Context, a *ask, v version, may access) (_ version, warning string, err error) {
	if s.hasMoved(a, v) {
		fresh, err := s.pull(ctx, a)
		if err == nil || ctx.Err() != nil {
			return fresh, "", err
		}
		warning = fmt.Sprintf("an older module is used, because the newer one of %s cannot be had: %v", a.ref, err)
	}
	if may == expired {
		unsure, err := s.renew(ctx, a)
		return v, joinWarnings(warning, unsure), err
	}
	return v, warning, nil
}

func joinWarnings(texts ...string) string {
	return strings.Join(slices.DeleteFunc(texts, func(t string) bool { return t == "" }), "; ")
}

// use returns the module of v when its blob is whole (ok) and nothing speaks against running it (err).
func (s *Store) use(ctx context.Context, a *ask, v version) (m Module, ok bool, err error) {
	release, ok, err := s.hold(ctx, v.Digest)
	defer release()
	if !ok {
		return Module{}, false, err
	}
	whole, err := s.intact(ctx, v.Digest)
	if err != nil || !whole {
		return Module{}, false, err
	}
	s.touch(v.Digest)
	warning, err := s.vouch(ctx, a, v.Digest)
	if err != nil {
		return Module{}, true, err
	}
	m = s.module(a.ref.String(), v)
	m.Warning = warning
	return m, true, nil
}

func (s *Store) module(ref string, v version) Module {
	return Module{Digest: v.Digest, Path: s.blobPath(v.Digest), Size: v.Size, Ref: ref, ManifestDigest: v.Manifest, Index: v.Index}
}

// pull asks the registry and downloads what is not there. Equal requests share one pull.
func (s *Store) pull(ctx context.Context, a *ask) (version, error) {
	v, err := s.pulls.do(ctx, a.flightKey(), a.ref.String(), a.progress, func(ctx context.Context, report func(int64, int64)) (version, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.PullTimeout, fmt.Errorf("pull %s: %w: more than %v", a.ref, errTooLong, s.cfg.PullTimeout))
		defer cancel()
		start := time.Now()
		v, downloaded, err := s.pullOnce(ctx, a, report)
		s.metrics.pulled(start, downloaded, err)
		if err != nil {
			return version{}, newError(a.ref.String(), err)
		}
		s.cfg.Log.Info("module pulled", "ref", a.ref.String(), "digest", v.Digest, "downloaded", downloaded, "duration", time.Since(start))
		return v, nil
	})
	if err == nil && (a.always || a.preload) {
		// The pull may have been started for another resource.
		if r := s.record(a.ref); !r.noted(v, a) {
			err = s.remember(ctx, a, v)
		}
	}
	return v, err
}

func (s *Store) pullOnce(ctx context.Context, a *ask, report func(done, total int64)) (v version, downloaded bool, err error) {
	resolved, err := s.cfg.Fetch.Resolve(ctx, fetch.Request{URL: a.url, SHA256: a.sha256, PullSecret: a.secret})
	if err != nil {
		return version{}, false, err
	}
	v, here := s.known(ctx, resolved)
	if here {
		if _, err := resolved.Match(v.Digest); err != nil {
			return version{}, false, err
		}
	} else if v, downloaded, err = s.bring(ctx, a, resolved, report); err != nil {
		return version{}, false, err
	}
	release, _, err := s.hold(ctx, v.Digest) // until those who wait can
	defer release()
	if err == nil {
		v.Manifest, v.Index = resolved.Manifest, resolved.Index
	}
	if err == nil && (resolved.Manifest != "" || a.ref.Local()) { // else fetchNow did
		err = s.remember(ctx, a, v)
	}
	return v, downloaded, err
}

// known looks whether the module of a manifest is in the store already.
func (s *Store) known(ctx context.Context, r *fetch.Resolved) (version, bool) {
	var v version
	if r.Manifest == "" || !s.readJSON(manifestName(r.Manifest), &v) || v.Manifest != r.Manifest {
		return version{}, false
	}
	release, ok, err := s.hold(ctx, v.Digest)
	defer release()
	whole := false
	if ok {
		whole, err = s.intact(ctx, v.Digest)
	}
	if err != nil {
		s.cfg.Log.Warn("cannot read a stored module: it is downloaded again", "digest", v.Digest, "err", err)
	}
	return v, whole
}

// bring downloads, once for all processes that share the store. References that lead to the same manifest of the same repository share one
// download. The same manifest elsewhere does not count: a registry that hangs or lies must not hold up or fail another.
func (s *Store) bring(ctx context.Context, a *ask, r *fetch.Resolved, report func(done, total int64)) (v version, downloaded bool, err error) {
	key := strings.Join([]string{r.Repository, r.Manifest, a.sha256}, "\x00")
	if r.Manifest == "" {
		key = a.flightKey()
	}
	var mine atomic.Bool
	b, err := s.downloads.do(ctx, key, a.ref.String(), report, func(ctx context.Context, report func(int64, int64)) (brought, error) {
		mine.Store(true)
		l, err := s.downloadLock(ctx, a, key, report)
		if err != nil {
			return brought{}, err
		}
		defer l.unlock()
		if v, here := s.meanwhile(ctx, a, r, l); here {
			return brought{version: v}, nil
		}
		return s.fetchNow(ctx, a, r, l, report)
	})
	if err != nil && !mine.Load() && ctx.Err() == nil {
		err = fmt.Errorf("%s is the same image as one that could not be had: %w", a.ref, err)
	}
	return b.version, b.downloaded, err
}
