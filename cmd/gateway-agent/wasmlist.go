package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gateway-agent/gateway-agent/ecds"
	"github.com/gateway-agent/gateway-agent/wasmcache"
)

func (a *app) listCommand() *cobra.Command {
	o := &moduleOptions{}
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the modules in the store, and the plugins that use them", Long: listHelp, Example: listExample,
		Args: cobra.NoArgs, ValidArgsFunction: noFileCompletion,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.settleModules(cmd, o); err != nil {
				return err
			}
			return a.list(cmd.Context(), o)
		},
	}
	o.flags(cmd)
	o.lookFlags(cmd)
	o.runDirFlag(cmd.Flags())
	_ = cmd.MarkFlagDirname("run-dir")
	return cmd
}

// lookFlags adds the flags of the commands that look at the store.
func (o *moduleOptions) lookFlags(cmd *cobra.Command) {
	o.dataDirFlag(cmd.Flags())
	_ = cmd.MarkFlagDirname("data-dir")
}

// listing is what -o json prints.
type listing struct {
	Store wasmcache.Status `json:"store"`
	// Plugins are those of the agent that runs in --run-dir; absent when none does.
	Plugins []ecds.ResourceStatus `json:"plugins,omitempty"`
}

func (a *app) list(ctx context.Context, o *moduleOptions) error {
	l := listing{Store: wasmcache.Status{Dir: o.wasmDir, Modules: []wasmcache.ModuleStatus{}}}
	store, err := o.openForLook(a.moduleLog(o))
	if err != nil {
		return err
	}
	if store != nil {
		defer func() { _ = store.Close() }()
		l.Store = store.Status()
	}
	l.Plugins = runningPlugins(ctx, &o.settings)
	if o.output == "json" {
		return a.printJSON(l)
	}
	if o.quiet {
		for _, m := range l.Store.Modules {
			fmt.Fprintf(a.stdout, "sha256:%s\n", m.Digest)
		}
		return nil
	}
	renderListing(a.stdout, l, time.Now(), a.colors())
	return nil
}

// runningPlugins asks the agent of the run directory, if one runs and uses plugins.
func runningPlugins(ctx context.Context, s *settings) []ecds.ResourceStatus {
	var view struct{ Plugins []ecds.ResourceStatus }
	data, err := askControl(ctx, s, "/debug/wasm")
	if err != nil || json.Unmarshal(data, &view) != nil {
		return nil
	}
	return view.Plugins
}

func renderListing(w io.Writer, l listing, now time.Time, colors bool) {
	s := &screen{w: w, now: now, colors: colors}
	head := fmt.Sprintf("store %s   %s, %s", l.Store.Dir, count(len(l.Store.Modules), "module"), size(l.Store.Bytes))
	fmt.Fprintln(w, head)
	s.table(len(l.Store.Modules), func(i int) []string { return s.moduleCells(l.Store.Modules[i]) }, func(i int) []string {
		return s.moduleNotes(l.Store.Modules[i])
	})
	for _, q := range l.Store.Quarantine {
		fmt.Fprintf(w, "  %s  %s %s ago: %s\n", short(q.Digest), s.bad("damaged"), s.since(q.Since), q.Reason)
	}
	for _, p := range l.Store.Pulls {
		fmt.Fprintf(w, "  %s  %s for %s\n", p.Ref, s.pale("being pulled"), s.since(p.Since))
	}
	s.plugins(report{Plugins: l.Plugins})
}

// moduleCells are digest, size, last use and state; the references follow on lines of their own.
func (s *screen) moduleCells(m wasmcache.ModuleStatus) []string {
	var state []string
	if m.Pinned {
		state = append(state, "in use")
	}
	if m.Preloaded {
		state = append(state, "preloaded")
	}
	if m.Damaged {
		return []string{short(m.Digest), size(m.Size), "found " + s.since(m.LastUsed) + " ago", s.bad("damaged")}
	}
	return []string{short(m.Digest), size(m.Size), "used " + s.since(m.LastUsed) + " ago", strings.Join(state, ", ")}
}

func (s *screen) moduleNotes(m wasmcache.ModuleStatus) []string {
	notes := append([]string{}, m.Refs...)
	for _, v := range m.Verdicts {
		if v.Outcome != "good" {
			host := ""
			if v.Host != "" {
				host = " (" + v.Host + ")"
			}
			notes = append(notes, s.verdict(v.Outcome)+host+": "+v.Reason)
		}
	}
	return notes
}

func (s *screen) verdict(outcome string) string {
	switch outcome {
	case "good":
		return s.good(outcome)
	case "broken":
		return s.bad(outcome)
	}
	return s.pale(outcome)
}
