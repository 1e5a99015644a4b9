// Package identity gives the workload its identity, the secrets "default" (certificate and key) and "ROOTCA" (whom to trust): from mounted
// files, from an external server such as a SPIFFE agent, or from a certificate authority. [Decide] says which.
//
// # A certificate from an authority
//
// One goroutine owns the certificate. It asks for the first one at once, before Envoy wants it, and for the next when half of the life,
// counted from the issue, is over. The certificate in use is replaced only by one that has passed every check, and served until then,
// whatever the authority says. Tries that fail are repeated without end, at the latest after a minute, more often when the end is near, and at once
// when a token or root file changes.
//
// # Whom to trust
//
// ROOTCA is a set: the roots that came with the certificate in use, the trust bundle that the control plane distributes, and for as long
// as certificates of them may still be about, the roots that an earlier certificate of ours came with. An authority that begins to use a new
// root does not say that the old one is no longer trusted.
package identity

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
)

// The names of the secrets.
const (
	Certificate = "default"
	Roots       = "ROOTCA"
)

const (
	defaultLife    = 24 * time.Hour
	defaultGrace   = 0.5
	defaultJitter  = 0.1
	defaultOverlap = 24 * time.Hour
	defaultPoll    = time.Second
	defaultTimeout = 30 * time.Second
)

// Server gives secrets to Envoy: sds.Server. A nil secret leaves the one before it in use; why is what is wrong, for people.
type Server interface {
	Assign(name string, secret *tlsv3.Secret, why error)
}

// Signer has certificate requests signed: ca.Client. life is what is asked for; own is the certificate in use, if it is in force.
type Signer interface {
	Sign(ctx context.Context, csr []byte, life time.Duration, own *tls.Certificate) (chain []string, err error)
}

// Config is what a Workload needs.
type Config struct {
	Server Server        // who gets the secrets; required
	Choice Choice        // who provides them, from [Decide]; required
	CRL    string        // PEM file of revocation lists for ROOTCA, used while it exists; default none
	Node   *corev3.Node  // who an external server is told is asking: SPIRE gives other roots to an Envoy that says its version; default: a nameless one
	Poll   time.Duration // how often files and sockets are looked at; default 1 s
	Log    *slog.Logger  // default: discards

	Output       string // directory that cert-chain.pem, key.pem and root-cert.pem are written to, unless a server has them; default none
	OutputShared bool   // everybody may read key.pem there; default: its owner alone
	BundleToo    bool   // the control plane's trust bundle counts beside mounted roots; default: mounted roots are all there are

	// For an authority.
	Signer      Signer        // required
	Authority   string        // name of what Signer asks, such as its address: a kept identity of another one is not used
	ID          string        // SPIFFE id, from [ID]; required
	OpenID      bool          // namespace and account in ID may be empty: the authority knows them; default: they may not
	Life        time.Duration // what is asked for; default 24 h
	GraceRatio  float64       // share of the life left when a renewal is due, up to 1; default 0.5, negative: as little as is safe
	Jitter      float64       // share of the life by which that varies; default 0.1, negative: none
	Key         string        // KeyP256, KeyP384 or KeyRSA; default KeyP256
	RSABits     int           // default 2048
	PKCS8       bool          // private keys are written as PKCS#8; default: in the form of their kind
	Keep        string        // file that the identity is kept in, mode 0600, so that a restart finds it; default: not kept
	Tokens      []string      // files whose change makes a failed request be repeated at once: tokens, client certificates
	RootFiles   []string      // files whose change means that the authority's root changes: a new certificate is asked for
	RootOverlap time.Duration // how long at most a root that the authority no longer uses is trusted; default 24 h, negative: not at all
	Timeout     time.Duration // of one request, over all ways of asking; default 30 s
}

// Workload is this workload's identity. Its methods may be called from any goroutine.
type Workload struct {
	cfg   Config
	log   *slog.Logger
	id    *url.URL
	spec  keySpec
	times timetable
	wake  chan struct{} // capacity 1: one wake-up is enough, what to do is looked up

	mu       sync.Mutex
	current  *credential // in use; nil: none
	bundle   []*x509.Certificate
	spoken   bool // the control plane has said what the bundle is
	previous []previous
	renewAt  time.Time
	failures int // in a row
	problem  error
	since    time.Time // of the first failure in a row
	granted  uint64
	refused  uint64
	kept     error             // why the identity could not be kept; nil: it is, or is not to be
	written  error             // the same of Output
	notes    map[string]string // what an external server lacks, by secret
}

