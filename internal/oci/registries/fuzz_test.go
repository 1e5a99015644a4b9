package registries

import (
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// seeds adds the files below testdata with one of the names.
func seeds(f *testing.F, match func(name string) bool) {
	f.Helper()
	n := 0
	err := fs.WalkDir(os.DirFS("testdata"), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !match(path) || strings.HasPrefix(path, "fuzz/") {
			return err
		}
		data, err := os.ReadFile(filepath.Join("testdata", path))
		n++
		f.Add(data)
		return err
	})
	if err != nil || n == 0 {
		f.Fatalf("%d seeds: %v", n, err)
	}
}

var discard = slog.New(slog.DiscardHandler)

// checkSource asks a source that was made from a fuzzed file; whatever it says must be usable.
func checkSource(t *testing.T, s source) {
	for _, i := range []image{newImage("index.docker.io", "library/x"), newImage("example.com", "foo/a/b"), newImage("registry.example.com", "airgapped"), newImage("a.corp.example.com:5000", "x")} {
		for _, byDigest := range []bool{false, true} {
			places, err := s.route(i, byDigest)
			for _, p := range places {
				if err != nil || checkHost(p.host) != nil || p.repository == "" && i.repository != "" && p.root == "" && !p.mirror {
					t.Errorf("route(%v, %t) has %+v, %v", i, byDigest, p, err)
				}
				if strings.Contains(p.repository, "//") || strings.Contains(p.repository, "..") {
					t.Errorf("route(%v, %t) has the repository %q", i, byDigest, p.repository)
				}
			}
			if _, err := s.access(i); err != nil {
				t.Errorf("access(%v): %v", i, err)
			}
		}
	}
}

func FuzzYAML(f *testing.F) {
	seeds(f, func(name string) bool { return strings.HasSuffix(name, ".yaml") })
	f.Fuzz(func(t *testing.T, data []byte) {
		entries, err := parseYAML("own.yaml", data)
		if err != nil {
			return
		}
		checkSource(t, &ownFile{path: "own.yaml", file: constant(t, data, entries)})
	})
}

func FuzzConf(f *testing.F) {
	seeds(f, func(name string) bool { return strings.HasSuffix(name, ".conf") })
	f.Fuzz(func(t *testing.T, data []byte) {
		rules, err := parseConf("r.conf", data, discard)
		if err != nil {
			return
		}
		for _, r := range rules {
			if r.blocked {
				return // it answers with an error
			}
		}
		checkSource(t, &confFile{path: "r.conf", file: constant(t, data, rules)})
	})
}

func FuzzHosts(f *testing.F) {
	seeds(f, func(name string) bool { return strings.HasSuffix(name, ".toml") })
	f.Fuzz(func(t *testing.T, data []byte) {
		conf, err := parseHosts("hosts.toml", data, discard)
		if err != nil {
			return
		}
		for _, h := range append(conf.hosts, conf.server) {
			if h.host != "" && checkHost(h.host) != nil || strings.Contains(h.root, "..") || h.root != "" && h.root[0] != '/' {
				t.Errorf("a host is %+v", h)
			}
			for name, values := range h.access.header {
				if strings.ContainsAny(name+strings.Join(values, ""), "\r\n") {
					t.Errorf("a header has a new line: %q: %q", name, values)
				}
			}
		}
	})
}

// constant is a file with this content and value.
func constant[T any](t *testing.T, data []byte, value T) *file[T] {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	write(t, path, data)
	return newFile(newEnvironment(nil), path, func([]byte) (T, error) { return value, nil })
}
