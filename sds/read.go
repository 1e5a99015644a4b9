package sds

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	maxFile   = 1 << 20               // bytes of one file
	stillness = 50 * time.Millisecond // two readings this far apart must agree before a change is believed
	readings  = 10                    // how often a change is read again before it waits for the next poll
)

// reader reads secret files: regular ones, of bounded size, outside the denied directories.
type reader struct{ deny []string }

// reading is what a set of files held at one moment.
type reading struct {
	files map[string][]byte
	dirs  []string // where a change of these files would show
	sum   [sha256.Size]byte
}

// settled reads the files until two readings in a row agree, so that a pair is never taken half from before and half from
// after a rotation. Readings that agree with the one already known need no second look.
func (r reader) settled(ctx context.Context, paths []string, known *reading) (reading, error) {
	got, err := r.all(paths)
	if err != nil || known != nil && got.sum == known.sum {
		return got, err
	}
	for range readings {
		if known != nil && !pause(ctx, stillness) {
			return got, context.Cause(ctx)
		}
		again, err := r.all(paths)
		if err != nil {
			return again, err
		}
		if again.sum == got.sum {
			return again, nil
		}
		got = again
	}
	return got, fmt.Errorf("%s: being written to; taken when it stays the same for %v", strings.Join(paths, ", "), stillness)
}

// all reads each file once. The directories are known also when a file cannot be read.
func (r reader) all(paths []string) (reading, error) {
	got := reading{files: make(map[string][]byte, len(paths))}
	hash := sha256.New()
	var errs []error
	for _, path := range paths {
		data, dirs, err := r.file(path)
		got.dirs = append(got.dirs, dirs...)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		got.files[path] = data
		fmt.Fprintf(hash, "%d %s %d ", len(path), path, len(data))
		hash.Write(data)
	}
	hash.Sum(got.sum[:0])
	return got, errors.Join(errs...)
}

func (r reader) file(path string) ([]byte, []string, error) {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || strings.ContainsRune(path, 0) {
		return nil, nil, fmt.Errorf("file name %q must be absolute and without . or .. or double slashes", path)
	}
	if dir, ok := r.denied(path); ok {
		return nil, nil, refused(path, dir)
	}
	dirs := trail(path)
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, dirs, explain(path, err)
	}
	if dir, ok := r.denied(real); ok {
		return nil, nil, refused(path, dir)
	}
	data, err := readRegular(real)
	if err != nil {
		return nil, dirs, explain(path, err)
	}
	return data, dirs, nil
}

// denied says whether a path lies below a denied directory, as that is written or with its links resolved.
func (r reader) denied(path string) (string, bool) {
	for _, dir := range r.deny {
		dir = filepath.Clean(dir)
		if below(path, dir) {
			return dir, true
		}
		if resolved, err := filepath.EvalSymlinks(dir); err == nil && below(path, resolved) {
			return dir, true
		}
	}
	return "", false
}

func refused(path, dir string) error {
	return fmt.Errorf("%s is refused: files below %s are never served, move it elsewhere", path, dir)
}

func below(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// notRegular is the refusal of anything that is not a plain file.
type notRegular struct{ mode fs.FileMode }

func (e notRegular) Error() string { return "not a regular file but " + kindOf(e.mode) }

func kindOf(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "a directory"
	case mode&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	case mode&fs.ModeDevice != 0:
		return "a device"
	default:
		return "something else"
	}
}

// readRegular reads a file whose links are resolved. It looks before it opens, because opening a device can act on it,
// and opens so that it never waits.
func readRegular(path string) ([]byte, error) {
	before, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !before.Mode().IsRegular() {
		return nil, notRegular{before.Mode()}
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	opened, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !opened.Mode().IsRegular() {
		return nil, notRegular{opened.Mode()}
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		return nil, fmt.Errorf("larger than %d bytes: this is not a certificate or key", maxFile)
	}
	return data, err
}

// explain names the file and what to do about it.
func explain(path string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, e := os.Lstat(path); e == nil {
			return fmt.Errorf("%s is a link that leads nowhere: %w", path, err)
		}
		return fmt.Errorf("%s does not exist: create it or correct the name", path)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s is not readable by user %d: change its owner or mode", path, os.Getuid())
	default:
		return fmt.Errorf("%s: %w", path, err)
	}
}

// trail lists the directories in which a change could make path lead to another content: those of the links on the way, and
// the last one, which is that of the file or the nearest one that exists.
func trail(path string) []string {
	var dirs []string
	at, rest := "/", split(path)
	for links := 0; len(rest) > 0 && links < 40; {
		next := filepath.Join(at, rest[0])
		target, err := os.Readlink(next)
		switch {
		case err == nil:
			links++
			dirs = append(dirs, at)
			if rest = append(split(target), rest[1:]...); filepath.IsAbs(target) {
				at = "/"
			}
		case len(rest) == 1 || errors.Is(err, fs.ErrNotExist):
			return append(dirs, at)
		default:
			at, rest = next, rest[1:]
		}
	}
	return dirs
}

func split(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
}

// pause waits; false means that ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
