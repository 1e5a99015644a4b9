package envoytypes

import (
	"flag"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite types.go")

// TestComplete compares the imports with the packages that the modules have: every version 3 message that may stand
// behind an "@type" in a configuration.
func TestComplete(t *testing.T) {
	want := packages(t, "github.com/envoyproxy/go-control-plane/envoy", regexp.MustCompile(`^(config|extensions|type|watchdog)/.*v3(alpha)?$`))
	want = append(want, packages(t, "github.com/cncf/xds/go", regexp.MustCompile(`^(udpa/type|xds/core|xds/type)/.*v(1|3)$`))...)
	slices.Sort(want)
	if len(want) < 300 {
		t.Fatalf("found only %d packages", len(want))
	}
	source, err := os.ReadFile("types.go")
	if err != nil {
		t.Fatal(err)
	}
	head, list, ok := strings.Cut(string(source), "import (\n")
	if !ok {
		t.Fatal("types.go has no import list")
	}
	if *update {
		text := head + "import (\n"
		for _, p := range want {
			text += "\t_ \"" + p + "\"\n"
		}
		if err := os.WriteFile("types.go", []byte(text+")\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	var got []string
	for _, m := range regexp.MustCompile(`_ "([^"]+)"`).FindAllStringSubmatch(list, -1) {
		got = append(got, m[1])
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("types.go differs from the modules (go test -update rewrites it; -want +got):\n%s", diff)
	}
}

// packages are the directories of a module that hold messages and match.
func packages(t *testing.T, module string, match *regexp.Regexp) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		t.Fatal(err)
	}
	root := strings.TrimSpace(string(out))
	var found []string
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(p, ".pb.go") {
			return err
		}
		rel, err := filepath.Rel(root, filepath.Dir(p))
		if rel = filepath.ToSlash(rel); err == nil && match.MatchString(rel) {
			found = append(found, path.Join(module, rel))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(found)
	return slices.Compact(found)
}
