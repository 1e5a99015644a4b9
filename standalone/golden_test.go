package standalone

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/gateway-agent/gateway-agent/standalone/protoyaml"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestGolden loads each directory of testdata/ok and compares what would be served with its golden file.
func TestGolden(t *testing.T) {
	dirs, err := filepath.Glob("testdata/ok/*[^n]")
	if err != nil || len(dirs) < 5 {
		t.Fatalf("testdata/ok has %d directories (%v), want at least 5", len(dirs), err)
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			c := mustLoad(t, dir)
			got := render(t, c)
			golden := dir + ".golden"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("load(%s) differs from %s (-want +got):\n%s", dir, golden, diff)
			}
			if again := render(t, mustLoad(t, dir)); again != got {
				t.Errorf("load(%s) twice gave different results:\n%s", dir, cmp.Diff(got, again))
			}
		})
	}
}

// loadDir loads a directory as if it were at /etc/edge.
func loadDir(t testing.TB, dir string) *config {
	t.Helper()
	c, err := readDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return load("/etc/edge", c.files)
}

func mustLoad(t testing.TB, dir string) *config {
	t.Helper()
	c := loadDir(t, dir)
	if err := joined(c.problems); err != nil {
		t.Fatalf("load(%s): %v", dir, err)
	}
	return c
}

// render is the served resources, the secrets and the warnings as text.
func render(t testing.TB, c *config) string {
	t.Helper()
	s, err := c.snapshot()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, w := range c.warnings {
		fmt.Fprintln(&b, "warning:", w.Error())
	}
	for _, k := range served {
		for _, name := range slices.Sorted(maps.Keys(s[k])) {
			e := s[k][name]
			fmt.Fprintf(&b, "--- %s %s (%s:%d)\n%s\n", k, name, e.file, e.line, renderMessage(t, e.msg))
		}
	}
	for _, m := range c.secrets() {
		fmt.Fprintf(&b, "--- secret %s\n%s\n", m.GetName(), renderMessage(t, m))
	}
	return b.String()
}

func renderMessage(t testing.TB, m proto.Message) string {
	t.Helper()
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := json.Indent(&b, text, "", "  "); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// write makes a directory with the given files.
func write(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		put(t, dir, name, text)
	}
	return dir
}

func put(t testing.TB, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func nodeAt(line int) *protoyaml.Node { return &protoyaml.Node{File: "/etc/edge/a.yaml", Line: line} }
