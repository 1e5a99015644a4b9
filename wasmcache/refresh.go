package wasmcache

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/gateway-agent/gateway-agent/wasmcache/fetch"
)

// Bounds of asking whether tags moved.
const (
	headTimeout = 30 * time.Second
	maxHeads    = 4 // at a time
)

// watched is a tag that a resource uses. The secret is in memory only.
type watched struct {
	ask    *ask
	served Module    // what the resource got last
	asked  time.Time // by the resource
	due    time.Time // for the registry
	failed bool      // the last question had no answer
}

// watch remembers which tag a resource uses.
func (s *Store) watch(a *ask, m Module) {
	if s.cfg.Refresh <= 0 || a.resource.Name == "" || a.fixed() || !isImage(a.ref) {
		return
	}
	now, kept := time.Now(), *a
	kept.progress = nil
	w := watched{ask: &kept, served: m, asked: now, due: now.Add(time.Duration(rand.Float64() * float64(s.cfg.Refresh)))}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.watching.Get(w.key()); ok {
		w.due, w.failed = old.due, old.failed
		s.watching.Add(w.key(), w)
		return
	}
	s.watching.Add(w.key(), w)
	select {
	case s.watchMore <- struct{}{}:
	default:
	}
}

// hasMoved reports that the registry told this caller of a tag that it leads to something else than v by now.
func (s *Store) hasMoved(a *ask, v version) bool {
	if a.fixed() {
		return false
	}
	now, ok := s.moved.Get(a.flightKey())
	return ok && !v.is(now)
}

// refresh asks the registry about tags in use until ctx ends, each once in every Refresh.
func (s *Store) refresh(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.watchMore:
		case <-timer.C:
		}
		next := s.refreshDue(ctx)
		timer.Reset(next)
	}
}

// refreshDue asks what is due, each reference once for each caller, and returns the time until something is due again.
func (s *Store) refreshDue(ctx context.Context) time.Duration {
	groups := s.dueTags(s.pinned())
	var wg sync.WaitGroup
	slots := make(chan struct{}, maxHeads)
	for _, group := range groups {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			s.askTag(ctx, group)
		})
	}
	wg.Wait()
	next := s.cfg.Refresh
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.watching.Values() {
		next = min(next, time.Until(w.due))
	}
	return max(next, 0)
}

// dueTags returns what is due, forgets what no resource uses any more, and sets when each is due again: a little early, so that agents that
// started together do not ask together. One answer is for all resources that use the tag with the same secret.
func (s *Store) dueTags(pins map[string]bool) map[string][]watched {
	now := time.Now()
	groups, due := map[string][]watched{}, map[string]bool{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, w := range s.allWatchedLocked() {
		group := w.ask.flightKey()
		switch {
		case !pins[w.served.Digest] && now.Sub(w.asked) > s.grace():
			s.watching.Remove(key)
			continue
		case !now.Before(w.due):
			due[group] = true
		}
		groups[group] = append(groups[group], w)
	}
	for group, all := range groups {
		if !due[group] {
			delete(groups, group)
			continue
		}
		next := now.Add(time.Duration((0.75 + 0.25*rand.Float64()) * float64(s.cfg.Refresh)))
		for _, w := range all {
			w.due = next
			s.watching.Add(w.key(), w)
		}
	}
	return groups
}

func (w watched) key() string { return w.ask.resource.Name + "\x00" + w.ask.url }

func (s *Store) allWatchedLocked() map[string]watched {
	all := map[string]watched{}
	for _, key := range s.watching.Keys() {
		all[key], _ = s.watching.Peek(key)
	}
	return all
}

// askTag asks where one tag leads now, for resources that use it with the same secret.
func (s *Store) askTag(ctx context.Context, group []watched) {
	a := group[0].ask
	soon, cancel := context.WithTimeoutCause(ctx, headTimeout, errors.New("no answer within 30s"))
	defer cancel()
	digest, err := s.cfg.Fetch.Head(soon, fetch.Request{URL: a.url, PullSecret: a.secret})
	if ctx.Err() != nil {
		return
	}
	s.setFailed(group, err)
	if err != nil {
		if !group[0].failed {
			s.cfg.Log.Warn("cannot ask whether a tag has moved: what it led to stays", "ref", a.ref.String(), "err", err)
		}
		return
	}
	sum := strings.TrimPrefix(digest, "sha256:")
	urls := map[string]bool{}
	for _, w := range group {
		if v := (version{Digest: w.served.Digest, Manifest: w.served.ManifestDigest, Index: w.served.Index}); !v.is(sum) {
			urls[w.ask.url] = true
		}
	}
	if len(urls) == 0 {
		return
	}
	s.moved.Add(a.flightKey(), sum)
	s.cfg.Log.Info("tag has moved: it is pulled again", "ref", a.ref.String(), "digest", digest)
	for url := range urls {
		if s.cfg.OnChange != nil {
			s.cfg.OnChange(url)
		}
	}
}

// setFailed notes whether there was an answer, and when a server that wants to be left alone may be asked again.
func (s *Store) setFailed(group []watched, err error) {
	after := newError("", err).RetryAfter()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range group {
		now, ok := s.watching.Peek(w.key())
		if !ok {
			continue
		}
		now.failed = err != nil
		if wait := time.Now().Add(min(after, time.Hour)); after > 0 && now.due.Before(wait) {
			now.due = wait
		}
		s.watching.Add(now.key(), now)
	}
}
