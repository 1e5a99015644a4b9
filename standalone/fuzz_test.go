package standalone

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/gateway-agent/gateway-agent/standalone/protoyaml"
)

// FuzzLoad: no file makes the loader panic or take long; what is accepted is the same each time, can be read again, and
// every problem names the file.
func FuzzLoad(f *testing.F) {
	seeds, err := filepath.Glob("testdata/ok/*/*")
	if err != nil || len(seeds) == 0 {
		f.Fatalf("no seeds (%v)", err)
	}
	for _, name := range seeds {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, filepath.Ext(name) == ".json")
	}
	f.Add([]byte(okListener), false)
	f.Add([]byte(bomb()[:160]), false)
	f.Add([]byte(`{"static_resources": {"listeners": [{"metadata": {"filter_metadata": {"a": {"b": [1, 1.5, null, true]}}}}]}}`), true)
	f.Fuzz(func(t *testing.T, data []byte, isJSON bool) {
		name := "a.yaml"
		if isJSON {
			name = "a.json"
		}
		start := time.Now()
		files := []file{{name: name, data: data}}
		c := load("/etc/edge", files)
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("load of %d bytes took %v", len(data), took)
		}
		for _, p := range c.problems {
			if p.Reason == "" || p.File == "" && len(c.problems) <= maxProblems {
				t.Errorf("a problem without reason or file: %+v", p)
			}
		}
		if len(c.problems) > 0 {
			return
		}
		one, err := c.snapshot()
		if err != nil {
			t.Fatal(err)
		}
		two, err := load("/etc/edge", files).snapshot()
		if err != nil || one.total() != two.total() {
			t.Errorf("versions %s and %s from the same file (%v)", one.total(), two.total(), err)
		}
		for _, k := range served {
			for name, e := range one[k] {
				bytes, err := proto.Marshal(e.msg)
				if err == nil {
					err = proto.Unmarshal(bytes, e.msg.ProtoReflect().New().Interface())
				}
				if err != nil {
					t.Errorf("%s %s cannot be read again: %v", k, name, err)
				}
			}
		}
	})
}

// TestSizes: a large configuration is loaded in reasonable time, a hostile one is refused in it.
func TestSizes(t *testing.T) {
	item := "- \"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster\n  name: c"
	var large []byte
	large = append(large, okListener...)
	large = append(large, "---\nresources:\n"...)
	for i := range 10000 {
		large = append(large, item...)
		large = append(large, []byte(time.Duration(i).String()+"\n  connect_timeout: 1s\n  type: STATIC\n")...)
	}
	start := time.Now()
	c := load("/etc/edge", []file{{name: "a.yaml", data: large}})
	if err := joined(c.problems); err != nil {
		t.Fatal(err)
	}
	took := time.Since(start)
	t.Logf("10000 clusters, %d KiB: %v", len(large)>>10, took)
	if took > 20*time.Second {
		t.Errorf("10000 clusters took %v", took)
	}
	budget := &protoyaml.Budget{Nodes: 1000}
	if _, errs := protoyaml.Parse("a.yaml", []byte(bomb()), budget); len(errs) != 1 {
		t.Errorf("Parse of a bomb: %v, want one error", errs)
	}
}
