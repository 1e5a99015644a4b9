package identity

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"sync"
	"time"
)

const minGap = time.Second // between two certificates

// loop is what runCA alone knows.
type loop struct {
	*Workload
	after   time.Duration // from the issue of the certificate in use to its renewal
	retryAt time.Time     // no request before
	forced  time.Time     // when a request is to be made for another reason than age; zero: there is none
	asking  bool          // a request is on its way
	serves  bool          // it is made for that reason too
	prompt  bool          // a file has changed while a request was on its way

	looked        time.Time // when files were last looked at
	tokens, roots string    // what the files held then

	mounted   *mountedRoots // in place of the authority's; nil: none
	sent      published
	unkept    bool      // something is to be kept on disk
	unwritten bool      // something is to be written to Output
	disk      time.Time // no further try to write before

	stage  int // of the certificate in use, that was logged
	logged struct {
		text string
		at   time.Time
	}
	remarked map[string]bool
}

// published is what the server was last given.
type published struct {
	some  bool // anything at all
	pair  *credential
	roots []*x509.Certificate
	why   string
	crl   bool
}

// outcome is how a request ended.
type outcome struct {
	got *credential
	err error
}

// runCA obtains and renews a certificate until ctx ends.
func (w *Workload) runCA(ctx context.Context) {
	l := &loop{Workload: w, remarked: map[string]bool{}}
	if root := w.cfg.Choice.Files.Root; root != "" {
		l.mounted = &mountedRoots{Workload: w, path: root}
	}
	l.look(time.Now())
	l.restore(time.Now())
	var wg sync.WaitGroup
	defer wg.Wait()
	answers := make(chan outcome, 1) // of the one request on its way, which must be able to end when nobody listens
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := time.Now()
		l.look(now)
		if !l.asking && l.wants(now) {
			l.asking, l.prompt = true, false
			l.serves = l.isForced(now)
			wg.Go(func() { answers <- w.ask(ctx) })
		}
		l.settle(now)
		timer.Reset(l.rest(now))
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		case <-timer.C:
		case o := <-answers:
			if l.asking = false; ctx.Err() == nil {
				l.take(o, time.Now())
			}
		}
	}
}

// ask makes a key and has it certified.
func (w *Workload) ask(ctx context.Context) outcome {
	ctx, cancel := context.WithTimeoutCause(ctx, w.cfg.Timeout, fmt.Errorf("no answer within %v", w.cfg.Timeout))
	defer cancel()
	key, err := w.spec.make()
	if err != nil {
		return outcome{err: fmt.Errorf("make a private key: %w", err)}
	}
	text, err := w.spec.encode(key)
	if err != nil {
		return outcome{err: err}
	}
	csr, err := request(key, w.id)
	if err != nil {
		return outcome{err: err}
	}
	chain, err := w.cfg.Signer.Sign(ctx, csr, w.cfg.Life, w.TLS())
	if err != nil {
		return outcome{err: err}
	}
	got, err := check(chain, key, text, w.id, time.Now())
	if err == nil {
		err = w.gap(got)
	}
	if err != nil {
		return outcome{err: fmt.Errorf("what %s answers cannot be used: %w", w.cfg.Authority, err)}
	}
	return outcome{got: got}
}

// gap says why a certificate that is not valid yet is no replacement: the one in force would end before. The server holds any other until it is
// valid; while none is in force, it may be our clock that is wrong, and everybody else's that counts.
func (w *Workload) gap(c *credential) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if own := w.tlsLocked(time.Now()); own == nil || c.leaf.NotBefore.Before(w.current.ends) {
		return nil
	}
	return c.early
}

// look notices that files have changed.
func (l *loop) look(now time.Time) {
	if !l.looked.IsZero() && now.Sub(l.looked) < l.cfg.Poll {
		return
	}
	first := l.looked.IsZero()
	l.looked = now
	tokens, roots := sumFiles(l.cfg.Tokens), sumBundles(l.cfg.RootFiles)
	changed, rooted := tokens != l.tokens, roots != l.roots && roots != ""
	if l.tokens = tokens; rooted {
		l.roots = roots
	}
	if first || !changed && !rooted {
		return
	}
	if rooted && l.current != nil && l.forced.IsZero() {
		l.forced = now.Add(l.times.spread(rootMost))
		l.log.Info("root file of the certificate authority has changed, asking for a new certificate")
	}
	if l.prompt = true; l.failures > 0 && !l.asking {
		l.hurry(now)
	}
}

