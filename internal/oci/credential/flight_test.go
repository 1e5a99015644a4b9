package credential

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// waitFor returns when n callers wait in a flight; they come without waiting for anything themselves.
func waitFor[T any](t *testing.T, f *flight[T], n int) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); runtime.Gosched() {
		f.mu.Lock()
		waiting := 0
		for _, c := range f.calls {
			waiting += c.waiting
		}
		f.mu.Unlock()
		if waiting == n {
			return
		}
	}
	t.Fatalf("there are never %d callers", n)
}

func TestFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f flight[int]
		var runs, ended atomic.Int32
		slow := func(ctx context.Context) (int, error) {
			runs.Add(1)
			defer ended.Add(1)
			select {
			case <-time.After(10 * time.Second):
				return 7, nil
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		go func() {
			if _, err := f.do(short, "k", slow); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the impatient caller got %v", err)
			}
		}()
		synctest.Wait()
		if got, err := f.do(t.Context(), "k", slow); got != 7 || err != nil || runs.Load() != 1 {
			t.Errorf("the patient caller got %d, %v after %d runs; want 7 after one", got, err, runs.Load())
		}

		alone, cancel2 := context.WithTimeout(t.Context(), time.Second)
		defer cancel2()
		if _, err := f.do(alone, "k", slow); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the lone caller got %v", err)
		}
		if runs.Load() != 2 || ended.Load() != 2 {
			t.Errorf("%d runs, %d ended; want the second one ended when its only caller left", runs.Load(), ended.Load())
		}
		if len(f.calls) != 0 {
			t.Errorf("%d calls are left", len(f.calls))
		}
	})
}
