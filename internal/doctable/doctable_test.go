package doctable

import (
	"os"
	"path/filepath"
	"testing"
)

// witness is a test that may fail.
type witness struct {
	testing.TB
	failed bool
}

func (w *witness) Helper()               {}
func (w *witness) Errorf(string, ...any) { w.failed = true }

func TestCheck(t *testing.T) {
	const page = "text\n<!-- x: make x -->\n| old |\n<!-- /x -->\nmore\n<!-- y: make y -->\n<!-- /y -->\n"
	file := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(file, []byte(page), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		table   string
		rewrite bool
		fails   bool
		want    string
	}{
		{"| old |\n", false, false, page},
		{"| new |\n", false, true, page},
		{"| new |\n", true, false, "text\n<!-- x: make x -->\n| new |\n<!-- /x -->\nmore\n<!-- y: make y -->\n<!-- /y -->\n"},
	} {
		w := &witness{TB: t}
		Check(w, file, "x", step.table, step.rewrite)
		got, err := os.ReadFile(file)
		if err != nil || string(got) != step.want || w.failed != step.fails {
			t.Errorf("Check(%q, rewrite %v) failed %v, the page is %q, %v; want failed %v, %q", step.table, step.rewrite, w.failed, got, err, step.fails, step.want)
		}
	}
}