// New checks the configuration.
func New(cfg Config) (*Workload, error) {
	w := &Workload{wake: make(chan struct{}, 1), notes: map[string]string{}}
	var errs []error
	if cfg.Server == nil {
		errs = append(errs, errors.New("no server for the secrets"))
	}
	if cfg.Poll < 0 || cfg.Life < 0 || cfg.Timeout < 0 {
		errs = append(errs, fmt.Errorf("poll %v, life %v and timeout %v must not be negative", cfg.Poll, cfg.Life, cfg.Timeout))
	}
	for _, path := range slices.Concat([]string{cfg.CRL, cfg.Keep, cfg.Output}, cfg.Tokens, cfg.RootFiles) {
		if path != "" && !filepath.IsAbs(path) {
			errs = append(errs, fmt.Errorf("path %q must be absolute", path))
		}
	}
	switch cfg.Choice.Source {
	case CA:
		errs = append(errs, w.checkCA(&cfg)...)
	case Files, External, None:
	default:
		errs = append(errs, fmt.Errorf("source %q is unknown", cfg.Choice.Source))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	cfg.Poll = cmp.Or(cfg.Poll, defaultPoll)
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	cfg.Node = cmp.Or(cfg.Node, &corev3.Node{Id: "gateway-agent"})
	w.cfg, w.log = cfg, cfg.Log
	return w, nil
}

func (w *Workload) checkCA(cfg *Config) (errs []error) {
	var err error
	if cfg.Signer == nil {
		errs = append(errs, errors.New("no certificate authority"))
	}
	if w.id, err = parseID(cfg.ID, cfg.OpenID); err != nil {
		errs = append(errs, err)
	}
	if w.spec, err = cfg.keySpec(); err != nil {
		errs = append(errs, err)
	}
	if !(cfg.GraceRatio <= 1) || !(cfg.Jitter <= 1) { // nor no number at all
		errs = append(errs, fmt.Errorf("grace ratio %v and jitter %v must be shares, between 0 and 1", cfg.GraceRatio, cfg.Jitter))
	}
	cfg.Life = cmp.Or(cfg.Life, defaultLife)
	cfg.GraceRatio = max(cmp.Or(cfg.GraceRatio, defaultGrace), 0)
	cfg.Jitter = cmp.Or(cfg.Jitter, defaultJitter)
	cfg.RootOverlap = cmp.Or(cfg.RootOverlap, defaultOverlap)
	cfg.Timeout = cmp.Or(cfg.Timeout, defaultTimeout)
	w.times = newTimetable(cfg)
	return errs
}

// Run provides the identity until ctx ends.
func (w *Workload) Run(ctx context.Context) error {
	w.log.Info("workload identity", "source", w.cfg.Choice.Source, "reason", w.cfg.Choice.Why)
	switch w.cfg.Choice.Source {
	case CA:
		w.runCA(ctx)
	case External:
		w.runExternal(ctx)
	case Files:
		w.runFiles(ctx)
	default:
		<-ctx.Done()
	}
	return nil
}

// TLS is the certificate in use for this agent's own connections; nil: there is none that is in force.
func (w *Workload) TLS() *tls.Certificate {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.tlsLocked(time.Now())
}

func (w *Workload) tlsLocked(now time.Time) *tls.Certificate {
	if w.current == nil || !now.Before(w.current.ends) {
		return nil
	}
	return w.current.pair()
}

// SetTrustBundle replaces the trust bundle that the control plane distributes: PEM texts of certificates to trust beside the authority's
// own; none takes the bundle away. One that cannot be read changes nothing. It may be called before Run.
func (w *Workload) SetTrustBundle(texts []string) error {
	var all []*x509.Certificate
	size := 0
	for i, text := range texts {
		if size += len(text); size > maxChain {
			return fmt.Errorf("trust bundle: larger than %d bytes", maxChain)
		}
		certs, err := certificates(text)
		if err != nil {
			return fmt.Errorf("trust bundle: text %d: %w", i+1, err)
		}
		all = append(all, certs...)
	}
	if all = unique(all); len(all) > maxCerts {
		return fmt.Errorf("trust bundle: more than %d certificates", maxCerts)
	}
	w.mu.Lock()
	before := len(w.previous)
	w.previous = slices.DeleteFunc(w.previous, func(p previous) bool { return p.bundled })
	changed := !sameSet(all, w.bundle) || len(w.previous) < before
	if changed {
		w.bundle = all
	}
	w.spoken = true
	w.mu.Unlock()
	if !changed {
		return nil
	}
	if w.usesBundle() {
		w.log.Info("trust bundle of the control plane has changed", "certificates", len(all))
	} else {
		w.log.Warn("trust bundle of the control plane is not used: the roots come from elsewhere", "source", w.cfg.Choice.Source, "certificates", len(all))
	}
	w.nudge()
	return nil
}

// usesBundle says whether the control plane's trust bundle counts.
func (w *Workload) usesBundle() bool {
	c := w.cfg.Choice
	return c.Source == CA && c.Files.Root == "" || c.Files.Root != "" && w.cfg.BundleToo
}

func (w *Workload) nudge() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}
