package abi

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gateway-agent/gateway-agent/internal/wasmtest"
)

// envoy is the host of the real Envoy that the tests run.
func envoy(t testing.TB) Host {
	t.Helper()
	host, ok := HostForVersion("1.40.0")
	if !ok {
		t.Fatal("HostForVersion(1.40.0): not ok")
	}
	return host
}

func check(t testing.TB, host Host, module []byte) Verdict {
	t.Helper()
	path := filepath.Join(t.TempDir(), "m.wasm")
	if err := os.WriteFile(path, module, 0o600); err != nil {
		t.Fatal(err)
	}
	return Check(t.Context(), host, path)
}

// TestCorpusAgainstEnvoy holds every verdict against what the real Envoy does.
func TestCorpusAgainstEnvoy(t *testing.T) {
	host, samples := envoy(t), corpus(t)
	var modules [][]byte
	for _, s := range samples {
		modules = append(modules, s.module)
	}
	for i, loaded := range wasmtest.LoadAll(t, modules) {
		s := samples[i]
		t.Run(s.name, func(t *testing.T) {
			got := check(t, host, s.module)
			t.Logf("Envoy: accepted %t, killed %t; Check: %s %s %q", loaded.Accepted, loaded.Killed, got.Outcome, got.Reason, got.Warnings)
			if want := !loaded.Accepted && !s.runtime; (got.Outcome == Broken) != want {
				t.Errorf("Check: %s (%s), Envoy: accepted %t, killed %t\n%s", got.Outcome, got.Reason, loaded.Accepted, loaded.Killed, wasmtest.Load(t, s.module).Log)
			}
			if got.Outcome != Good && got.Reason == "" || strings.ContainsAny(got.Reason, "\n\r") {
				t.Errorf("Check: reason %q for %s", got.Reason, got.Outcome)
			}
		})
	}
}

// TestStartCallsAgainstEnvoy calls every host function in a start section. Some die only with arguments that make sense.
func TestStartCallsAgainstEnvoy(t *testing.T) {
	host, functions := envoy(t), hostFunctions()
	sometimes := []string{"fd_write", "fd_pwrite", "fd_tell", "fd_fdstat_get", "random_get"}
	keys := preview1AndEnv(functions)
	var modules [][]byte
	for _, key := range keys {
		modules = append(modules, wasmtest.CallInStart(key[0], key[1], functions[key]))
	}
	for i, loaded := range wasmtest.LoadAll(t, modules) {
		key, got, want := keys[i], check(t, host, modules[i]), Good
		switch {
		case slices.Contains(sometimes, key[1]) || loaded.Killed && key[1] != "poll_oneoff":
			want = Broken
		case loaded.Killed:
			want = CannotSay
		}
		if got.Outcome != want {
			t.Errorf("%s.%s in the start section: Check %s (%s), Envoy killed %t", key[0], key[1], got.Outcome, got.Reason, loaded.Killed)
		}
	}
}

// TestWithoutMemoryAgainstEnvoy calls the functions that need no memory in a module without one.
func TestWithoutMemoryAgainstEnvoy(t *testing.T) {
	host, functions := envoy(t), hostFunctions()
	keys := slices.DeleteFunc(preview1AndEnv(functions), func(key [2]string) bool {
		return touchesMemory(importFunc{module: key[0], name: key[1]})
	})
	var modules [][]byte
	for _, key := range keys {
		modules = append(modules, bare("", func(e *wasmtest.Encoder) {
			function := e.Import(key[0], key[1], functions[key])
			e.ExportFunc(abi021, ">")
			e.ExportFunc("proxy_on_configure", "ii>i", wasmtest.CallZeros(function, functions[key]), wasmtest.I32Const(1))
		}).module)
	}
	for i, loaded := range wasmtest.LoadAll(t, modules) {
		if loaded.Killed {
			t.Errorf("%s.%s without a memory kills Envoy", keys[i][0], keys[i][1])
		}
		if got := check(t, host, modules[i]); got.Outcome != Good {
			t.Errorf("%s.%s without a memory: Check %s (%s)", keys[i][0], keys[i][1], got.Outcome, got.Reason)
		}
	}
}

// preview1AndEnv are the sorted names of the functions less those under the old name of WASI, which are the same functions.
func preview1AndEnv(functions map[[2]string]string) [][2]string {
	var keys [][2]string
	for key := range functions {
		if key[0] != "wasi_unstable" {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, compareKeys)
	return keys
}

func compareKeys(a, b [2]string) int { return slices.Compare(a[:], b[:]) }

// mutate changes a module at a few places, mostly in its bytes, sometimes in its length.
func mutate(random *rand.Rand, module []byte) []byte {
	m := slices.Clone(module)
	for range 1 + random.IntN(3) {
		if len(m) == 8 {
			break
		}
		at := 8 + random.IntN(len(m)-8)
		switch random.IntN(6) {
		case 0:
			m = slices.Insert(m, at, byte(random.IntN(256)))
		case 1:
			m = slices.Delete(m, at, at+1)
		case 2:
			m[at] = byte(random.IntN(256))
		case 3:
			m[at] = byte(random.IntN(12))
		default:
			m[at] += byte(random.IntN(5)) - 2
		}
	}
	return m
}

// TestMutantsAgainstEnvoy holds the verdicts on damaged modules against the real Envoy: none that it accepts is broken.
func TestMutantsAgainstEnvoy(t *testing.T) {
	host, seed, count := envoy(t), uint64(1), 200
	if text := os.Getenv("MUTANTS"); text != "" {
		fmt.Sscan(text, &count, &seed)
	}
	var seeds [][]byte
	for _, s := range corpus(t) {
		if len(s.module) > 8 && len(s.module) < 4096 && !strings.HasPrefix(s.name, "wrong ") {
			seeds = append(seeds, s.module)
		}
	}
	random := rand.New(rand.NewPCG(seed, 0))
	mutants := make([][]byte, count)
	for i := range mutants {
		mutants[i] = mutate(random, seeds[random.IntN(len(seeds))])
	}
	undecided := 0
	for i, loaded := range wasmtest.LoadAll(t, mutants) {
		got := check(t, host, mutants[i])
		switch {
		case strings.HasPrefix(got.Reason, "neither exports nor imports a memory"): // Envoy dies later, at the call
		case loaded.Accepted && got.Outcome == Broken:
			t.Errorf("Envoy accepts what Check calls broken (%s): %x", got.Reason, mutants[i])
		case !loaded.Accepted && got.Outcome != Broken:
			undecided++
			t.Logf("Envoy refuses (killed %t) what Check calls %s (%s): %x", loaded.Killed, got.Outcome, got.Reason, mutants[i])
		}
	}
	t.Logf("%d of %d refused by Envoy and not by Check", undecided, count)
}
