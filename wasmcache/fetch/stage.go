package fetch

import (
	"archive/tar"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// place is where a layout goes and the temporary name beside it under which it grows. The lock on what is at that name tells other
// processes that somebody still works there.
type place struct {
	target, temp string
	lock         *os.File
	done         bool
}

const partial = ".partial-"

func newStage(path string) (stage, error) {
	target, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if real, err := filepath.EvalSymlinks(target); err == nil {
		target = real
	}
	isDir, err := replaceable(target)
	if err != nil {
		return nil, err
	}
	p := place{target: target}
	p.sweep()
	if isDir {
		return newDirStage(p)
	}
	return newTarStage(p)
}

// replaceable says whether a directory or a tar file goes to target, and refuses to replace what is not a layout.
func replaceable(target string) (dir bool, err error) {
	info, err := os.Stat(target)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if parent, err := os.Stat(filepath.Dir(target)); err != nil || !parent.IsDir() {
			return false, fmt.Errorf("there is no directory %s: create it first", filepath.Dir(target))
		}
		return !strings.HasSuffix(target, ".tar"), nil
	case err != nil:
		return false, err
	case info.IsDir():
		return true, onlyLayout(target)
	}
	layout, err := OpenLayout(target, Config{})
	if err != nil {
		return false, fmt.Errorf("it exists and is not an OCI layout (%w): remove it first, or choose another path", err)
	}
	return false, layout.Close()
}

// onlyLayout reports that nothing in dir is lost when a layout is replaced.
func onlyLayout(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	found := false
	for _, e := range entries {
		switch e.Name() {
		case layoutFile:
			found = true
		case indexFile, blobsDir, "ingest":
		default:
			return fmt.Errorf("the directory exists and has %s in it, which is not of an OCI layout: choose another path", e.Name())
		}
	}
	if len(entries) > 0 && !found {
		return errors.New("the directory exists and is not an OCI layout: remove it first, or choose another path")
	}
	return nil
}

func (p *place) pattern() string {
	return filepath.Join(filepath.Dir(p.target), "."+filepath.Base(p.target)+partial)
}

// leftovers are temporary names of writers for the same target, the living too.
func (p *place) leftovers() []string {
	dir, prefix := filepath.Split(p.pattern())
	entries, _ := os.ReadDir(dir)
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			names = append(names, filepath.Join(dir, e.Name()))
		}
	}
	return names
}

const aside = ".old"

// sweep removes what writers left that died. A layout that one had put aside stays until there is a new one.
func (p *place) sweep() {
	for _, name := range p.leftovers() {
		if strings.HasSuffix(name, aside) {
			continue
		}
		f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
		if err != nil {
			continue
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(name)
		}
		f.Close()
	}
}

// begin makes the temporary file or directory with create and locks it.
func (p *place) begin(create func(name string) (*os.File, error)) error {
	for range 10 {
		p.temp = p.pattern() + rand.Text()[:12]
		f, err := create(p.temp)
		if err != nil {
			return err
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil && sameFile(f, p.temp) {
			p.lock = f
			return nil
		}
		f.Close() // swept away by another before it was locked
	}
	return errors.New("other processes remove its temporary files: choose another path")
}

func sameFile(f *os.File, name string) bool {
	a, errA := f.Stat()
	b, errB := os.Lstat(name)
	return errA == nil && errB == nil && os.SameFile(a, b)
}

// settle makes the rename last and removes what was replaced.
func (p *place) settle() error {
	p.done = true
	err := syncDir(filepath.Dir(p.target))
	_ = os.RemoveAll(p.temp)
	for _, name := range p.leftovers() {
		if strings.HasSuffix(name, aside) {
			_ = os.RemoveAll(name)
		}
	}
	return err
}

func (p *place) discard() error {
	if p.lock == nil {
		return nil
	}
	var err error
	if !p.done {
		err = os.RemoveAll(p.temp)
	}
	p.lock.Close()
	p.lock = nil
	return err
}

func syncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) { // some file systems cannot
		return err
	}
	return nil
}

// dirStage is a layout that becomes a directory.
type dirStage struct {
	place
	root  *os.Root
	added []string
}

func newDirStage(p place) (stage, error) {
	s := &dirStage{place: p}
	err := s.begin(func(name string) (*os.File, error) {
		if err := os.Mkdir(name, 0o755); err != nil {
			return nil, err
		}
		return os.Open(name)
	})
	if err != nil {
		return nil, err
	}
	if s.root, err = os.OpenRoot(s.temp); err != nil {
		return nil, errors.Join(err, s.place.discard())
	}
	return s, nil
}

func (s *dirStage) files() blobFiles { return &dirFiles{s.root} }

func (s *dirStage) mark() (any, error) { return len(s.added), nil }

