package envoy

import (
	"testing"
	"time"
)

func TestBudget(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	tests := map[string]struct {
		every  time.Duration // between crashes
		served bool
		want   int // crashes answered with a restart; -1: all of 100
	}{
		"fast loop, never served":   {100 * time.Millisecond, false, 5},
		"fast loop, served":         {2 * time.Second, true, 5},
		"slow start, never served":  {2 * time.Minute, false, 5},
		"now and then, served":      {2 * time.Minute, true, -1},
		"as often as just allowed":  {12500 * time.Millisecond, true, -1},
		"a little more than that":   {11 * time.Second, true, 5},
		"hourly start, never works": {time.Hour, false, 5},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := budget{allowed: 5, window: time.Minute}
			got := 0
			for now := start; got < 100; now = now.Add(tt.every) {
				if _, ok := b.crash(now, tt.served); !ok {
					break
				}
				got++
			}
			if tt.want == -1 && got != 100 || tt.want != -1 && got != tt.want {
				t.Errorf("crashes answered with a restart = %d, want %d", got, tt.want)
			}
		})
	}
}

func TestBudgetForgetsFailedStartsOnceServed(t *testing.T) {
	b := budget{allowed: 2, window: time.Minute}
	now := time.Now()
	for n := range 20 {
		now = now.Add(2 * time.Minute)
		if _, ok := b.crash(now, n%3 == 2); !ok {
			t.Fatalf("crash %d ended it, although every third process served", n)
		}
	}
}

func TestBackoff(t *testing.T) {
	b := budget{allowed: 100, window: time.Hour}
	now := time.Now()
	if wait, ok := b.crash(now, true); wait != 0 || !ok {
		t.Errorf("first crash: wait %v, %v; want a restart at once", wait, ok)
	}
	for n, most := range []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond, 800 * time.Millisecond} {
		if wait, _ := b.crash(now, true); wait < 0 || wait >= most {
			t.Errorf("crash %d: wait %v, want less than %v", n+2, wait, most)
		}
	}
	var longest time.Duration
	for range 90 {
		wait, _ := b.crash(now, true)
		longest = max(longest, wait)
	}
	if longest > 30*time.Second || longest < 15*time.Second {
		t.Errorf("longest of many waits = %v, want close to 30 s", longest)
	}
}
