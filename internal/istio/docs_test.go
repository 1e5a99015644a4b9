package istio

import (
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/gateway-agent/gateway-agent/internal/doctable"
)

var update = flag.Bool("update", false, "rewrite the table in docs/istio.md")

// TestDocs keeps the table of variables in the documentation.
func TestDocs(t *testing.T) {
	var table strings.Builder
	table.WriteString("| variable | what it does here |\n|---|---|\n")
	for _, v := range Variables {
		meaning := v.Meaning
		if v.Ignored {
			meaning = "*ignored*: " + meaning
		}
		fmt.Fprintf(&table, "| `%s` | %s |\n", v.Name, meaning)
	}
	fmt.Fprintf(&table, "| %d more, in [others.txt](../internal/istio/others.txt) | *ignored*: settings of istiod's and istio-iptables', which pilot-agent knows and makes no use of at a gateway |\n",
		len(strings.Fields(otherPrograms)))
	doctable.Check(t, "../../docs/istio.md", "variables", table.String(), *update)
}
