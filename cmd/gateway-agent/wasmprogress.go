package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"
)

// progress shows work: bars on standard error when it is a terminal, one line for each thing done on standard output, unless that is for
// JSON or nobody wants it. It is safe for concurrent use.
type progress struct {
	mu   sync.Mutex
	out  io.Writer     // lines; nil: none
	err  io.Writer     // failures
	bars *mpb.Progress // nil: no terminal
}

func (a *app) newProgress(o *moduleOptions) *progress {
	p := &progress{err: a.stderr, out: a.stdout}
	if o.quiet || o.output == "json" {
		p.out = nil
	}
	if o.quiet || !a.isTerminal(a.stderr) {
		return p
	}
	p.bars = mpb.New(mpb.WithOutput(a.stderr), mpb.WithRefreshRate(120*time.Millisecond))
	p.err = p.bars // lines go above the bars
	if p.out != nil && a.isTerminal(a.stdout) {
		p.out = p.bars
	}
	return p
}

// isTerminal tells whether a person looks at w through something that can redraw a line.
func (a *app) isTerminal(w io.Writer) bool {
	f, ok := file(w)
	return ok && a.env["TERM"] != "dumb" && term.IsTerminal(int(f.Fd()))
}

// task is one thing's progress.
type task struct {
	progress *progress
	name     string
	bar      *mpb.Bar // nil: no terminal
}

func (p *progress) start(name string) *task {
	t := &task{progress: p, name: name}
	if p.bars != nil {
		t.bar = p.bars.AddBar(0,
			mpb.BarRemoveOnComplete(),
			mpb.PrependDecorators(decor.Name(name, decor.WCSyncSpaceR), decor.CountersKibiByte("% .1f / % .1f")),
			mpb.AppendDecorators(decor.Percentage()))
	}
	return t
}

func (t *task) moved(done, total int64) {
	if t.bar == nil {
		return
	}
	t.bar.SetTotal(max(total, done+1), false)
	t.bar.SetCurrent(done)
}

// done ends the task with what came of it and what to know about it; either may be "".
func (t *task) done(text, warning string) {
	t.end(func(p *progress) {
		if p.out == nil {
			return
		}
		if text != "" {
			fmt.Fprintf(p.out, "%s: %s\n", t.name, text)
		}
		if warning != "" {
			fmt.Fprintf(p.err, "%s: warning: %s\n", t.name, warning)
		}
	})
}

// failed ends the task with an error, which is always told.
func (t *task) failed(err error) {
	reason := strings.TrimPrefix(err.Error(), "pull "+t.name+": ")
	t.end(func(p *progress) { fmt.Fprintf(p.err, "%s: failed: %s\n", t.name, reason) })
}

// dropped ends the task without a word.
func (t *task) dropped() { t.done("", "") }

func (t *task) end(tell func(*progress)) {
	if t.bar != nil {
		t.bar.Abort(true)
	}
	t.progress.mu.Lock()
	defer t.progress.mu.Unlock()
	tell(t.progress)
}

// wait ends the bars.
func (p *progress) wait() {
	if p.bars != nil {
		p.bars.Wait()
	}
}
