package oci

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/gateway-agent/gateway-agent/internal/oci/safehttp"
)

const (
	tokenTimeout  = 30 * time.Second
	tokenLifetime = time.Minute // where the token server does not say it
)

// session is what one caller may do in one repository at one endpoint: how it has to prove itself, and the token that it got.
type session struct {
	scope string
	turn  chan struct{} // capacity 1: its holder asks the token server

	mu        sync.Mutex
	challenge *transport.Challenge // nil: none yet
	token     string               // header value; "": none
	expires   time.Time
	known     bool // there are credentials
}

func newSession(scope string) *session { return &session{scope: scope, turn: make(chan struct{}, 1)} }

// authorization returns the header value for a request of t; "" while no challenge is known.
func (s *session) authorization(ctx context.Context, t *target) (string, error) {
	s.mu.Lock()
	challenge := s.challenge
	s.mu.Unlock()
	if challenge == nil {
		return "", nil
	}
	value, err := s.prove(ctx, t, challenge, "")
	if _, ok := errors.AsType[*tokenError](err); ok && ctx.Err() == nil {
		return "", nil // the registry may name another token server by now
	}
	return value, err
}

// answer returns the header value that answers the challenge of a 401, which came although refused was sent; "": there is none.
func (s *session) answer(ctx context.Context, t *target, resp *http.Response, refused string) (string, error) {
	challenge, err := challengeOf(ctx, resp)
	if err != nil {
		return "", nil //nolint:nilerror // a 401 without a challenge is an answer too
	}
	value, err := s.prove(ctx, t, challenge, refused)
	if value == refused {
		value = ""
	}
	return value, err
}

// challengeOf has the library parse the challenge of an answer at hand.
func challengeOf(ctx context.Context, resp *http.Response) (*transport.Challenge, error) {
	registry, err := name.NewRegistry("registry.invalid")
	if err != nil {
		return nil, err
	}
	copied := *resp
	copied.Body = http.NoBody
	return transport.Ping(ctx, registry, answerAtHand{&copied})
}

type answerAtHand struct{ resp *http.Response }

func (a answerAtHand) RoundTrip(*http.Request) (*http.Response, error) { return a.resp, nil }

func (s *session) prove(ctx context.Context, t *target, challenge *transport.Challenge, refused string) (string, error) {
	switch strings.ToLower(challenge.Scheme) {
	case "basic":
		return s.basic(ctx, t, challenge)
	case "bearer":
		return s.bearer(ctx, t, challenge, refused)
	}
	return "", nil
}

func (s *session) basic(ctx context.Context, t *target, challenge *transport.Challenge) (string, error) {
	auth, err := t.who.credentials(ctx)
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.challenge, s.known = challenge, auth != authn.AuthConfig{}
	switch {
	case auth.Username != "" || auth.Password != "":
		return "Basic " + base64.StdEncoding.EncodeToString([]byte(auth.Username+":"+auth.Password)), nil
	case auth.Auth != "":
		return "Basic " + auth.Auth, nil
	}
	return "", nil
}

// bearer returns the token that is there, unless it is the refused one, or asks for another.
func (s *session) bearer(ctx context.Context, t *target, challenge *transport.Challenge, refused string) (string, error) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	if token := s.current(); token != "" && token != refused {
		return token, nil
	}
	auth, err := t.who.credentials(ctx)
	if err != nil {
		return "", err
	}
	token, lifetime := "Bearer "+auth.RegistryToken, time.Duration(0)
	if auth.RegistryToken == "" {
		got, err := exchange(ctx, t, challenge, auth, s.scope)
		if err != nil {
			s.keep(nil, "", 0, auth)
			return "", err
		}
		token, lifetime = "Bearer "+got.Token, time.Duration(min(got.ExpiresIn, 1<<20))*time.Second
	}
	s.keep(challenge, token, lifetime, auth)
	return token, nil
}

func (s *session) current() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Now().After(s.expires) {
		return ""
	}
	return s.token
}

// keep remembers a token for less than its lifetime, so that it does not end on the way.
func (s *session) keep(challenge *transport.Challenge, token string, lifetime time.Duration, auth authn.AuthConfig) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.challenge, s.token, s.known = challenge, token, auth != authn.AuthConfig{}
	s.expires = time.Now().Add(lifetime - min(lifetime/4, 30*time.Second))
}

// drop forgets a token that the registry refused.
func (s *session) drop(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.token == token {
		s.token = ""
	}
}

func (s *session) isAnonymous() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.known
}

// tokenError is a failure to get a token.
type tokenError struct {
	host string
	err  error
}

func (e *tokenError) Error() string { return "ask " + e.host + " for a token: " + e.err.Error() }
func (e *tokenError) Unwrap() error { return e.err }

// exchange asks the token server that the challenge names. The library refuses realms on private addresses other than the registry's,
// which in clusters are common; so it is told that the registry is where the realm is. The transport keeps the guard: see safehttp.
func exchange(ctx context.Context, t *target, challenge *transport.Challenge, auth authn.AuthConfig, scope string) (*transport.Token, error) {
	const unusable = "the registry names a token server that may not be asked"
	realm, err := url.Parse(challenge.Parameters["realm"])
	if err != nil {
		return nil, broken(unusable)
	}
	registry, err := name.NewRegistry(realm.Host)
	if err != nil || realm.Host == "" || realm.Scheme != "https" && realm.Scheme != "http" {
		return nil, broken(unusable+": %s", safehttp.OneLine(safehttp.Redact(realm), 100))
	}
	host := safehttp.OneLine(realm.Host, 100)
	ctx, cancel := context.WithTimeoutCause(ctx, tokenTimeout, fmt.Errorf("no answer within %v", tokenTimeout))
	defer cancel()
	asked := &transport.Challenge{Scheme: challenge.Scheme, Parameters: challenge.Parameters, Insecure: realm.Scheme == "http"}
	token, err := transport.Exchange(ctx, registry, authn.FromConfig(auth), t.base, scopes(challenge, scope), asked)
	if err != nil {
		return nil, &tokenError{host: host, err: clean(err)}
	}
	if token.Token == "" {
		token.Token = token.AccessToken
	}
	if token.ExpiresIn <= 0 {
		token.ExpiresIn = int(tokenLifetime / time.Second)
	}
	return token, nil
}

// clean replaces an error that quotes what the token server sent.
func clean(err error) error {
	if strings.HasPrefix(err.Error(), "no token in bearer response") {
		return errors.New("there is no token in its answer")
	}
	return err
}

// scopes puts what the registry asks for first: some token servers look at nothing else.
func scopes(challenge *transport.Challenge, own string) []string {
	var all []string
	if s := challenge.Parameters["scope"]; s != "" {
		all = append(all, s)
	}
	if !slices.Contains(all, own) {
		all = append(all, own)
	}
	return all
}
