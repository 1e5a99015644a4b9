package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gateway-agent/gateway-agent/internal/istio"
)

// drainPatience is how long requests in flight may take to end after the delay.
const drainPatience = 5 * time.Second

// agentShare: Istio's template gives the Go process the whole container's memory for its own, which Envoy shares.
const agentShare = 4

// pilotAgent is the program whose place the agent takes in an Istio gateway; called by this name it has only that program's commands.
const pilotAgent = "pilot-agent"

// pilotAgentCommand has pilot-agent's commands under its name.
func (a *app) pilotAgentCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: pilotAgent, Short: "The commands of Istio's pilot-agent", Long: pilotAgentHelp, Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && args[0] != "help" {
				return usageError{fmt.Errorf("%s %s: this agent has no such command; it has proxy, request, wait and version", pilotAgent, args[0])}
			}
			return cmd.Help()
		},
		FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true},
	}
	cmd.AddCommand(a.proxyCommand(), a.requestCommand(), a.waitCommand(), a.pilotVersionCommand())
	return cmd
}

// proxyCall is one call of `proxy`.
type proxyCall struct {
	settings *settings
	args     istio.Args
	dryRun   bool
	run      *pflag.FlagSet // the flags of `run`
	all      *pflag.FlagSet // these and pilot-agent's
}

func newProxyCall(cmd *cobra.Command) *proxyCall {
	p := &proxyCall{settings: &settings{}, all: cmd.Flags()}
	p.all.SortFlags = false
	p.args.Flags(p.all)
	p.all.BoolVar(&p.dryRun, "dry-run", false, "print the equivalent 'gateway-agent run' and what is ignored, and end")
	inner := &cobra.Command{}
	runFlags(inner, p.settings)
	p.run = inner.Flags()
	p.run.VisitAll(func(flag *pflag.Flag) {
		if p.all.Lookup(flag.Name) == nil { // --concurrency is the same in both
			p.all.AddFlag(flag)
			flag.Hidden = true
		}
	})
	return p
}

func (a *app) proxyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "proxy router", Short: "Run as the gateway of an Istio mesh, in pilot-agent's place", Long: proxyHelp, Example: proxyExample,
		// As pilot-agent: a flag that only a newer or an older one knows must not keep a gateway from starting.
		FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true},
	}
	call := newProxyCall(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.proxy(cmd.Context(), call, args)
	}
	return cmd
}

// proxy turns what pilot-agent would be told into settings, and runs.
func (a *app) proxy(ctx context.Context, call *proxyCall, positional []string) error {
	input, err := a.istioInput(ctx, call.args, positional)
	if err != nil {
		return err
	}
	mapped, warnings, err := istio.Map(input)
	if err != nil {
		return usageError{err}
	}
	warnings = append(unknownFlags(a.args, call.all), warnings...)
	moved, err := call.merge(mapped, input.Dir, a.env)
	if err != nil {
		return usageError{err}
	}
	warnings = append(warnings, moved...)
	if call.dryRun {
		return a.printProxy(call, warnings)
	}
	if a.env["GOMEMLIMIT"] != "" {
		debug.SetMemoryLimit(debug.SetMemoryLimit(-1) / agentShare)
	}
	log, _ := newLogger(a.stderr, call.settings)
	for _, warning := range warnings {
		log.Warn("istio setting", "note", warning)
	}
	return a.run(ctx, call.settings)
}

// merge lays what the agent was told in its own terms over the mapping: the command line, GATEWAY_AGENT_ variables, a --config file. The
// warnings say what the pod does not allow.
func (p *proxyCall) merge(mapped istio.Settings, dir string, env environment) ([]string, error) {
	var given []func() error
	p.run.VisitAll(func(flag *pflag.Flag) {
		if !flag.Changed {
			return
		}
		if list, ok := flag.Value.(pflag.SliceValue); ok {
			values := slices.Clone(list.GetSlice())
			given = append(given, func() error { return list.Replace(values) })
			return
		}
		value := flag.Value.String()
		given = append(given, func() error { return flag.Value.Set(value) })
	})
	fromIstio(p.settings, mapped)
	p.settings.identityFiles = mountedFiles(mapped, dir)
	var problems []error
	for _, set := range given {
		problems = append(problems, set())
	}
	problems = append(problems, apply(p.run, p.settings.configFile, env))
	p.fitDrain()
	warnings := p.fitPlaces()
	return warnings, errors.Join(append(problems, p.settings.complete(env))...)
}

