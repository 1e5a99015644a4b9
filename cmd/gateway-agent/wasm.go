package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gateway-agent/gateway-agent/wasmcache/abi"
	"github.com/gateway-agent/gateway-agent/wasmcache/fetch"
)

func (a *app) wasmCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "wasm", Short: "Work with Wasm modules and their store", Long: wasmHelp, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.pullCommand(), a.listCommand(), a.inspectCommand(), a.pushCommand(), a.exportCommand(), a.importCommand(),
		a.verifyCommand(), a.pruneCommand())
	for _, child := range cmd.Commands() {
		child.RunE = a.checked(child.RunE)
	}
	return cmd
}

// moduleOptions are what every command under `wasm` can be told.
type moduleOptions struct {
	settings

	output       string
	quiet        bool
	envoyVersion string
	from         string
	frozen       bool
	parallel     int
}

// flags adds what all commands under `wasm` share.
func (o *moduleOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVarP(&o.quiet, "quiet", "q", false, "say nothing but errors")
	outputFlag(cmd, &o.output)
	f.StringVar(&o.configFile, "config", "", "YAML file with these flags as keys")
	o.logFlags(f)
	o.logLevel, f.Lookup("log-level").DefValue = "warn", "warn" // the lines and bars say it already
	f.Lookup("log-level").Usage = "debug, info, warn or error"
	_ = cmd.RegisterFlagCompletionFunc("log-level", fixedCompletion("debug", "info", "warn", "error"))
	_ = cmd.RegisterFlagCompletionFunc("log-format", fixedCompletion("text", "json"))
}

// checkFlag adds --envoy-version.
func (o *moduleOptions) checkFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.envoyVersion, "envoy-version", "", "check the modules for this Envoy, as 1.40.0 (default: only what every Envoy needs)")
}

// bringFlags adds the flags of the commands that bring modules into the store.
func (o *moduleOptions) bringFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	o.dataDirFlag(f)
	o.storeFlags(f)
	o.checkFlag(cmd)
	f.IntVar(&o.parallel, "parallel", 4, "modules at the same time")
	_ = cmd.RegisterFlagCompletionFunc("wasm-unvouched", fixedCompletion("warn", "refuse"))
	_ = cmd.MarkFlagDirname("data-dir")
}

// settle applies environment and config file and checks what all commands under `wasm` share; problems are the command's own.
func (a *app) settleModules(cmd *cobra.Command, o *moduleOptions, problems ...error) error {
	if err := apply(cmd.Flags(), o.configFile, a.env); err != nil {
		return usageError{err}
	}
	o.completeDirs(a.env)
	problems = append(problems,
		o.completeStore(a.env),
		oneOf("--log-level", o.logLevel, "debug", "info", "warn", "error"),
		oneOf("--log-format", o.logFormat, "text", "json"),
	)
	if cmd.Flags().Lookup("parallel") != nil && o.parallel < 1 {
		problems = append(problems, errors.New("--parallel is at least 1"))
	}
	if _, ok := abi.HostForVersion(o.envoyVersion); o.envoyVersion != "" && !ok {
		problems = append(problems, fmt.Errorf("--envoy-version is %q: want a version as 1.40.0", o.envoyVersion))
	}
	if err := errors.Join(problems...); err != nil {
		return usageError{err}
	}
	return nil
}

func (o *moduleOptions) host() abi.Host {
	host, _ := abi.HostForVersion(o.envoyVersion) // checked when settled
	return host
}

func (a *app) moduleLog(o *moduleOptions) *slog.Logger {
	log, _ := newLogger(a.stderr, &o.settings)
	return log
}

// openForLook opens the store; nil when there is none: commands that only look do not make one. A store that this user may not look at is an
// error, not an empty one.
func (o *moduleOptions) openForLook(log *slog.Logger) (*openedStore, error) {
	info, err := os.Stat(o.wasmDir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("look for a module store: %w: name another --data-dir or --wasm-dir, or be the user whose it is", err)
	case !info.IsDir():
		return nil, fmt.Errorf("look for a module store: %s is not a directory: name another --data-dir", o.wasmDir)
	}
	return openStore(&o.settings, log)
}

// printJSON writes one document for scripts.
func (a *app) printJSON(v any) error {
	encoder := json.NewEncoder(a.stdout)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(v)
}

// say writes a line for people, unless they want none.
func (a *app) say(o *moduleOptions, format string, args ...any) {
	if !o.quiet && o.output != "json" {
		fmt.Fprintf(a.stdout, format+"\n", args...)
	}
}

// interrupted turns what happened after Ctrl-C or SIGTERM into one line.
func interrupted(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return errors.New("interrupted: what was complete is kept, nothing is left half")
}

// ended is err, unless it only says that the command was interrupted.
func ended(ctx context.Context, err error) error {
	if cut := interrupted(ctx); cut != nil {
		return cut
	}
	return err
}

// storeKey is the form of a reference in which it can be compared and shown: complete, and without credentials.
func storeKey(url string) (string, error) {
	ref, err := fetch.Parse(url)
	if err != nil {
		return "", err
	}
	if key := ref.Key(); strings.HasPrefix(key, "oci://") || ref.Local() {
		return key, nil
	}
	return ref.String(), nil
}

// size is a number of bytes for people.
func size(n int64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}
