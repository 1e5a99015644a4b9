package wasmcache

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// The directories under the store's own, with their modes. Envoy, which may be another user, reads blobs only.
const (
	blobDir       = "blobs/sha256"
	refDir        = "refs"
	manifestDir   = "manifests"
	verdictDir    = "verdicts"
	quarantineDir = "quarantine"
	tmpDir        = "tmp"
	lockDir       = "locks"
)

// tmpAge is how old a download is dead for sure.
const tmpAge = 24 * time.Hour

// maxRecord bounds what is read of one of our own JSON files: they may be damaged.
const maxRecord = 4 << 20

func openRoot(dir string) (*os.Root, error) {
	if err := makeDir(dir); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	if err := makeDirs(root); err != nil {
		root.Close()
		return nil, err
	}
	return root, nil
}

// makeDirs makes the directories under the store's own. Only that of the blobs is an error: a store that cannot be written serves.
func makeDirs(root *os.Root) error {
	for _, d := range []struct {
		name string
		mode fs.FileMode
	}{{"blobs", 0o755}, {blobDir, 0o755}, {refDir, 0o700}, {manifestDir, 0o700}, {verdictDir, 0o700}, {quarantineDir, 0o700}, {tmpDir, 0o700}, {lockDir, 0o700}} {
		if err := makeUnder(root, d.name, d.mode); err != nil && d.name == blobDir {
			return err
		}
	}
	return nil
}

// makeDir makes dir readable for Envoy whatever the umask; one that exists is left as it is.
func makeDir(dir string) error {
	if info, err := os.Stat(dir); err == nil && info.IsDir() {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.Chmod(dir, 0o755)
}

func makeUnder(root *os.Root, name string, mode fs.FileMode) error {
	err := root.Mkdir(name, mode)
	if err == nil {
		return root.Chmod(name, mode)
	}
	if info, statErr := root.Stat(name); statErr == nil && info.IsDir() {
		return nil
	}
	return err
}

// create makes a file of the store's own, and before it the directories that somebody may have emptied a running agent's store of.
func (s *Store) create(name string, flag int) (*os.File, error) {
	f, err := s.root.OpenFile(name, os.O_RDWR|os.O_CREATE|flag, 0o600)
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	if err := makeDirs(s.root); err != nil {
		return nil, err
	}
	return s.root.OpenFile(name, os.O_RDWR|os.O_CREATE|flag, 0o600)
}

// createTemp makes a temporary file that is locked until it is closed, so that nobody takes it for a leftover.
func (s *Store) createTemp(prefix string) (*os.File, string, error) {
	for range 100 {
		var b [12]byte
		_, _ = rand.Read(b[:]) // never fails
		name := path.Join(tmpDir, prefix+"-"+hex.EncodeToString(b[:]))
		f, err := s.create(name, os.O_EXCL)
		if err != nil {
			return nil, "", err
		}
		if !isHeld(flock(f, syscall.LOCK_SH)) && s.isAt(f, name) {
			return f, name, nil
		}
		f.Close() // emptyTmp was faster
	}
	return nil, "", errors.New("something removes temporary files as soon as they are made")
}

// settle makes lasting what was noted and renamed since the last time. It is not done for each pull, which would wait for the disk three times
// more: a crash of the machine, not of the process, costs what was noted in the last minute.
func (s *Store) settle() {
	s.mu.Lock()
	names := append(slices.Collect(maps.Keys(s.unsettled)), blobDir, refDir)
	clear(s.unsettled)
	s.mu.Unlock()
	if len(names) == 2 {
		return
	}
	var group errgroup.Group
	group.SetLimit(8)
	for _, name := range names {
		group.Go(func() error { return s.sync(name) })
	}
	if err := group.Wait(); err != nil && s.writable.Load() {
		s.cfg.Log.Warn("cannot make the last pulls lasting: a crash of the machine may cost them", "dir", s.dir, "err", err)
	}
}

func (s *Store) sync(name string) error {
	f, err := s.root.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // removed since
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// writeJSON replaces a file so that a crash of the process leaves the old or the new one. What a crash of the machine makes of it is no
// JSON, and made again; settle helps against that.
func (s *Store) writeJSON(name string, v any) (err error) {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	f, tmp, err := s.createTemp("record")
	if err != nil {
		return err
	}
	defer f.Close()
	defer func() {
		if err != nil {
			_ = s.root.Remove(tmp)
		}
	}()
	_, err = f.Write(append(data, '\n'))
	if err != nil {
		return err
	}
	return s.root.Rename(tmp, name)
}

// readJSON reports false when there is no such file, or none that can be read.
func (s *Store) readJSON(name string, v any) bool {
	info, err := s.root.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err == nil && info.Size() > maxRecord {
		err = errors.New("it is too large")
	}
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is not a regular file") // a pipe would block the reader
	}
	var data []byte
	if err == nil {
		data, err = s.root.ReadFile(name)
	}
	if err == nil {
		err = json.Unmarshal(data, v)
	}
	if err != nil {
		s.cfg.Log.Warn("unreadable record in the module store: it is ignored and made again", "dir", s.dir, "file", name, "err", err)
	}
	return err == nil
}

// names lists a directory of the store; a missing one is empty.
func (s *Store) names(dir string) []string {
	entries, err := fs.ReadDir(s.root.FS(), dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.cfg.Log.Warn("cannot list the module store", "dir", s.dir, "err", err)
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	return names
}

// emptyTmp removes downloads that nobody continues, because their process is gone.
func (s *Store) emptyTmp() {
	for _, name := range s.names(tmpDir) {
		name = path.Join(tmpDir, name)
		if err := s.removeLeftover(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.cfg.Log.Warn("cannot remove an unfinished download", "dir", s.dir, "file", name, "err", err)
		}
	}
}

// removeLeftover removes a temporary file unless a process writes it. Where there are no locks its age has to tell.
func (s *Store) removeLeftover(name string) error {
	info, err := s.root.Lstat(name)
	if err != nil {
		return err
	}
	if info.Mode().IsRegular() {
		f, err := s.root.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		defer f.Close() // after the removal: its writer sees that it was too late
		if err := flock(f, syscall.LOCK_EX); isHeld(err) || err != nil && time.Since(info.ModTime()) < tmpAge {
			return nil
		}
	}
	return s.root.RemoveAll(name)
}
