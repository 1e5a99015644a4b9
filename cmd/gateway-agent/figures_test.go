package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/gateway-agent/gateway-agent/internal/registrytest"
	"github.com/gateway-agent/gateway-agent/internal/testca"
	"github.com/gateway-agent/gateway-agent/internal/wasmtest"
	"github.com/gateway-agent/gateway-agent/wasmcache"
	"github.com/gateway-agent/gateway-agent/wasmcache/abi"
)

// minRounds is how often each way is used at least: figures are medians.
const minRounds = 7

// way is one of the things that are compared, and what each of its rounds took.
type way struct {
	name string
	run  func() cost
	wall []float64 // ms
	cpu  []float64
}

// cost is what one round took. Processor time hardly depends on what else the machine does.
type cost struct{ wall, cpu time.Duration }

// race runs the ways by turns, in another order each time, so that what else the machine does meets all of them.
func race(b *testing.B, ways ...*way) {
	b.Helper()
	round := func() {
		for _, i := range rand.Perm(len(ways)) {
			w, c := ways[i], ways[i].run()
			w.wall = append(w.wall, milliseconds(c.wall))
			w.cpu = append(w.cpu, milliseconds(c.cpu))
		}
	}
	for b.Loop() {
		round()
	}
	for len(ways[0].wall) < minRounds {
		round()
	}
	for _, w := range ways {
		b.ReportMetric(median(w.wall), w.name+"-ms")
		b.ReportMetric(median(w.cpu), w.name+"-cpu-ms")
	}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func median(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}

// spent is what fn costs this process.
func spent(b *testing.B, fn func()) cost {
	b.Helper()
	cpu, start := cpuTime(b), time.Now()
	fn()
	return cost{time.Since(start), cpuTime(b) - cpu}
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// limit says whether a figure keeps its promise. Nothing fails: a busy machine is no defect.
func limit(b *testing.B, what string, got, most float64, unit string) {
	b.Helper()
	if got > most {
		b.Logf("BEYOND THE LIMIT: %s: %.2f %s, at most %.2f is promised", what, got, unit, most)
		return
	}
	b.Logf("within the limit: %s: %.2f %s of %.2f", what, got, unit, most)
}

// modulesOf pushes n modules of the size given, no two alike, and returns their references by digest.
func modulesOf(b *testing.B, r *registrytest.Registry, n, size int) []string {
	b.Helper()
	refs := make([]string, n)
	for i := range refs {
		repository := fmt.Sprintf("bench/m%d", i)
		refs[i] = r.Ref(repository + "@" + r.Push(b, repository, "v1", registrytest.WasmToOCI(padded(size, i))))
	}
	return refs
}

// padded is a module that Envoy takes, of size bytes, most of which cannot be compressed.
func padded(size, seed int) []byte {
	filler := make([]byte, size-len(wasmtest.Minimal())-16)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(filler)
	e := wasmtest.New(nil)
	e.Custom("filler", filler)
	return e.Bytes()
}

// BenchmarkColdPulls gets 50 modules of one MiB each from a registry over TLS, with new connections: as `wasm pull` does, into an empty store, and
// as the bare library downloads them into files, all at once. Ours has in it what makes a store of it: hashes, locks, records and waiting for the disk of
// $TMPDIR, which the library never does. With the checker it is a third figure, without a limit. The limit is for files in memory, where both only download; on a
// disk the store's eight small files and its waiting for the disk are in it, and the ratio is only told. Nothing is removed between the rounds: ext4 takes
// ten times as long to make a file when many were removed in the last seconds.
func BenchmarkColdPulls(b *testing.B) {
	const memory = "/dev/shm"
	if _, err := os.Stat(memory); err == nil {
		b.Run("memory", func(b *testing.B) {
			b.Setenv("TMPDIR", memory)
			ratio := coldPulls(b)
			limit(b, "50 cold modules of 1 MiB, without the check, against the bare library", ratio, 1, "×")
		})
	}
	b.Run("disk", func(b *testing.B) { coldPulls(b) })
}

// coldPulls returns how long ours takes, as a multiple of the library's time.
func coldPulls(b *testing.B) float64 {
	b.Helper()
	const modules = 50
	ca := testca.New(b, "bench")
	dir := b.TempDir()
	pair := ca.Issue(b, testca.Leaf{})
	cert, key := pair.Write(b, dir)
	r := registrytest.New(b, registrytest.WithTLS(cert, key))
	refs := modulesOf(b, r, modules, 1<<20)
	config := filepath.Join(dir, "registries.yaml")
	if err := os.WriteFile(filepath.Join(dir, "ca.pem"), ca.PEM, 0o600); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(config, fmt.Appendf(nil, "%q: {ca: ca.pem}\n", r.Addr), 0o600); err != nil {
		b.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.PEM)
	bare := &way{name: "library", run: func() cost { return bareDownload(b, roots, refs) }}
	ours := &way{name: "ours", run: func() cost { return coldPull(b, config, refs, vouched) }}
	checked := &way{name: "ours+check", run: func() cost { return coldPull(b, config, refs, abi.Check) }}
	race(b, bare, ours, checked)
	ratio := median(ours.wall) / median(bare.wall)
	b.ReportMetric(ratio, "ours/library")
	return ratio
}

func vouched(context.Context, abi.Host, string) abi.Verdict { return abi.Verdict{Outcome: abi.Good} }

// coldPull is what `wasm pull` does after its flags were read.
func coldPull(b *testing.B, config string, refs []string, check func(context.Context, abi.Host, string) abi.Verdict) cost {
	b.Helper()
	a := &app{env: newEnvironment(nil), stdout: io.Discard, stderr: b.Output()}
	dir, o := tempDir(b), &moduleOptions{quiet: true}
	cmd := &cobra.Command{}
	o.flags(cmd)
	o.bringFlags(cmd)
	if err := cmd.ParseFlags([]string{"--data-dir", dir, "--registry-config", config}); err != nil {
		b.Fatal(err)
	}
	if err := a.settleModules(cmd, o); err != nil {
		b.Fatal(err)
	}
	targets := make([]target, len(refs))
	for i, ref := range refs {
		targets[i].url = ref
	}
	return spent(b, func() {
		store, err := openStore(&o.settings, slog.New(slog.DiscardHandler), func(c *wasmcache.Config) { c.Check = check })
		if err != nil {
			b.Fatal(err)
		}
		for _, p := range a.bring(b.Context(), o, store, targets, func(t target) wasmcache.Request { return wasmcache.Request{URL: t.url} }) {
			if p.Error != "" {
				b.Fatal(p.Error)
			}
		}
		if err := store.Close(); err != nil {
			b.Fatal(err)
		}
	})
}

func tempDir(b *testing.B) string {
	b.Helper()
	dir, err := os.MkdirTemp(b.TempDir(), "")
	if err != nil {
		b.Fatal(err)
	}
	return dir
}

func bareDownload(b *testing.B, roots *x509.CertPool, refs []string) cost {
	b.Helper()
	dir := tempDir(b)
	return spent(b, func() {
		transport := remote.DefaultTransport.(*http.Transport).Clone()
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
		defer transport.CloseIdleConnections()
		group, ctx := errgroup.WithContext(b.Context())
		for i, url := range refs {
			group.Go(func() error {
				ref, err := name.ParseReference(strings.TrimPrefix(url, "oci://"))
				if err != nil {
					return err
				}
				return bareModule(filepath.Join(dir, fmt.Sprint(i)), ref, remote.WithContext(ctx), remote.WithTransport(transport))
			})
		}
		if err := group.Wait(); err != nil {
			b.Fatal(err)
		}
	})
}

func bareModule(path string, ref name.Reference, options ...remote.Option) error {
	image, err := remote.Image(ref, options...)
	if err != nil {
		return err
	}
	layers, err := image.Layers()
	if err != nil {
		return err
	}
	blob, err := layers[0].Compressed()
	if err != nil {
		return err
	}
	defer blob.Close()
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, blob)
	return cmp.Or(err, file.Close())
}
