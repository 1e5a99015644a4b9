// Package envoy owns Envoy's life: it finds the binary, starts it, restarts it after a crash, drains and stops it, and asks its
// admin API. Envoy never outlives the agent.
package envoy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	defaultLogLevel      = "warning"
	defaultOwnPrefix     = "gateway_agent_"
	defaultListenerDrain = 10 * time.Minute
	defaultDrainMin      = time.Second
	defaultDrainTimeout  = 25 * time.Second
	defaultKillGrace     = 2 * time.Second
	defaultRestarts      = 5
	defaultRestartWindow = time.Minute
	defaultHungAfter     = time.Minute

	maxSocketPath = 107 // bytes that fit into sockaddr_un with its terminating zero
)

// logLevels are Envoy's.
var logLevels = []string{"trace", "debug", "info", "warning", "error", "critical", "off"}

// Config is what a Supervisor runs, and how.
type Config struct {
	Path        string   // the Envoy binary, as Find returns it; required
	Version     string   // what ReadVersion said, for the status; default unknown
	Bootstrap   string   // the bootstrap file; read again at each restart; required
	Admin       string   // where the bootstrap puts the admin: a unix socket's absolute path, at most 107 bytes, or HOST:PORT; required
	Concurrency int      // worker threads; 0 = Envoy's choice
	LogLevel    string   // Envoy's level at start, one of its own names; default "warning"
	Args        []string // more arguments, after our own; those that came with a later version than this one are left out, with a warning
	Env         []string // environment as KEY=value; nil = the agent's

	Stdout io.Writer    // Envoy's standard output; a file is inherited, so access logs never pass through the agent; default os.Stdout
	Log    *slog.Logger // Envoy's log too, with component=envoy; nil = none

	// OwnPrefix starts the statistics prefixes of the agent's own listeners, which a drain does not wait for; default "gateway_agent_".
	OwnPrefix string
	// ListenerDrain is how long Envoy lets connections live on a listener that an update changed or removed; then it cuts them,
	// requests in flight too. It has nothing to do with stopping. Default 10 minutes.
	ListenerDrain time.Duration

	// OnDrain is called when a stop begins, before anything else: readiness should fail from then on. It must not block.
	OnDrain func()
	// DrainDelay is how long Envoy goes on accepting connections after a stop began, while every response asks its client to close:
	// as long as load balancers need to notice. Default 0, for nobody has to notice a gateway on a workstation or the only one of a host.
	DrainDelay time.Duration
	// DrainMin is how long, after the sockets were closed, connections that are open get to learn from a response that they should
	// close. Skipped when there are none. Default 1 s, enough for clients that send a request a second; negative = none.
	DrainMin time.Duration
	// DrainTimeout is the most that delay and drain may take together, counted from the beginning of the stop. What is in flight
	// then is cut. The end of Envoy takes at most 2 × KillGrace more. Default 25 s, to end within the 30 s that a container
	// runtime usually gives; negative = none.
	DrainTimeout time.Duration
	// KillGrace is how long Envoy may take to end after it was asked, or after SIGTERM where it could not be asked. It is killed within two
	// of these. Default 2 s.
	KillGrace time.Duration

	// Restarts is how many crashes within RestartWindow, or starts in a row that failed before Envoy served, are answered with a
	// restart; one more ends Run with an error. Default 5; negative = none.
	Restarts      int
	RestartWindow time.Duration // default 1 minute

	// MinListeners is how many listeners, without the agent's own, a process must have had at once before Status calls it Filled.
	// Default 0: none.
	MinListeners int

	// HungAfter is how long the admin may not answer before Hung says so. Default 1 minute: loading a module can take half of that.
	HungAfter time.Duration
}

// Supervisor runs Envoy. Its methods may be called from any goroutine.
type Supervisor struct {
	c       Config
	log     *slog.Logger
	admin   *Admin
	dropped atomic.Uint64 // log lines

	stopOnce sync.Once
	stopping chan struct{} // closed by Stop
	announce sync.Mutex    // held by Announce and while a new process is told the same

	mu       sync.Mutex
	status   Status
	level    string
	restarts map[string]uint64 // by reason
	warned   bool              // that the admin has not answered for HungAfter
}

