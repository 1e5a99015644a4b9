package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/gateway-agent/gateway-agent/wasmcache"
)

func (a *app) verifyCommand() *cobra.Command {
	o := &moduleOptions{}
	cmd := &cobra.Command{
		Use: "verify", Short: "Hash every module in the store", Long: verifyHelp, Example: verifyExample, Args: cobra.NoArgs, ValidArgsFunction: noFileCompletion,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.settleModules(cmd, o); err != nil {
				return err
			}
			return a.verify(cmd.Context(), o)
		},
	}
	o.flags(cmd)
	o.lookFlags(cmd)
	return cmd
}

// verified is what -o json prints.
type verified struct {
	Checked int                          `json:"checked"`
	Damaged []wasmcache.QuarantineStatus `json:"damaged"`
}

func (a *app) verify(ctx context.Context, o *moduleOptions) error {
	result := verified{Damaged: []wasmcache.QuarantineStatus{}}
	store, err := o.openForLook(a.moduleLog(o))
	if err != nil {
		return err
	}
	if store != nil {
		defer func() { _ = store.Close() }()
		show := a.newProgress(o)
		bar := show.start("verify " + o.wasmDir)
		damaged, checked, err := store.Verify(ctx, bar.moved)
		bar.dropped()
		show.wait()
		if err != nil {
			return ended(ctx, err)
		}
		result.Checked, result.Damaged = checked, append(result.Damaged, damaged...)
	}
	if o.output == "json" {
		if err := a.printJSON(result); err != nil {
			return err
		}
	}
	for _, q := range result.Damaged {
		fmt.Fprintf(a.stderr, "%s: damaged: %s; the next pull brings it again\n", short(q.Digest), q.Reason)
	}
	if len(result.Damaged) > 0 {
		return quietError{1}
	}
	a.say(o, "%s: %s, all whole", o.wasmDir, count(result.Checked, "module"))
	return nil
}

// pruneOptions are what `wasm prune` can be told beside what all are.
type pruneOptions struct {
	moduleOptions
	yes       bool
	all       bool
	olderThan time.Duration
	keep      byteSize
}

func (a *app) pruneCommand() *cobra.Command {
	o := &pruneOptions{}
	cmd := &cobra.Command{
		Use: "prune", Short: "Remove modules that nothing uses; without --yes, say which", Long: pruneHelp, Example: pruneExample,
		Args: cobra.NoArgs, ValidArgsFunction: noFileCompletion,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.settleModules(cmd, &o.moduleOptions, o.checkPrune()); err != nil {
				return err
			}
			return a.prune(o)
		},
	}
	o.flags(cmd)
	f := cmd.Flags()
	f.BoolVarP(&o.yes, "yes", "y", false, "remove them")
	f.BoolVar(&o.all, "all", false, "everything that no process uses")
	f.DurationVar(&o.olderThan, "older-than", 0, "what was not used for so long, as 72h")
	f.Var(&o.keep, "keep", "the least recently used, until so much is left, as 512MiB")
	f.Lookup("keep").DefValue = ""
	o.lookFlags(cmd)
	o.retentionFlags(f)
	return cmd
}

func (o *pruneOptions) checkPrune() error {
	if o.all && (o.olderThan != 0 || o.keep != 0) {
		return errors.New("--all is everything: leave out --older-than and --keep")
	}
	return atLeastZero("--older-than", o.olderThan)
}

// prunedReport is what -o json prints.
type prunedReport struct {
	Removed bool                     `json:"removed"` // false: they would be
	Bytes   int64                    `json:"bytes"`
	Modules []wasmcache.ModuleStatus `json:"modules"`
}

func (a *app) prune(o *pruneOptions) error {
	result := prunedReport{Removed: o.yes, Modules: []wasmcache.ModuleStatus{}}
	store, err := o.openForLook(a.moduleLog(&o.moduleOptions))
	if err != nil {
		return err
	}
	if store != nil {
		defer func() { _ = store.Close() }()
		gone, err := store.Prune(wasmcache.PruneOptions{DryRun: !o.yes, All: o.all, OlderThan: o.olderThan, MaxBytes: int64(o.keep)})
		if err != nil {
			return err
		}
		result.Modules = append(result.Modules, gone...)
	}
	for _, m := range result.Modules {
		result.Bytes += m.Size
	}
	if o.output == "json" {
		return a.printJSON(result)
	}
	if o.quiet {
		return nil
	}
	s := &screen{w: a.stdout, now: time.Now(), colors: a.colors()}
	s.table(len(result.Modules), func(i int) []string { return s.moduleCells(result.Modules[i]) }, func(i int) []string { return result.Modules[i].Refs })
	switch total := fmt.Sprintf("%s, %s", count(len(result.Modules), "module"), size(result.Bytes)); {
	case len(result.Modules) == 0:
		a.say(&o.moduleOptions, "nothing to remove")
	case o.yes:
		a.say(&o.moduleOptions, "removed %s", total)
	default:
		a.say(&o.moduleOptions, "would remove %s: --yes does it", total)
	}
	return nil
}
