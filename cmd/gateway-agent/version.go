package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/gateway-agent/gateway-agent/envoy"
)

// version and revision are set at link time; see the Makefile.
var version, revision = "dev", ""

type versions struct {
	Agent  string `json:"agent"`
	Commit string `json:"commit,omitempty"`
	Go     string `json:"go"`
	Envoy  string `json:"envoy,omitempty"`
}

func (a *app) versionCommand() *cobra.Command {
	var output, binary string
	cmd := &cobra.Command{
		Use: "version", Short: "Print the version", Long: versionHelp, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := versions{Agent: version, Commit: commit(), Go: runtime.Version()}
			if binary != "" {
				path, err := envoy.Find(binary)
				if err != nil {
					return err
				}
				found, err := envoy.ReadVersion(cmd.Context(), path)
				if err != nil {
					return err
				}
				v.Envoy = found.String()
			}
			return a.printVersion(v, output)
		},
	}
	outputFlag(cmd, &output)
	cmd.Flags().StringVar(&binary, "envoy", "", "also print the version of this Envoy: a path or a name on PATH")
	return cmd
}

func (a *app) printVersion(v versions, output string) error {
	if output == "json" {
		return json.NewEncoder(a.stdout).Encode(v)
	}
	fmt.Fprintf(a.stdout, "gateway-agent %s (%s)\n", v.Agent, v.Go)
	if v.Envoy != "" {
		fmt.Fprintf(a.stdout, "envoy %s\n", v.Envoy)
	}
	return nil
}

func commit() string {
	if revision != "" {
		return revision
	}
	info, _ := debug.ReadBuildInfo()
	if info == nil {
		return ""
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" {
			return setting.Value
		}
	}
	return ""
}

// outputFlag adds -o text|json.
func outputFlag(cmd *cobra.Command, output *string) {
	cmd.Flags().StringVarP(output, "output", "o", "text", "text or json")
	_ = cmd.RegisterFlagCompletionFunc("output", fixedCompletion("text", "json"))
	inner := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := oneOf("--output", *output, "text", "json"); err != nil {
			return usageError{err}
		}
		return inner(cmd, args)
	}
}
