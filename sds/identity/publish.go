package identity

import (
	"crypto/x509"
	"fmt"
	"time"
)

const diskAgain = 30 * time.Second // between two tries to write to disk

// settle brings everybody up to date: the server, the disk, and people.
func (l *loop) settle(now time.Time) {
	l.mu.Lock()
	problem := l.problem
	roots, ended := l.rootsLocked(now)
	l.mu.Unlock()
	for _, p := range ended {
		l.log.Info("earlier root of the certificate authority is no longer trusted", "subject", p.cert.Subject.String())
	}
	l.publish(roots, l.why(problem, now))
	if l.current != nil && !now.Before(l.disk) {
		l.toDisk(now)
	}
	l.logStage(problem, now)
}

// rootsLocked is whom to trust now, and which earlier roots have ended; mu is held.
func (w *Workload) rootsLocked(now time.Time) (all []*x509.Certificate, ended []previous) {
	if w.current == nil {
		return nil, nil
	}
	all = append(append(all, w.current.roots...), w.bundle...)
	var still []previous
	for _, p := range w.previous {
		if now.Before(p.until) {
			still = append(still, p)
			all = append(all, p.cert)
		} else {
			ended = append(ended, p)
		}
	}
	w.previous = still
	return unique(all), ended
}

// publish tells the server what has changed.
func (l *loop) publish(roots []*x509.Certificate, why error) {
	next := published{some: true, pair: l.current, roots: roots, crl: l.cfg.CRL != "" && exists(l.cfg.CRL)}
	if why != nil {
		next.why = why.Error()
	}
	last := l.sent
	rooted := !sameSet(roots, last.roots)
	if !rooted {
		next.roots = last.roots // in the order in which Envoy has them
	}
	l.sent = next
	if rooted && last.some {
		l.unkept, l.unwritten = l.cfg.Keep != "", l.cfg.Output != ""
	}
	relook := !last.some || next.crl != last.crl
	switch {
	case l.mounted != nil:
		l.mounted.publish()
		l.unwritten = l.unwritten || l.mounted.rewrite()
	case len(roots) == 0 && (relook || next.why != last.why):
		l.cfg.Server.Assign(Roots, nil, why)
	case len(roots) > 0 && (relook || rooted):
		l.cfg.Server.Assign(Roots, l.rootSecret(inline(encode(next.roots))), nil) // before the certificate that hangs on them
	}
	switch {
	case last.some && next.pair == last.pair && next.why == last.why:
	case next.pair == nil:
		l.cfg.Server.Assign(Certificate, nil, why)
	default:
		l.cfg.Server.Assign(Certificate, pairSecret(inline(encode(next.pair.chain)), inline(next.pair.keyPEM)), why)
	}
}

// why is what is wrong with the certificate.
func (l *loop) why(problem error, now time.Time) error {
	switch {
	case l.current == nil && problem == nil:
		return fmt.Errorf("waiting for the first certificate from %s", l.cfg.Authority)
	case l.current == nil:
		return fmt.Errorf("there is no certificate yet: %w", problem)
	case problem == nil:
		return nil
	case !now.Before(l.current.ends):
		return fmt.Errorf("has expired and cannot be renewed: %w", problem)
	default:
		return fmt.Errorf("cannot be renewed, used until %s: %w", stamp(l.current.ends), problem)
	}
}

// toDisk keeps and writes what is not on disk yet.
func (l *loop) toDisk(now time.Time) {
	if l.unkept {
		err := l.keep()
		if l.unkept = err != nil; l.noted(&l.kept, err) {
			l.log.Warn("identity cannot be kept on disk, a restart will need the certificate authority", "err", err)
		}
	}
	if l.unwritten {
		roots := encode(l.sent.roots)
		if l.mounted != nil {
			roots = l.mounted.text()
		}
		err := l.output(l.current.keyPEM, encode(l.current.chain), roots)
		l.unwritten = err != nil
		l.noteOutput(err)
	}
	if l.unkept || l.unwritten {
		l.disk = now.Add(diskAgain)
	}
}

// noteOutput tells of a failure to write to the output directory, once.
func (w *Workload) noteOutput(err error) {
	if w.noted(&w.written, err) {
		w.log.Warn("identity cannot be written to the output directory", "err", err)
	}
}

// noted remembers how a try to write ended, and says whether that is a new error.
func (w *Workload) noted(result *error, err error) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := *result
	*result = err
	return err != nil && (before == nil || before.Error() != err.Error())
}

// logStage says how near the end of a certificate is that cannot be renewed.
func (l *loop) logStage(problem error, now time.Time) {
	if l.current == nil || problem == nil {
		return
	}
	n := stage(l.current, now)
	if n <= l.stage {
		return
	}
	l.stage = n
	attrs := []any{"left", max(l.current.ends.Sub(now), 0).Round(time.Second), "not_after", l.current.ends, "err", problem}
	switch {
	case n == len(stages):
		l.log.Error("certificate in use has expired and cannot be renewed", attrs...)
	case n == len(stages)-1:
		l.log.Error("certificate in use nears its end and cannot be renewed", append(attrs, "share", stages[n-1].name)...)
	default:
		l.log.Warn("certificate in use cannot be renewed", append(attrs, "share", stages[n-1].name)...)
	}
}
