package envoy

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// State is where an Envoy process is in its life.
type State string

// The states. Those from StatePreInitializing to StateDraining are Envoy's own words.
const (
	StateStopped         State = "stopped"          // not running
	StateBackoff         State = "backoff"          // crashed, waits for its restart
	StateStarting        State = "starting"         // runs, its admin has not answered yet
	StatePreInitializing State = "pre_initializing" // waits for clusters
	StateInitializing    State = "initializing"     // waits for listeners, routes, secrets, extensions
	StateLive            State = "live"             // serves
	StateDraining        State = "draining"         // serves, and asks clients to close
)

// Phases of a stop.
const (
	PhaseDelay   = "delay"   // still accepts, every response asks to close
	PhaseClosing = "closing" // the listening sockets are being closed
	PhaseWaiting = "waiting" // for what is in flight
	PhaseEnding  = "ending"  // Envoy was asked to end
)

// reasons of a restart, as metric labels.
const (
	reasonExit   = "exit"
	reasonSignal = "signal"
	reasonKilled = "killed"
	reasonOOM    = "oom"
)

const (
	pollStarting = 50 * time.Millisecond // a start takes about as long
	pollWaiting  = 250 * time.Millisecond
	pollLive     = time.Second
	pollTimeout  = 2 * time.Second
	// startingFor is how long a start is watched closely.
	startingFor = 10 * time.Second
)

// Status is a snapshot of Envoy's life.
type Status struct {
	Path      string    `json:"path"`
	Version   string    `json:"version,omitempty"`
	State     State     `json:"state"`         // the last one known, when the admin does not answer
	PID       int       `json:"pid,omitempty"` // 0: not running
	Epoch     int       `json:"epoch"`         // counts the processes of this agent from 0; -1 before the first
	StartedAt time.Time `json:"started_at,omitzero"`
	LiveAt    time.Time `json:"live_at,omitzero"`    // when this process was first seen LIVE
	Filled    bool      `json:"filled"`              // this process is or was LIVE with as many listeners as it should have
	RestartAt time.Time `json:"restart_at,omitzero"` // in StateBackoff
	Restarts  int       `json:"restarts"`
	LastExit  *Exit     `json:"last_exit,omitempty"` // the last crash
	// AdminUnresponsiveSince is set while the admin does not answer. Traffic may well flow: Envoy's main thread is busy.
	AdminUnresponsiveSince time.Time `json:"admin_unresponsive_since,omitzero"`
	Drain                  *Drain    `json:"drain,omitempty"` // a stop in progress, or the last one
	LogLinesDropped        uint64    `json:"log_lines_dropped,omitempty"`
}

// Drain is a stop in progress, or its report.
type Drain struct {
	Phase    string    `json:"phase"`
	Since    time.Time `json:"since"`
	Deadline time.Time `json:"deadline,omitzero"` // zero: announced, not begun
	Load               // what was last seen in flight; in PhaseEnding: what was cut
}

// Status says how Envoy is.
func (s *Supervisor) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.status
	if st.LastExit != nil {
		st.LastExit = new(*st.LastExit)
	}
	if st.Drain != nil {
		st.Drain = new(*st.Drain)
	}
	st.LogLinesDropped = s.dropped.Load()
	return st
}

// Hung says whether Envoy's admin has not answered for so long that something is wrong, and what. It is slow to say so on purpose,
// and nothing restarts Envoy because of it.
func (s *Supervisor) Hung() (bool, string) {
	st := s.Status()
	if st.AdminUnresponsiveSince.IsZero() || st.PID == 0 {
		return false, ""
	}
	since := time.Since(st.AdminUnresponsiveSince).Truncate(time.Second)
	if since < s.c.HungAfter {
		return false, ""
	}
	return true, fmt.Sprintf("envoy's main thread has not answered for %v: it takes no configuration; traffic may still flow", since)
}

func (s *Supervisor) update(f func(*Status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.status)
}

func (st *Status) started(p *process) {
	st.State, st.PID, st.StartedAt = StateStarting, p.pid, p.started
	st.LiveAt, st.RestartAt, st.AdminUnresponsiveSince, st.Filled = time.Time{}, time.Time{}, time.Time{}, false
	st.Epoch++
}

// answered takes Envoy's word. An answer from just before it was told to drain does not undo that.
func (st *Status) answered(state State) {
	if st.Drain != nil && state == StateLive {
		state = StateDraining
	}
	st.State = state
}

func (st *Status) draining(began, deadline time.Time) {
	st.Drain = &Drain{Phase: PhaseDelay, Since: began, Deadline: deadline}
	if st.State == StateLive {
		st.State = StateDraining
	}
}

func (st *Status) crashed(e Exit, wait time.Duration) {
	st.stopped()
	st.State, st.RestartAt = StateBackoff, time.Now().Add(wait)
	e.Cause = e.String()
	st.LastExit = &e
	st.Restarts++
}

