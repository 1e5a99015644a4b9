package main

import (
	"time"

	"github.com/spf13/pflag"
)

func (s *settings) wasmFlags(f *pflag.FlagSet) {
	f.StringVar(&s.wasm, "wasm", "on", "'off' passes Wasm configurations on untouched")
	f.DurationVar(&s.wasmHold, "wasm-hold", 10*time.Second, "how long a new plugin may wait for its module before its failure policy answers")
	f.DurationVar(&s.wasmRetryMax, "wasm-retry-max", time.Minute, "longest wait between two tries to get a module that cannot be had")
	s.storeFlags(f)
}

func (s *settings) storeFlags(f *pflag.FlagSet) {
	s.wasmMaxSize, s.wasmStore = 256<<20, 1<<30
	f.StringVar(&s.wasmUnvouch, "wasm-unvouched", "warn", "modules the checker cannot judge: warn or refuse")
	f.Var(&s.wasmMaxSize, "wasm-max-size", "largest module accepted, as 64MiB")
	f.Var(&s.wasmStore, "wasm-store-size", "modules not in use are dropped, oldest first, above this total")
}
