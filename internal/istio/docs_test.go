package istio

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the table in docs/istio.md")

// TestDocs keeps the table of variables in the documentation.
func TestDocs(t *testing.T) {
	const file, begin, end = "../../docs/istio.md", "<!-- variables: go test ./internal/istio -run Docs -update -->\n", "<!-- /variables -->"
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(data), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", file)
	}
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
	want := before + begin + table.String() + end + after
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(data) != want {
		t.Errorf("%s differs from the table of variables: go test ./internal/istio -run Docs -update", file)
	}
}