func (st *Status) stopped() {
	st.State, st.PID, st.Filled = StateStopped, 0, false
	st.StartedAt, st.LiveAt, st.RestartAt, st.AdminUnresponsiveSince = time.Time{}, time.Time{}, time.Time{}, time.Time{}
}

// poll asks Envoy for its state until ctx ends.
func (s *Supervisor) poll(ctx context.Context, p *process) {
	for {
		asked := time.Now()
		state, err := s.askState(ctx)
		if ctx.Err() != nil {
			return
		}
		if s.observe(p, asked, state, err) {
			s.remind(ctx)
		}
		s.fill(ctx, p)
		timer := time.NewTimer(s.pollInterval(p))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		case <-p.exited:
			timer.Stop()
			return
		}
	}
}

func (s *Supervisor) askState(ctx context.Context) (State, error) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	return s.admin.State(ctx)
}

func (s *Supervisor) pollInterval(p *process) time.Duration {
	switch {
	case p.live.Load() && p.filled:
		return pollLive
	case time.Since(p.started) < startingFor:
		return pollStarting
	}
	return pollWaiting
}

// fill looks whether p has the listeners it should have; once it had, it stays filled, whatever becomes of them.
func (s *Supervisor) fill(ctx context.Context, p *process) {
	if p.filled || !p.live.Load() {
		return
	}
	if s.c.MinListeners > 0 {
		ctx, cancel := context.WithTimeout(ctx, pollTimeout)
		defer cancel()
		names, err := s.admin.Listeners(ctx)
		own := func(name string) bool { return strings.HasPrefix(name, s.c.OwnPrefix) }
		if err != nil || len(slices.DeleteFunc(names, own)) < s.c.MinListeners {
			return
		}
	}
	p.filled = true
	s.update(func(st *Status) { st.Filled = st.PID == p.pid })
}

// observe takes an answer and tells whether p has just become LIVE. A state stays until Envoy says another one, whatever becomes of
// its admin.
func (s *Supervisor) observe(p *process, asked time.Time, state State, err error) bool {
	s.mu.Lock()
	silent := time.Duration(0)
	st := &s.status
	if err != nil {
		if st.AdminUnresponsiveSince.IsZero() && (st.State != StateStarting || asked.Sub(p.started) > pollTimeout) {
			st.AdminUnresponsiveSince = asked
		}
		if !st.AdminUnresponsiveSince.IsZero() {
			silent = time.Since(st.AdminUnresponsiveSince)
		}
	} else {
		st.AdminUnresponsiveSince = time.Time{}
		st.answered(state)
	}
	becameLive := err == nil && (state == StateLive || state == StateDraining) && !p.live.Swap(true)
	if becameLive {
		st.LiveAt = time.Now()
	}
	warn := silent >= s.c.HungAfter && !s.warned
	s.warned = silent >= s.c.HungAfter
	s.mu.Unlock()
	if becameLive {
		s.log.Info("envoy is live", "pid", p.pid, "took", time.Since(p.started).Round(time.Millisecond))
	}
	if warn {
		s.log.Warn("envoy's main thread does not answer, traffic may still flow", "pid", p.pid, "since", silent.Round(time.Second), "err", err)
	}
	return becameLive
}

var (
	upDesc       = prometheus.NewDesc("gateway_agent_envoy_up", "Whether an Envoy process is running.", nil, nil)
	restartsDesc = prometheus.NewDesc("gateway_agent_envoy_restarts_total", "Restarts of Envoy after it ended by itself.",
		[]string{"reason"}, nil)
	startDesc   = prometheus.NewDesc("gateway_agent_envoy_start_time_seconds", "When the running Envoy process started, in Unix time.", nil, nil)
	droppedDesc = prometheus.NewDesc("gateway_agent_envoy_log_lines_dropped_total",
		"Log lines of Envoy that were dropped because the agent's own log was too slow.", nil, nil)
)

// Describe implements prometheus.Collector.
func (s *Supervisor) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{upDesc, restartsDesc, startDesc, droppedDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (s *Supervisor) Collect(ch chan<- prometheus.Metric) {
	st := s.Status()
	up := 0.0
	if st.PID != 0 {
		up = 1
		ch <- prometheus.MustNewConstMetric(startDesc, prometheus.GaugeValue, float64(st.StartedAt.UnixMilli())/1000)
	}
	ch <- prometheus.MustNewConstMetric(upDesc, prometheus.GaugeValue, up)
	ch <- prometheus.MustNewConstMetric(droppedDesc, prometheus.CounterValue, float64(st.LogLinesDropped))
	for reason, n := range s.restartCounts() {
		ch <- prometheus.MustNewConstMetric(restartsDesc, prometheus.CounterValue, float64(n), reason)
	}
}

func (s *Supervisor) restartCounts() map[string]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.restarts)
}
