package lockfile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// Many change one file at the same time: nothing that any of them wrote is lost, and nothing else is left in the directory.
func TestUpdatesLoseNothing(t *testing.T) {
	const writers, rounds = 8, 4
	dir := t.TempDir()
	path := filepath.Join(dir, "modules.lock")
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for r := range rounds {
				_, _, err := Update(t.Context(), path, func(now *File) (*File, error) {
					now.Put(Entry{Ref: fmt.Sprintf("oci://x/y:w%d-r%d", w, r), Module: a, Size: 1})
					return now, nil
				})
				if err != nil {
					t.Errorf("Update = %v", err)
				}
			}
		})
	}
	wg.Wait()
	got, err := Read(path)
	if err != nil || got.Len() != writers*rounds {
		t.Errorf("%d entries (%v), want %d", got.Len(), err, writers*rounds)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("the directory has %v (%v), want the file only", entries, err)
	}
}

func TestUpdateFollowsALink(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(dir, "target.lock"), filepath.Join(dir, "link.lock")
	if err := os.WriteFile(target, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("target.lock", link); err != nil {
		t.Fatal(err)
	}
	before, after, err := Update(t.Context(), link, func(now *File) (*File, error) {
		now.Put(Entry{Ref: "oci://x/y:z", Module: a, Size: 1})
		return now, nil
	})
	if err != nil || before.Len() != 2 || after.Len() != 3 {
		t.Fatalf("Update = %v, %v, %v", before, after, err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link became %v (%v)", info.Mode(), err)
	}
	if got, err := Read(target); err != nil || got.Len() != 3 {
		t.Errorf("its target has %v (%v)", got, err)
	}
}

func TestUpdateFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "modules.lock")
	same := func(now *File) (*File, error) { return now, nil }
	if _, _, err := Update(t.Context(), filepath.Join(dir, "nowhere", "x.lock"), same); err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("Update in no directory = %v", err)
	}
	if err := os.WriteFile(path, []byte("rubbish"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Update(t.Context(), path, same); err == nil || !strings.Contains(err.Error(), "modules.lock") {
		t.Errorf("Update of what is no lockfile = %v", err)
	}
	if data, _ := os.ReadFile(path); string(data) != "rubbish" {
		t.Errorf("it was replaced by %q", data)
	}
	held, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := syscall.Flock(int(held.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	gone := errors.New("the caller left")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	if _, _, err := Update(ctx, path, same); !errors.Is(err, gone) {
		t.Errorf("Update of a locked file by a caller that leaves = %v", err)
	}
}
