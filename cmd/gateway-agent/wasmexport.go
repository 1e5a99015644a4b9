package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gateway-agent/gateway-agent/internal/lockfile"
	"github.com/gateway-agent/gateway-agent/wasmcache"
	"github.com/gateway-agent/gateway-agent/wasmcache/fetch"
)

// exportOptions are what `wasm export` can be told beside what all are.
type exportOptions struct {
	moduleOptions
	to  string
	all bool
}

func (a *app) exportCommand() *cobra.Command {
	o := &exportOptions{}
	cmd := &cobra.Command{
		Use: "export --to PATH [REF...]", Short: "Write modules into an OCI layout, for sites without a network", Long: exportHelp, Example: exportExample,
		Args: cobra.ArbitraryArgs, ValidArgsFunction: a.completeRefs(&o.moduleOptions),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.settleModules(cmd, &o.moduleOptions, o.checkExport(args)); err != nil {
				return err
			}
			return a.export(cmd.Context(), o, args)
		},
	}
	o.flags(cmd)
	cmd.Flags().StringVar(&o.to, "to", "", "where to: a .tar file, else a directory; a layout that is there is replaced")
	o.targetFlags(cmd)
	cmd.Flags().BoolVar(&o.all, "all", false, "everything in the store that has a reference")
	o.bringFlags(cmd)
	_ = cmd.MarkFlagFilename("to", "tar")
	return cmd
}

func (o *exportOptions) checkExport(args []string) error {
	var problems []error
	if o.to == "" {
		problems = append(problems, errors.New("--to says where to: give it a directory, or a file that ends in .tar"))
	}
	if !o.all {
		problems = append(problems, o.wantTargets(args))
	} else if len(args) > 0 || o.from != "" || o.lockfile != "" {
		problems = append(problems, errors.New("--all is everything: leave out REF, --from and --lockfile"))
	}
	return errors.Join(problems...)
}

func (a *app) export(ctx context.Context, o *exportOptions, args []string) error {
	log := a.moduleLog(&o.moduleOptions)
	store, err := openStore(&o.settings, log)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	targets, err := a.exported(o, store, args)
	if err != nil {
		return err
	}
	client, err := newFetcher(&o.settings, log)
	if err != nil {
		return err
	}
	defer client.Close()
	layout, err := fetch.CreateLayout(o.to)
	if err != nil {
		return err
	}
	defer func() { _ = layout.Close() }()
	results := a.bring(ctx, &o.moduleOptions, store, targets, func(t target) wasmcache.Request {
		return wasmcache.Request{URL: t.url, SHA256: t.sha256}
	})
	out := a.writeLayout(ctx, o, client, layout, results)
	if err := interrupted(ctx); err != nil {
		return err
	}
	if layout.Len() == 0 {
		return fmt.Errorf("%s was not written: there is no module to put into it", o.to)
	}
	if err := layout.Commit(); err != nil {
		return err
	}
	a.say(&o.moduleOptions, "%s: %s of %d", o.to, count(layout.Len(), "module"), len(results))
	return a.conclude(ctx, &o.moduleOptions, exportReport{Layout: o.to, Modules: out}, plain(out))
}

// exported are the modules to export.
func (a *app) exported(o *exportOptions, store *openedStore, args []string) ([]target, error) {
	if !o.all {
		var locked *lockfile.File
		if store.lock != nil {
			locked = store.lock.current()
		}
		return o.targets(args, locked)
	}
	var all []target
	for _, m := range store.Status().Modules {
		for _, ref := range m.Refs {
			switch newest, ok := store.Find(ref); {
			case !ok:
				fmt.Fprintf(a.stderr, "%s: left out, the store does not keep its whole URL: name it as REF\n", ref)
			case newest.Digest == m.Digest:
				all = append(all, target{url: ref, sha256: m.Digest})
			}
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("the store in %s is empty: pull something first, or name a REF", o.wasmDir)
	}
	return all, nil
}

// exportReport is what -o json prints.
type exportReport struct {
	Layout  string          `json:"layout"`
	Modules []exportedImage `json:"modules"`
}

// exportedImage is the outcome for one reference.
type exportedImage struct {
	pulled
	// Packed tells that the registry's image is not in the layout, only its module.
	Packed bool `json:"packed,omitempty"`
}

func plain(images []exportedImage) []pulled {
	all := make([]pulled, len(images))
	for i, image := range images {
		all[i] = image.pulled
	}
	return all
}

// writeLayout puts what was brought into the layout, one after the other.
func (a *app) writeLayout(ctx context.Context, o *exportOptions, client *fetch.Client, layout *fetch.LayoutWriter, results []pulled) []exportedImage {
	show := a.newProgress(&o.moduleOptions)
	defer show.wait()
	out := make([]exportedImage, len(results))
	for i, m := range results {
		out[i].pulled = m
		if m.Error != "" || ctx.Err() != nil {
			continue
		}
		bar := show.start(m.Ref)
		err := a.addImage(ctx, client, layout, &out[i], bar)
		switch {
		case ctx.Err() != nil:
			bar.dropped()
		case err != nil:
			out[i].Error = err.Error()
			bar.failed(err)
		case out[i].Warning != m.Warning:
			bar.done("", out[i].Warning)
		default:
			bar.dropped()
		}
	}
	return out
}

// addImage copies the image from its registry, byte for byte; where that cannot be, it packs the module of the store.
func (a *app) addImage(ctx context.Context, client *fetch.Client, layout *fetch.LayoutWriter, m *exportedImage, bar *task) error {
	m.Packed = m.ManifestDigest == ""
	if !m.Packed {
		req := fetch.Request{URL: m.url, SHA256: strings.TrimPrefix(m.Digest, "sha256:"), Digest: cmp.Or(m.Index, m.ManifestDigest)}
		_, _, err := client.Copy(ctx, req, layout, bar.moved)
		if err == nil || ctx.Err() != nil {
			return err
		}
		m.Packed = true
		m.Warning = fmt.Sprintf("only the module is in the layout, without its image: %v", err)
	}
	return layout.Pack(ctx, m.url, m.Path, nil)
}
