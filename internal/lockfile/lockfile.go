// Package lockfile reads and writes the file that says which contents references of Wasm modules mean: YAML, sorted by reference, one
// value per line, so that a change reads well in a diff.
package lockfile

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/gateway-agent/gateway-agent/internal/atomicfile"
)

// Bounds of a file.
const (
	maxBytes   = 8 << 20
	maxEntries = 20_000
	maxRef     = 8 << 10 // bytes
)

// Entry is what one reference means.
type Entry struct {
	// Ref is the reference, complete and without credentials: oci://host/repository:tag.
	Ref string `json:"ref"`
	// Manifest is "sha256:…" of the manifest in the registry; "" for what has none (http, https).
	Manifest string `json:"manifest,omitempty"`
	// Module is "sha256:…" of the module.
	Module string `json:"module"`
	// Size is the module's, in bytes.
	Size int64 `json:"size"`
}

// File is a set of entries. The zero File is empty. It is not safe for concurrent changes.
type File struct{ entries []Entry } // sorted by Ref

// Read reads the file at path. For one that does not exist the error is fs.ErrNotExist.
func Read(path string) (*File, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read lockfile: %w", err)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("read lockfile: %s is not a regular file", path)
	case info.Size() > maxBytes:
		return nil, fmt.Errorf("read lockfile: %s is larger than %d MiB: it is not a lockfile", path, maxBytes>>20)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read lockfile: %w", err)
	}
	return Parse(path, data)
}

// Find returns the entry of a reference.
func (f *File) Find(ref string) (Entry, bool) {
	i, ok := f.index(ref)
	if !ok {
		return Entry{}, false
	}
	return f.entries[i], true
}

func (f *File) index(ref string) (int, bool) {
	return slices.BinarySearchFunc(f.entries, ref, func(e Entry, ref string) int { return cmp.Compare(e.Ref, ref) })
}

// Put adds an entry, or replaces the one of the same reference.
func (f *File) Put(e Entry) {
	i, ok := f.index(e.Ref)
	if ok {
		f.entries[i] = e
		return
	}
	f.entries = slices.Insert(f.entries, i, e)
}

// Keep removes the entries for which keep is false.
func (f *File) Keep(keep func(Entry) bool) {
	f.entries = slices.DeleteFunc(f.entries, func(e Entry) bool { return !keep(e) })
}

// Entries returns all entries, sorted by reference.
func (f *File) Entries() []Entry { return slices.Clone(f.entries) }

// Len is the number of entries.
func (f *File) Len() int { return len(f.entries) }

// Clone returns a copy that can be changed alone.
func (f *File) Clone() *File { return &File{entries: slices.Clone(f.entries)} }

// Write replaces the file at path, so that a crash leaves the old or the new one. A file that says the same already is left alone.
func (f *File) Write(path string) error {
	data := f.Marshal()
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
		return nil
	}
	mode := fs.FileMode(0o644)
	if info, err := os.Stat(path); err == nil {
		mode = info.Mode().Perm()
	}
	if err := atomicfile.Write(path, data, mode); err != nil {
		return fmt.Errorf("write lockfile: %w", err)
	}
	return nil
}

// Change is one difference between two files: Old or New is nil for an entry that only one of them has.
type Change struct {
	Old *Entry `json:"old,omitempty"`
	New *Entry `json:"new,omitempty"`
}

// Ref is the reference that changed.
func (c Change) Ref() string {
	if c.New != nil {
		return c.New.Ref
	}
	return c.Old.Ref
}

// Diff returns what became of the entries of before in after, sorted by reference.
func Diff(before, after *File) []Change {
	var changes []Change
	for _, e := range before.entries {
		switch now, ok := after.Find(e.Ref); {
		case !ok:
			changes = append(changes, Change{Old: &e})
		case now != e:
			changes = append(changes, Change{Old: &e, New: &now})
		}
	}
	for _, e := range after.entries {
		if _, ok := before.Find(e.Ref); !ok {
			changes = append(changes, Change{New: &e})
		}
	}
	slices.SortFunc(changes, func(a, b Change) int { return strings.Compare(a.Ref(), b.Ref()) })
	return changes
}

// IsMissing reports that a file does not exist yet.
func IsMissing(err error) bool { return errors.Is(err, fs.ErrNotExist) }

func sorted(entries []Entry) []Entry {
	slices.SortFunc(entries, func(a, b Entry) int { return cmp.Compare(a.Ref, b.Ref) })
	return entries
}