// hurry repeats a failed request soon.
func (l *loop) hurry(now time.Time) {
	if soon := now.Add(l.times.spread(promptMost)); soon.Before(l.retryAt) {
		l.retryAt = soon
	}
	l.prompt = false
}

// wants says whether a request is to be made.
func (l *loop) wants(now time.Time) bool {
	return !now.Before(l.retryAt) && l.overdue(now)
}

// overdue says whether a new certificate is needed or wanted.
func (l *loop) overdue(now time.Time) bool {
	return l.current == nil || due(l.current, l.after, now) || l.isForced(now)
}

func (l *loop) isForced(now time.Time) bool { return !l.forced.IsZero() && !now.Before(l.forced) }

// rest is how long nothing is to be done, at most until files are looked at again. Waking that often also finds jumps of the clock.
func (l *loop) rest(now time.Time) time.Duration {
	rest := l.cfg.Poll
	sooner := func(at time.Time) {
		if d := at.Sub(now); d > 0 && d < rest {
			rest = d
		}
	}
	sooner(l.retryAt)
	sooner(l.forced)
	if l.current != nil {
		sooner(l.current.issued.Add(l.after))
	}
	return rest
}

// take deals with the outcome of a request.
func (l *loop) take(o outcome, now time.Time) {
	if o.err != nil {
		l.fail(o.err, now)
		return
	}
	l.adopt(o.got, now)
	l.retryAt = now.Add(minGap) // even if its life is absurdly short
	if l.serves {
		l.forced = time.Time{}
	}
	l.unkept, l.unwritten, l.disk = l.cfg.Keep != "", l.cfg.Output != "", time.Time{}
	l.mu.Lock()
	failures, since := l.failures, l.since
	l.failures, l.problem, l.since = 0, nil, time.Time{}
	l.granted++
	l.mu.Unlock()
	attrs := []any{"serial", o.got.leaf.SerialNumber.Text(16), "not_after", o.got.ends, "renewal_in", l.after.Round(time.Second)}
	if failures > 0 {
		attrs = append(attrs, "failures", failures, "failing_for", now.Sub(since).Round(time.Millisecond))
	}
	l.log.Info("certificate authority has certified the workload", attrs...)
	for _, remark := range o.got.remarks {
		if !l.remarked[remark] && len(l.remarked) < 100 {
			l.remarked[remark] = true
			l.log.Warn("certificate is used with a reservation", "err", remark)
		}
	}
}

// adopt makes a credential the one in use.
func (l *loop) adopt(c *credential, now time.Time) {
	l.after, l.stage = l.times.renewal(c.life()), 0
	l.mu.Lock()
	dropped := l.overlapLocked(c, now)
	l.current, l.renewAt = c, c.issued.Add(l.after)
	l.mu.Unlock()
	for _, p := range dropped {
		l.log.Info("certificate authority has a new root, the one before it is trusted a while longer", "subject", p.cert.Subject.String(), "until", p.until)
	}
}

// overlapLocked keeps the roots that go with the certificate in use and do not come with c, and returns them; mu is held. Others may have
// got a certificate just before the change, so that a whole life is to pass.
func (l *loop) overlapLocked(c *credential, now time.Time) []previous {
	var dropped []previous
	if old := l.current; old != nil && l.cfg.RootOverlap > 0 {
		until := now.Add(min(old.life(), l.cfg.RootOverlap))
		for _, root := range old.roots {
			if !contains(c.roots, root) {
				dropped = append(dropped, previous{cert: root, until: until})
			}
		}
	}
	l.previous = slices.DeleteFunc(l.previous, func(p previous) bool { return contains(c.roots, p.cert) })
	l.previous = append(l.previous, dropped...)
	return dropped
}

// fail plans the next try.
func (l *loop) fail(err error, now time.Time) {
	l.mu.Lock()
	if l.failures == 0 {
		l.since = now
	}
	l.failures++
	l.refused++
	l.problem = err
	var left, life time.Duration
	if l.current != nil {
		left, life = l.current.ends.Sub(now), l.current.life()
	}
	wait := l.times.retry(l.failures, left, life)
	l.mu.Unlock()
	if l.retryAt = now.Add(wait); l.prompt {
		l.hurry(now)
	}
	log := l.log.Debug
	if text := err.Error(); l.logged.text != text && now.Sub(l.logged.at) >= 10*time.Second || l.failures == 1 {
		log, l.logged.text, l.logged.at = l.log.Warn, text, now
	}
	log("certificate authority does not certify the workload", "err", err, "failures", l.failures, "retry_in", l.retryAt.Sub(now).Round(time.Millisecond))
}
