// Package doctable keeps tables of the documentation in step with the code that they are about.
package doctable

import (
	"os"
	"strings"
	"testing"
)

// Check compares a table with the one that a Markdown file has between <!-- name: command --> and <!-- /name -->, each on a line of its own.
// With rewrite it is put there instead; command is how that is done.
func Check(t testing.TB, file, name, table string, rewrite bool) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(data), "<!-- "+name+": ")
	command, rest, ok2 := strings.Cut(rest, " -->\n")
	end := "<!-- /" + name + " -->\n"
	_, after, ok3 := strings.Cut(rest, end)
	if !ok || !ok2 || !ok3 {
		t.Fatalf("%s has no place for the table %s", file, name)
	}
	want := before + "<!-- " + name + ": " + command + " -->\n" + table + end + after
	switch {
	case string(data) == want:
	case rewrite:
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s differs from the table %s: %s", file, name, command)
	}
}
