package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/spf13/cobra"

	"github.com/gateway-agent/gateway-agent/internal/oci"
	"github.com/gateway-agent/gateway-agent/wasmcache/abi"
	"github.com/gateway-agent/gateway-agent/wasmcache/pack"
)

// pushOptions are what `wasm push` can be told beside what all are.
type pushOptions struct {
	moduleOptions
	variant     string
	annotations []string
	unchecked   bool
}

func (a *app) pushCommand() *cobra.Command {
	o := &pushOptions{}
	cmd := &cobra.Command{
		Use: "push FILE REF", Short: "Make an image of a .wasm file and push it", Long: pushHelp, Example: pushExample,
		Args: cobra.ExactArgs(2), ValidArgsFunction: completeModuleFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.settleModules(cmd, &o.moduleOptions, o.checkPush()); err != nil {
				return err
			}
			return a.push(cmd.Context(), o, args[0], args[1])
		},
	}
	o.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&o.variant, "variant", string(pack.Compat), "compat: an image whose layer holds plugin.wasm, which every registry takes; artifact: the bare module")
	f.StringArrayVar(&o.annotations, "annotation", nil, "K=V to write into the manifest; may be repeated")
	f.BoolVar(&o.unchecked, "unchecked", false, "push even a module that Envoy cannot run")
	o.checkFlag(cmd)
	o.registryFlags(f)
	_ = cmd.RegisterFlagCompletionFunc("variant", fixedCompletion(variants()...))
	return cmd
}

func variants() []string {
	var all []string
	for _, v := range pack.Variants() {
		all = append(all, string(v))
	}
	return all
}

func (o *pushOptions) checkPush() error {
	problems := []error{oneOf("--variant", o.variant, variants()...)}
	for _, pair := range o.annotations {
		if key, _, ok := strings.Cut(pair, "="); !ok || key == "" {
			problems = append(problems, fmt.Errorf("--annotation is %q: want K=V", pair))
		}
	}
	return errors.Join(problems...)
}

// pushed is what -o json prints.
type pushed struct {
	Ref      string `json:"ref"`
	Digest   string `json:"digest"`           // of the manifest
	Pinned   string `json:"pinned"`           // the reference with that digest
	Variant  string `json:"variant"`          //
	Verdict  string `json:"verdict"`          // of the check
	Reason   string `json:"reason,omitempty"` // of the verdict
	Warnings string `json:"warnings,omitempty"`
}

func (a *app) push(ctx context.Context, o *pushOptions, file, rawRef string) error {
	ref, err := pushReference(rawRef)
	if err != nil {
		return usageError{err}
	}
	p := pushed{Ref: "oci://" + ref.Name(), Variant: o.variant}
	if err := a.vouchPush(ctx, o, file, &p); err != nil {
		return err
	}
	annotations := map[string]string{}
	for _, pair := range o.annotations {
		key, value, _ := strings.Cut(pair, "=")
		annotations[key] = value
	}
	image, err := pack.Image(file, pack.Variant(o.variant), annotations)
	if err != nil {
		return err
	}
	client, closeClient, err := newRegistryClient(&o.settings, a.moduleLog(&o.moduleOptions))
	if err != nil {
		return err
	}
	defer closeClient()
	show := a.newProgress(&o.moduleOptions)
	bar := show.start(p.Ref)
	digest, err := client.Push(ctx, ref, nil, image, bar.moved)
	bar.dropped()
	show.wait()
	if err != nil {
		return ended(ctx, err)
	}
	p.Digest, p.Pinned = digest.String(), "oci://"+ref.Context().Name()+"@"+digest.String()
	if o.output == "json" {
		return a.printJSON(p)
	}
	a.say(&o.moduleOptions, "%s: pushed %s", p.Ref, p.Digest)
	return nil
}

// pushReference is the tag to push to.
func pushReference(raw string) (name.Tag, error) {
	ref, err := oci.ParseReference(strings.TrimPrefix(raw, "oci://"))
	if err != nil {
		return name.Tag{}, err
	}
	tag, ok := ref.(name.Tag)
	if !ok {
		return tag, fmt.Errorf("%s names a digest: push to a tag, the digest follows from the content", raw)
	}
	return tag, nil
}

// vouchPush refuses a module that Envoy rejects or dies of, before others can pull it.
func (a *app) vouchPush(ctx context.Context, o *pushOptions, file string, p *pushed) error {
	if _, err := abi.InspectFile(file); err != nil {
		return err
	}
	verdict := abi.Check(ctx, o.host(), file)
	p.Verdict, p.Reason, p.Warnings = verdict.Outcome.String(), verdict.Reason, strings.Join(verdict.Warnings, "; ")
	if verdict.Outcome == abi.Broken && !o.unchecked {
		return fmt.Errorf("%s: Envoy cannot run it: %s (--unchecked pushes it all the same)", file, verdict.Reason)
	}
	for _, text := range slices.Concat(maybe(verdict.Reason), verdict.Warnings) {
		fmt.Fprintf(a.stderr, "%s: warning: %s\n", file, text)
	}
	return nil
}

func maybe(text string) []string {
	if text == "" {
		return nil
	}
	return []string{text}
}

// completeModuleFile completes the file of `push FILE REF`.
func completeModuleFile(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return []string{"wasm"}, cobra.ShellCompDirectiveFilterFileExt
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}
