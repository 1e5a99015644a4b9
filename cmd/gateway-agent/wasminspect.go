package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gateway-agent/gateway-agent/wasmcache"
	"github.com/gateway-agent/gateway-agent/wasmcache/abi"
	"github.com/gateway-agent/gateway-agent/wasmcache/fetch"
)

// inspectOptions are what `wasm inspect` can be told beside what all are.
type inspectOptions struct {
	moduleOptions
	offline bool
}

func (a *app) inspectCommand() *cobra.Command {
	o := &inspectOptions{}
	cmd := &cobra.Command{
		Use: "inspect REF|DIGEST|FILE", Short: "Say what a module and its image are", Long: inspectHelp, Example: inspectExample,
		Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeInspect(&o.moduleOptions),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.settleModules(cmd, &o.moduleOptions); err != nil {
				return err
			}
			return a.inspect(cmd.Context(), o, args[0])
		},
	}
	o.flags(cmd)
	f := cmd.Flags()
	f.BoolVar(&o.offline, "offline", false, "look at what the store has; ask no registry")
	o.checkFlag(cmd)
	o.lookFlags(cmd)
	o.wasmMaxSize = 256 << 20
	f.Var(&o.wasmMaxSize, "wasm-max-size", "largest module accepted, as 64MiB")
	o.registryFlags(f)
	return cmd
}

// inspection is what -o json prints.
type inspection struct {
	Ref    string     `json:"ref,omitempty"`
	File   string     `json:"file,omitempty"`
	Digest string     `json:"digest,omitempty"`
	Image  *imageInfo `json:"image,omitempty"`
	// Stored is the module's file in the store; "": it is not there.
	Stored  string           `json:"stored,omitempty"`
	Verdict *verdictInfo     `json:"verdict,omitempty"`
	Module  *abi.Description `json:"module,omitempty"`
	// Note is why something above is missing.
	Note string `json:"note,omitempty"`
}

type imageInfo struct {
	Manifest     string            `json:"manifest"`
	Index        string            `json:"index,omitempty"`
	MediaType    string            `json:"media_type,omitempty"`
	ArtifactType string            `json:"artifact_type,omitempty"`
	Source       string            `json:"source,omitempty"` // the host that answered
	Annotations  map[string]string `json:"annotations,omitempty"`
	Layers       []layerInfo       `json:"layers,omitempty"`
}

type layerInfo struct {
	MediaType string `json:"media_type"`
	Digest    string `json:"digest"`
	Size      int64  `json:"size"`
	Title     string `json:"title,omitempty"`
	Module    bool   `json:"module,omitempty"` // the module is in it
}

