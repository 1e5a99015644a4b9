package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/spf13/cobra"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/sync/errgroup"
	"golang.org/x/term"

	"github.com/gateway-agent/gateway-agent/wasmcache"
	"github.com/gateway-agent/gateway-agent/wasmcache/abi"
)

func (a *app) wasmCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "wasm", Short: "Work with the store of Wasm modules", Long: wasmHelp, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.pullCommand())
	return cmd
}

// pullOptions are what `wasm pull` can be told beside the store.
type pullOptions struct {
	output       string
	envoyVersion string
	sha256       string
	parallel     int
}

func (a *app) pullCommand() *cobra.Command {
	s, o := &settings{}, &pullOptions{}
	cmd := &cobra.Command{
		Use: "pull REF...", Short: "Fetch modules into the store", Long: pullHelp, Example: pullExample,
		Args: cobra.MinimumNArgs(1), ValidArgsFunction: noFileCompletion,
		RunE: func(cmd *cobra.Command, refs []string) error {
			if err := a.settlePull(cmd, s, o); err != nil {
				return err
			}
			return a.pull(cmd.Context(), s, o, refs)
		},
	}
	f := cmd.Flags()
	f.StringVar(&s.configFile, "config", "", "YAML file with these flags as keys")
	s.dataDirFlag(f)
	s.storeFlags(f)
	s.logFlags(f)
	s.logLevel, f.Lookup("log-level").DefValue = "warn", "warn" // the lines and bars say it already
	f.StringVar(&o.envoyVersion, "envoy-version", "", "check the modules for this Envoy, as 1.40.0 (default: only what every Envoy needs)")
	f.StringVar(&o.sha256, "sha256", "", "digest expected of the only REF: of the module, or of its image")
	f.IntVar(&o.parallel, "parallel", 4, "pulls at the same time")
	outputFlag(cmd, &o.output)
	return cmd
}

func (a *app) settlePull(cmd *cobra.Command, s *settings, o *pullOptions) error {
	if err := apply(cmd.Flags(), s.configFile, a.env); err != nil {
		return usageError{err}
	}
	s.completeDirs(a.env)
	problems := []error{
		oneOf("--wasm-unvouched", s.wasmUnvouch, "warn", "refuse"),
		oneOf("--log-level", s.logLevel, "debug", "info", "warn", "error"),
		oneOf("--log-format", s.logFormat, "text", "json"),
	}
	if o.sha256 != "" && cmd.Flags().NArg() != 1 {
		problems = append(problems, errors.New("--sha256 goes with one REF"))
	}
	if o.parallel < 1 {
		problems = append(problems, errors.New("--parallel is at least 1"))
	}
	if _, ok := abi.HostForVersion(o.envoyVersion); o.envoyVersion != "" && !ok {
		problems = append(problems, fmt.Errorf("--envoy-version is %q: want a version as 1.40.0", o.envoyVersion))
	}
	if err := errors.Join(problems...); err != nil {
		return usageError{err}
	}
	return os.MkdirAll(s.dataDir, 0o755)
}

// pulled is the outcome for one reference, as -o json prints it.
type pulled struct {
	Ref            string `json:"ref"`
	Digest         string `json:"digest,omitempty"`
	ManifestDigest string `json:"manifest_digest,omitempty"`
	Size           int64  `json:"size,omitempty"`
	Path           string `json:"path,omitempty"`
	Warning        string `json:"warning,omitempty"`
	Error          string `json:"error,omitempty"`
}

func (a *app) pull(ctx context.Context, s *settings, o *pullOptions, refs []string) error {
	log, _ := newLogger(a.stderr, s)
	store, err := openStore(s, log, nil)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	host, _ := abi.HostForVersion(o.envoyVersion)
	show := a.newProgress(o)
	results := make([]pulled, len(refs))
	group := errgroup.Group{}
	group.SetLimit(o.parallel)
	for i, ref := range refs {
		bar := show.start(ref)
		group.Go(func() error {
			module, err := store.Get(ctx, wasmcache.Request{URL: ref, SHA256: o.sha256, Host: host, Progress: bar.moved})
			results[i] = outcome(ref, module, err)
			bar.done(results[i])
			return err
		})
	}
	failed := group.Wait() != nil
	show.wait()
	if o.output == "json" {
		encoder := json.NewEncoder(a.stdout)
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(map[string]any{"modules": results}); err != nil {
			return err
		}
	}
	if failed {
		return quietError{1}
	}
	return nil
}

func outcome(ref string, module wasmcache.Module, err error) pulled {
	if err != nil {
		return pulled{Ref: ref, Error: err.Error()}
	}
	return pulled{
		Ref: ref, Digest: "sha256:" + module.Digest, ManifestDigest: module.ManifestDigest,
		Size: module.Size, Path: module.Path, Warning: module.Warning,
	}
}

// progress shows pulls: bars on a terminal, lines elsewhere, nothing but errors with -o json.
type progress struct {
	mu   sync.Mutex
	out  io.Writer // lines; nil: none
	err  io.Writer
	bars *mpb.Progress // nil: no terminal
}

func (a *app) newProgress(o *pullOptions) *progress {
	p := &progress{err: a.stderr}
	if o.output == "json" {
		return p
	}
	p.out = a.stdout
	if file, ok := a.stdout.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		p.bars = mpb.New(mpb.WithOutput(file), mpb.WithAutoRefresh())
		p.out, p.err = p.bars, p.bars
	}
	return p
}

// pullBar is one reference's progress.
type pullBar struct {
	progress *progress
	ref      string
	bar      *mpb.Bar // nil: no terminal
}

func (p *progress) start(ref string) *pullBar {
	b := &pullBar{progress: p, ref: ref}
	if p.bars != nil {
		b.bar = p.bars.AddBar(0,
			mpb.BarRemoveOnComplete(),
			mpb.PrependDecorators(decor.Name(ref, decor.WCSyncSpaceR), decor.CountersKibiByte("% .1f / % .1f")),
			mpb.AppendDecorators(decor.Percentage()))
	}
	return b
}

func (b *pullBar) moved(done, total int64) {
	if b.bar == nil {
		return
	}
	b.bar.SetTotal(max(total, done+1), false)
	b.bar.SetCurrent(done)
}

func (b *pullBar) done(result pulled) {
	if b.bar != nil {
		b.bar.Abort(true)
	}
	p := b.progress
	p.mu.Lock()
	defer p.mu.Unlock()
	if result.Error != "" {
		fmt.Fprintf(p.err, "%s: failed: %s\n", b.ref, result.Error)
		return
	}
	if p.out == nil {
		return
	}
	fmt.Fprintf(p.out, "%s: %s (%.1f MiB)\n", b.ref, result.Digest, float64(result.Size)/(1<<20))
	if result.Warning != "" {
		fmt.Fprintf(p.out, "%s: warning: %s\n", b.ref, result.Warning)
	}
}

func (p *progress) wait() {
	if p.bars != nil {
		p.bars.Wait()
	}
}
