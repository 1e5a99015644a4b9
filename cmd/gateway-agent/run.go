package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/gateway-agent/gateway-agent/bootstrap"
	"github.com/gateway-agent/gateway-agent/envoy"
	"github.com/gateway-agent/gateway-agent/internal/atomicfile"
)

func (a *app) runCommand() *cobra.Command {
	s := &settings{}
	cmd := &cobra.Command{
		Use: "run (--config-dir DIR | --xds-address HOST:PORT)", Short: "Run Envoy and everything it needs",
		Long: runHelp, Example: runExample, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.settle(cmd, s); err != nil {
				return err
			}
			return a.run(cmd.Context(), s)
		},
	}
	runFlags(cmd, s)
	return cmd
}

// runFlags are the flags of `run`, shared by the commands that show what run would do.
func runFlags(cmd *cobra.Command, s *settings) {
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&s.configFile, "config", "", "YAML file with these flags as keys")
	s.sourceFlags(f)
	s.dirFlags(f)
	s.envoyFlags(f)
	s.nodeFlags(f)
	s.identityFlags(f)
	s.wasmFlags(f)
	s.dnsFlags(f)
	s.logFlags(f)
	_ = cmd.RegisterFlagCompletionFunc("xds-mode", fixedCompletion("delta", "sotw"))
	_ = cmd.RegisterFlagCompletionFunc("wasm", fixedCompletion("on", "off"))
	_ = cmd.RegisterFlagCompletionFunc("wasm-unvouched", fixedCompletion("warn", "refuse"))
	_ = cmd.RegisterFlagCompletionFunc("wasm-preloaded", fixedCompletion("trust", "verify"))
	_ = cmd.RegisterFlagCompletionFunc("log-level", fixedCompletion("debug", "info", "warn", "error"))
	_ = cmd.RegisterFlagCompletionFunc("log-format", fixedCompletion("text", "json"))
	_ = cmd.RegisterFlagCompletionFunc("on-crash", fixedCompletion("restart", "exit"))
	_ = cmd.RegisterFlagCompletionFunc("identity", fixedCompletion("auto", "files", "external", "ca", "none"))
	_ = cmd.RegisterFlagCompletionFunc("identity-key", fixedCompletion("P-256", "P-384", "RSA"))
	_ = cmd.MarkFlagDirname("config-dir")
	_ = cmd.MarkFlagDirname("data-dir")
	_ = cmd.MarkFlagDirname("run-dir")
}

// run is the life of the agent: check, open, listen, serve, start Envoy; then all of it backwards.
func (a *app) run(ctx context.Context, s *settings) error {
	log, level := newLogger(a.stderr, s)
	if err := makeDirs(s); err != nil {
		return err
	}
	if err := raiseFileLimit(); err != nil {
		log.Warn("envoy has no more open files than the system's default", "err", err)
	}
	g := &gateway{settings: s, log: log, level: level, started: time.Now()}
	if err := g.build(ctx); err != nil {
		return g.startError(ctx, err)
	}
	defer g.close()
	if err := g.listen(); err != nil {
		return err
	}
	if err := g.writeBootstrap(ctx); err != nil {
		return g.startError(ctx, err)
	}
	forgetStart()
	log.Info("gateway-agent started", "version", version, "source", g.sourceText(), "run_dir", s.runDir, "status", s.statusAddress)
	err := g.serve(ctx)
	log.Info("gateway-agent ended")
	return err
}

// startError is nil when the agent was asked to stop while it started: that breaks off what it was about to do.
func (g *gateway) startError(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	g.log.Info("gateway-agent was asked to stop while it started", "err", err)
	return nil
}

func makeDirs(s *settings) error {
	if err := os.MkdirAll(s.dataDir, 0o755); err != nil {
		return fmt.Errorf("--data-dir: %w: make or mount a directory that user %d can write to, or choose another one", err, os.Geteuid())
	}
	if err := os.MkdirAll(s.runDir, 0o700); err != nil {
		return fmt.Errorf("--run-dir: %w: make or mount a directory that user %d can write to, or choose another one", err, os.Geteuid())
	}
	for _, path := range []string{s.xdsSocket, s.sdsSocket, s.bootstrapFile} {
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			return fmt.Errorf("directory of %s: %w: make or mount one that user %d can write to", path, err, os.Geteuid())
		}
	}
	return nil
}

// serve runs the parts until ctx ends. Envoy is told first and stops first: the parts it needs outlive it.
func (g *gateway) serve(ctx context.Context) error {
	envoyCtx, stopEnvoy := context.WithCancelCause(ctx)
	defer stopEnvoy(nil)
	g.stop = stopEnvoy
	parts, stopParts := context.WithCancel(context.WithoutCancel(ctx))
	defer stopParts()
	group, failed := errgroup.WithContext(parts)
	for name, part := range g.parts() {
		group.Go(func() error { return outlive(parts, name, part) })
	}
	stop := context.AfterFunc(failed, func() { stopEnvoy(context.Cause(failed)) })
	defer stop()

	err := g.runEnvoy(envoyCtx)
	stopParts()
	return errors.Join(err, group.Wait())
}

// outlive runs a part and turns an early end into an error, so that no part can be missing unnoticed.
func outlive(ctx context.Context, name string, part func(context.Context) error) error {
	err := part(ctx)
	if err == nil && ctx.Err() == nil {
		err = errors.New("ended early")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func (g *gateway) runEnvoy(ctx context.Context) error {
	if g.envoy == nil {
		<-ctx.Done()
		g.draining.Store(true)
		return nil
	}
	return g.envoy.Run(ctx)
}

func (g *gateway) writeBootstrap(ctx context.Context) error {
	data, err := g.marshalBootstrap()
	if err != nil {
		return err
	}
	path := g.settings.bootstrapFile
	if err := atomicfile.Write(path, data, 0o600); err != nil {
		return fmt.Errorf("bootstrap: %w", err)
	}
	if g.envoy == nil {
		g.log.Info("envoy is started by something else", slog.String("bootstrap", path))
		return nil
	}
	err = envoy.Validate(ctx, g.envoyPath, path)
	if err != nil && g.settings.peerDiscovery && strings.Contains(err.Error(), bootstrap.PeerMetadataType) {
		g.log.Warn("envoy has no peer metadata discovery, so it goes without: only Istio's build has it", "err", err)
		g.settings.peerDiscovery = false
		return g.writeBootstrap(ctx)
	}
	return err
}

func (s *settings) path(name string) string { return filepath.Join(s.runDir, name) }
