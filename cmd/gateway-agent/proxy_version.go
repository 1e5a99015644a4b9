package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

const pilotVersionHelp = `Version prints this agent's version as pilot-agent prints its own; 'gateway-agent version' says more.`

// pilotVersion is what pilot-agent says of itself, in its names and their order.
type pilotVersion struct {
	Client struct {
		Version string `json:"version"`
		Commit  string `json:"revision"`
		Go      string `json:"golang_version"`
		Status  string `json:"status"`
		Tag     string `json:"tag"`
	} `json:"clientVersion"`
}

// pilotVersionCommand prints this agent's version in the forms of pilot-agent's, which scripts read.
func (a *app) pilotVersionCommand() *cobra.Command {
	var output string
	var short bool
	cmd := &cobra.Command{
		Use: "version", Short: "Print the version", Long: pilotVersionHelp, Args: cobra.ArbitraryArgs,
		FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true},
		RunE: func(*cobra.Command, []string) error {
			if output != "" {
				if err := oneOf("--output", output, "json", "yaml"); err != nil {
					return usageError{err}
				}
			}
			return a.printPilotVersion(output, short)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json or yaml (default: text)")
	cmd.Flags().BoolVarP(&short, "short", "s", false, "the version alone")
	return cmd
}

func (a *app) printPilotVersion(output string, short bool) error {
	var v pilotVersion
	c := &v.Client
	c.Version, c.Commit, c.Go = "gateway-agent-"+version, cmp.Or(commit(), "unknown"), runtime.Version()
	c.Status, c.Tag = "Clean", version
	var text []byte
	var err error
	switch {
	case output == "json":
		text, err = json.MarshalIndent(v, "", "  ")
	case output == "yaml":
		text, err = yaml.Marshal(v)
	case short:
		text = []byte("client version: " + c.Version)
	default:
		text = fmt.Appendf(nil, "client version: version.BuildInfo{Version:%q, GitRevision:%q, GolangVersion:%q, BuildStatus:%q, GitTag:%q}",
			c.Version, c.Commit, c.Go, c.Status, c.Tag)
	}
	if err != nil {
		return fmt.Errorf("version: %w", err)
	}
	_, err = fmt.Fprintf(a.stdout, "%s\n", text)
	return err
}
