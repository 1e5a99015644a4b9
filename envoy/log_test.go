package envoy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/testbuffer"
)

func TestLogLines(t *testing.T) {
	var out testbuffer.Buffer
	log := slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelInfo}))
	in := strings.Join([]string{
		`{"time":"2026-11-21T12:26:38.081450+00:00","level":"info","logger":"main","thread":7,"src":"a.cc:1","msg":"one\n"}`,
		`{"time":"2026-11-21T12:26:38.081450+00:00","level":"debug","logger":"main","thread":7,"src":"a.cc:1","msg":"hidden"}`,
		`{"time":"bad","level":"critical","logger":"wasm","thread":7,"src":"b.cc:2","msg":"two \"quoted\""}`,
		`plain words`, ``, "\r",
		`{"json":"but not a log line"}`,
		`{"level":"info","msg":`,
		strings.Repeat("long", maxLine) + "\nafter the long one",
		"\xff not UTF-8",
		"no newline at the end",
	}, "\n")
	p := newLogPump(log, &atomic.Uint64{})
	p.start(context.Background(), strings.NewReader(in))
	p.wait()
	got := out.String()
	for _, want := range []string{
		`{"time":"2026-11-21T12:26:38.08145Z","level":"INFO","msg":"one","logger":"main","src":"a.cc:1"}`,
		`"level":"ERROR","msg":"two \"quoted\"","logger":"wasm","src":"b.cc:2"`,
		`"level":"WARN","msg":"plain words"`,
		`"level":"WARN","msg":"{\"json\":\"but not a log line\"}"`,
		`"msg":"after the long one"`, `"msg":"no newline at the end"`, "\uFFFD not UTF-8",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("log lacks %s:\n%s", want, clip(got, 4000))
		}
	}
	if strings.Contains(got, "hidden") || strings.Count(got, "\n") != 9 || len(got) > 2*maxMessage {
		t.Errorf("%d records in %d bytes, want 9 short ones without `hidden`:\n%s", strings.Count(got, "\n"), len(got), clip(got, 4000))
	}
}

func TestLastLines(t *testing.T) {
	p := newLogPump(slog.New(slog.DiscardHandler), &atomic.Uint64{})
	for n := range 120 {
		p.keep(parseLine(fmt.Sprintf(`{"level":"info","logger":"main","msg":"%d"}`, n)))
	}
	if got := p.lastLines(); len(got) != keptLines || got[keptLines-1] != "info main: 119" || got[0] != "info main: 70" {
		t.Errorf("lastLines = %v; want the last %d", got, keptLines)
	}
	p.keep(parseLine(`{"level":"error","logger":"main","msg":"why"}`))
	p.keep(parseLine(`a plain word`))
	if got := p.lastLines(); len(got) != 2 || got[0] != "error main: why" || got[1] != "a plain word" {
		t.Errorf("lastLines = %v; want only those that tell why", got)
	}
}

// stuck is a log handler that lets Envoy's records through only when told to.
type stuck struct {
	slog.Handler
	open chan struct{}
}

func (s stuck) Handle(ctx context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, "line ") {
		<-s.open
	}
	return s.Handler.Handle(ctx, r)
}

func (s stuck) WithAttrs([]slog.Attr) slog.Handler { return s }

// TestSlowLoggerDoesNotBlockEnvoy: what stands for Envoy writes far more than any pipe holds, then a file.
func TestSlowLoggerDoesNotBlockEnvoy(t *testing.T) {
	done := filepath.Join(t.TempDir(), "done")
	var out testbuffer.Buffer
	h := stuck{slog.NewTextHandler(&out, nil), make(chan struct{})}
	r := run(t, Config{
		Path: script(t, `seq -f "line %.0f" 100000 >&2; touch `+done+`; exec sleep 60`), Bootstrap: "b", Admin: "/nonexistent",
		Log: slog.New(h),
	})
	eventually(t, 10*time.Second, "the file", func() bool { _, err := os.Stat(done); return err == nil })
	eventually(t, 10*time.Second, "dropped lines", func() bool { return r.Status().LogLinesDropped >= 100000-queuedLines-2 })
	if m := metrics(t, r.Supervisor); m["gateway_agent_envoy_log_lines_dropped_total"] < 90000 {
		t.Errorf("metrics = %v; want the dropped lines", m)
	}
	close(h.open)
	eventually(t, 10*time.Second, "a word about it", func() bool { return strings.Contains(out.String(), "log lines of envoy dropped") })
	r.stop()
	if err := r.await(5 * time.Second); err != nil {
		t.Errorf("Run = %v, want nil", err)
	}
}

func TestStdoutIsPassedOn(t *testing.T) {
	var out testbuffer.Buffer
	r := run(t, Config{Path: script(t, "echo access; exit 1"), Bootstrap: "b", Admin: "/nonexistent", Restarts: -1, Stdout: &out})
	if err := r.await(5 * time.Second); err == nil || out.String() != "access\n" {
		t.Errorf("Run = %v, stdout %q; want an error and `access`", err, out.String())
	}
}

func FuzzParseLine(f *testing.F) {
	f.Add(`{"time":"2026-11-21T12:26:38.081450+00:00","level":"info","logger":"main","thread":7,"src":"a.cc:1","msg":"one"}`)
	f.Add(`Invalid duration`)
	f.Add(`{"level":7}`)
	f.Fuzz(func(t *testing.T, line string) {
		e := parseLine(line)
		if len(e.Message) > maxMessage+len("…") {
			t.Errorf("message of %d bytes", len(e.Message))
		}
		if !bytes.Contains([]byte(e.text()), []byte(e.Message)) {
			t.Errorf("text %q lacks the message %q", e.text(), e.Message)
		}
		_, _ = e.when(), tidyReason(e.text())
	})
}

// Envoy prints a configuration that it rejects before it says why: neither log nor crash report may show it.
func TestParseLineShowsNoConfiguration(t *testing.T) {
	for _, logger := range []string{"config", "upstream"} {
		line, err := json.Marshal(map[string]any{
			"level": "warning", "logger": logger,
			"msg": "gRPC config rejected: Proto constraint validation failed (field): goo.gle/debugstr\nconfig {\n  key: \"swordfish\"\n}\n: value is required",
		})
		if err != nil {
			t.Fatal(err)
		}
		got := parseLine(string(line)).text()
		if strings.Contains(got, "swordfish") || !strings.Contains(got, "value is required") {
			t.Errorf("parseLine of a rejection by %s = %q, want the reason without the configuration", logger, got)
		}
	}
}
