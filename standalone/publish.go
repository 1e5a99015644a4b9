package standalone

import (
	"context"
	"time"
)

// stageWithin bounds how long an edit waits for Envoy to have the clusters it needs.
const stageWithin = 600 * time.Millisecond

// publish serves a new configuration in an order that leaves no gap: clusters are there before what routes to them, and
// stay for a while after (Config.Linger). removed tells whether something lingers.
func (s *Source) publish(ctx context.Context, next snapshot) (removed bool, err error) {
	old := s.served
	if old == nil {
		return false, s.set(ctx, next)
	}
	union := next.over(old, clusters, endpoints)
	if old.version(clusters) != union.version(clusters) || old.version(endpoints) != union.version(endpoints) {
		if err := s.set(ctx, old.with(union, clusters, endpoints)); err != nil {
			return false, err
		}
		s.awaitClusters(ctx, old, union)
	}
	if err := s.set(ctx, union); err != nil {
		return false, err
	}
	return len(union[clusters]) > len(next[clusters]) || len(union[endpoints]) > len(next[endpoints]), nil
}

// awaitClusters returns when every Envoy has answered the clusters and has the endpoints of the new ones.
func (s *Source) awaitClusters(ctx context.Context, old, union snapshot) {
	ctx, cancel := context.WithTimeout(ctx, stageWithin)
	defer cancel()
	if version := union.version(clusters); version != old.version(clusters) {
		s.sessions.wait(ctx, hasVersion(typeURLs[clusters], version))
	}
	if names := union.newEndpoints(old); len(names) > 0 {
		s.sessions.wait(ctx, hasNames(typeURLs[endpoints], names))
	}
}
