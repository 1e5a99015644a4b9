package credential

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
	"unicode"
)

const (
	maxOutput  = 256 << 10   // bytes of an answer
	maxStderr  = 4 << 10     // bytes of what a program complains
	maxRuns    = 4           // programs at the same time
	pipeLinger = time.Second // how long a program's children may keep its output open
)

// A runner runs programs, a few at a time, each with a deadline and a bound for what it says.
type runner struct {
	env     map[string]string
	timeout time.Duration
	slots   chan struct{} // capacity: programs at the same time
}

func newRunner(env map[string]string, timeout time.Duration) *runner {
	return &runner{env: env, timeout: timeout, slots: make(chan struct{}, maxRuns)}
}

type command struct {
	path  string
	args  []string
	env   []string // beside the runner's
	input []byte
}

// exitError says that a program ended with a failure of its own.
type exitError struct {
	program, state, complaint string
	output                    []byte // may hold secrets
}

func (e *exitError) Error() string {
	text := fmt.Sprintf("%s failed (%s)", e.program, e.state)
	if e.complaint != "" {
		text += ": " + e.complaint
	}
	return text
}

var (
	errTimeout  = errors.New("it took too long")
	errTooLarge = fmt.Errorf("it answered more than %d KiB", maxOutput>>10)
)

// find looks for a program in the PATH of the runner's environment.
func (r *runner) find(program string) (string, error) {
	for _, dir := range filepath.SplitList(r.env["PATH"]) {
		if !filepath.IsAbs(dir) {
			continue // whoever can write to the working directory could choose what runs
		}
		path := filepath.Join(dir, program)
		if executable(path) == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is not in PATH (%s): install it, or remove it from the configuration that names it", program, r.env["PATH"])
}

func executable(path string) error {
	info, err := os.Stat(path)
	if err == nil && (!info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0) {
		err = fmt.Errorf("%s is not executable", path)
	}
	return err
}

// run returns what a program writes to its standard output. When it takes too long, says too much, or ctx ends, it is killed with its
// children. Errors hold nothing of its output.
func (r *runner) run(ctx context.Context, c command) ([]byte, error) {
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	ctx, cancel := context.WithTimeoutCause(ctx, r.timeout, errTimeout)
	defer cancel()
	stdout := &bounded{max: maxOutput, full: func() { stop(errTooLarge) }}
	stderr := &bounded{max: maxStderr, full: func() {}}
	cmd := exec.CommandContext(ctx, c.path, c.args...)
	cmd.Env = append(environ(r.env), c.env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(c.input), stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); !errors.Is(err, syscall.ESRCH) {
			return err
		}
		return os.ErrProcessDone
	}
	cmd.WaitDelay = pipeLinger
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) { // children of the program hold its output open, so the group still exists
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		err = nil
	}
	return stdout.buf.Bytes(), r.explain(ctx, c, err, stdout, stderr)
}

func (r *runner) explain(ctx context.Context, c command, err error, stdout, stderr *bounded) error {
	if err == nil && !stdout.cut {
		return nil
	}
	program, cause := filepath.Base(c.path), context.Cause(ctx)
	failed, exited := errors.AsType[*exec.ExitError](err)
	switch {
	case stdout.cut:
		return fmt.Errorf("%s was stopped: %w", program, errTooLarge)
	case errors.Is(cause, errTimeout):
		return fmt.Errorf("%s was stopped after %s: %w", program, r.timeout, errTimeout)
	case cause != nil:
		return cause
	case exited:
		secrets := append([]string{stdout.buf.String()}, c.env...)
		return &exitError{program: program, state: failed.ProcessState.String(), complaint: complaint(stderr.buf.String(), secrets), output: stdout.buf.Bytes()}
	}
	return fmt.Errorf("run %s: %w", program, err)
}

var (
	word  = regexp.MustCompile(`[^\s"'{}:,=\[\]]{4,}`)
	named = regexp.MustCompile(`(?i)\b(bearer|basic|\w*(?:token|secret|passw\w*|key))\b(["']?\s*[:=]?\s*["']?)[^\s"',;]{6,}`)
)

// complaint is the last line of what a program wrote to its standard error, without the words that are in its answer or its own environment,
// which may be secret, and without what is called a token or a password.
func complaint(stderr string, secrets []string) string {
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	line := strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(lines[len(lines)-1], " "))
	for n, secret := range word.FindAllString(strings.Join(secrets, " "), -1) {
		if n > 1000 {
			return ""
		}
		line = strings.ReplaceAll(line, secret, "…")
	}
	line = named.ReplaceAllString(line, "$1$2…")
	if runes := []rune(line); len(runes) > 200 {
		line = string(runes[:200]) + "…"
	}
	return strings.TrimSpace(line)
}

// bounded keeps the first max bytes that are written to it. It embeds no buffer, whose ReadFrom would have no bound.
type bounded struct {
	buf  bytes.Buffer
	max  int
	cut  bool
	full func()
}

func (b *bounded) Write(p []byte) (int, error) {
	room := b.max - b.buf.Len()
	if len(p) <= room {
		return b.buf.Write(p)
	}
	b.buf.Write(p[:room])
	if !b.cut {
		b.cut = true
		b.full()
	}
	return len(p), nil
}
