package wasmcache

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"path"
	"strings"
	"time"

	"github.com/gateway-agent/gateway-agent/wasmcache/abi"
)

// judgement is a verdict on disk.
type judgement struct {
	Digest   string      `json:"digest"`
	Host     string      `json:"host"`
	Checker  string      `json:"checker"`
	Outcome  abi.Outcome `json:"outcome"`
	Reason   string      `json:"reason,omitzero"`
	Warnings []string    `json:"warnings,omitzero"`
	Since    time.Time   `json:"since"`
}

// vouch returns what the operator should know about a usable module, or why it is not usable.
func (s *Store) vouch(ctx context.Context, a *ask, digest string) (warning string, err error) {
	v := s.verdict(ctx, a.host, digest)
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	text := strings.Join(v.Warnings, "; ")
	switch {
	case v.Outcome == abi.Good:
		return text, nil
	case v.Outcome == abi.Broken && a.host.Known && !a.host.Wasm:
		return "", permanentError(a.ref.String(), "module %s (sha256 %s) cannot run: %s: run an Envoy that has one", a.ref, digest, v.Reason)
	case v.Outcome == abi.Broken && a.host.Known:
		return "", permanentError(a.ref.String(), "module %s (sha256 %s) %s: build it for this Envoy, or pin another version", a.ref, digest, v.Reason)
	case v.Outcome == abi.CannotSay && s.cfg.Unvouched == UnvouchedRefuse:
		return "", permanentError(a.ref.String(), "module %s (sha256 %s) cannot be vouched for: %s: --wasm-unvouched=warn lets it pass", a.ref, digest, v.Reason)
	}
	return strings.TrimSuffix(v.Reason+"; "+text, "; "), nil
}

// verdict is the checker's, from memory or disk when it was given before. What it cannot say may depend on the moment, so that is not
// written down.
func (s *Store) verdict(ctx context.Context, host abi.Host, digest string) abi.Verdict {
	name := verdictName(host, digest)
	if v, ok := s.judged(name, host, digest); ok {
		return v
	}
	v, err := s.checking.do(ctx, name, digest, nil, func(ctx context.Context, _ func(int64, int64)) (abi.Verdict, error) {
		v := s.cfg.Check(ctx, host, s.blobPath(digest))
		if ctx.Err() == nil {
			s.judge(name, host, digest, v)
		}
		return v, nil
	})
	if err != nil {
		return abi.Verdict{Outcome: abi.CannotSay, Reason: err.Error()}
	}
	return v
}

func (s *Store) judged(name string, host abi.Host, digest string) (abi.Verdict, bool) {
	if v, ok := s.judgedHere.Get(name); ok {
		return v, true
	}
	var j judgement
	if !s.readJSON(name, &j) || j.Digest != digest || j.Host != host.Key() || j.Checker != abi.CheckerVersion {
		return abi.Verdict{}, false
	}
	return abi.Verdict{Outcome: j.Outcome, Reason: j.Reason, Warnings: j.Warnings}, true
}

func (s *Store) judge(name string, host abi.Host, digest string, v abi.Verdict) {
	if v.Outcome == abi.CannotSay {
		s.judgedHere.Add(name, v)
		return
	}
	err := makeUnder(s.root, path.Dir(name), 0o700)
	if err == nil {
		err = s.writeJSON(name, judgement{
			Digest: digest, Host: host.Key(), Checker: abi.CheckerVersion,
			Outcome: v.Outcome, Reason: v.Reason, Warnings: v.Warnings, Since: time.Now(),
		})
	}
	if err == nil {
		return
	}
	s.judgedHere.Add(name, v)
	if s.writable.Load() { // else that was said
		s.cfg.Log.Warn("cannot note a verdict: the module is checked again after a restart", "digest", digest, "err", err)
	}
}

func verdictName(host abi.Host, digest string) string {
	sum := sha256.Sum256([]byte(host.Key() + "\x00" + abi.CheckerVersion))
	return path.Join(verdictDir, digest, hex.EncodeToString(sum[:8])+".json")
}
