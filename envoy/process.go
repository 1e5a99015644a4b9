package envoy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// reportLines is how many of Envoy's last lines an error's text shows.
	reportLines = 20
	// leftoverWait is how long a process that Envoy's end left behind may hold its stderr open.
	leftoverWait = time.Second
)

// Exit is how an Envoy process ended.
type Exit struct {
	At     time.Time `json:"at"`
	PID    int       `json:"pid"`              // 0: it could not be started
	Cause  string    `json:"cause,omitempty"`  // String, for the status
	Code   int       `json:"code"`             // exit status; -1 when a signal ended it
	Signal string    `json:"signal,omitempty"` // such as "segmentation fault"
	OOM    bool      `json:"oom,omitempty"`    // the kernel's OOM killer, as its cgroup counts it
	Live   bool      `json:"live,omitempty"`   // it had been serving
	Asked  bool      `json:"asked,omitempty"`  // the agent ended it
	Last   []string  `json:"last,omitempty"`   // its last log lines, the newest last

	signal syscall.Signal
}

// String says in a line how the process ended.
func (e Exit) String() string {
	switch {
	case e.PID == 0:
		return "could not be started"
	case e.OOM:
		return "killed by the kernel for using too much memory (OOM): give it more, or less to do"
	case e.signal == syscall.SIGKILL && !e.Asked:
		return "killed by SIGKILL, not by the agent: somebody's kill -9, or the kernel short of memory"
	case e.signal != 0:
		return "ended by signal " + e.signal.String()
	}
	return fmt.Sprintf("ended with exit status %d", e.Code)
}

// reason is the label of the restart metric.
func (e Exit) reason() string {
	switch {
	case e.OOM:
		return reasonOOM
	case e.signal == syscall.SIGKILL:
		return reasonKilled
	case e.signal != 0:
		return reasonSignal
	}
	return reasonExit
}

// lastLines are the newest lines, indented, for the end of an error's text; empty when there are none.
func (e Exit) lastLines() string {
	last := e.Last[max(0, len(e.Last)-reportLines):]
	if len(last) == 0 {
		return " (it said nothing)"
	}
	var b strings.Builder
	b.WriteString("; its last words:")
	for _, line := range last {
		b.WriteString("\n    " + tidyReason(line))
	}
	return b.String()
}

// process is one running Envoy.
type process struct {
	pid     int
	started time.Time
	handle  *os.Process
	live    atomic.Bool   // it has been LIVE
	asked   atomic.Bool   // the agent told it to end
	filled  bool          // it has had its listeners; only its poll looks
	exited  chan struct{} // closed when exit is set and everything the process had is gone
	exit    Exit
}

// startProcess starts Envoy and returns once it runs. The rest of its life is waited for on the thread that started it, because
// the kernel kills it when that thread ends.
func startProcess(ctx context.Context, c Config, args []string, dropped *atomic.Uint64) (*process, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start envoy: stderr pipe: %w", err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), c.Path, args...) // ended by drain, not by ctx
	cmd.Stdout, cmd.Stderr = c.Stdout, w
	cmd.SysProcAttr = childAttr()
	cmd.WaitDelay = leftoverWait
	oom := newOOMWatch()
	p := &process{exited: make(chan struct{})}
	started := make(chan error) // unbuffered: startProcess always receives
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this function, after Envoy
		defer close(p.exited)
		err := cmd.Start()
		w.Close()
		if err == nil {
			p.pid, p.handle, p.started = cmd.Process.Pid, cmd.Process, time.Now()
		}
		started <- err
		if err == nil {
			p.follow(ctx, cmd, r, newLogPump(c.Log, dropped), oom)
		}
		r.Close()
	}()
	if err := <-started; err != nil {
		<-p.exited
		return nil, fmt.Errorf("start envoy %s: %w", c.Path, err)
	}
	return p, nil
}

// follow reads the log and waits until the process has ended.
func (p *process) follow(ctx context.Context, cmd *exec.Cmd, stderr *os.File, logs *logPump, oom oomWatch) {
	logs.start(ctx, stderr)
	awaitExit(cmd.Process)
	err := cmd.Wait()
	at := time.Now()
	_ = stderr.SetReadDeadline(at.Add(leftoverWait))
	logs.wait()
	p.exit = exitOf(cmd.ProcessState, err)
	p.exit.At, p.exit.PID, p.exit.Last = at, p.pid, logs.lastLines()
	p.exit.Live, p.exit.Asked = p.live.Load(), p.asked.Load()
	p.exit.OOM = p.exit.signal == syscall.SIGKILL && !p.exit.Asked && oom.happened()
}

func exitOf(state *os.ProcessState, err error) Exit {
	if state == nil {
		return Exit{Code: -1, Last: []string{err.Error()}}
	}
	e := Exit{Code: state.ExitCode()}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		e.signal, e.Signal = ws.Signal(), ws.Signal().String()
	}
	return e
}

// signal sends sig to Envoy and to whatever script runs it. It does nothing once Envoy has ended.
func (p *process) signal(sig syscall.Signal) {
	p.asked.Store(true)
	select {
	case <-p.exited:
		return
	default:
	}
	// os.Process knows whether it was reaped; the group's number may belong to somebody else then.
	if err := p.handle.Signal(syscall.Signal(0)); errors.Is(err, os.ErrProcessDone) {
		return
	}
	_ = signalGroup(p.handle, sig)
}

// within waits until Envoy has ended, at most d.
func (p *process) within(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-p.exited:
		return true
	case <-timer.C:
		return false
	}
}
