package envoy

import (
	"math/rand/v2"
	"time"
)

const (
	backoffBase = 100 * time.Millisecond
	backoffMax  = 30 * time.Second
)

// budget decides whether and when a crashed Envoy is started again. Crashes count while they are younger than the window; those of
// a process that never served count until one does, so that a start that fails slowly is not tried for ever.
type budget struct {
	allowed int
	window  time.Duration

	recent []time.Time
	starts int // processes in a row that ended before they served
}

// crash records the end of a process. The first restart is at once, later ones wait longer and longer, with full jitter.
func (b *budget) crash(now time.Time, served bool) (wait time.Duration, ok bool) {
	b.starts++
	if served {
		b.starts = 0
	}
	old := 0
	for old < len(b.recent) && now.Sub(b.recent[old]) > b.window {
		old++
	}
	b.recent = append(b.recent[old:], now)
	n := b.count()
	if n > b.allowed {
		return 0, false
	}
	if n == 1 {
		return 0, true
	}
	return rand.N(backoffCap(n)), true
}

func (b *budget) count() int { return max(len(b.recent), b.starts) }

// backoffCap is the longest wait before restart n, counted from 1.
func backoffCap(n int) time.Duration {
	if n > 10 {
		return backoffMax
	}
	return min(backoffBase<<(n-2), backoffMax)
}
