package oci

import (
	"context"
	"fmt"
	"sync"

	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/gateway-agent/gateway-agent/internal/oci/credential"
	"github.com/gateway-agent/gateway-agent/internal/oci/registries"
)

// identity is who a caller is at an endpoint: what its pull secret has for that host, else what this machine has.
type identity struct {
	machine          Credentials
	host, repository string
	secret           []byte

	turn chan struct{} // capacity 1: its holder looks for the credentials

	mu      sync.Mutex
	asked   int // how many times credentials were found; 0: not yet
	auth    authn.AuthConfig
	given   bool   // by the pull secret
	source  string // where this machine has them from; "" not known
	unknown error  // why this machine's cannot be found out
	renewed bool
}

func newIdentity(machine Credentials, e registries.Endpoint, secret []byte) *identity {
	return &identity{machine: machine, host: e.Host, repository: e.Repository, secret: secret, turn: make(chan struct{}, 1)}
}

func (i *identity) lock(ctx context.Context) error {
	select {
	case i.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (i *identity) unlock() { <-i.turn }

// credentials returns them; they are looked for once.
func (i *identity) credentials(ctx context.Context) (authn.AuthConfig, error) {
	if err := i.lock(ctx); err != nil {
		return authn.AuthConfig{}, err
	}
	defer i.unlock()
	if auth, times := i.now(); times > 0 {
		return auth, nil
	}
	auth, given, source, unknown := authn.AuthConfig{}, false, "", error(nil)
	if len(i.secret) > 0 {
		var err error
		if auth, given, err = credential.FromSecret(i.secret, i.host, i.repository); err != nil {
			return authn.AuthConfig{}, fmt.Errorf("find credentials for %s: %w", i.host, err)
		}
	}
	if !given {
		auth, source, unknown = i.find(ctx)
		if ctx.Err() != nil {
			return authn.AuthConfig{}, context.Cause(ctx)
		}
		if unknown != nil {
			auth = authn.AuthConfig{}
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.auth, i.given, i.source, i.unknown = auth, given, source, unknown
	i.asked++
	return auth, nil
}

// now returns the credentials as far as they were found, and how many times they were.
func (i *identity) now() (authn.AuthConfig, int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.auth, i.asked
}

func (i *identity) find(ctx context.Context) (authn.AuthConfig, string, error) {
	if f, ok := i.machine.(finder); ok {
		return f.Find(ctx, i.host, i.repository)
	}
	auth, err := i.machine.Resolve(ctx, i.host, i.repository)
	return auth, "", err
}

// renew has this machine's credentials found anew, once, and reports whether there are others now than those that the registry refused: those
// of when they had been found so many times.
func (i *identity) renew(ctx context.Context, times int) bool {
	if i.lock(ctx) != nil {
		return false
	}
	defer i.unlock()
	i.mu.Lock()
	before, changed, may := i.auth, i.asked > max(times, 1), !i.given && !i.renewed && i.auth != (authn.AuthConfig{})
	i.renewed = i.renewed || may
	i.mu.Unlock()
	if changed || !may {
		return changed
	}
	if f, ok := i.machine.(forgetter); ok {
		f.Forget(i.host, i.repository)
	}
	auth, source, err := i.find(ctx)
	if err != nil || auth == before || auth == (authn.AuthConfig{}) {
		return false
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.auth, i.source = auth, source
	i.asked++
	return true
}

// explain is wrap for an error of a request of this caller.
func (t *target) explain(op string, err error) *Error {
	e := wrap(op, t.session.isAnonymous(), err)
	if e.Kind != Unauthorized && e.Kind != NotFound {
		return e
	}
	t.who.mu.Lock()
	defer t.who.mu.Unlock()
	out := *e
	switch {
	case t.who.unknown != nil:
		out.Err = fmt.Errorf("%w; it was asked without credentials, because those of this machine cannot be found out: %w", e.Err, t.who.unknown)
		out.Kind, out.Hint = Temporary, hintMend // nobody can tell whether the caller may: many registries hide by a 404 what one may not see
	case e.Hint == hintNobody && t.who.asked == 0:
		out.Hint = "the registry refuses it without asking for credentials: check the repository, and who may reach that registry"
	case e.Hint == hintRefused:
		out.Hint = hintRefused + t.who.sourceLocked()
	}
	return &out
}

// sourceLocked says where the credentials are from, for the end of a sentence. It names no user: with some registries that is the secret.
func (i *identity) sourceLocked() string {
	switch {
	case i.given:
		return " of the pull secret"
	case i.source != "":
		return " of this machine, from " + i.source
	case i.asked > 0:
		return " of this machine"
	}
	return ""
}
