package ecds

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// Engine drives the state machine: it takes events from the streams, runs the pulls, keeps the timers and the state on
// disk. All methods are safe for concurrent use; those that take events (Open to Close) return at once.
type Engine struct {
	cfg    Config
	events *inbox[event]
	seen   *inbox[observation] // listener responses to learn from

	loadOnce sync.Once

	mu sync.Mutex
	m  *machine // guarded by mu; changed by Run's goroutine only
}

// event is one change for the machine; handle comes with a new stream, and end is its last one.
type event struct {
	apply   func(m *machine, now time.Time)
	session uint64
	handle  *handle
	end     bool
	pulled  uint64 // a pull that has ended
	saved   *savedResult
}

// handle is how a stream is spoken to.
type handle struct {
	push   func(*discoveryv3.Resource)
	settle func(offer uint64, err error)
}

type savedResult struct{ err error }

type observation struct {
	session  uint64
	delta    bool
	response []byte
}

// New checks the configuration.
func New(cfg Config) (*Engine, error) {
	cfg, err := cfg.check()
	if err != nil {
		return nil, err
	}
	m := newMachine(cfg.Hold, nil, rand.Float64)
	m.retryMax, m.owner = cfg.RetryMax, cfg.Owner
	return &Engine{cfg: cfg, events: newInbox[event](), seen: newInbox[observation](), m: m}, nil
}

// Open tells of a new stream of Envoy's. push hands over one resource (without a body: removed), settle answers one of
// the upstream's responses; both are called from Run's goroutine and must not block.
func (e *Engine) Open(session uint64, node *corev3.Node, push func(*discoveryv3.Resource), settle func(offer uint64, err error)) {
	e.put(event{session: session, handle: &handle{push, settle}, apply: func(m *machine, now time.Time) { m.open(now, session, node) }})
}

// Subscribe tells of names that Envoy adds and drops; one that it already has wants an answer again.
func (e *Engine) Subscribe(session uint64, subscribed, unsubscribed []string) {
	e.put(event{apply: func(m *machine, now time.Time) { m.subscribe(now, session, subscribed, unsubscribed) }})
}

// Offer tells of one upstream response. It is settled exactly once, within the hold time, unless the stream ends first.
func (e *Engine) Offer(session, offer uint64, resources []*discoveryv3.Resource, removed []string) {
	e.put(event{apply: func(m *machine, now time.Time) { m.offer(now, session, offer, resources, removed) }})
}

// Answer tells what Envoy said about what was pushed as name at version; nil is an ACK.
func (e *Engine) Answer(session uint64, name, version string, err error) {
	e.put(event{apply: func(m *machine, now time.Time) { m.answer(now, session, name, version, err) }})
}

// Observe shows a listener response that is on its way to Envoy: it tells which filter types Envoy takes under each
// name. response is kept for a while and never changed.
func (e *Engine) Observe(session uint64, delta bool, response []byte) {
	if !worthLearning(response) {
		if delta {
			return // what it removes does no harm when it is remembered
		}
		response = nil
	}
	// Of state-of-the-world responses only the newest counts. Delta responses come one at a time, as Envoy ACKs them.
	e.seen.put(observation{session, delta, response}, func(o observation) bool {
		return o.session == session && !delta && !o.delta
	})
}

// Recheck tells that the module at a URL, as resources spell it, is another one by now.
func (e *Engine) Recheck(url string) {
	e.put(event{apply: func(m *machine, now time.Time) { m.recheck(now, url) }})
}

// Close tells that a stream has ended. Its push and settle are not called any more once Run has seen it.
func (e *Engine) Close(session uint64) {
	e.put(event{session: session, end: true, apply: func(m *machine, now time.Time) { m.close(now, session) }})
}

func (e *Engine) put(ev event) { e.events.put(ev, nil) }

// Status tells the state of every resource that a stream asks for.
func (e *Engine) Status() []ResourceStatus {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.m.status()
}

// Pins lists the digests of modules that must not be removed. It is complete from the first call on: it loads the state
// if Run has not done so yet.
func (e *Engine) Pins() []string {
	e.load()
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.m.pins()
}

// load reads the saved state, once. A file that cannot be read costs what it held, never the start.
func (e *Engine) load() {
	e.loadOnce.Do(func() {
		if e.cfg.State == nil {
			return
		}
		data, err := e.cfg.State.Load()
		if err != nil {
			e.cfg.Log.Warn("saved extension state cannot be read, starting without it", "err", err)
			return
		}
		e.mu.Lock()
		err = e.m.restore(time.Now(), data)
		n := len(e.m.entries)
		e.mu.Unlock()
		if other, ok := errors.AsType[*otherOwner](err); ok {
			e.cfg.Log.Warn("extension state in this directory is another agent's, starting without it", "owner", other.owner, "self", e.cfg.Owner)
		} else if err != nil {
			e.cfg.Log.Warn("saved extension state is damaged, starting with what could be used", "resources", n, "err", err)
		}
	})
}

// Run owns the state until ctx ends, and returns when everything it started has ended.
func (e *Engine) Run(ctx context.Context) error {
	e.load()
	e.distrust(ctx)
	r := &run{Engine: e, handles: map[uint64]handle{}, cancels: map[uint64]context.CancelCauseFunc{}}
	r.findPolicyModules()
	if e.cfg.PolicyModule != nil {
		e.mu.Lock()
		e.m.policyModule = r.policyModule
		e.mu.Unlock()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	r.wg.Go(func() { e.learnAll(ctx) })
	r.loop(ctx)
	cancel(errStopped)
	e.events.close()
	e.seen.close()
	r.wg.Wait()
	r.lastSave()
	return nil
}

var errStopped = errors.New("the agent is stopping")

// learnAll decodes listener responses, which can be large, away from everything that waits.
func (e *Engine) learnAll(ctx context.Context) {
	for {
		for _, o := range e.seen.take() {
			l, err := learn(o.delta, o.response)
			if err != nil {
				e.cfg.Log.Warn("listener response cannot be decoded, accepted filter types stay unknown", "err", err)
				continue
			}
			e.put(event{apply: func(m *machine, now time.Time) { m.learn(now, o.session, l) }})
		}
		select {
		case <-ctx.Done():
			return
		case <-e.seen.wake:
		}
	}
}