// fitDrain keeps the patience with requests in flight when somebody chose another delay, and no deadline.
func (p *proxyCall) fitDrain() {
	s := p.settings
	if p.run.Changed("drain-delay") && !p.run.Changed("drain-timeout") {
		s.drainTimeout = max(s.drainTimeout, s.drainDelay+drainPatience)
	}
}

// fitPlaces does without the mounts that pilot-agent can do without, where nobody chose a place.
func (p *proxyCall) fitPlaces() (warnings []string) {
	s := p.settings
	if !p.run.Changed("data-dir") && !writable(s.dataDir) {
		instead := filepath.Join(s.runDir, "data")
		warnings = append(warnings, fmt.Sprintf("%s cannot be written to: modules and the certificate are kept in %s, which may be memory: mount an emptyDir",
			s.dataDir, instead))
		s.dataDir = instead
	}
	if dir := filepath.Dir(s.sdsSocket); !p.run.Changed("sds-socket") && !writable(dir) {
		warnings = append(warnings, fmt.Sprintf("%s cannot be written to: Envoy gets its certificates on %s instead: mount an emptyDir", dir, s.xdsSocket))
		s.sdsSocket = s.xdsSocket
	}
	return warnings
}

// unknownFlags tells of flags that were skipped. A value that looks like one is told too; that does no harm.
func unknownFlags(args []string, known *pflag.FlagSet) []string {
	var warnings []string
	for _, arg := range args {
		name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if !strings.HasPrefix(arg, "-") || isNumber(arg) || name == "" || name == "help" || name == "h" || known.Lookup(name) != nil {
			continue
		}
		if text := arg[:strings.Index(arg, name)] + name + " is ignored: this agent does not know it"; !slices.Contains(warnings, text) {
			warnings = append(warnings, text)
		}
	}
	return warnings
}

// isNumber tells a negative number, which is a flag's value, from a flag.
func isNumber(arg string) bool {
	_, err := strconv.ParseFloat(arg, 64)
	return err == nil
}

// printProxy shows the settings as the command line of `run` that means the same.
func (a *app) printProxy(call *proxyCall, warnings []string) error {
	var out strings.Builder
	out.WriteString("gateway-agent run")
	call.run.VisitAll(func(flag *pflag.Flag) {
		for _, value := range nonDefault(flag) {
			if name, _, ok := strings.Cut(value, "="); ok && strings.HasSuffix(flag.Name, "-header") && name != "ClusterID" {
				value = name + "=…" // it may be a secret
			}
			fmt.Fprintf(&out, " \\\n  --%s=%s", flag.Name, shellQuote(value))
		}
	})
	out.WriteString("\n# besides, without flags:\n")
	for _, text := range call.settings.unflagged() {
		fmt.Fprintf(&out, "#   %s\n", text)
	}
	for _, warning := range warnings {
		fmt.Fprintf(&out, "# %s\n", strings.Join(strings.Fields(warning), " "))
	}
	_, err := io.WriteString(a.stdout, out.String())
	return err
}

func nonDefault(flag *pflag.Flag) []string {
	if list, ok := flag.Value.(pflag.SliceValue); ok {
		return list.GetSlice()
	}
	if value := flag.Value.String(); value != flag.DefValue {
		return []string{value}
	}
	return nil
}

func shellQuote(text string) string {
	plain := func(r rune) bool {
		return r == '-' || r == '.' || r == '/' || r == ':' || r == '_' || r == '=' || r == ',' || r == '~' ||
			'0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
	}
	if text != "" && strings.IndexFunc(text, func(r rune) bool { return !plain(r) }) < 0 && text[0] != '~' {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
