// Package ecds decides what Envoy gets for each extension configuration, and when.
//
// A resource that names a remote Wasm module is held while the module is brought into the local store, and then goes to
// Envoy with the module's local file instead. While that fails, Envoy keeps what worked before, or gets a policy filter
// that refuses or passes everything, as the plugin's failure policy says. Nothing here knows of gRPC, HTTP or registries:
// machine is a pure state machine (events and the time in, actions out) and Engine the thin driver around it.
package ecds

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// Reference is what a Wasm resource says about its module.
type Reference struct {
	Resource        string        // name of the resource that wants the module
	URL             string        // oci://, http(s):// or file://
	SHA256          string        // expected checksum in hex, as the resource states it; "": none
	PullSecret      []byte        // docker configuration JSON; nil: none. Never logged
	Always          bool          // ask the registry again when ResourceVersion differs from the last one seen
	ResourceVersion string        // version of the plugin's definition in the control plane
	Timeout         time.Duration // of one attempt, as the resource states it; 0: the store's own
	Node            *corev3.Node  // the Envoy that will run the module; read-only
}

// LogValue keeps the pull secret, and credentials inside the URL, out of logs.
func (r Reference) LogValue() slog.Value {
	return slog.GroupValue(slog.String("resource", r.Resource), slog.String("url", publicURL(r.URL)),
		slog.String("sha256", r.SHA256), slog.Bool("always", r.Always), slog.Bool("pull_secret", r.PullSecret != nil))
}

// String is what %v prints: the same as LogValue shows, so that no format verb can print the secret by accident.
func (r Reference) String() string { return r.Resource + " " + publicURL(r.URL) }

// GoString is String for %#v.
func (r Reference) GoString() string { return "ecds.Reference(" + r.String() + ")" }

// Module is a module in the local store.
type Module struct {
	Digest  string // hex sha256 of the .wasm file
	Path    string // absolute; its content never changes
	Warning string // why the module could not be vouched for; "": it was
}

// Modules is the module store.
type Modules interface {
	// Get answers from the store when it can and pulls otherwise. Its errors may implement interface{ Permanent() bool }
	// (trying again will hardly help) and interface{ RetryAfter() time.Duration } (what the registry asked for).
	Get(ctx context.Context, ref Reference) (Module, error)
}

// State keeps what Envoy last accepted over a restart of the agent. What is saved holds plugin configurations, so it
// belongs in a file that only the agent's user can read; it never holds pull secrets.
type State interface {
	// Load returns what Save was last given; nil, nil when there is nothing.
	Load() ([]byte, error)
	Save([]byte) error
}

// Config configures an Engine.
type Config struct {
	Modules      Modules                                   // required
	State        State                                     // nil: nothing outlives the process
	Owner        string                                    // whose State is: what another owner saved is not used; "": anybody's is
	Hold         time.Duration                             // how long a plugin that never worked is waited for before the policy filter; default 10 s
	PolicyModule func(allow bool) (path string, err error) // the built-in Wasm filter for listeners that allow no RBAC type; nil: none
	OnLive       func(resource string)                     // told when Envoy runs what the control plane wants; must not block; nil: nobody
	RetryMax     time.Duration                             // the slow end of the retries; default 1 min
	// Whole says whether the store holds a module undamaged in the file at path. It is asked for each that State names, before Envoy gets
	// one of them again; nil: they are.
	Whole func(ctx context.Context, digest, path string) bool
	Log   *slog.Logger // nil: discarded
}

// Timing. The bounds are DESIGN.md's; the rest is argued where it is used.
const (
	defaultHold = 10 * time.Second
	retryMin    = time.Second
	// defaultRetryMax is where the backoff of a failing pull ends, and what is waited after a failure that looks final.
	defaultRetryMax = time.Minute
	// maxRetryAfter bounds what a registry can ask for: a hostile or broken one must not park a plugin for good.
	maxRetryAfter = time.Hour
	// pullGrace keeps a pull going after the last stream that wanted it ended: an upstream that comes and goes every few
	// seconds must not restart a slow pull each time.
	pullGrace = time.Minute
	// forgetUnsubscribed is how long the last good version of a resource outlives an unsubscription. Envoy unsubscribes only
	// after the listener has drained, so nothing uses it any more; an hour covers an operator who takes a change back.
	forgetUnsubscribed = time.Hour
	// forgetClosed is the same after the streams merely ended: Envoy or the agent is down, which may last a long weekend.
	forgetClosed = 7 * 24 * time.Hour
	// loadGrace is what a loaded entry has at least, however long the agent was down.
	loadGrace = 24 * time.Hour
)

func (c Config) check() (Config, error) {
	var errs []error
	if c.Modules == nil {
		errs = append(errs, errors.New("Modules is required"))
	}
	if c.Hold < 0 {
		errs = append(errs, fmt.Errorf("Hold is %s: it cannot be negative", c.Hold))
	}
	if c.Hold == 0 {
		c.Hold = defaultHold
	}
	if c.RetryMax < 0 {
		errs = append(errs, fmt.Errorf("RetryMax is %s: it cannot be negative", c.RetryMax))
	}
	c.RetryMax = cmp.Or(c.RetryMax, defaultRetryMax)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if err := errors.Join(errs...); err != nil {
		return Config{}, fmt.Errorf("ecds: %w", err)
	}
	return c, nil
}
