package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/gateway-agent/gateway-agent/internal/lockfile"
	"github.com/gateway-agent/gateway-agent/wasmcache"
	"github.com/gateway-agent/gateway-agent/wasmcache/fetch"
)

// pullOptions are what `wasm pull` can be told beside what all are.
type pullOptions struct {
	moduleOptions
	sha256 string
	always bool
}

func (a *app) pullCommand() *cobra.Command {
	o := &pullOptions{}
	cmd := &cobra.Command{
		Use: "pull [REF...]", Short: "Fetch modules into the store", Long: pullHelp, Example: pullExample,
		Args: cobra.ArbitraryArgs, ValidArgsFunction: a.completeRefs(&o.moduleOptions),
		RunE: func(cmd *cobra.Command, args []string) error {
			problems := []error{o.wantTargets(args), o.checkPull(args)}
			if err := a.settleModules(cmd, &o.moduleOptions, problems...); err != nil {
				return err
			}
			return a.pull(cmd.Context(), o, args)
		},
	}
	o.flags(cmd)
	o.targetFlags(cmd)
	f := cmd.Flags()
	f.BoolVar(&o.frozen, "frozen", false, "obey the lockfile: no registry is asked what a tag means, and a reference that it lacks fails")
	f.BoolVar(&o.always, "always", false, "ask the registry even for tags that the store knows (with --lockfile this is so anyway)")
	f.StringVar(&o.sha256, "sha256", "", "digest expected of the only REF: of the module, or of its image")
	o.bringFlags(cmd)
	return cmd
}

func (o *pullOptions) checkPull(args []string) error {
	var problems []error
	if o.sha256 != "" && (len(args) != 1 || o.from != "") {
		problems = append(problems, errors.New("--sha256 goes with one REF"))
	}
	if o.frozen && o.lockfile == "" {
		problems = append(problems, errors.New("--frozen needs --lockfile FILE"))
	}
	if o.frozen && o.always {
		problems = append(problems, errors.New("--frozen and --always exclude each other: a lockfile leaves nothing to ask"))
	}
	return errors.Join(problems...)
}

func (a *app) pull(ctx context.Context, o *pullOptions, args []string) error {
	log := a.moduleLog(&o.moduleOptions)
	before, err := o.readLock()
	if err != nil {
		return err
	}
	targets, err := o.targets(args, before)
	if err != nil {
		return err
	}
	if len(targets) == 0 {
		return o.nothing()
	}
	s := o.settings
	if !o.frozen {
		s.lockfile = "" // it is written, not obeyed
	}
	opened, err := openStore(&s, log)
	if err != nil {
		return err
	}
	defer func() { _ = opened.Close() }()
	results := a.bring(ctx, &o.moduleOptions, opened, targets, func(t target) wasmcache.Request {
		req := wasmcache.Request{URL: t.url, SHA256: t.sha256, Always: o.always || o.lockfile != ""}
		if o.sha256 != "" {
			req.SHA256 = o.sha256
		}
		return req
	})
	report := pullReport{Modules: results}
	if o.lockfile != "" && !o.frozen && ctx.Err() == nil {
		if report.Lockfile, err = a.writeLock(ctx, &o.moduleOptions, results, o.from != ""); err == nil {
			a.tellLock(&o.moduleOptions, report.Lockfile)
		}
	}
	concluded := a.conclude(ctx, &o.moduleOptions, report, results)
	if err != nil {
		return err
	}
	return concluded
}

// readLock reads the lockfile; one that does not exist yet is empty, unless it must be obeyed.
func (o *pullOptions) readLock() (*lockfile.File, error) {
	if o.lockfile == "" {
		return nil, nil
	}
	file, err := lockfile.Read(o.lockfile)
	if lockfile.IsMissing(err) && !o.frozen {
		return &lockfile.File{}, nil
	}
	if err != nil {
		return nil, usageError{fmt.Errorf("--lockfile: %w", err)}
	}
	return file, nil
}

func (o *pullOptions) nothing() error {
	switch {
	case o.from != "":
		return fmt.Errorf("--from: the configuration in %s names no module to pull", o.from)
	default:
		return fmt.Errorf("--lockfile: %s holds no module yet: give a REF, or --from DIR", o.lockfile)
	}
}

// pullReport is what -o json prints.
type pullReport struct {
	Modules  []pulled          `json:"modules"`
	Lockfile []lockfile.Change `json:"lockfile_changes,omitempty"`
}

// pulled is the outcome for one reference, as -o json prints it.
type pulled struct {
	url string

	Ref            string `json:"ref"`
	Place          string `json:"place,omitempty"`
	Digest         string `json:"digest,omitempty"`
	ManifestDigest string `json:"manifest_digest,omitempty"`
	Index          string `json:"index_digest,omitempty"`
	Size           int64  `json:"size,omitempty"`
	Path           string `json:"path,omitempty"`
	Warning        string `json:"warning,omitempty"`
	Error          string `json:"error,omitempty"`
}

// bring gets all targets into the store, some at a time, and tells of each. One that fails does not keep the others from coming.
func (a *app) bring(ctx context.Context, o *moduleOptions, store *openedStore, targets []target, ask func(target) wasmcache.Request) []pulled {
	show := a.newProgress(o)
	results := make([]pulled, len(targets))
	group := errgroup.Group{}
	group.SetLimit(o.parallel)
	for i, t := range targets {
		group.Go(func() error {
			results[i] = pulled{url: t.url, Ref: fetch.Shown(t.url), Place: t.place}
			if ref, err := storeKey(t.url); err == nil {
				results[i].Ref = ref
			}
			bar := show.start(results[i].Ref)
			req := ask(t)
			req.Host, req.Progress, req.Preload = o.host(), bar.moved, true
			module, err := store.get(ctx, req)
			results[i].note(ctx, bar, module, err)
			return nil
		})
	}
	_ = group.Wait() // outcomes are in results
	show.wait()
	return results
}

// note keeps an outcome and tells it.
func (p *pulled) note(ctx context.Context, bar *task, module wasmcache.Module, err error) {
	switch {
	case err != nil && ctx.Err() != nil:
		p.Error = "interrupted"
		bar.dropped()
	case err != nil:
		if p.Place != "" {
			err = fmt.Errorf("%s: %w", p.Place, err)
		}
		p.Error = err.Error()
		bar.failed(err)
	default:
		p.Digest, p.ManifestDigest, p.Index = "sha256:"+module.Digest, module.ManifestDigest, module.Index
		p.Size, p.Path, p.Warning = module.Size, module.Path, module.Warning
		bar.done(fmt.Sprintf("%s (%s)", p.Digest, size(p.Size)), p.Warning)
	}
}

// conclude prints the document for scripts and turns failures, which were told, into the exit code.
func (a *app) conclude(ctx context.Context, o *moduleOptions, document any, results []pulled) error {
	if o.output == "json" {
		if err := a.printJSON(document); err != nil {
			return err
		}
	}
	if err := interrupted(ctx); err != nil {
		return err
	}
	for _, r := range results {
		if r.Error != "" {
			return quietError{1}
		}
	}
	return nil
}
