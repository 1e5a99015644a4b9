package standalone

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Limits on what a directory may hold.
const (
	maxFile  = 16 << 20 // bytes in one file
	maxTotal = 64 << 20 // bytes in all files
	maxFiles = 4096
	maxNodes = 4 << 20 // values in all files, aliases expanded
)

// file is one configuration file as it was read.
type file struct {
	name string
	data []byte
	err  error // it could not be read; data is nil
}

// contents are all configuration files of a directory, by name.
type contents struct {
	files []file
	sum   string // differs when anything differs
}

// readDir reads the configuration files of a directory: *.yaml, *.yml and *.json, symbolic links followed, names that
// begin with a dot left out.
func readDir(dir string) (contents, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return contents{}, fmt.Errorf("read configuration directory: %w", err)
	}
	var c contents
	total := int64(0)
	h := sha256.New()
	for _, e := range entries {
		if !isConfig(e.Name()) {
			continue
		}
		if len(c.files) == maxFiles {
			return c, fmt.Errorf("read configuration directory %s: more than %d files", dir, maxFiles)
		}
		f := readFile(dir, e.Name(), min(maxFile, maxTotal-total))
		total += int64(len(f.data))
		c.files = append(c.files, f)
		fmt.Fprintf(h, "%q %d %v\n", f.name, len(f.data), f.err)
		h.Write(f.data)
	}
	c.sum = hex.EncodeToString(h.Sum(nil))
	return c, nil
}

func isConfig(name string) bool {
	if strings.HasPrefix(name, ".") || strings.HasPrefix(name, "#") || strings.HasSuffix(name, "~") {
		return false
	}
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

func readFile(dir, name string, limit int64) file {
	data, err := readLimited(filepath.Join(dir, name), limit)
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = fmt.Errorf("cannot be read: %w", pe.Err)
	}
	return file{name: name, data: data, err: err}
}

// readLimited opens without blocking, so that a pipe in the directory cannot hold the agent.
func readLimited(path string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("is not a regular file: move it elsewhere, or rename it")
	case info.Size() > limit:
		return nil, tooLarge()
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, tooLarge()
	}
	return data, nil
}

func tooLarge() error {
	return fmt.Errorf("is too large: a file may have %d MiB, all files together %d MiB", maxFile>>20, maxTotal>>20)
}

// reasonOf is an error about the directory without the directory's name, which the problem has already.
func reasonOf(err error) string {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return "the configuration directory cannot be read: " + pe.Err.Error()
	}
	return err.Error()
}
