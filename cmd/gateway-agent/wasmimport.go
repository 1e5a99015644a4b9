package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gateway-agent/gateway-agent/wasmcache"
	"github.com/gateway-agent/gateway-agent/wasmcache/fetch"
)

func (a *app) importCommand() *cobra.Command {
	o := &moduleOptions{}
	cmd := &cobra.Command{
		Use: "import PATH [REF|DIGEST=REF...]", Short: "Put the modules of an OCI layout into the store", Long: importHelp, Example: importExample,
		Args: cobra.MinimumNArgs(1), ValidArgsFunction: completeLayout,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.settleModules(cmd, o); err != nil {
				return err
			}
			return a.importLayout(cmd.Context(), o, args[0], args[1:])
		},
	}
	o.flags(cmd)
	cmd.Flags().StringVar(&o.lockfile, "lockfile", "", "accept only what this file says")
	o.bringFlags(cmd)
	return cmd
}

func (a *app) importLayout(ctx context.Context, o *moduleOptions, path string, args []string) error {
	layout, err := fetch.OpenLayout(path, fetch.Config{MaxSize: int64(o.wasmMaxSize)})
	if err != nil {
		return err
	}
	defer func() { _ = layout.Close() }()
	targets, err := a.imported(o, layout, path, args)
	if err != nil {
		return err
	}
	store, err := openStore(&o.settings, a.moduleLog(o), func(c *wasmcache.Config) { c.Fetch = layout })
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	results := a.bring(ctx, o, store, targets, func(t target) wasmcache.Request {
		return wasmcache.Request{URL: t.url, Always: true}
	})
	return a.conclude(ctx, o, pullReport{Modules: results}, results)
}

// imported are the modules to import: those named, else all that have a reference.
func (a *app) imported(o *moduleOptions, layout *fetch.Layout, path string, args []string) ([]target, error) {
	refs := make([]string, 0, len(args))
	for _, arg := range args {
		ref := arg
		if digest, name, ok := strings.Cut(arg, "="); ok && strings.HasPrefix(digest, "sha256:") {
			ref = withScheme(name)
			if err := layout.Name(digest, ref); err != nil {
				return nil, err
			}
		}
		refs = append(refs, ref)
	}
	if len(refs) == 0 {
		refs = layout.References()
		unnamed := layout.Unnamed()
		if len(refs) == 0 && len(unnamed) == 0 {
			return nil, fmt.Errorf("%s has no module in it", path)
		}
		for _, digest := range unnamed {
			fmt.Fprintf(a.stderr, "%s: left out, it has no complete reference: name it with 'wasm import %s %s=oci://HOST/REPOSITORY:TAG'\n", digest, path, digest)
		}
		if len(refs) == 0 {
			return nil, errors.New("nothing was imported")
		}
	}
	return (&moduleOptions{}).targets(refs, nil)
}

// completeLayout completes the layout's path, then nothing.
func completeLayout(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}
