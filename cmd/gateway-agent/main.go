// Command gateway-agent runs beside Envoy on a gateway: it relays xDS, turns remote Wasm references into local files, serves
// certificates, writes Envoy's bootstrap and keeps Envoy alive.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once, and Envoy with it
	os.Exit(run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}
