package envoy

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"time"
)

const (
	validateTimeout = 2 * time.Minute // a bootstrap that names large modules compiles them
	toolWaitDelay   = time.Second
	maxReason       = 600 // bytes of one reason that Envoy gives
	maxReasons      = 5
)

// Validate runs path with --mode validate on a bootstrap file. The error gives Envoy's reasons, without the whole bootstrap that
// Envoy prints along with some of them.
func Validate(ctx context.Context, path, bootstrap string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, validateTimeout, errors.New("it did not end in "+validateTimeout.String()))
	defer cancel()
	// With a level of `off` Envoy would not say why.
	out, err := runTool(ctx, path, "--mode", "validate", "-c", bootstrap, "--disable-hot-restart", "-l", "critical", "--log-format", logFormat)
	if err == nil {
		return nil
	}
	why := reasons(out)
	if why == "" {
		return fmt.Errorf("envoy %s: validate %s: %w%s", path, bootstrap, err, quoted(out))
	}
	return fmt.Errorf("envoy %s: validate %s: %w: %s", path, bootstrap, err, why)
}

// reasons are the messages of Envoy's own log lines in out; other lines are dumps.
func reasons(out string) string {
	var found []string
	for line := range strings.Lines(out) {
		if e := parseLine(line); !e.plain() && len(found) < maxReasons {
			found = append(found, tidyReason(e.Message))
		}
	}
	if len(found) == 0 {
		found = plainReasons(out)
	}
	return strings.Join(found, "; ")
}

// plainReasons are the lines of a failure that came before Envoy's logger did, such as an unknown flag.
func plainReasons(out string) []string {
	var found []string
	for line := range strings.Lines(out) {
		if line = strings.TrimSpace(line); line != "" && len(found) < maxReasons {
			found = append(found, clip(line, maxReason))
		}
	}
	return found
}

var (
	debugMark = regexp.MustCompile(`goo\.gle/debug\w*\s*`)
	dumpStart = regexp.MustCompile(`(?s)\): *\{.*`)
)

// tidyReason takes from an error of Envoy the marks of its protobuf library and the dump of the bootstrap.
func tidyReason(s string) string {
	s = debugMark.ReplaceAllString(s, "")
	s = dumpStart.ReplaceAllString(s, ")")
	return clip(strings.Join(strings.Fields(s), " "), maxReason)
}

// clip shortens s to about n bytes at a character's border.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// runTool runs a command that ends by itself, and returns the start of what it printed on both outputs.
func runTool(ctx context.Context, path string, args ...string) (string, error) {
	var out headBuffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = ownGroup()
	cmd.Cancel = func() error { return killGroup(cmd.Process) }
	cmd.WaitDelay = toolWaitDelay
	err := cmd.Run()
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return out.String(), err
}

// headBuffer keeps the first maxToolOutput bytes written to it.
type headBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (h *headBuffer) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	room := maxToolOutput - h.b.Len()
	h.b.Write(p[:min(len(p), room)])
	return len(p), nil
}

func (h *headBuffer) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.b.String()
}