func (s *dirStage) rewind(to any) error {
	keep, _ := to.(int)
	for _, name := range s.added[keep:] {
		if err := s.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	s.added = s.added[:keep]
	return nil
}

func (s *dirStage) add(name string, size int64, body io.Reader) error {
	if err := s.root.MkdirAll(filepath.Dir(filepath.FromSlash(name)), 0o755); err != nil {
		return &writeError{err}
	}
	f, err := s.root.OpenFile(filepath.FromSlash(name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return &writeError{err}
	}
	s.added = append(s.added, name)
	if err := copyExactly(f, body, size); err != nil {
		f.Close()
		return err
	}
	if err := f.Sync(); err != nil {
		f.Close()
		return &writeError{err}
	}
	if err := f.Close(); err != nil {
		return &writeError{err}
	}
	return nil
}

// copyExactly reads body to its end, where it may say that it was wrong.
func copyExactly(dst io.Writer, body io.Reader, size int64) error {
	n, err := io.CopyBuffer(struct{ io.Writer }{&sinkWriter{dst}}, struct{ io.Reader }{body}, make([]byte, 128<<10))
	if err == nil && n != size {
		err = format("it has %d bytes instead of %d", n, size)
	}
	return err
}

func (s *dirStage) commit() error {
	for _, dir := range []string{"blobs/sha256", "blobs/sha512", blobsDir, "."} {
		if err := syncDir(filepath.Join(s.temp, dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if _, err := replaceable(s.target); err != nil { // it may have come since
		return err
	}
	err := os.Rename(s.temp, s.target)
	if errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.EEXIST) {
		err = s.swap()
	}
	if errors.Is(err, syscall.EBUSY) || errors.Is(err, syscall.EXDEV) {
		return fmt.Errorf("%w: it is a mount point, which cannot be replaced: give a directory below it, or a .tar file", err)
	}
	if err != nil {
		return err
	}
	return s.settle()
}

// swap exchanges the old layout and the new one, at once where the system can.
func (s *dirStage) swap() error {
	err := exchange(s.temp, s.target)
	if errors.Is(err, errors.ErrUnsupported) {
		return replace(s.temp, s.target)
	}
	return err
}

// replace does it in two steps, between which there is nothing at target.
func replace(temp, target string) error {
	if err := os.Rename(target, temp+aside); err != nil {
		return err
	}
	if err := os.Rename(temp, target); err != nil {
		return errors.Join(err, os.Rename(temp+aside, target))
	}
	return nil
}

func (s *dirStage) discard() error {
	s.root.Close()
	return s.place.discard()
}

// tarStage is a layout that becomes an archive.
type tarStage struct {
	place
	tarFiles
	order []string // names in the archive
}

func newTarStage(p place) (stage, error) {
	s := &tarStage{place: p}
	err := s.begin(func(name string) (*os.File, error) {
		return os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	})
	if err != nil {
		return nil, err
	}
	s.tarFiles = tarFiles{file: s.lock, files: map[string]extent{}}
	return s, nil
}

func (s *tarStage) files() blobFiles { return &s.tarFiles }

// position is a place in the archive between two members.
type position struct {
	offset  int64
	members int
}

func (s *tarStage) mark() (any, error) {
	offset, err := s.file.Seek(0, io.SeekCurrent)
	return position{offset, len(s.order)}, err
}

func (s *tarStage) rewind(to any) error {
	p, _ := to.(position)
	for _, name := range s.order[p.members:] {
		delete(s.tarFiles.files, name)
	}
	s.order = s.order[:p.members]
	if err := s.file.Truncate(p.offset); err != nil {
		return err
	}
	_, err := s.file.Seek(p.offset, io.SeekStart)
	return err
}

func (s *tarStage) add(name string, size int64, body io.Reader) error {
	// An archive is the sum of its members, so each may have a writer of its own.
	w := tar.NewWriter(&sinkWriter{s.file})
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size}); err != nil {
		return err
	}
	offset, err := s.file.Seek(0, io.SeekCurrent)
	if err != nil {
		return &writeError{err}
	}
	s.order = append(s.order, name)
	s.tarFiles.files[name] = extent{offset, size}
	if err := copyExactly(w, body, size); err != nil {
		return err
	}
	return w.Flush()
}

func (s *tarStage) commit() error {
	if err := tar.NewWriter(s.file).Close(); err != nil {
		return err
	}
	if err := s.file.Sync(); err != nil {
		return err
	}
	if _, err := replaceable(s.target); err != nil {
		return err
	}
	if err := os.Rename(s.temp, s.target); err != nil {
		return err
	}
	return s.settle()
}

func (s *tarStage) discard() error { return s.place.discard() }
