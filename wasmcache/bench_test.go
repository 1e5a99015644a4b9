package wasmcache

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// BenchmarkStart is a start over a store of 1 000 modules: until it can be asked (open), and up to the first answer, for which one module of 10 kB is
// hashed.
func BenchmarkStart(b *testing.B) {
	const modules, rounds, most = 1000, 21, 20 * time.Millisecond
	dir := b.TempDir()
	s := open(b, dir, func(c *Config) { c.Fetch, c.Log = inline{size: 10_000}, nil })
	for i := range modules {
		if _, err := s.Get(b.Context(), Request{URL: fmt.Sprintf("oci://r.test/m%d:v1", i)}); err != nil {
			b.Fatal(err)
		}
	}
	s.Close()
	var opened, answered []time.Duration
	round := func() {
		start := time.Now()
		s, err := Open(Config{Dir: dir, Fetch: inline{}, Check: good})
		if err != nil {
			b.Fatal(err)
		}
		opened = append(opened, time.Since(start))
		if _, err := s.Get(b.Context(), Request{URL: "oci://r.test/m7:v1"}); err != nil {
			b.Fatal(err)
		}
		answered = append(answered, time.Since(start))
		s.Close()
	}
	b.ReportAllocs()
	for b.Loop() {
		round()
	}
	for len(opened) < rounds {
		round()
	}
	got := median(opened)
	b.ReportMetric(float64(got.Microseconds())/1000, "open-ms")
	b.ReportMetric(float64(median(answered).Microseconds())/1000, "first-answer-ms")
	verdict := "within the limit"
	if got > most {
		verdict = "BEYOND THE LIMIT"
	}
	b.Logf("%s: a store of %d modules opens in %v of %v", verdict, modules, got, most)
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}

func BenchmarkWarmGet(b *testing.B) {
	s := open(b, b.TempDir(), func(c *Config) { c.Fetch, c.Log = inline{size: 1 << 20}, nil })
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Get(b.Context(), Request{URL: "oci://r.test/m:v1", Host: envoy}); err != nil {
			b.Fatal(err)
		}
	}
}
