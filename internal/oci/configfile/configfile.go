// Package configfile reads files of the operator that may change while the agent runs and may hold secrets. Its errors and warnings name
// files, never what is in them.
package configfile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"syscall"

	lru "github.com/hashicorp/golang-lru/v2"
)

// Read returns the content of a regular file of at most limit bytes. It never waits for a writer, as a pipe would make it.
func Read(path string, limit int64) ([]byte, fs.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%s is not a regular file", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", path, errors.Unwrap(err))
	}
	if int64(len(data)) > limit {
		return nil, nil, fmt.Errorf("%s is larger than %d KiB", path, limit>>10)
	}
	return data, info, nil
}

// Exposure says who else can get at a file that holds a secret; "" if nobody but its owner, its group and root.
func Exposure(info fs.FileInfo) string {
	var all []string
	if info.Mode().Perm()&0o004 != 0 {
		all = append(all, "everybody can read it")
	}
	if info.Mode().Perm()&0o002 != 0 {
		all = append(all, "everybody can write it")
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		all = append(all, fmt.Sprintf("it belongs to user %d", st.Uid))
	}
	return strings.Join(all, ", ")
}

// maxWarnings bounds what is remembered: some of it is about hosts, which others choose.
const maxWarnings = 1024

// Warnings logs a warning about something when it is new, not each time it is met. It is safe for concurrent use.
type Warnings struct {
	log  *slog.Logger
	last *lru.Cache[warning, string] // the details of each warning
}

type warning struct{ about, msg string }

// NewWarnings returns warnings that go to log; nil means nowhere.
func NewWarnings(log *slog.Logger) *Warnings {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	last, _ := lru.New[warning, string](maxWarnings) // fails only for a size below 1
	return &Warnings{log: log, last: last}
}

// Warn logs msg about a file or a program, unless its last warning was the same.
func (w *Warnings) Warn(about, msg, detail string) {
	key := warning{about, msg}
	before, ok := w.last.Get(key)
	if ok && before == detail {
		return
	}
	w.last.Add(key, detail)
	w.log.LogAttrs(context.Background(), slog.LevelWarn, msg, slog.String("path", about), slog.String("err", detail)) //nolint:sloglint // callers pass constants
}

// Secret warns when a file that holds a secret is exposed.
func (w *Warnings) Secret(path string, info fs.FileInfo) {
	if exposure := Exposure(info); exposure != "" {
		w.Warn(path, "a file with secrets is exposed", exposure+"; make it readable by its user alone (chmod 600)")
	}
}

// Settled forgets the warnings with this msg about a file or a program, so that they are given again when it happens again.
func (w *Warnings) Settled(about, msg string) {
	w.last.Remove(warning{about, msg})
}
