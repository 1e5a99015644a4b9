// Package xdstest is a test rig for xDS: a strict fake control plane and a fake Envoy, for state-of-the-world and delta, which write down
// what they say and hear. Tests compare that transcript with a file; -update rewrites the files.
//
// Everything runs over in-memory connections, so that it works inside testing/synctest bubbles; the times in a transcript are exact there.
package xdstest

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the transcripts in testdata")

// Transcript is what was said, in order. Its methods may be called from any goroutine.
type Transcript struct {
	Settle func() // called after each message that a fake sends; synctest.Wait makes transcripts exact

	mu    sync.Mutex
	start time.Time
	lines []string
}

// NewTranscript starts the clock.
func NewTranscript() *Transcript { return &Transcript{start: time.Now()} }

// Notef writes one line: who, and what.
func (tr *Transcript) Notef(who, format string, args ...any) {
	if tr == nil {
		return
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.lines = append(tr.lines, fmt.Sprintf("%9.3fs %-6s %s\n", time.Since(tr.start).Seconds(), who, fmt.Sprintf(format, args...)))
}

// Section writes a heading; times count from there.
func (tr *Transcript) Section(title string) {
	tr.settle()
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.start = time.Now()
	tr.lines = append(tr.lines, "# "+title+"\n")
}

func (tr *Transcript) settle() {
	if tr != nil && tr.Settle != nil {
		tr.Settle()
	}
}

// String is the whole transcript.
func (tr *Transcript) String() string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return strings.Join(tr.lines, "")
}

// Compare fails the test when the transcript is not testdata/<name>.txt.
func (tr *Transcript) Compare(t testing.TB, name string) {
	t.Helper()
	path := filepath.Join("testdata", name+".txt")
	got := tr.String()
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("no transcript to compare with (go test -update writes it): %v", err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("transcript differs from %s (-want +got):\n%s", path, diff)
	}
}
