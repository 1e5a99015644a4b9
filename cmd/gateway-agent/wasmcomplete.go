package main

import (
	"fmt"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gateway-agent/gateway-agent/wasmcache"
)

type completion = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)

// stored lists what the store of the command line holds, for completion. It asks nobody and makes nothing.
func (a *app) stored(cmd *cobra.Command, o *moduleOptions) []wasmcache.ModuleStatus {
	if err := apply(cmd.Flags(), o.configFile, a.env); err != nil {
		return nil
	}
	o.completeDirs(a.env)
	o.env, o.lockfile, o.registryConfig = a.env, "", nil
	store, err := o.openForLook(slog.New(slog.DiscardHandler))
	if err != nil || store == nil {
		return nil
	}
	defer func() { _ = store.Close() }()
	return store.Status().Modules
}

// completeRefs completes references that the store knows.
func (a *app) completeRefs(o *moduleOptions) completion {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		return a.refs(cmd, o, args), cobra.ShellCompDirectiveNoFileComp
	}
}

func (a *app) refs(cmd *cobra.Command, o *moduleOptions, given []string) []string {
	had := " " + strings.Join(given, " ") + " "
	var all []string
	for _, m := range a.stored(cmd, o) {
		for _, ref := range m.Refs {
			if !strings.Contains(had, " "+ref+" ") {
				all = append(all, fmt.Sprintf("%s\t%s, %s", ref, short(m.Digest), size(m.Size)))
			}
		}
	}
	return all
}

// completeInspect completes references and digests that the store knows, and files.
func (a *app) completeInspect(o *moduleOptions) completion {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		all := a.refs(cmd, o, nil)
		for _, m := range a.stored(cmd, o) {
			all = append(all, fmt.Sprintf("sha256:%s\t%s, %s", m.Digest, size(m.Size), strings.Join(m.Refs, " ")))
		}
		return all, cobra.ShellCompDirectiveDefault
	}
}
