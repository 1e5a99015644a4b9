package main

import (
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/gateway-agent/gateway-agent/internal/registrytest"
	"github.com/gateway-agent/gateway-agent/internal/wasmtest"
)

// BenchmarkWarmPull is `wasm pull` of 50 digests of one MiB each that the store has: it hashes all of them and asks nobody. What starting
// a process takes is not in it.
func BenchmarkWarmPull(b *testing.B) {
	registry := registrytest.New(b)
	args := []string{"wasm", "pull", "-q", "--data-dir", b.TempDir()}
	filler := make([]byte, 1<<20)
	for i := range 50 {
		module := wasmtest.New(nil)
		module.Custom("filler", slices.Concat(filler, fmt.Append(nil, i)))
		args = append(args, registry.Ref("bench@"+registry.Push(b, "bench", fmt.Sprint("v", i), registrytest.WasmToOCI(module.Bytes()))))
	}
	pull := func() {
		if code := run(b.Context(), args, nil, io.Discard, b.Output()); code != 0 {
			b.Fatalf("wasm pull = %d", code)
		}
	}
	pull()
	registry.Stop()
	for b.Loop() {
		pull()
	}
}
