package wasmcache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"golang.org/x/sync/errgroup"

	"github.com/gateway-agent/gateway-agent/internal/registrytest"
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

// 50 cold modules of 1 MiB each, and what a bare parallel download of the same blobs takes in the same run.
func BenchmarkFiftyColdPulls(b *testing.B) {
	const modules, parallel = 50, 16
	r := registrytest.New(b)
	random := rand.NewChaCha8([32]byte{})
	for i := range modules {
		module := core(fmt.Sprint("cold", i), 1<<20)
		_, _ = random.Read(module[100:])
		r.Push(b, "cold", fmt.Sprint("v", i), registrytest.WasmToOCI(module))
	}
	all := func(b *testing.B, get func(i int) error) {
		var group errgroup.Group
		group.SetLimit(parallel)
		for i := range modules {
			group.Go(func() error { return get(i) })
		}
		if err := group.Wait(); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("bare", func(b *testing.B) {
		for b.Loop() {
			dir := b.TempDir()
			all(b, func(i int) error { return bare(b.Context(), dir, r.Addr+"/cold:"+fmt.Sprint("v", i)) })
		}
	})
	b.Run("store", func(b *testing.B) {
		for b.Loop() {
			s := open(b, b.TempDir(), func(c *Config) { c.Log = nil })
			all(b, func(i int) error {
				_, err := s.Get(b.Context(), Request{URL: r.Ref(fmt.Sprint("cold:v", i))})
				return err
			})
			s.Close()
		}
	})
}

// bare is what anybody would write with go-containerregistry.
func bare(ctx context.Context, dir, image string) error {
	ref, err := name.ParseReference(image)
	if err != nil {
		return err
	}
	img, err := remote.Image(ref, remote.WithContext(ctx))
	if err != nil {
		return err
	}
	layers, err := img.Layers()
	if err != nil {
		return err
	}
	body, err := layers[0].Compressed()
	if err != nil {
		return err
	}
	defer body.Close()
	f, err := os.CreateTemp(dir, "bare")
	if err != nil {
		return err
	}
	_, err = io.Copy(f, body)
	return errors.Join(err, f.Close())
}
