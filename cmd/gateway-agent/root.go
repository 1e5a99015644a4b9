package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// usageError is a mistake in how the command was called: exit code 2.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// quietError ends the command with an exit code after it has told its story itself.
type quietError struct{ code int }

func (e quietError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

// app is what every command needs of the outside world.
type app struct {
	args           []string
	env            environment
	stdout, stderr io.Writer
}

// run executes one command line and returns the exit code: 0 done or asked to stop, 2 bad usage, 1 anything else.
func run(ctx context.Context, args, env []string, stdout, stderr io.Writer) int {
	a := &app{args: args, env: newEnvironment(env), stdout: stdout, stderr: stderr}
	root := a.rootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	if quiet, ok := errors.AsType[quietError](err); ok {
		return quiet.code
	}
	fmt.Fprintf(stderr, "gateway-agent: %v\n", err)
	if _, ok := errors.AsType[usageError](err); ok {
		fmt.Fprintf(stderr, "See 'gateway-agent --help'.\n")
		return 2
	}
	return 1
}

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:               "gateway-agent",
		Short:             "Runs beside Envoy on a gateway: configuration, Wasm modules, certificates, life and death",
		Long:              rootHelp,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: false},
		Args:              cobra.NoArgs,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%s: %w", cmd.CommandPath(), err)}
	})
	root.AddCommand(a.runCommand(), a.validateCommand(), a.bootstrapCommand(), a.wasmCommand(), a.statusCommand(), a.versionCommand(),
		a.proxyCommand(), a.requestCommand(), a.waitCommand(), a.pilotAgentCommand())
	for _, cmd := range all(root) {
		if check := cmd.Args; check != nil {
			cmd.Args = func(cmd *cobra.Command, args []string) error {
				if err := check(cmd, args); err != nil {
					return usageError{fmt.Errorf("%s: %w", cmd.CommandPath(), err)}
				}
				return nil
			}
		}
	}
	return root
}

func all(cmd *cobra.Command) []*cobra.Command {
	cmds := []*cobra.Command{cmd}
	for _, child := range cmd.Commands() {
		cmds = append(cmds, all(child)...)
	}
	return cmds
}

// settle applies environment and config file to a command's flags, then completes and checks the settings.
func (a *app) settle(cmd *cobra.Command, s *settings) error {
	if err := apply(cmd.Flags(), s.configFile, a.env); err != nil {
		return usageError{err}
	}
	if err := s.complete(a.env); err != nil {
		return usageError{err}
	}
	return nil
}

func noFileCompletion(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveNoFileComp
}

func fixedCompletion(values ...string) func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return values, cobra.ShellCompDirectiveNoFileComp
	}
}
