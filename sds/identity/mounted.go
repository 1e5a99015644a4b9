package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"
	"time"
)

// runFiles has the server follow the mounted files, and copies them to the output directory.
func (w *Workload) runFiles(ctx context.Context) {
	f := w.cfg.Choice.Files
	w.cfg.Server.Assign(Certificate, pairSecret(file(f.Cert), file(f.Key)), nil)
	roots := &mountedRoots{Workload: w, path: f.Root}
	if f.Root == "" {
		w.cfg.Server.Assign(Roots, nil, fmt.Errorf("no file with roots is named beside %s", f.Cert))
	}
	out := &copier{Workload: w, roots: roots}
	for {
		if f.Root != "" {
			roots.publish()
		}
		if w.cfg.Output != "" {
			out.look(time.Now())
		}
		if !w.wait(ctx, w.cfg.Poll) {
			return
		}
	}
}

// wait waits a while, or until something is to be done; false: ctx has ended.
func (w *Workload) wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-w.wake:
		return true
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// mountedRoots are roots in a file that a platform mounts. The server follows the file, but for a trust bundle that is to be added.
type mountedRoots struct {
	*Workload
	path string
	some bool                // something was published
	crl  bool                // with revocation lists
	both []*x509.Certificate // what was published: the file's and the bundle's; nil: the file
	last string              // what the output directory should hold, in short
}

// publish tells the server what has changed.
func (m *mountedRoots) publish() {
	crl, both := m.cfg.CRL != "" && exists(m.cfg.CRL), m.withBundle()
	if m.some && crl == m.crl && (both == nil) == (m.both == nil) && sameSet(both, m.both) {
		return
	}
	m.some, m.crl, m.both = true, crl, both
	source := file(m.path)
	if both != nil {
		source = inline(encode(both))
	}
	m.cfg.Server.Assign(Roots, m.rootSecret(source), nil)
}

// rewrite says whether the output directory should now hold others.
func (m *mountedRoots) rewrite() bool {
	if m.cfg.Output == "" {
		return false
	}
	before := m.last
	m.last = sumTexts(m.text())
	return m.last != before
}

// withBundle is what the file and the trust bundle hold together; nil: the file is all there is. While the file cannot be read, which may
// be while it is written, what was published before stays.
func (m *mountedRoots) withBundle() []*x509.Certificate {
	m.mu.Lock()
	bundle := slices.Clone(m.bundle)
	m.mu.Unlock()
	if !m.cfg.BundleToo || len(bundle) == 0 {
		return nil
	}
	own, err := certificates(string(readInput(m.path)))
	if err != nil {
		return m.both
	}
	return unique(append(own, bundle...))
}

// text is the roots that were published, as PEM.
func (m *mountedRoots) text() []byte {
	if m.both != nil {
		return encode(m.both)
	}
	if data := readInput(m.path); len(data) > 0 {
		return append(data, '\n')
	}
	return nil
}

// copier keeps the output directory a copy of mounted files.
type copier struct {
	*Workload
	roots *mountedRoots
	seen  string    // what the files held at the last look, in short
	done  string    // what was written
	again time.Time // no further try to write before
}

// look writes what has changed, once two looks agree on it: of a file that is written in place one may see the beginning of the old content and
// the end of the new. A pair that does not match is being replaced: the next look finds the rest.
func (c *copier) look(now time.Time) {
	f := c.cfg.Choice.Files
	chain, key, roots := readInput(f.Cert), readInput(f.Key), c.roots.text()
	sum, before := sumTexts(chain, key, roots), c.seen
	if c.seen = sum; sum == c.done || sum != before || now.Before(c.again) {
		return
	}
	if _, err := tls.X509KeyPair(chain, key); err != nil {
		c.noteOutput(fmt.Errorf("not written to %s: the files at %s and %s: %w", c.cfg.Output, f.Cert, f.Key, err))
		return
	}
	err := c.output(append(key, '\n'), append(chain, '\n'), roots)
	if c.noteOutput(err); err != nil {
		c.again = now.Add(diskAgain)
		return
	}
	c.done = sum
}
