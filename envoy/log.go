package envoy

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/envoytext"
)

// logFormat makes each line of Envoy's log a JSON object. (--log-format-escaped must not be used with it, and the bootstrap's own
// json_format takes effect too late for the lines that matter most.)
const logFormat = `{"time":"%Y-%m-%dT%T.%f%z","level":"%l","logger":"%n","thread":%t,"src":"%g:%#","msg":"%j"}`

const (
	maxLine      = 16 << 10 // bytes of one line that are read; the rest of the line is dropped
	maxMessage   = 4 << 10  // bytes of one message that are logged and kept; Envoy may print a whole bootstrap
	keptLines    = 50       // lines kept for a crash report
	queuedLines  = 1024     // lines that wait for our own logger before more are dropped
	dropInterval = 5 * time.Second
)

// entry is one line of Envoy's log.
type entry struct {
	Time    string `json:"time"`
	Level   string `json:"level"`
	Logger  string `json:"logger"`
	Source  string `json:"src"`
	Message string `json:"msg"`
}

// parseLine reads a line in logFormat. Some lines do not pass Envoy's logger (flag errors, the last words of a failed start): they
// are an entry with nothing but a message.
func parseLine(line string) entry {
	var e entry
	if !strings.HasPrefix(line, "{") || json.Unmarshal([]byte(line), &e) != nil || e.plain() {
		return entry{Message: clip(strings.ToValidUTF8(line, "\uFFFD"), maxMessage)}
	}
	if e.Logger == "config" || strings.Contains(e.Message, "goo.gle/debug") {
		e.Message = envoytext.Public(e.Message, maxMessage) // a rejected configuration is printed whole, secrets included
	}
	e.Message = clip(strings.TrimSpace(e.Message), maxMessage)
	return e
}

func (e entry) plain() bool { return e.Level == "" }

// text is the line as a person wants it in a crash report.
func (e entry) text() string {
	if e.plain() {
		return e.Message
	}
	return fmt.Sprintf("%s %s: %s", e.Level, e.Logger, e.Message)
}

func (e entry) when() time.Time {
	t, err := time.Parse("2006-01-02T15:04:05.999999Z07:00", e.Time)
	if err != nil {
		return time.Now()
	}
	return t
}

// slogLevel orders Envoy's levels among ours. Lines without a level are mostly last words.
func slogLevel(name string) slog.Level {
	switch name {
	case "trace":
		return slog.LevelDebug - 4
	case "debug":
		return slog.LevelDebug
	case "info":
		return slog.LevelInfo
	case "error", "critical":
		return slog.LevelError
	}
	return slog.LevelWarn
}

// logPump reads Envoy's stderr. Its reader does nothing that could block, since Envoy blocks when its pipe is full: a line for
// which the queue has no room is dropped and counted. A second goroutine writes to our logger, at that logger's pace.
type logPump struct {
	log     *slog.Logger
	dropped *atomic.Uint64
	queue   chan entry // queuedLines: a start at level debug is a few thousand lines within 50 ms, one at info 140
	workers sync.WaitGroup

	mu   sync.Mutex
	last []entry // the newest keptLines lines
}

func newLogPump(log *slog.Logger, dropped *atomic.Uint64) *logPump {
	return &logPump{log: log, dropped: dropped, queue: make(chan entry, queuedLines)}
}

// start begins to read r until it ends. wait returns when all of it has been read and logged.
func (p *logPump) start(ctx context.Context, r io.Reader) {
	p.workers.Go(func() {
		defer close(p.queue)
		p.read(r)
	})
	p.workers.Go(func() { p.write(ctx) })
}

func (p *logPump) wait() { p.workers.Wait() }

func (p *logPump) read(r io.Reader) {
	b := bufio.NewReaderSize(r, maxLine)
	for {
		line, err := b.ReadSlice('\n')
		if text := strings.TrimRight(string(line), "\r\n"); text != "" {
			p.take(parseLine(text))
		}
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = b.ReadSlice('\n')
		}
		if err != nil {
			return
		}
	}
}

func (p *logPump) take(e entry) {
	p.keep(e)
	select {
	case p.queue <- e:
	default:
		p.dropped.Add(1)
	}
}

func (p *logPump) keep(e entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.last) == keptLines {
		p.last = slices.Delete(p.last, 0, 1)
	}
	p.last = append(p.last, e)
}

// lastLines are the last lines worth a report: warnings, errors and those without a level; all of them where there are none such.
func (p *logPump) lastLines() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var telling, all []string
	for _, e := range p.last {
		all = append(all, e.text())
		if slogLevel(e.Level) >= slog.LevelWarn {
			telling = append(telling, e.text())
		}
	}
	if len(telling) > 0 {
		return telling
	}
	return all
}

// write logs what was queued, and says now and then how much was dropped.
func (p *logPump) write(ctx context.Context) {
	reported, next := p.dropped.Load(), time.Time{}
	for e := range p.queue {
		p.logEntry(ctx, e)
		if n := p.dropped.Load(); n > reported && time.Now().After(next) {
			p.log.WarnContext(ctx, "log lines of envoy dropped, the agent's own log is too slow", "count", n-reported)
			reported, next = n, time.Now().Add(dropInterval)
		}
	}
}

// logEntry keeps the time and the level that Envoy gave the line.
func (p *logPump) logEntry(ctx context.Context, e entry) {
	level := slogLevel(e.Level)
	if !p.log.Enabled(ctx, level) {
		return
	}
	r := slog.NewRecord(e.when(), level, e.Message, 0)
	if !e.plain() {
		r.AddAttrs(slog.String("logger", e.Logger), slog.String("src", e.Source))
	}
	_ = p.log.Handler().Handle(ctx, r)
}
