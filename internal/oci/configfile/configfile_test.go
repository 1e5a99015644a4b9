package configfile

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestReadRefusesWhatIsNoSmallFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := os.WriteFile(path, []byte("12345678"), 0o600); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		path  string
		limit int64
		want  string
	}{
		{path, 8, ""},
		{path, 7, "larger than"},
		{fifo, 8, "not a regular file"}, // and it does not wait
		{dir, 8, "not a regular file"},
		{filepath.Join(dir, "absent"), 8, "no such file"},
	} {
		data, info, err := Read(tc.path, tc.limit)
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("Read(%s, %d): %v; want an error with %q", tc.path, tc.limit, err, tc.want)
		}
		if err == nil && (string(data) != "12345678" || info.Size() != 8) {
			t.Errorf("Read(%s) = %q, %v", tc.path, data, info)
		}
	}
}

func TestExposure(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for mode, want := range map[os.FileMode]string{
		0o600: "", 0o640: "", 0o660: "", 0o644: "everybody can read it", 0o602: "everybody can write it", 0o666: "everybody can read it, everybody can write it",
	} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := Exposure(info); got != want {
			t.Errorf("Exposure of %o = %q, want %q", mode, got, want)
		}
	}
}

func TestWarningsAreGivenOnce(t *testing.T) {
	log := &bytes.Buffer{}
	w := NewWarnings(slog.New(slog.NewTextHandler(log, nil)))
	for _, step := range []struct {
		settle        bool
		about, detail string
		lines         int // so far
	}{
		{false, "f", "a", 1}, {false, "f", "a", 1}, {false, "f", "b", 2}, {false, "g", "b", 3}, {true, "g", "", 3}, {false, "g", "b", 4}, {false, "f", "b", 4},
	} {
		if step.settle {
			w.Settled(step.about, "m")
		} else {
			w.Warn(step.about, "m", step.detail)
		}
		if got := strings.Count(log.String(), "\n"); got != step.lines {
			t.Errorf("after %v there are %d lines:\n%s", step, got, log)
		}
	}
	for n := range 2 * maxWarnings {
		w.Warn(fmt.Sprint(n), "m", "")
	}
	if n := w.last.Len(); n > maxWarnings {
		t.Errorf("%d warnings are remembered", n)
	}
	NewWarnings(nil).Warn("f", "m", "a")
}
