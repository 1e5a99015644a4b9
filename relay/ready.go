package relay

import (
	"fmt"
	"time"
)

const (
	maxProcesses = 64          // Envoy processes that are remembered
	absence      = time.Minute // without a stream, after which an unnamed Envoy counts as gone
)

// process is what is known of one Envoy process, over all its streams. The server's mutex guards it.
type process struct {
	pid      int
	sessions int
	seen     time.Time
	cds, lds progress
}

// progress of one type towards readiness.
type progress struct {
	asked, answered, acked bool
	rejected               string
}

// processLocked finds or makes the record of a process and forgets the oldest without streams.
func (s *Server) processLocked(pid int) *process {
	if p := s.procs[pid]; p != nil {
		return p
	}
	if len(s.procs) >= maxProcesses {
		var oldest *process
		for _, p := range s.procs {
			if p.sessions == 0 && (oldest == nil || p.seen.Before(oldest.seen)) {
				oldest = p
			}
		}
		if oldest != nil {
			delete(s.procs, oldest.pid)
		}
	}
	p := &process{pid: pid}
	s.procs[pid] = p
	return p
}

// progress changes what is known of this process, for the two types that make it ready.
func (s *session) progress(t *typeState, change func(*progress)) {
	if t.url != typeCDS && t.url != typeLDS {
		return
	}
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	if t.url == typeCDS {
		change(&s.proc.cds)
	} else {
		change(&s.proc.lds)
	}
}

// fresh forgets the progress of an Envoy whose process id our PID namespace hides: it says that it has accepted nothing, so it is a new
// process, unless another one shares the record.
func (s *Server) fresh(ss *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ss.proc.sessions == 1 {
		ss.proc.cds, ss.proc.lds = progress{}, progress{}
	}
}

// Ready tells whether the Envoy process pid has accepted clusters and listeners once, else why not. pid 0: whichever connected last.
func (s *Server) Ready(pid int) (bool, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.procs[pid]
	if pid == 0 {
		p = s.newestLocked()
	}
	if p == nil {
		return false, "waiting for Envoy to open an ADS stream"
	}
	if pid == 0 && p.sessions == 0 && time.Since(p.seen) > absence {
		return false, fmt.Sprintf("Envoy has had no ADS stream since %s", p.seen.UTC().Format(time.RFC3339))
	}
	if reason := p.cds.missing("CDS", s.failure.text); reason != "" {
		return false, reason
	}
	if reason := p.lds.missing("LDS", s.failure.text); reason != "" {
		return false, reason
	}
	return true, ""
}

func (s *Server) newestLocked() (newest *process) {
	for _, p := range s.procs {
		if newest == nil || p.sessions > 0 && newest.sessions == 0 || (p.sessions > 0) == (newest.sessions > 0) && p.seen.After(newest.seen) {
			newest = p
		}
	}
	return newest
}

// missing says what is missing, "" when nothing is.
func (p progress) missing(short, failure string) string {
	switch {
	case p.acked:
		return ""
	case p.rejected != "":
		return "Envoy rejected " + short + ": " + p.rejected
	case p.answered:
		return "waiting for Envoy to accept " + short
	case !p.asked:
		return "waiting for Envoy to ask for " + short
	case failure != "":
		return "waiting for the first " + short + " answer from the control plane: " + failure
	}
	return "waiting for the first " + short + " answer from the control plane"
}
