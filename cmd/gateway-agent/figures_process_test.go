package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/gateway-agent/gateway-agent/internal/registrytest"
	"github.com/gateway-agent/gateway-agent/internal/wasmtest"
)

// buildAgent builds the agent as `make build` does.
func buildAgent(b *testing.B) string {
	b.Helper()
	path := filepath.Join(b.TempDir(), "gateway-agent")
	build := exec.CommandContext(b.Context(), "go", "build", "-trimpath", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", path, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	return path
}

// process is a run of the agent that ended.
type process struct {
	cost         // from exec to exit
	peak float64 // resident memory, MiB; 0: not asked for
}

// runAgent runs the agent to its end. With watch it follows the peak of its memory (VmHWM, which only grows), as Linux counts it.
func runAgent(b *testing.B, agent string, watch bool, args ...string) process {
	b.Helper()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(b.Context(), agent, args...)
	cmd.Env, cmd.Stderr = []string{"HOME=" + b.TempDir()}, &stderr
	start := time.Now()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	var p process
	ended := make(chan float64)
	if watch {
		go func() { ended <- peakOf(cmd.Process.Pid) }()
	}
	err := cmd.Wait()
	p.wall = time.Since(start)
	if watch {
		p.peak = <-ended
	}
	if err != nil {
		b.Fatalf("%s: %v\n%s", strings.Join(args[:2], " "), err, stderr.String())
	}
	p.cpu = cmd.ProcessState.SystemTime() + cmd.ProcessState.UserTime()
	return p
}

// peakOf follows a process until it has no memory any more, and returns the most that it had, in MiB.
func peakOf(pid int) float64 {
	var peak float64
	for {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		_, after, found := strings.Cut(string(status), "VmHWM:")
		if err != nil || !found {
			return peak
		}
		kib, _ := strconv.Atoi(strings.Fields(after)[0])
		peak = float64(kib) / 1024
		time.Sleep(time.Millisecond)
	}
}

// BenchmarkWarmPulls is the whole process `wasm pull` of 50 pinned digests of one MiB each that the store has, while their registry is down. It
// hashes them all, because nothing in the store is used before that. What starting any command takes is beside it.
func BenchmarkWarmPulls(b *testing.B) {
	agent := buildAgent(b)
	r := registrytest.New(b)
	args := append([]string{"wasm", "pull", "--data-dir", b.TempDir()}, modulesOf(b, r, 50, 1<<20)...)
	runAgent(b, agent, false, args...)
	r.Stop()
	pull := &way{name: "pull", run: func() cost { return runAgent(b, agent, false, args...).cost }}
	version := &way{name: "version", run: func() cost { return runAgent(b, agent, false, "version").cost }}
	race(b, pull, version)
	limit(b, "`wasm pull` of 50 digests that are there, from exec to exit", median(pull.wall), 50, "ms")
}

// BenchmarkPullMemory is the peak of resident memory of the process `wasm pull` for a module of 200 MiB, over that for a tiny one. Nearly all of the
// large module is a custom section, which the check skips. What the check takes for itself is a figure of its own, without a limit: it is in
// proportion to the code, and bounded by the budget in wasmcache/abi.
func BenchmarkPullMemory(b *testing.B) {
	if runtime.GOOS != "linux" {
		b.Skip("VmHWM is Linux's")
	}
	const rounds = 5
	agent := buildAgent(b)
	r := registrytest.New(b)
	hello := wasmtest.PluginBytes(b, "hello")
	kinds := []string{"idle", "raw", "gzip", "zstd", "check"}
	images := map[string]registrytest.Image{"idle": registrytest.WasmToOCI(wasmtest.Minimal()), "check": registrytest.WasmToOCI(hello)}
	large := repeating(200 << 20)
	images["raw"] = registrytest.WasmToOCI(large)
	box := tarred(b, large)
	images["gzip"] = layered(types.OCILayer, squeeze(b, box, func(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriterLevel(w, gzip.BestSpeed) }))
	images["zstd"] = layered(types.OCILayerZStd, squeeze(b, box, func(w io.Writer) (io.WriteCloser, error) {
		return zstd.NewWriter(w, zstd.WithWindowSize(8<<20))
	}))
	for kind, image := range images {
		r.Push(b, kind, "v1", image)
	}
	peaks := map[string][]float64{}
	round := func() {
		for _, kind := range kinds {
			dir := tempDir(b)
			p := runAgent(b, agent, true, "wasm", "pull", "--data-dir", dir, r.Ref(kind+":v1"))
			peaks[kind] = append(peaks[kind], p.peak)
			_ = os.RemoveAll(dir)
		}
	}
	for b.Loop() {
		round()
	}
	for len(peaks["idle"]) < rounds {
		round()
	}
	idle := median(peaks["idle"])
	b.ReportMetric(idle, "idle-MiB")
	for _, kind := range kinds[1:] {
		b.ReportMetric(median(peaks[kind])-idle, kind+"-MiB")
		if kind != "check" {
			limit(b, "peak memory over idle while a module of 200 MiB comes, "+kind, median(peaks[kind])-idle, 32, "MiB")
		}
	}
	b.Logf("the check has a budget of its own: %.0f MiB over idle for the %.1f MiB of the Go plugin hello", median(peaks["check"])-idle, float64(len(hello))/(1<<20))
}

// repeating is a module of size bytes whose parts are alike, but so far from each other that only a large window finds them.
func repeating(size int) []byte {
	part := make([]byte, 4<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(part)
	e := wasmtest.New(nil)
	e.Custom("filler", bytes.Repeat(part, size/len(part))[:size-len(wasmtest.Minimal())-64])
	return e.Bytes()
}

func tarred(b *testing.B, module []byte) []byte {
	b.Helper()
	var box bytes.Buffer
	w := tar.NewWriter(&box)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "plugin.wasm", Mode: 0o644, Size: int64(len(module))}); err != nil {
		b.Fatal(err)
	}
	if _, err := w.Write(module); err != nil {
		b.Fatal(err)
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	return box.Bytes()
}

func layered(mediaType types.MediaType, body []byte) registrytest.Image {
	return registrytest.Image{Layers: []registrytest.Layer{{MediaType: mediaType, Body: body}}}
}

func squeeze(b *testing.B, content []byte, compressor func(io.Writer) (io.WriteCloser, error)) []byte {
	b.Helper()
	var out bytes.Buffer
	w, err := compressor(&out)
	if err == nil {
		_, err = w.Write(content)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		b.Fatal(err)
	}
	return out.Bytes()
}
