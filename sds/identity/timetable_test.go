package identity

import (
	"crypto/x509"
	"testing"
	"time"
)

// The clock may jump: a renewal is due by the wall clock or by the time that this process has measured, whichever says so first.
func TestDue(t *testing.T) {
	issued := time.Now() // has a monotonic reading
	leaf := &x509.Certificate{NotBefore: issued.Add(-2 * time.Minute), NotAfter: issued.Add(24 * time.Hour)}
	measured, kept := &credential{leaf: leaf, issued: issued}, &credential{leaf: leaf, issued: issued.Round(0)}
	const after = 12 * time.Hour
	wall := func(d time.Duration) time.Time { return issued.Add(d).Round(0) } // says nothing about time measured
	for name, tc := range map[string]struct {
		c    *credential
		now  time.Time
		want bool
	}{
		"just issued":                 {measured, issued, false},
		"before its time":             {measured, issued.Add(after - time.Second), false},
		"its time":                    {measured, issued.Add(after), true},
		"from disk, before its time":  {kept, wall(after - time.Second), false},
		"from disk, its time":         {kept, wall(after), true},
		"asleep for two days":         {measured, wall(48 * time.Hour), true},
		"forward by 17 minutes":       {measured, wall(after - 17*time.Minute + 17*time.Minute), true},
		"forward, but not far enough": {measured, wall(17 * time.Minute), false},
		"back by a minute":            {measured, wall(-time.Minute), false},
		"back before it was valid":    {measured, wall(-48 * time.Hour), true},
	} {
		if got := due(tc.c, after, tc.now); got != tc.want {
			t.Errorf("%s: due %v, want %v", name, got, tc.want)
		}
	}
}

func TestLifeIsNeverMoreThanItWasIssuedFor(t *testing.T) {
	now := time.Now()
	for name, tc := range map[string]struct {
		from, to time.Duration // of the certificate, from now
		want     time.Duration
	}{
		"same clocks":             {-2 * time.Minute, 24 * time.Hour, 24 * time.Hour},
		"ours is an hour behind":  {58 * time.Minute, 25 * time.Hour, 24*time.Hour + 2*time.Minute},
		"ours is an hour ahead":   {-62 * time.Minute, 23 * time.Hour, 23 * time.Hour},
		"short, and backdated":    {-2 * time.Minute, time.Minute, time.Minute},
		"ours is two days behind": {48*time.Hour - 2*time.Minute, 72 * time.Hour, 24*time.Hour + 2*time.Minute},
	} {
		c := &credential{leaf: &x509.Certificate{NotBefore: now.Add(tc.from), NotAfter: now.Add(tc.to)}, issued: now, ends: now.Add(tc.to)}
		if got := c.life(); got != tc.want {
			t.Errorf("%s: life %v, want %v", name, got, tc.want)
		}
	}
}

func TestRetryWaits(t *testing.T) {
	for name, tc := range map[string]struct {
		failures   int
		left, life time.Duration
		limit      time.Duration
	}{
		"nothing, first":      {1, 0, 0, 200 * time.Millisecond},
		"nothing, later":      {100, 0, 0, 15 * time.Second},
		"first":               {1, 12 * time.Hour, 24 * time.Hour, time.Second},
		"third":               {3, 12 * time.Hour, 24 * time.Hour, 4 * time.Second},
		"later":               {1000000, 12 * time.Hour, 24 * time.Hour, time.Minute},
		"ten minutes left":    {50, 10 * time.Minute, 24 * time.Hour, 30 * time.Second},
		"one minute left":     {50, time.Minute, 24 * time.Hour, 5 * time.Second},
		"past the end":        {50, -time.Hour, 24 * time.Hour, 5 * time.Second},
		"seconds, half over":  {50, 5 * time.Second, 10 * time.Second, 250 * time.Millisecond},
		"seconds, nearly end": {50, time.Second, 10 * time.Second, 200 * time.Millisecond},
	} {
		for _, random := range []float64{0, 0.5, 0.999999} {
			got := timetable{random: func() float64 { return random }}.retry(tc.failures, tc.left, tc.life)
			if want := max(time.Duration(random*float64(tc.limit)), tc.limit/10); got < want-time.Microsecond || got > want+time.Microsecond {
				t.Errorf("%s: retry with %v: %v, want %v", name, random, got, want)
			}
		}
	}
}

func TestRenewalIsInsideTheLife(t *testing.T) {
	for _, grace := range []float64{0.001, 0.5, 0.999} {
		for _, random := range []float64{0, 1} {
			table := timetable{grace: grace, jitter: 0.9, random: func() float64 { return random }}
			if got := table.renewal(time.Hour); got < 3*time.Minute-time.Microsecond || got > 57*time.Minute+time.Microsecond {
				t.Errorf("grace %v, random %v: renewal after %v of an hour", grace, random, got)
			}
		}
	}
}
