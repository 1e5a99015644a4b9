//go:build ignore

// Writes allow.wasm and deny.wasm.
package main

import (
	"log"
	"os"

	"github.com/gateway-agent/gateway-agent/internal/wasmtest"
)

func main() {
	for name, module := range map[string][]byte{"allow.wasm": wasmtest.PolicyAllow(), "deny.wasm": wasmtest.PolicyDeny()} {
		if err := os.WriteFile(name, module, 0o644); err != nil {
			log.Fatal(err)
		}
	}
}
