package lockfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var (
	a = "sha256:" + strings.Repeat("a", 64)
	b = "sha256:" + strings.Repeat("b", 64)
)

const text = `# Written by 'gateway-agent wasm pull --lockfile'; do not edit. 'wasm pull --frozen' and 'run --lockfile' obey it.
version: 1
modules:
- ref: https://example.com/plugin.wasm
  module: sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb
  size: 7
- ref: oci://ghcr.io/acme/waf:v3
  manifest: sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
  module: sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb
  size: 1234
`

func TestWriteAndRead(t *testing.T) {
	var f File
	f.Put(Entry{Ref: "oci://ghcr.io/acme/waf:v3", Manifest: b, Module: b, Size: 1})
	f.Put(Entry{Ref: "https://example.com/plugin.wasm", Module: b, Size: 7})
	f.Put(Entry{Ref: "oci://ghcr.io/acme/waf:v3", Manifest: a, Module: b, Size: 1234})
	path := filepath.Join(t.TempDir(), "modules.lock")
	if _, err := Read(path); !IsMissing(err) {
		t.Errorf("Read of no file = %v, want one that IsMissing", err)
	}
	if err := f.Write(path); err != nil {
		t.Fatal(err)
	}
	data, _ := os.ReadFile(path)
	if diff := cmp.Diff(text, string(data)); diff != "" {
		t.Errorf("written (-want +got):\n%s", diff)
	}
	got, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(f.Entries(), got.Entries()); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
	if e, ok := got.Find("oci://ghcr.io/acme/waf:v3"); !ok || e.Size != 1234 {
		t.Errorf("Find = %+v, %v", e, ok)
	}
	if _, ok := got.Find("oci://ghcr.io/acme/waf:v4"); ok {
		t.Error("Find finds what is not there")
	}
}

// A file that says the same is left alone, so that make and git see no change; one that cannot be written stays as it was.
func TestWriteChangesOnlyWhatDiffers(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "modules.lock")
	if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
	before, _ := os.Stat(path)
	f, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Write(path); err != nil {
		t.Fatal(err)
	}
	after, _ := os.Stat(path)
	if !os.SameFile(before, after) {
		t.Error("Write replaced a file that says the same")
	}
	f.Put(Entry{Ref: "oci://x/y:z", Module: a, Size: 1})
	if err := f.Write(path); err != nil {
		t.Fatal(err)
	}
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o640 {
		t.Errorf("mode = %v, want it kept", info.Mode())
	}
	if err := f.Write(filepath.Join(dir, "nowhere", "modules.lock")); err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("Write into no directory = %v", err)
	}
}

func TestDiff(t *testing.T) {
	before, after := &File{}, &File{}
	before.Put(Entry{Ref: "same", Module: a, Size: 1})
	after.Put(Entry{Ref: "same", Module: a, Size: 1})
	before.Put(Entry{Ref: "moved", Module: a, Size: 1})
	after.Put(Entry{Ref: "moved", Module: b, Size: 1})
	before.Put(Entry{Ref: "gone", Module: a, Size: 1})
	after.Put(Entry{Ref: "new", Module: a, Size: 1})
	var got []string
	for _, c := range Diff(before, after) {
		sign := map[[2]bool]string{{true, false}: "-", {false, true}: "+", {true, true}: "~"}[[2]bool{c.Old != nil, c.New != nil}]
		got = append(got, sign+c.Ref())
	}
	if diff := cmp.Diff([]string{"-gone", "~moved", "+new"}, got); diff != "" {
		t.Errorf("Diff (-want +got):\n%s", diff)
	}
	clone := before.Clone()
	clone.Keep(func(e Entry) bool { return e.Ref == "same" })
	if clone.Len() != 1 || before.Len() != 3 {
		t.Errorf("Keep on a clone left %d there and %d here", clone.Len(), before.Len())
	}
}

func TestMistakesAreNamedWithTheirLine(t *testing.T) {
	entry := "- ref: oci://r/a:1\n  module: " + a + "\n  size: 1\n"
	for name, test := range map[string]struct{ text, want string }{
		"empty":          {"", "f: empty"},
		"comment":        {"# nothing\n", "f: empty"},
		"not yaml":       {"version: [", "f: not a lockfile"},
		"a list":         {"- 1", "f:1: want version, modules"},
		"newer":          {"version: 2\nmodules: []", "f:1: not version 1"},
		"no modules":     {"version: 1", "modules: want a list"},
		"unknown key":    {"version: 1\nmodule: []", `f:2: unknown key "module"`},
		"twice":          {"version: 1\nversion: 1", "f:2: version comes twice"},
		"conflict":       {"version: 1\nmodules:\n<<<<<<< HEAD\n", "f:3: unresolved merge conflict"},
		"two documents":  {"version: 1\nmodules: []\n---\nversion: 1\n", "one YAML document"},
		"bad digest":     {"version: 1\nmodules:\n" + strings.Replace(entry, "aaaa", "zzzz", 1), "f:4: module: "},
		"no size":        {"version: 1\nmodules:\n- ref: x\n  module: " + a, "f:3: size is missing"},
		"negative size":  {"version: 1\nmodules:\n" + strings.Replace(entry, "size: 1", "size: -1", 1), "want a number of bytes"},
		"no module":      {"version: 1\nmodules:\n- ref: x\n  size: 1", "f:3: module is missing"},
		"no ref":         {"version: 1\nmodules:\n- module: " + a + "\n  size: 1", "f:3: ref is missing"},
		"same ref":       {"version: 1\nmodules:\n" + entry + entry, "f:6: oci://r/a:1 is already in line 3"},
		"alias":          {"version: 1\nmodules:\n- &x {ref: a, module: " + a + ", size: 1}\n- *x", "f:4: want ref"},
		"entry is null":  {"version: 1\nmodules:\n-", "f:3: want ref"},
		"control in ref": {"version: 1\nmodules:\n" + strings.Replace(entry, "oci://r/a:1", `"a\x1b[31m"`, 1), "not printable"},
	} {
		if f, err := Parse("f", []byte(test.text)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: Parse = %v, %v, want %q", name, f, err, test.want)
		}
	}
	_, err := Parse("f", []byte("version: 1\nmodules:\n"+strings.Repeat("- {}\n", 1000)))
	if lines := strings.Count(err.Error(), "\n") + 1; lines > maxProblems {
		t.Errorf("%d problems are told, want at most %d", lines, maxProblems)
	}
	if _, err := Read(t.TempDir()); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("Read of a directory = %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(text))
	f.Add([]byte("version: 1\nmodules: []\n"))
	f.Add([]byte("version: 1\nmodules:\n- {ref: \"a\\u00e9 #: x\", module: " + a + ", size: 9}\n"))
	f.Add([]byte("version: 1\nmodules:\n- ref: 'yes'\n  module: " + a + "\n  size: 0x10\n"))
	f.Add([]byte("version: 1\nmodules:\n- {ref: 'null', module: " + a + ", size: 9}\n"))
	f.Add([]byte("&a [*a]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Parse("f", data)
		if err != nil {
			if file != nil || !strings.HasPrefix(err.Error(), "f:") {
				t.Fatalf("Parse = %v, %v", file, err)
			}
			return
		}
		again, err := Parse("f", file.Marshal())
		if err != nil {
			t.Fatalf("what Marshal wrote cannot be read: %v\n%s", err, file.Marshal())
		}
		if diff := cmp.Diff(file.Entries(), again.Entries()); diff != "" {
			t.Fatalf("read back (-want +got):\n%s", diff)
		}
	})
}