// New checks c. It starts nothing.
func New(c Config) (*Supervisor, error) {
	c = withDefaults(c)
	if err := check(c); err != nil {
		return nil, fmt.Errorf("envoy: %w", err)
	}
	s := &Supervisor{c: c, log: c.Log, admin: NewAdmin(c.Admin), stopping: make(chan struct{}), level: c.LogLevel}
	s.c.Log = c.Log.With("component", "envoy")
	s.status = Status{Path: c.Path, Version: c.Version, State: StateStopped, Epoch: -1}
	s.restarts = map[string]uint64{reasonExit: 0, reasonSignal: 0, reasonKilled: 0, reasonOOM: 0}
	return s, nil
}

func withDefaults(c Config) Config {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Stdout == nil {
		c.Stdout = os.Stdout
	}
	if c.LogLevel == "" {
		c.LogLevel = defaultLogLevel
	}
	if c.OwnPrefix == "" {
		c.OwnPrefix = defaultOwnPrefix
	}
	c.ListenerDrain = orDefault(c.ListenerDrain, defaultListenerDrain)
	c.DrainMin = max(0, orDefault(c.DrainMin, defaultDrainMin))
	c.DrainTimeout = max(0, orDefault(c.DrainTimeout, defaultDrainTimeout))
	c.KillGrace = orDefault(c.KillGrace, defaultKillGrace)
	c.Restarts = max(0, orDefault(c.Restarts, defaultRestarts))
	c.RestartWindow = orDefault(c.RestartWindow, defaultRestartWindow)
	c.HungAfter = orDefault(c.HungAfter, defaultHungAfter)
	return c
}

func orDefault[T int | time.Duration](v, def T) T {
	if v == 0 {
		return def
	}
	return v
}

func check(c Config) error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Path == "" {
		fail("no binary given: %s", howToGet)
	}
	if c.Bootstrap == "" {
		fail("no bootstrap file given")
	}
	if n := len(c.Admin); n == 0 {
		fail("no admin socket or address given")
	} else if n > maxSocketPath {
		fail("admin socket %s has %d bytes, a unix socket allows %d: choose a shorter --run-dir", c.Admin, n, maxSocketPath)
	}
	if !slices.Contains(logLevels, c.LogLevel) {
		fail("log level %q is not one of Envoy's: %v", c.LogLevel, logLevels)
	}
	if c.MinListeners < 0 {
		fail("at least %d listeners: use 0 or a positive number", c.MinListeners)
	}
	if c.Concurrency < 0 {
		fail("concurrency %d: use 0 for Envoy's choice, or a positive number", c.Concurrency)
	}
	if c.DrainDelay < 0 || c.ListenerDrain < time.Second || c.KillGrace < 0 || c.RestartWindow < 0 || c.HungAfter < 0 {
		fail("a duration is negative, or the listener drain is less than a second")
	}
	if c.DrainDelay+c.DrainMin > c.DrainTimeout && c.DrainDelay > 0 {
		fail("drain delay %v (--drain-delay) and minimum %v (--drain-min) do not fit into the drain timeout %v (--drain-timeout), "+
			"which counts from the beginning of the stop", c.DrainDelay, c.DrainMin, c.DrainTimeout)
	}
	return errors.Join(errs...)
}

// Admin is a client of the running Envoy's admin API.
func (s *Supervisor) Admin() *Admin { return s.admin }

// Stop ends a stop that takes its time: what is in flight is cut, and Envoy is asked to end now. Without a stop in progress it
// begins one of this kind. It returns at once.
func (s *Supervisor) Stop() { s.stopOnce.Do(func() { close(s.stopping) }) }

// SetLogLevel changes Envoy's log level, now and for the processes to come.
func (s *Supervisor) SetLogLevel(ctx context.Context, level string) error {
	if !slices.Contains(logLevels, level) {
		return fmt.Errorf("envoy log level %q is not one of %v", level, logLevels)
	}
	s.mu.Lock()
	s.level = level
	running := s.status.PID != 0
	s.mu.Unlock()
	if !running {
		return nil
	}
	return s.admin.SetLogLevel(ctx, level)
}

func (s *Supervisor) args() []string {
	s.mu.Lock()
	level := s.level
	s.mu.Unlock()
	args := []string{
		"-c", s.c.Bootstrap, "--disable-hot-restart", "-l", level, "--log-format", logFormat,
		"--drain-time-s", strconv.Itoa(int(s.c.ListenerDrain.Seconds())),
	}
	if s.c.Concurrency > 0 {
		args = append(args, "--concurrency", strconv.Itoa(s.c.Concurrency))
	}
	more, _ := withoutLater(s.c.Args, s.c.Version)
	return append(args, more...)
}
