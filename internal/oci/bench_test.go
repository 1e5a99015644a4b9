package oci

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"golang.org/x/sync/errgroup"

	"github.com/gateway-agent/gateway-agent/internal/oci/safehttp"
	"github.com/gateway-agent/gateway-agent/internal/registrytest"
	"github.com/gateway-agent/gateway-agent/internal/testca"
)

// BenchmarkColdPulls pulls 50 modules of one MiB at once, each from a repository of its own, with new connections and no tokens: through
// this package and through the bare library, by turns. It reports the time of a round of each and their ratio.
func BenchmarkColdPulls(b *testing.B) {
	const pulls, size = 50, 1 << 20
	ca := testca.New(b, "bench")
	pair := ca.Issue(b, testca.Leaf{})
	dir := b.TempDir()
	cert, key := pair.Write(b, dir)
	for _, kind := range []string{"open", "password"} {
		var options []registrytest.Option
		if kind == "password" {
			options = append(options, registrytest.WithAccount())
		}
		r := registrytest.New(b, append(options, registrytest.WithTLS(cert, key))...)
		refs := make([]name.Tag, pulls)
		for i := range refs {
			module := largeBlob(size)
			copy(module, fmt.Sprintf("module %d", i))
			repo := fmt.Sprintf("bench/m%d", i)
			r.Push(b, repo, "v1", registrytest.WasmToOCI(module))
			refs[i] = repository(b, r.Addr+"/"+repo).Tag("v1")
		}
		b.Run(kind, func(b *testing.B) {
			var ours, theirs time.Duration
			rounds := 0
			for b.Loop() {
				rounds++
				ours += round(b, refs, oursPuller(r, ca))
				theirs += round(b, refs, libraryPuller(r, ca))
			}
			b.ReportMetric(float64(ours.Milliseconds())/float64(rounds), "ours-ms")
			b.ReportMetric(float64(theirs.Milliseconds())/float64(rounds), "library-ms")
			b.ReportMetric(float64(ours)/float64(theirs), "ours/library")
		})
	}
}

type puller func(context.Context, name.Tag) (int64, error)

func round(b *testing.B, refs []name.Tag, pull puller) time.Duration {
	b.Helper()
	start := time.Now()
	g, ctx := errgroup.WithContext(b.Context())
	for _, ref := range refs {
		g.Go(func() error {
			n, err := pull(ctx, ref)
			if err == nil && n != 1<<20 {
				err = fmt.Errorf("%d bytes of %s", n, ref)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		b.Fatal(err)
	}
	return time.Since(start)
}

func oursPuller(r *registrytest.Registry, ca *testca.CA) puller {
	c := New(Config{HTTP: safehttp.New(safehttp.Config{RootCAs: roots(ca)})})
	secret := basic(r.Addr, registrytest.User, registrytest.Password)
	return func(ctx context.Context, ref name.Tag) (int64, error) {
		repo, err := c.Open(ctx, ref.Context(), secret)
		if err != nil {
			return 0, err
		}
		m, err := repo.Manifest(ctx, ref.TagStr())
		if err != nil {
			return 0, err
		}
		parsed, err := parseLayer(m.Body)
		if err != nil {
			return 0, err
		}
		blob, err := repo.Blob(ctx, parsed)
		if err != nil {
			return 0, err
		}
		defer blob.Close()
		return io.Copy(io.Discard, blob)
	}
}

func libraryPuller(_ *registrytest.Registry, ca *testca.CA) puller {
	transport := remote.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{RootCAs: roots(ca)}
	auth := &authn.Basic{Username: registrytest.User, Password: registrytest.Password}
	return func(ctx context.Context, ref name.Tag) (int64, error) {
		img, err := remote.Image(ref, remote.WithContext(ctx), remote.WithTransport(transport), remote.WithAuth(auth))
		if err != nil {
			return 0, err
		}
		layers, err := img.Layers()
		if err != nil {
			return 0, err
		}
		blob, err := layers[0].Compressed()
		if err != nil {
			return 0, err
		}
		defer blob.Close()
		return io.Copy(io.Discard, blob)
	}
}

func parseLayer(manifest []byte) (v1.Descriptor, error) {
	m, err := v1.ParseManifest(bytes.NewReader(manifest))
	if err != nil || len(m.Layers) != 1 {
		return v1.Descriptor{}, fmt.Errorf("%w, or not one layer", err)
	}
	return m.Layers[0], nil
}
