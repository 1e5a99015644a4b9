// Package policywasm holds two tiny Proxy-Wasm modules that stand in for a plugin which cannot run: one lets everything pass, one refuses
// everything. They serve HTTP and network filters alike, need nothing from the plugin configuration, and work in every Envoy with a Wasm
// runtime: ABI 0.2.1, MVP instructions, no WASI.
package policywasm

import (
	_ "embed" // the modules
	"slices"
)

//go:generate go run gen.go

//go:embed allow.wasm
var allow []byte

//go:embed deny.wasm
var deny []byte

// Allow returns a module that does nothing.
func Allow() []byte { return slices.Clone(allow) }

// Deny returns a module that answers HTTP requests with 403 and closes connections as they come.
func Deny() []byte { return slices.Clone(deny) }
