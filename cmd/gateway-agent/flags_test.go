package main

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TestFlagsPage keeps docs/flags.md in step with the commands; -update rewrites it.
func TestFlagsPage(t *testing.T) {
	const path = "../../docs/flags.md"
	page := flagsPage((&app{env: environment{}}).rootCommand())
	if *update {
		if err := os.WriteFile(path, page, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(page), string(have)); diff != "" {
		t.Errorf("%s is not what the commands say (-commands +page); 'go test ./cmd/gateway-agent -run FlagsPage -update' rewrites it:\n%s", path, diff)
	}
}

func flagsPage(root *cobra.Command) []byte {
	var page bytes.Buffer
	page.WriteString("# Flags\n\nWritten from the commands by `go test ./cmd/gateway-agent -run FlagsPage -update`.\n\n" +
		"Each flag is also a key of the `--config` file (`xds-address:`) and a variable of the environment (`GATEWAY_AGENT_XDS_ADDRESS`): a flag wins over\n" +
		"the environment, which wins over the file. A flag that may be repeated is a list in the file, and one value in the environment.\n")
	commands := all(root)
	slices.SortStableFunc(commands, func(a, b *cobra.Command) int { return order(a) - order(b) })
	told := map[string]bool{}
	for _, command := range commands {
		if !hidden(command) && command.Runnable() && command.HasAvailableLocalFlags() {
			writeFlags(&page, command, told)
		}
	}
	return page.Bytes()
}

func hidden(command *cobra.Command) bool {
	return command.Hidden || command.HasParent() && hidden(command.Parent())
}

// order puts `run` first, since it has most of the others' flags.
func order(command *cobra.Command) int {
	if command.Name() == "run" {
		return 0
	}
	return 1
}

// writeFlags writes a table of the flags that no earlier command had, and the names of the others.
func writeFlags(page *bytes.Buffer, command *cobra.Command, told map[string]bool) {
	var table, others strings.Builder
	command.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		text := f.Name + "\n" + f.Usage
		if told[text] {
			fmt.Fprintf(&others, " `--%s`", f.Name)
			return
		}
		told[text] = true
		value, meaning := pflag.UnquoteUsage(f)
		fmt.Fprintf(&table, "| `%s` | %s | %s |\n", strings.TrimSpace("--"+f.Name+" "+value), defaultText(f), strings.ReplaceAll(meaning, "|", `\|`))
	})
	if table.Len()+others.Len() == 0 {
		return
	}
	fmt.Fprintf(page, "\n## `%s`\n\n%s.\n", command.UseLine(), command.Short)
	if table.Len() > 0 {
		fmt.Fprintf(page, "\n| flag | default | meaning |\n|---|---|---|\n%s", table.String())
	}
	if others.Len() > 0 {
		fmt.Fprintf(page, "\nAs above:%s\n", others.String())
	}
}

func defaultText(f *pflag.Flag) string {
	switch f.DefValue {
	case "", "[]", "0", "0s", "false":
		return ""
	}
	return "`" + f.DefValue + "`"
}