type verdictInfo struct {
	Host     string   `json:"host"`
	Outcome  string   `json:"outcome"`
	Reason   string   `json:"reason,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}

var digestArgument = regexp.MustCompile(`^(sha256:)?[0-9a-f]{6,64}$`)

func (a *app) inspect(ctx context.Context, o *inspectOptions, arg string) error {
	var (
		result *inspection
		err    error
	)
	_, notFile := os.Stat(arg)
	switch {
	case notFile == nil || strings.HasPrefix(arg, "file://"):
		result, err = a.inspectFile(ctx, o, strings.TrimPrefix(arg, "file://"))
	case digestArgument.MatchString(arg):
		result, err = a.inspectDigest(ctx, o, strings.TrimPrefix(arg, "sha256:"))
	case !strings.Contains(withScheme(arg), "://"):
		return fmt.Errorf("%s: no such file, no digest, and no reference, which begins with oci://, https:// or http://", arg)
	default:
		result, err = a.inspectRef(ctx, o, withScheme(arg))
	}
	if err != nil {
		return ended(ctx, err)
	}
	switch {
	case o.output == "json":
		err = a.printJSON(result)
	case !o.quiet:
		renderInspection(a.stdout, result, a.colors())
	}
	if err != nil {
		return err
	}
	if result.Verdict != nil && result.Verdict.Outcome == abi.Broken.String() {
		return quietError{1}
	}
	return nil
}

func (a *app) inspectFile(ctx context.Context, o *inspectOptions, path string) (*inspection, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	result := &inspection{File: path}
	client, err := newFetcher(&o.settings, a.moduleLog(&o.moduleOptions))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	// Through the fetcher, so that a file in a box is seen as a plugin would come out of it.
	resolved, err := client.Resolve(ctx, fetch.Request{URL: "file://" + abs})
	if err != nil {
		return nil, err
	}
	return result, a.download(ctx, o, client, resolved, result)
}

func (a *app) inspectDigest(ctx context.Context, o *inspectOptions, prefix string) (*inspection, error) {
	store, err := o.openForLook(a.moduleLog(&o.moduleOptions))
	if err != nil {
		return nil, err
	}
	if store == nil {
		return nil, fmt.Errorf("no store in %s: pull something first, or name another --data-dir", o.wasmDir)
	}
	defer func() { _ = store.Close() }()
	var found []wasmcache.ModuleStatus
	for _, m := range store.Status().Modules {
		if strings.HasPrefix(m.Digest, prefix) {
			found = append(found, m)
		}
	}
	if len(found) > 1 {
		return nil, fmt.Errorf("%s is the beginning of %d digests in the store: write more of it", prefix, len(found))
	}
	digest := prefix
	if len(found) == 1 {
		digest = found[0].Digest
	}
	m, ok := store.Find(digest)
	if !ok {
		return nil, fmt.Errorf("no module, manifest or index %s in %s: 'gateway-agent wasm list' shows what is there", prefix, o.wasmDir)
	}
	result := fromStore(m)
	return result, a.describe(ctx, o, m.Path, result)
}

func fromStore(m wasmcache.Module) *inspection {
	result := &inspection{Ref: m.Ref, Digest: "sha256:" + m.Digest, Stored: m.Path}
	if m.ManifestDigest != "" {
		result.Image = &imageInfo{Manifest: m.ManifestDigest, Index: m.Index}
	}
	return result
}

// inspectRef asks the registry what a reference is; the module comes from the store when it is the same, else it is downloaded for a look.
func (a *app) inspectRef(ctx context.Context, o *inspectOptions, url string) (*inspection, error) {
	store, err := o.openForLook(a.moduleLog(&o.moduleOptions))
	if err != nil {
		return nil, err
	}
	var stored wasmcache.Module
	here := false
	if store != nil {
		defer func() { _ = store.Close() }()
		stored, here = store.Find(url)
	}
	if o.offline {
		if !here {
			return nil, fmt.Errorf("%s is not in the store %s: leave out --offline, or pull it", fetch.Shown(url), o.wasmDir)
		}
		result := fromStore(stored)
		return result, a.describe(ctx, o, stored.Path, result)
	}
	client, err := newFetcher(&o.settings, a.moduleLog(&o.moduleOptions))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	resolved, err := client.Resolve(ctx, fetch.Request{URL: url})
	switch {
	case err != nil && here && ctx.Err() == nil:
		result := fromStore(stored)
		result.Note = fmt.Sprintf("this is what the store has; the registry says: %v", err)
		return result, a.describe(ctx, o, stored.Path, result)
	case err != nil:
		return nil, err
	}
	result := &inspection{Image: imageOf(resolved)}
	if result.Ref, err = storeKey(url); err != nil {
		return nil, err
	}
	if here && resolved.Manifest != "" && stored.ManifestDigest == resolved.Manifest {
		result.Digest, result.Stored = "sha256:"+stored.Digest, stored.Path
		return result, a.describe(ctx, o, stored.Path, result)
	}
	if here {
		result.Note = fmt.Sprintf("the store has another one under this reference: sha256:%s", stored.Digest)
	}
	return result, a.download(ctx, o, client, resolved, result)
}

func imageOf(r *fetch.Resolved) *imageInfo {
	if r.Manifest == "" {
		return nil
	}
	info := &imageInfo{
		Manifest: r.Manifest, Index: r.Index, MediaType: r.MediaType, ArtifactType: r.ArtifactType, Source: r.Source, Annotations: r.Annotations,
	}
	for _, l := range r.Layers {
		info.Layers = append(info.Layers, layerInfo{MediaType: l.MediaType, Digest: l.Digest, Size: l.Size, Title: l.Title, Module: l.Module})
	}
	return info
}

// download fetches a module into a temporary file and describes it.
func (a *app) download(ctx context.Context, o *inspectOptions, client *fetch.Client, resolved *fetch.Resolved, result *inspection) error {
	tmp, err := os.CreateTemp("", "gateway-agent-*.wasm")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(tmp.Name()); tmp.Close() }()
	show := a.newProgress(&o.moduleOptions)
	bar := show.start(cmp.Or(result.Ref, result.File))
	fetched, err := client.Fetch(ctx, resolved, tmp, bar.moved)
	bar.dropped()
	show.wait()
	if err != nil {
		return err
	}
	result.Digest = "sha256:" + fetched.Digest
	return a.describe(ctx, o, tmp.Name(), result)
}

// describe reads and checks a module's file.
func (a *app) describe(ctx context.Context, o *inspectOptions, path string, result *inspection) error {
	d, err := abi.InspectFile(path)
	if err != nil {
		return err
	}
	v := abi.Check(ctx, o.host(), path)
	host := "any Envoy"
	if o.envoyVersion != "" {
		host = o.host().String()
	}
	result.Module, result.Verdict = &d, &verdictInfo{Host: host, Outcome: v.Outcome.String(), Reason: v.Reason, Warnings: v.Warnings}
	return nil
}
