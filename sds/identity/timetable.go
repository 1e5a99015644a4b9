package identity

import (
	"math/rand/v2"
	"time"
)

const (
	retryBase  = time.Second            // longest first wait for the next try
	firstBase  = 200 * time.Millisecond // the same while there is nothing to serve
	retryMost  = time.Minute
	firstMost  = 15 * time.Second // while there is nothing to serve
	nearMost   = 5 * time.Second  // when the end is near or past: many agents may be in the same situation
	promptMost = 500 * time.Millisecond
	rootMost   = 10 * time.Second // spread of the requests that a change of the root file causes
)

// timetable says when to renew and when to try again. All its waits are random, so that agents started together do not ask together.
type timetable struct {
	grace  float64 // share of the life left when a renewal is due
	jitter float64 // of that share, up and down
	random func() float64
}

// renewal is how long after its issue a certificate is renewed.
func (t timetable) renewal(life time.Duration) time.Duration {
	left := t.grace + t.jitter*(2*t.random()-1)
	left = min(max(left, 0.05), 0.95)
	return life - time.Duration(float64(life)*left)
}

// retry is the wait after a number of failures in a row: full jitter below a limit that doubles, which is the lower the less is left of the life of
// the certificate in use. life 0: there is none.
func (t timetable) retry(failures int, left, life time.Duration) time.Duration {
	limit, most := firstBase, firstMost
	if life > 0 {
		limit, most = retryBase, min(retryMost, max(left/20, min(nearMost, life/50)))
	}
	limit = min(limit<<min(failures-1, 10), most)
	return max(time.Duration(t.random()*float64(limit)), limit/10)
}

func (t timetable) spread(most time.Duration) time.Duration {
	return time.Duration(t.random() * float64(most))
}

func newTimetable(c *Config) timetable {
	return timetable{grace: c.GraceRatio, jitter: max(c.Jitter, 0), random: rand.Float64}
}

// due says whether a credential is to be renewed: by the wall clock, which may have jumped, or by the time this process has measured, which
// stands still while the machine sleeps. One that was valid and is not valid yet is due too: the clock was set back, or was wrong.
func due(c *credential, after time.Duration, now time.Time) bool {
	wall := now.Round(0).Sub(c.issued.Round(0))
	return wall >= after || now.Sub(c.issued) >= after || c.early == nil && now.Add(skew).Before(c.leaf.NotBefore)
}

// The stages of a certificate that is not renewed, by the share of its life that is left.
var stages = []struct {
	left float64
	name string
}{{0.5, "50%"}, {0.2, "20%"}, {0.05, "5%"}, {0, "0%"}}

// stage counts the stages that a credential has passed.
func stage(c *credential, now time.Time) int {
	left := float64(c.ends.Sub(now)) / float64(max(c.life(), 1))
	n := 0
	for n < len(stages) && left <= stages[n].left {
		n++
	}
	return n
}
