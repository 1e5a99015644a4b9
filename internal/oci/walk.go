package oci

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/gateway-agent/gateway-agent/internal/oci/safehttp"
)

const (
	downTime  = 30 * time.Second // how long an endpoint that cannot be reached is asked last
	wrongTime = 10 * time.Minute // how long an endpoint is asked last for a blob that it has wrong
)

// failure is what one endpoint said.
type failure struct {
	target *target
	raw    error
	err    *Error // the same, classified
}

// each tries the places for what identifier names until one has it. Its error says what each of them said.
func (r *Repository) each(ctx context.Context, op, identifier string, try func(*target) error) error {
	_, err := v1.NewHash(identifier)
	targets, err := r.places(pullActions, err == nil)
	if err != nil {
		return wrap(op, false, err)
	}
	var failures []failure
	for _, t := range r.order(targets, identifier) {
		if t.endpoint.Plain && answeredSecurely(failures, t.endpoint.Host) {
			continue // plain HTTP is for those that do not speak https at all
		}
		err := try(t)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				r.client.avoid(t.endpoint.Host, downTime)
			}
			return t.explain(op, err)
		}
		failures = append(failures, failure{target: t, raw: err, err: t.explain("", err)})
		r.learn(t.endpoint.Host, identifier, err)
	}
	return r.sum(op, failures)
}

func answeredSecurely(failures []failure, host string) bool {
	return slices.ContainsFunc(failures, func(f failure) bool {
		return f.target.endpoint.Host == host && !f.target.endpoint.Plain && answered(f.raw)
	})
}

// order puts the hosts that are known to fail behind the others. Two endpoints of one host keep their order: a failure of https must not
// make plain HTTP come first.
func (r *Repository) order(targets []*target, identifier string) []*target {
	r.mu.Lock()
	defer r.mu.Unlock()
	ordered := slices.Clone(targets)
	slices.SortStableFunc(ordered, func(a, b *target) int {
		return r.rankLocked(a.endpoint.Host, identifier) - r.rankLocked(b.endpoint.Host, identifier)
	})
	return ordered
}

func (r *Repository) rankLocked(host, identifier string) int {
	switch {
	case r.client.isAvoided(host + "@" + identifier):
		return 3
	case r.client.isAvoided(host):
		return 2
	case r.failed[host]:
		return 1
	}
	return 0
}

// learn remembers what err says of a host.
func (r *Repository) learn(host, identifier string, err error) {
	e := wrap("", false, err)
	switch {
	case e.Kind == Temporary && !answered(err):
		r.client.avoid(host, downTime)
	case e.Kind == Broken:
		r.client.avoid(host+"@"+identifier, wrongTime)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed[host] = true
}

func (c *Client) avoid(what string, d time.Duration) { c.avoided.Add(what, time.Now().Add(d)) }

func (c *Client) isAvoided(what string) bool {
	until, ok := c.avoided.Peek(what)
	return ok && time.Now().Before(until)
}

// sum makes one error of what the endpoints said.
func (r *Repository) sum(op string, failures []failure) error {
	if len(failures) == 1 && failures[0].target.endpoint.Host == r.repo.RegistryStr() {
		e := *failures[0].err
		e.Op = op
		return &e
	}
	texts := make([]string, 0, len(failures))
	for _, f := range failures {
		texts = append(texts, f.text())
	}
	text := strings.Join(texts, "; ")
	if len(failures) > 1 {
		text = fmt.Sprintf("none of %d places has it: %s", len(failures), text)
	}
	e := &Error{Kind: kindOf(failures), Op: op, Err: &placesError{text, failures}}
	for _, f := range failures {
		e.After = max(e.After, f.err.After)
	}
	return e
}

// placesError is what several endpoints said.
type placesError struct {
	text     string
	failures []failure
}

func (e *placesError) Error() string { return e.text }

func (e *placesError) Unwrap() []error {
	all := make([]error, 0, len(e.failures))
	for _, f := range e.failures {
		all = append(all, f.err)
	}
	return all
}

func (f failure) text() string {
	role := ""
	if f.target.endpoint.Mirror {
		role = "mirror "
	}
	if f.target.endpoint.Plain {
		role += "plain "
	}
	text := role + f.target.endpoint.Host + ": " + safehttp.OneLine(f.err.Err.Error(), 400)
	if f.err.Hint != "" {
		text += " (" + f.err.Hint + ")"
	}
	return text
}

// kindOf: the registry's own refusal of the caller stands, whatever the mirrors said. Else there is hope as long as one of them
// failed for now only. Else the registry's own word counts.
func kindOf(failures []failure) Kind {
	kind := failures[len(failures)-1].err.Kind
	for _, f := range failures {
		if !f.target.endpoint.Mirror {
			kind = f.err.Kind
		}
	}
	if kind == Unauthorized {
		return kind
	}
	for _, f := range failures {
		if f.err.Kind == Temporary || f.err.Kind == RateLimited {
			return f.err.Kind
		}
	}
	return kind
}
