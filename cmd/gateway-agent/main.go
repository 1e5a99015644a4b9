// Command gateway-agent runs beside Envoy on a gateway: it relays xDS, turns remote Wasm references into local files, serves
// certificates, writes Envoy's bootstrap and keeps Envoy alive.
package main

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

// exitInterrupted is what shells report of a command that Ctrl-C ended. It does not end by the signal itself: the kernel spares the first
// process of a container, and Go's runtime then makes it 2, which is bad usage here.
const exitInterrupted = 128 + int(syscall.SIGINT)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	// A second Ctrl-C ends the process at once, and Envoy with it. A second SIGTERM changes nothing: a kubelet repeats it, and who cannot wait
	// sends SIGKILL.
	context.AfterFunc(ctx, func() {
		again := make(chan os.Signal, 1) // one is enough
		signal.Notify(again, syscall.SIGINT)
		<-again
		os.Exit(exitInterrupted)
	})
	os.Exit(run(ctx, arguments(os.Args), os.Environ(), os.Stdout, os.Stderr))
}

// arguments are those of the command line, after the name that the program was called by where that name means something.
func arguments(line []string) []string {
	if filepath.Base(line[0]) == pilotAgent {
		return append([]string{pilotAgent}, line[1:]...)
	}
	return line[1:]
}
