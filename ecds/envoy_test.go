package ecds

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"
)

// TestRealEnvoyTakesWhatIsBuilt has the real Envoy judge the policy filters and the converted forms.
func TestRealEnvoyTakesWhatIsBuilt(t *testing.T) {
	bin, err := filepath.Abs("../.tools/envoy")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(bin); err != nil {
		t.Fatalf("no Envoy at %s: run make tools", bin)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "m.wasm")
	if err := os.WriteFile(path, minimal, 0o644); err != nil {
		t.Fatal(err)
	}
	var http, network []*anypb.Any
	add := func(kind string, body *anypb.Any, err error) {
		if err != nil {
			t.Fatal(err)
		}
		ext := &corev3.TypedExtensionConfig{}
		if err := body.UnmarshalTo(ext); err != nil {
			t.Fatal(err)
		}
		if kind == kindHTTP {
			http = append(http, ext.TypedConfig)
		} else {
			network = append(network, ext.TypedConfig)
		}
	}
	for _, kind := range []string{kindHTTP, kindNetwork} {
		for _, allow := range []bool{true, false} {
			for _, allowed := range [][]string{nil, {httpWasm, netWasm}} {
				body, err := policy{name: "p", kind: kind, allow: allow, allowed: allowed}.filter(func(bool) (string, error) { return path, nil })
				add(kind, body, err)
			}
		}
		for _, form := range forms {
			for salt := range 2 {
				b, err := parse(form.wrap(t, spec{name: "p", uri: "oci://r/i", sha: "nil", config: "x", network: kind == kindNetwork, env: map[string]string{versionKey: "1", "A": "1"}}))
				if err != nil {
					t.Fatal(err)
				}
				body, err := b.build(path, salt)
				add(kind, body, err)
			}
		}
	}
	config := fmt.Sprintf(`{"static_resources":{"listeners":[{"name":"l","address":{"socket_address":{"address":"127.0.0.1","port_value":0}},
		"filter_chains":[{"filters":[%s{"name":"hcm","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
		"stat_prefix":"x","route_config":{},"http_filters":[%s{"name":"router","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}]}}]}]}]}}`,
		filters(t, network), filters(t, http))
	file := filepath.Join(dir, "envoy.json")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), bin, "--mode", "validate", "-c", file, "-l", "warning").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func filters(t *testing.T, typed []*anypb.Any) (out string) {
	t.Helper()
	for i, f := range typed {
		out += fmt.Sprintf(`{"name":"f%d","typed_config":%s},`, i, must(protojson.Marshal(f)))
	}
	return out
}

// minimal is a module that Envoy takes: a memory, malloc and the ABI marker.
var minimal = wasm(
	section(1, 2, "\x60\x00\x00", "\x60\x01\x7f\x01\x7f"), // ()->(), (i32)->i32
	section(3, 2, "\x00", "\x01"),
	section(5, 1, "\x00\x01"),
	section(7, 3, export("memory", 2, 0), export("proxy_abi_version_0_2_1", 0, 0), export("malloc", 0, 1)),
	section(10, 2, "\x02\x00\x0b", "\x04\x00\x41\x00\x0b"),
)

func wasm(sections ...string) []byte {
	out := "\x00asm\x01\x00\x00\x00"
	for _, s := range sections {
		out += s
	}
	return []byte(out)
}

func section(id, n byte, items ...string) string {
	body := string([]byte{n})
	for _, i := range items {
		body += i
	}
	return string([]byte{id, byte(len(body))}) + body
}

func export(name string, kind, index byte) string {
	return string([]byte{byte(len(name))}) + name + string([]byte{kind, index})
}
