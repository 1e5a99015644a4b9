package identity

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/atomicfile"
)

// Names in the output directory. The three files are links through one link to a directory, as the kubelet does it, so that all change
// at once.
const (
	outputChain = "cert-chain.pem"
	outputKey   = "key.pem"
	outputRoots = "root-cert.pem"
	outputData  = "..data"
	outputMark  = "..identity_"
)

// output writes an identity to the output directory. It is never read back.
func (w *Workload) output(key, chain, roots []byte) error {
	mode := fs.FileMode(0o600)
	if w.cfg.OutputShared {
		mode = 0o644
	}
	dir, files := w.cfg.Output, []outputFile{{outputKey, key, mode}, {outputChain, chain, 0o644}}
	if len(roots) > 0 {
		files = append(files, outputFile{outputRoots, roots, 0o644})
	}
	if err := writeSet(dir, files, time.Now()); err != nil {
		return fmt.Errorf("write the identity to %s: %w", dir, err)
	}
	return nil
}

type outputFile struct {
	name string
	data []byte
	mode fs.FileMode
}

// writeSet replaces all files of a directory by one rename.
func writeSet(dir string, files []outputFile, now time.Time) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := takeOver(dir, files, now); err != nil {
		return err
	}
	fresh, err := newSet(dir, now, func(set string) error {
		var errs []error
		for _, f := range files {
			errs = append(errs, atomicfile.Write(filepath.Join(set, f.name), f.data, f.mode))
		}
		return errors.Join(errs...)
	})
	if err != nil {
		return err
	}
	if err := show(dir, fresh, files); err != nil {
		return err
	}
	return sweep(dir, filepath.Base(fresh))
}

// newSet makes a directory with files in it, or nothing.
func newSet(dir string, now time.Time, fill func(set string) error) (string, error) {
	set, err := os.MkdirTemp(dir, outputMark+now.UTC().Format("20060102T150405.")+"*")
	if err != nil {
		return "", err
	}
	if err := errors.Join(fill(set), os.Chmod(set, 0o755)); err != nil { // who may read what is up to the files
		return "", errors.Join(err, os.RemoveAll(set))
	}
	return set, nil
}

// takeOver turns plain files of an earlier agent into a set of their own, so that they too are replaced all at once.
func takeOver(dir string, files []outputFile, now time.Time) error {
	if _, err := os.Lstat(filepath.Join(dir, outputData)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	set, err := newSet(dir, now, func(set string) error {
		for _, f := range files {
			if err := again(filepath.Join(dir, f.name), filepath.Join(set, f.name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		return nil
	})
	switch {
	case errors.Is(err, fs.ErrPermission):
		return nil // what only others can read is replaced one after the other
	case err != nil:
		return err
	}
	return show(dir, set, files)
}

// again makes a file one that is there a second time. Linux lets nobody link what belongs to somebody else.
func again(path, second string) error {
	err := os.Link(path, second)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(second, data, info.Mode().Perm())
}

// show makes a set the one in use.
func show(dir, set string, files []outputFile) error {
	if err := link(filepath.Base(set), filepath.Join(dir, outputData)); err != nil {
		return err
	}
	for _, f := range files {
		target, path := filepath.Join(outputData, f.name), filepath.Join(dir, f.name)
		if at, err := os.Readlink(path); err == nil && at == target {
			continue
		}
		if err := link(target, path); err != nil {
			return err
		}
	}
	return nil
}

// link makes a symbolic link, in place of what may be there.
func link(target, path string) error {
	tmp := path + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(target, tmp); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// sweep removes earlier sets.
func sweep(dir, used string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() && strings.HasPrefix(e.Name(), outputMark) && e.Name() != used {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return err
}
