package identity

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/atomicfile"
)

const (
	maxKept     = 4 << 20 // bytes of a kept identity
	maxInput    = 8 << 20 // bytes of a token or root file that count
	keptVersion = 1
	keptBundle  = 24 * time.Hour // how long at most a trust bundle from before a restart counts
)

// kept is the file in which an identity survives a restart. It holds the private key: whoever can read it is the workload.
type kept struct {
	Version   int        `json:"version"`
	ID        string     `json:"id"`
	Authority string     `json:"authority"`
	Issued    time.Time  `json:"issued"`
	Key       string     `json:"key"`
	Chain     string     `json:"chain"`
	Roots     string     `json:"roots"`
	Bundle    string     `json:"bundle,omitempty"`     // the control plane's
	RootFiles string     `json:"root_files,omitempty"` // what the authority's root files held
	Previous  []keptRoot `json:"previous,omitempty"`
}

type keptRoot struct {
	Root    string    `json:"root"`
	Until   time.Time `json:"until"`
	Bundled bool      `json:"bundled,omitempty"`
}

// LogValue keeps the key out of logs.
func (kept) LogValue() slog.Value { return slog.StringValue("kept identity") }

// keep writes the identity to disk.
func (l *loop) keep() error {
	l.mu.Lock()
	c := l.current
	k := kept{
		Version: keptVersion, ID: l.cfg.ID, Authority: l.cfg.Authority, Issued: c.issued.UTC(), Key: string(c.keyPEM), Chain: string(encode(c.chain)),
		Roots: string(encode(c.roots)), Bundle: string(encode(l.bundle)), RootFiles: l.roots,
	}
	for _, p := range l.previous {
		k.Previous = append(k.Previous, keptRoot{string(encode([]*x509.Certificate{p.cert})), p.until.UTC(), p.bundled})
	}
	l.mu.Unlock()
	data, err := json.Marshal(k)
	if err != nil {
		return fmt.Errorf("keep identity: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(l.cfg.Keep), 0o700); err != nil {
		return fmt.Errorf("keep identity: %w", err)
	}
	return atomicfile.Write(l.cfg.Keep, data, 0o600)
}

// restore takes the kept identity into use, if there is one that is good.
func (l *loop) restore(now time.Time) {
	if l.cfg.Keep == "" {
		return
	}
	k, err := readKept(l.cfg.Keep)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var c *credential
	if err == nil {
		c, err = l.revive(k, now)
	}
	if err != nil {
		l.log.Warn("kept identity cannot be used, a new one is needed", "path", l.cfg.Keep, "err", err)
		return
	}
	l.adopt(c, now)
	l.reviveRoots(k, now)
	if k.RootFiles != "" && l.roots != "" && k.RootFiles != l.roots {
		l.forced = now.Add(l.times.spread(rootMost))
	}
	l.unwritten = l.cfg.Output != ""
	l.log.Info("kept identity is used", "not_after", c.ends, "renewal_in", max(c.issued.Add(l.after).Sub(now), 0).Round(time.Second))
}

// reviveRoots takes the kept roots into use that still count. The trust bundle counts until the control plane speaks, but not for ever: what
// it took away in the meantime may never be said again.
func (w *Workload) reviveRoots(k *kept, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	add := func(text string, until time.Time, bundled bool, most time.Duration) {
		certs, err := certificates(text)
		if err != nil || !now.Before(until) || until.Sub(now) > most || bundled && w.spoken {
			return
		}
		for _, cert := range certs {
			w.previous = append(w.previous, previous{cert, until, bundled})
		}
	}
	add(k.Bundle, now.Add(keptBundle), true, keptBundle)
	for _, p := range k.Previous {
		if p.Bundled {
			add(p.Root, p.Until, true, keptBundle)
		} else {
			add(p.Root, p.Until, false, w.cfg.RootOverlap)
		}
	}
}

// revive checks what was kept like an authority's answer.
func (w *Workload) revive(k *kept, now time.Time) (*credential, error) {
	switch {
	case k.Version != keptVersion:
		return nil, fmt.Errorf("its version is %d, known is %d", k.Version, keptVersion)
	case k.ID != w.cfg.ID:
		return nil, fmt.Errorf("it is for %.200q, wanted is %q", k.ID, w.cfg.ID)
	case k.Authority != w.cfg.Authority:
		return nil, fmt.Errorf("it is from %.200q, the certificate authority is %q", k.Authority, w.cfg.Authority)
	}
	key, err := decodeKey([]byte(k.Key))
	if err != nil {
		return nil, err
	}
	c, err := check([]string{k.Chain, k.Roots}, key, []byte(k.Key), w.id, now)
	if err != nil {
		return nil, err
	}
	if c.early != nil {
		return nil, c.early
	}
	if !k.Issued.IsZero() && !k.Issued.Before(c.leaf.NotBefore.Add(-skew)) && k.Issued.Before(c.leaf.NotAfter) {
		c.issued = k.Issued
	} else {
		c.issued = c.leaf.NotBefore
	}
	return c, nil
}

func readKept(path string) (*kept, error) {
	data, err := readPrivate(path)
	if err != nil {
		return nil, err
	}
	k := new(kept)
	if err := json.Unmarshal(data, k); err != nil {
		return nil, errors.New("it is damaged: no JSON of the expected form") // the error's text could quote the key
	}
	return k, nil
}

// readPrivate reads a file that only this user can have written and that nobody else may read.
func readPrivate(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	switch owner, ok := info.Sys().(*syscall.Stat_t); {
	case !info.Mode().IsRegular():
		return nil, errors.New("it is not a regular file")
	case ok && owner.Uid != uint32(os.Geteuid()):
		return nil, fmt.Errorf("it belongs to user %d, this is user %d", owner.Uid, os.Geteuid())
	case info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("its mode is %04o, others may have read or changed it: want 0600", info.Mode().Perm())
	case info.Size() > maxKept:
		return nil, fmt.Errorf("it is larger than %d bytes", maxKept)
	}
	return io.ReadAll(io.LimitReader(f, maxKept))
}

// sumFiles is what files hold, in short; a file that cannot be read counts as empty.
func sumFiles(paths []string) string {
	var all [][]byte
	for _, path := range paths {
		all = append(all, readInput(path))
	}
	return sumTexts(all...)
}

func sumTexts(texts ...[]byte) string {
	sum := sha256.New()
	for _, text := range texts {
		fmt.Fprintf(sum, "%d ", len(text))
		sum.Write(text)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// sumBundles is the set of certificates that files hold, in short; "" when there is none, or a file is being written.
func sumBundles(paths []string) string {
	var all []*x509.Certificate
	for _, path := range paths {
		certs, err := certificates(string(readInput(path)))
		if err != nil {
			return ""
		}
		all = append(all, certs...)
	}
	var sums []string
	for _, c := range unique(all) {
		sum := sha256.Sum256(c.Raw)
		sums = append(sums, hex.EncodeToString(sum[:]))
	}
	slices.Sort(sums)
	return strings.Join(sums, ",")
}

func readInput(path string) []byte {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	data, _ := io.ReadAll(io.LimitReader(f, maxInput))
	return bytes.TrimSpace(data)
}
