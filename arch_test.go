package gatewayagent

import (
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/gateway-agent/gateway-agent"

// parts are the boxes of the drawing in ARCHITECTURE.md. A part and its sub-packages never import another part.
var parts = []string{"relay", "ecds", "wasmcache", "sds", "bootstrap", "envoy", "standalone", "status", "dns", "policywasm"}

// denied are further edges that must not come to be: who, what, why.
var denied = []struct{ from, to, why string }{
	{"internal", "cmd", "a primitive does not know the command"},
	{"relay", "internal/oci", "the relay knows nothing of modules"},
	{"ecds", "internal/oci", "ecds decides what Envoy gets, not how a module comes"},
	{"ecds", "google.golang.org/grpc", "ecds is a state machine without streams"},
	{"wasmcache/abi", "wasmcache/fetch", "the checker does not know where a module came from"},
	{"wasmcache/fetch", "wasmcache/abi", "fetching does not judge"},
	{"internal/oci", "wasmcache", "the registry client knows nothing of Wasm"},
	{"bootstrap", "os", "bootstrap is a pure function of its settings"},
	{"internal/istio", "os", "what pilot-agent's inputs mean is a mapping without effects"},
}

type goPackage struct {
	dir, doc string
	imports  []string
}

func listPackages(t *testing.T) []goPackage {
	t.Helper()
	format := `{{.ImportPath}}|{{.Doc}}|{{join .Imports ","}}`
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", format, "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var pkgs []goPackage
	for line := range strings.Lines(string(out)) {
		fields := strings.SplitN(strings.TrimSpace(line), "|", 3)
		pkgs = append(pkgs, goPackage{
			dir:     strings.TrimPrefix(strings.TrimPrefix(fields[0], module), "/"),
			doc:     fields[1],
			imports: strings.Split(fields[2], ","),
		})
	}
	return pkgs
}

// within tells whether the import path or directory p is root or below it.
func within(p, root string) bool { return p == root || strings.HasPrefix(p, root+"/") }

func TestPartsDoNotImportEachOther(t *testing.T) {
	for _, pkg := range listPackages(t) {
		own, _, _ := strings.Cut(pkg.dir, "/")
		if !slices.Contains(parts, own) {
			continue
		}
		for _, imported := range pkg.imports {
			target, ok := strings.CutPrefix(imported, module+"/")
			other, _, _ := strings.Cut(target, "/")
			if ok && other != own && slices.Contains(parts, other) {
				t.Errorf("%s imports %s: parts are wired in cmd only", pkg.dir, target)
			}
		}
	}
}

func TestDeniedImports(t *testing.T) {
	pkgs := listPackages(t)
	for _, rule := range denied {
		found := false
		for _, pkg := range pkgs {
			if !within(pkg.dir, rule.from) {
				continue
			}
			found = true
			for _, imported := range pkg.imports {
				if within(imported, path.Join(module, rule.to)) || within(imported, rule.to) && !strings.HasPrefix(rule.to, "internal") {
					t.Errorf("%s imports %s: %s", pkg.dir, imported, rule.why)
				}
			}
		}
		if !found {
			t.Errorf("the rule %q -> %q names a package that does not exist", rule.from, rule.to)
		}
	}
}

func TestEveryPartExistsAndEveryPackageHasAComment(t *testing.T) {
	pkgs := listPackages(t)
	for _, part := range parts {
		if !slices.ContainsFunc(pkgs, func(p goPackage) bool { return p.dir == part }) {
			t.Errorf("no package for the part %s", part)
		}
	}
	for _, pkg := range pkgs {
		if pkg.doc == "" && pkg.dir != "e2e" { // e2e has only test files, whose comment `go list` does not show
			t.Errorf("package %s has no comment", pkg.dir)
		}
	}
}
