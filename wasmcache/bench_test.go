package wasmcache

import (
	"fmt"
	"testing"
)

// A start over a store of 1 000 modules, up to and including the first answer.
func BenchmarkOpenAndFirstGet(b *testing.B) {
	dir := b.TempDir()
	s := open(b, dir, func(c *Config) { c.Fetch, c.Log = inline{size: 10_000}, nil })
	for i := range 1000 {
		if _, err := s.Get(b.Context(), Request{URL: fmt.Sprintf("oci://r.test/m%d:v1", i)}); err != nil {
			b.Fatal(err)
		}
	}
	s.Close()
	b.ReportAllocs()
	for b.Loop() {
		s, err := Open(Config{Dir: dir, Fetch: inline{}, Check: good})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := s.Get(b.Context(), Request{URL: "oci://r.test/m7:v1"}); err != nil {
			b.Fatal(err)
		}
		s.Close()
	}
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
