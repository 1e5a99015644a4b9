package wasmcache

import (
	"context"
	"fmt"
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
	m, err := s.get(ctx, a)
	if err != nil {
		return Module{}, newError(a.ref.String(), err)
	}
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
	v, known := r.find(a.sha256)
	if !known || !r.granted(a.secret) || a.stale(&r) {
		return Module{}, false, nil
	}
	m, ok, err = s.use(ctx, a, v)
	switch {
	case !ok:
		return Module{}, false, err
	case err == nil:
		s.metrics.hits.Inc()
		return m, true, nil
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

// use returns the module of v when its blob is whole (ok) and nothing speaks against running it (err).
func (s *Store) use(ctx context.Context, a *ask, v version) (m Module, ok bool, err error) {
	defer s.hold(v.Digest)()
	whole, err := s.intact(ctx, v.Digest)
	if err != nil || !whole {
		return Module{}, false, err
	}
	s.touch(v.Digest)
	warning, err := s.vouch(ctx, a, v.Digest)
	if err != nil {
		return Module{}, true, err
	}
	return Module{
		Digest: v.Digest, Path: s.blobPath(v.Digest), Size: v.Size, Warning: warning, Ref: a.ref.String(), ManifestDigest: v.Manifest,
	}, true, nil
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
	if err == nil && a.always && a.resource.Name != "" {
		// The pull may have been started for another resource.
		if r := s.record(a.ref); a.stale(&r) {
			s.remember(a, v)
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
	} else if v, err = s.bring(ctx, a, resolved, report); err != nil {
		return version{}, false, err
	}
	defer s.hold(v.Digest)() // until those who wait can
	v.Manifest, v.Index, v.Seen = resolved.Manifest, resolved.Index, time.Now()
	s.remember(a, v)
	return v, !here, nil
}

// known looks whether the module of a manifest is in the store already.
func (s *Store) known(ctx context.Context, r *fetch.Resolved) (version, bool) {
	var v version
	if r.Manifest == "" || !s.readJSON(manifestName(r.Manifest), &v) || v.Manifest != r.Manifest {
		return version{}, false
	}
	defer s.hold(v.Digest)()
	whole, err := s.intact(ctx, v.Digest)
	if err != nil {
		s.cfg.Log.Warn("cannot read a stored module: it is downloaded again", "digest", v.Digest, "err", err)
	}
	return v, whole
}

// bring downloads; references that lead to the same manifest of the same repository share one download. The same manifest elsewhere does not
// count: a registry that hangs or lies must not hold up or fail another.
func (s *Store) bring(ctx context.Context, a *ask, r *fetch.Resolved, report func(done, total int64)) (version, error) {
	key := strings.Join([]string{r.Repository, r.Manifest, a.sha256}, "\x00")
	if r.Manifest == "" {
		key = a.flightKey()
	}
	var mine atomic.Bool
	v, err := s.downloads.do(ctx, key, a.ref.String(), report, func(ctx context.Context, report func(int64, int64)) (version, error) {
		mine.Store(true)
		select {
		case s.slots <- struct{}{}:
			defer func() { <-s.slots }()
		case <-ctx.Done():
			return version{}, context.Cause(ctx)
		}
		result, err := s.download(ctx, r, report)
		return version{Digest: result.Digest, Size: result.Size}, err
	})
	if err != nil && !mine.Load() && ctx.Err() == nil {
		err = fmt.Errorf("%s is the same image as one that could not be had: %w", a.ref, err)
	}
	return v, err
}
