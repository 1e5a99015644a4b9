package ecds

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	udpav1 "github.com/cncf/xds/go/udpa/type/v1"
	xdsv3 "github.com/cncf/xds/go/xds/type/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	httpwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
)

func TestReference(t *testing.T) {
	abs := must(filepath.Abs("rel/m.wasm"))
	env := func(kv ...string) map[string]string {
		m := map[string]string{}
		for i := 0; i < len(kv); i += 2 {
			m[kv[i]] = kv[i+1]
		}
		return m
	}
	for _, c := range []struct {
		name string
		spec spec
		want Reference
	}{
		{"plain", spec{uri: "oci://r/i:1"}, Reference{URL: "oci://r/i:1"}},
		{"no scheme", spec{uri: "r:5000/i:1"}, Reference{URL: "oci://r:5000/i:1"}},
		{"http", spec{uri: "https://r/i.wasm:latest", sha: "ab"}, Reference{URL: "https://r/i.wasm:latest", SHA256: "ab"}},
		{"nil checksum", spec{uri: "oci://r/i:1", sha: "nil"}, Reference{URL: "oci://r/i:1"}},
		{"latest", spec{uri: "oci://r/i:latest"}, Reference{URL: "oci://r/i:latest", Always: true}},
		{"latest, not always", spec{uri: "oci://r/i:latest", env: env(policyKey, "IfNotPresent")}, Reference{URL: "oci://r/i:latest"}},
		{"no tag", spec{uri: "oci://r/i"}, Reference{URL: "oci://r/i"}},
		{"always", spec{uri: "oci://r/i:1", env: env(policyKey, "Always", versionKey, "12")}, Reference{URL: "oci://r/i:1", Always: true, ResourceVersion: "12"}},
		{"unspecified", spec{uri: "oci://r/i:latest", env: env(policyKey, "UNSPECIFIED_POLICY")}, Reference{URL: "oci://r/i:latest", Always: true}},
		{"secret", spec{uri: "oci://r/i:1", env: env(secretKey, "{}\n")}, Reference{URL: "oci://r/i:1", PullSecret: []byte("{}\n")}},
		{"file", spec{file: "/a b/m.wasm"}, Reference{URL: "file:///a%20b/m.wasm"}},
		{"relative file", spec{file: "rel/m.wasm"}, Reference{URL: "file://" + abs}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.spec.name, c.want.Resource = "p", "p"
			b, err := parse(c.spec.res())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, *b.ref, protocmp.Transform()); diff != "" {
				t.Errorf("reference:\n%s", diff)
			}
		})
	}
}

func TestReferenceTimeout(t *testing.T) {
	s := spec{name: "p", uri: "oci://r/i"}
	w := &httpwasmv3.Wasm{Config: s.plugin()}
	w.Config.GetVmConfig().Code.GetRemote().HttpUri.Timeout = durationpb.New(7 * time.Second)
	b, err := parse(envelope("p", "", must(anypb.New(w))))
	if err != nil || b.ref.Timeout != 7*time.Second {
		t.Errorf("timeout %v, %v", b.ref.Timeout, err)
	}
}

func TestReferenceIsLoggedWithoutSecrets(t *testing.T) {
	var out bytes.Buffer
	ref := Reference{Resource: "p", URL: "https://user:hunter2@r/m.wasm?token=hunter2", PullSecret: []byte("hunter2")}
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "ref", ref)
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "ref", &ref)
	fmt.Fprintf(&out, "%v %+v %s %#v", ref, ref, ref, ref)
	if strings.Contains(out.String(), "hunter2") || !strings.Contains(out.String(), "https://r/m.wasm") {
		t.Errorf("logged: %s", out.String())
	}
}

// rich is a plugin with everything set, also fields this program knows nothing of.
func rich() *httpwasmv3.Wasm {
	s := spec{
		name: "p", uri: "oci://r/v1", config: "c", sha: "ab", hostEnv: []string{"HOME"}, policy: wasmv3.FailurePolicy_FAIL_RELOAD,
		env: map[string]string{"A": "1", "B": "2", secretKey: "s3cret", policyKey: "Always", versionKey: "1", controlKey + "NEW": "x"},
	}
	cfg := s.plugin()
	cfg.RootId = "root"
	cfg.CapabilityRestrictionConfig = &wasmv3.CapabilityRestrictionConfig{AllowedCapabilities: map[string]*wasmv3.SanitizationConfig{"proxy_log": {}, "fd_write": {}}}
	vm := cfg.GetVmConfig()
	vm.VmId, vm.AllowPrecompiled, vm.NackOnCodeCacheMiss = "vm", true, true
	unknown := protowire.AppendString(protowire.AppendTag(nil, 999, protowire.BytesType), "from the future")
	w := &httpwasmv3.Wasm{Config: cfg}
	for _, m := range []proto.Message{w, cfg, vm, vm.Code, vm.EnvironmentVariables} {
		m.ProtoReflect().SetUnknown(unknown)
	}
	return w
}

// neutral is w without what conversion is there to change.
func neutral(w *httpwasmv3.Wasm) *httpwasmv3.Wasm {
	w = proto.CloneOf(w)
	vm := w.GetConfig().GetVmConfig()
	if vm.GetCode() != nil {
		vm.Code.Specifier = nil
	}
	env := vm.GetEnvironmentVariables()
	for k := range env.GetKeyValues() {
		if strings.HasPrefix(k, controlKey) {
			delete(env.KeyValues, k)
		}
	}
	if env != nil && len(env.KeyValues) == 0 && len(env.HostEnvKeys) == 0 && len(env.ProtoReflect().GetUnknown()) == 0 {
		vm.EnvironmentVariables = nil
	}
	return w
}

func TestConversionKeepsTheRest(t *testing.T) {
	in := rich()
	res := envelope("p", "1", &anypb.Any{TypeUrl: "example.com/" + httpWasm, Value: must(proto.Marshal(in))})
	ext := &corev3.TypedExtensionConfig{}
	if err := res.Resource.UnmarshalTo(ext); err != nil {
		t.Fatal(err)
	}
	ext.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 7))
	res.Resource = must(anypb.New(ext))
	b, err := parse(res)
	if err != nil {
		t.Fatal(err)
	}
	body, err := b.build("/store/m", 0)
	if err != nil {
		t.Fatal(err)
	}
	out, got := &corev3.TypedExtensionConfig{}, &httpwasmv3.Wasm{}
	if err := body.UnmarshalTo(out); err != nil {
		t.Fatal(err)
	}
	if out.TypedConfig.TypeUrl != "example.com/"+httpWasm || !bytes.Equal(out.ProtoReflect().GetUnknown(), ext.ProtoReflect().GetUnknown()) {
		t.Errorf("envelope changed: %v", out)
	}
	if err := proto.Unmarshal(out.TypedConfig.Value, got); err != nil {
		t.Fatal(err)
	}
	if f := got.GetConfig().GetVmConfig().GetCode().GetLocal().GetFilename(); f != "/store/m" {
		t.Errorf("filename %q", f)
	}
	want := map[string]string{"A": "1", "B": "2"}
	if diff := cmp.Diff(want, got.GetConfig().GetVmConfig().GetEnvironmentVariables().GetKeyValues()); diff != "" {
		t.Errorf("environment:\n%s", diff)
	}
	if diff := cmp.Diff(neutral(in), neutral(got), protocmp.Transform()); diff != "" {
		t.Errorf("something else changed:\n%s", diff)
	}
}

func TestEnvironmentIsDroppedWhenEmpty(t *testing.T) {
	for _, c := range []struct {
		name string
		spec spec
		want *wasmv3.EnvironmentVariables
	}{
		{"only control keys", spec{env: map[string]string{versionKey: ""}}, nil},
		{"host keys stay", spec{env: map[string]string{versionKey: ""}, hostEnv: []string{"HOME"}}, &wasmv3.EnvironmentVariables{HostEnvKeys: []string{"HOME"}}},
		{"others stay", spec{env: map[string]string{versionKey: "", "A": "1"}}, &wasmv3.EnvironmentVariables{KeyValues: map[string]string{"A": "1"}}},
		{"an empty message stays", spec{env: map[string]string{}}, &wasmv3.EnvironmentVariables{}},
	} {
		for _, form := range forms {
			t.Run(c.name+" "+form.name, func(t *testing.T) {
				c.spec.name, c.spec.uri = "p", "oci://r/i"
				b, err := parse(form.wrap(t, c.spec))
				if err != nil {
					t.Fatal(err)
				}
				cfg := configOf(t, must(b.build("/m", 0)))
				if diff := cmp.Diff(c.want, cfg.GetVmConfig().GetEnvironmentVariables(), protocmp.Transform()); diff != "" {
					t.Error(diff)
				}
			})
		}
	}
}

func TestUnknownFieldKeepsEnvironment(t *testing.T) {
	w := rich()
	w.Config.GetVmConfig().EnvironmentVariables.HostEnvKeys = nil
	w.Config.GetVmConfig().EnvironmentVariables.KeyValues = map[string]string{versionKey: "1"}
	b := must(parse(envelope("p", "", must(anypb.New(w)))))
	if env := configOf(t, must(b.build("/m", 0))).GetVmConfig().GetEnvironmentVariables(); len(env.ProtoReflect().GetUnknown()) == 0 {
		t.Error("an unknown field was lost with the environment")
	}
}

func configOf(t *testing.T, body *anypb.Any) *wasmv3.PluginConfig {
	t.Helper()
	ext := &corev3.TypedExtensionConfig{}
	if err := body.UnmarshalTo(ext); err != nil {
		t.Fatal(err)
	}
	p, _, err := decodePlugin(ext.TypedConfig)
	if err != nil || p == nil {
		t.Fatalf("plugin %v, %v", p, err)
	}
	return must(p.config())
}

// forms are the ways a Wasm filter is written in an extension config.
var forms = []struct {
	name string
	wrap func(testing.TB, spec) *discoveryv3.Resource
}{
	{"direct", func(_ testing.TB, s spec) *discoveryv3.Resource { return s.res() }},
	{"udpa, snake case", func(t testing.TB, s spec) *discoveryv3.Resource { return inStruct(t, s, true, true) }},
	{"xds, camel case", func(t testing.TB, s spec) *discoveryv3.Resource { return inStruct(t, s, false, false) }},
}

func inStruct(t testing.TB, s spec, udpa, snake bool) *discoveryv3.Resource {
	t.Helper()
	name := httpWasm
	if s.network {
		name = netWasm
	}
	b := must(protojson.MarshalOptions{UseProtoNames: snake}.Marshal(&httpwasmv3.Wasm{Config: s.plugin()}))
	return structRes(s, udpa, name, string(b))
}

func structRes(s spec, udpa bool, name, body string) *discoveryv3.Resource {
	v := &structpb.Struct{}
	if err := protojson.Unmarshal([]byte(body), v); err != nil {
		panic(err)
	}
	var msg proto.Message = &xdsv3.TypedStruct{TypeUrl: typePrefix + name, Value: v}
	if udpa {
		msg = &udpav1.TypedStruct{TypeUrl: typePrefix + name, Value: v}
	}
	return envelope(s.name, s.version, must(packAs(typePrefix+string(msg.ProtoReflect().Descriptor().FullName()), msg)))
}

func TestFormsAgree(t *testing.T) {
	specs := []spec{
		{uri: "r/i:latest", sha: "nil", config: "c", env: map[string]string{"A": "1", secretKey: "s", versionKey: "3"}},
		{uri: "oci://r/i", policy: wasmv3.FailurePolicy_FAIL_OPEN, network: true},
		{uri: "oci://r/i", open: true},
		{file: "/m.wasm", env: map[string]string{policyKey: "Always"}},
		{inline: "some bytes", env: map[string]string{policyKey: "Always"}},
		{inline: "name", runtime: nullRuntime},
		{uri: "oci://r/i", runtime: nullRuntime},
		{uri: "oci://r/i", open: true, policy: wasmv3.FailurePolicy_FAIL_OPEN},
		{},
	}
	for _, s := range specs {
		s.name = "p"
		first, firstErr := parse(s.res())
		for _, form := range forms[1:] {
			got, err := parse(form.wrap(t, s))
			if fmt.Sprint(err) != fmt.Sprint(firstErr) {
				t.Errorf("%s: error %v, want %v", form.name, err, firstErr)
			}
			if diff := cmp.Diff(first.ref, got.ref, protocmp.Transform()); diff != "" || first.allow != got.allow || first.kind != got.kind {
				t.Errorf("%s: %+v reads differently:\n%s", form.name, s, diff)
			}
			if err != nil {
				continue
			}
			a, b := must(first.build("/store/m", 1)), must(got.build("/store/m", 1))
			if diff := cmp.Diff(configOf(t, a).GetVmConfig(), configOf(t, b).GetVmConfig(), protocmp.Transform()); diff != "" {
				t.Errorf("%s: converts differently:\n%s", form.name, diff)
			}
		}
	}
}

// A field that this program's definitions lack has no place in a Wasm message; a TypedStruct therefore stays one.
func TestStructKeepsUnknownFields(t *testing.T) {
	const body = `{"config":{"name":"x","future":{"a":[1,null]},"configuration":{"@type":"type.googleapis.com/example.Unknown","b":true},
		"vm_config":{"code":{"remote":{"http_uri":{"uri":"r/i","cluster":"c","timeout":"5s","new":1},"sha256":"nil"},"other":7},
		"environmentVariables":{"key_values":{"ISTIO_META_X":"1","A":"2"}},"runtime":"envoy.wasm.runtime.v8"}},"top":0.5}`
	const want = `{"config":{"name":"x","future":{"a":[1,null]},"configuration":{"@type":"type.googleapis.com/example.Unknown","b":true},
		"vm_config":{"code":{"local":{"filename":"/m"},"other":7},
		"environmentVariables":{"key_values":{"A":"2"}},"runtime":"envoy.wasm.runtime.v8"}},"top":0.5}`
	for _, udpa := range []bool{true, false} {
		b, err := parse(structRes(spec{name: "p"}, udpa, httpWasm, body))
		if err != nil {
			t.Fatal(err)
		}
		if b.ref.URL != "oci://r/i" || b.ref.Timeout != 5*time.Second {
			t.Errorf("reference %+v", b.ref)
		}
		ext := &corev3.TypedExtensionConfig{}
		if err := must(b.build("/m", 0)).UnmarshalTo(ext); err != nil {
			t.Fatal(err)
		}
		p, _, _ := decodePlugin(ext.TypedConfig)
		var got, wanted any
		if err := json.Unmarshal(must(protojson.Marshal(p.(*structPlugin).msg.GetValue())), &got); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(want), &wanted); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(wanted, got); diff != "" {
			t.Error(diff)
		}
	}
}

func TestAmbiguousStruct(t *testing.T) {
	for _, body := range []string{
		`{"config":{"vm_config":{"code":{"local":{"filename":"/m"}}},"vmConfig":{"code":{"remote":{"http_uri":{"uri":"x"}}}}}}`,
		`{"config":{"vm_config":{"environment_variables":{"key_values":{},"keyValues":{"ISTIO_META_X":"1"}},"code":{"local":{"filename":"/m"}}}}}`,
		`{"config":{"vm_config":{"code":{"remote":{"http_uri":{"uri":"x"},"httpUri":{"uri":"y"}}}}}}`,
		`{"config":{"vm_config":{"code":{"remote":{"http_uri":{"uri":"x"}},"local":{"filename":"/m"}}}}}`,
	} {
		if _, err := parse(structRes(spec{name: "p"}, true, httpWasm, body)); err == nil {
			t.Errorf("accepted %s", body)
		}
	}
}

func TestInlineAndNullPass(t *testing.T) {
	for _, s := range []spec{{inline: "\x00asm"}, {inline: "name", runtime: nullRuntime}, {file: "/builtin", runtime: nullRuntime}} {
		s.name, s.env = "p", map[string]string{versionKey: "1", secretKey: "s"}
		b, err := parse(s.res())
		if err != nil || b.ref != nil {
			t.Fatalf("%+v: ref %v, error %v", s, b.ref, err)
		}
		clean := s
		clean.env = nil
		if diff := cmp.Diff(clean.plugin(), configOf(t, must(b.build("", 0))), protocmp.Transform()); diff != "" {
			t.Errorf("%+v:\n%s", s, diff)
		}
		if salted := configOf(t, must(b.build("", 1))); salted.Name != "ns.p~" {
			t.Errorf("salted name %q", salted.Name)
		}
	}
}

func TestSaltedPath(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "m")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for salt := range maxSalt {
		p := salted(path, salt)
		if seen[p] {
			t.Errorf("salt %d gives %s again", salt, p)
		}
		seen[p] = true
		if _, err := os.Stat(p); err != nil {
			t.Error(err)
		}
	}
}

func TestBuildRefusesBadPath(t *testing.T) {
	b := must(parse(v1.res()))
	for _, path := range []string{"", "rel/m"} {
		if _, err := b.build(path, 0); err == nil {
			t.Errorf("built with path %q", path)
		}
	}
}

func TestNestedRemoteIsRefused(t *testing.T) {
	remote := must(anypb.New(&httpwasmv3.Wasm{Config: spec{name: "p", uri: "oci://r/i"}.plugin()}))
	local := must(anypb.New(&httpwasmv3.Wasm{Config: spec{name: "p", file: "/m"}.plugin()}))
	keys := must(anypb.New(&httpwasmv3.Wasm{Config: spec{name: "p", file: "/m", env: map[string]string{versionKey: ""}}.plugin()}))
	jsonOf := func(s spec) *anypb.Any {
		ext := &corev3.TypedExtensionConfig{}
		if err := inStruct(t, s, true, true).Resource.UnmarshalTo(ext); err != nil {
			t.Fatal(err)
		}
		return ext.TypedConfig
	}
	for _, c := range []struct {
		name  string
		inner *anypb.Any
		want  error
	}{
		{"remote", remote, errNestedRemote},
		{"local", local, nil},
		{"control keys", keys, errNestedKeys},
		{"remote in a struct", jsonOf(spec{name: "p", uri: "oci://r/i"}), errNestedRemote},
		{"local in a struct", jsonOf(spec{name: "p", file: "/m"}), nil},
		{"garbage", &anypb.Any{TypeUrl: typePrefix + httpWasm, Value: []byte{0xff}}, errNestedRemote},
	} {
		// In a message of a type nobody here knows, some levels down.
		b := must(proto.Marshal(c.inner))
		for range 5 {
			b = protowire.AppendBytes(protowire.AppendTag(protowire.AppendVarint(protowire.AppendTag(nil, 3, protowire.VarintType), 5), 7, protowire.BytesType), b)
		}
		_, err := parse(envelope("p", "", &anypb.Any{TypeUrl: typePrefix + "example.Composite", Value: b}))
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
}

func FuzzConvert(f *testing.F) {
	for _, s := range []spec{
		v1,
		{name: "p", file: "/m"},
		{name: "p", inline: "x"},
		{name: "p", inline: "n", runtime: nullRuntime},
		{name: "p", uri: "r/i:latest", network: true, hostEnv: []string{"H"}, env: map[string]string{secretKey: "s", "A": "1"}},
	} {
		for _, form := range forms {
			f.Add(form.wrap(f, s).Resource.Value)
		}
	}
	f.Add(envelope("p", "", must(anypb.New(rich()))).Resource.Value)
	f.Fuzz(func(t *testing.T, value []byte) { checkConversion(t, value) })
}

func checkConversion(t *testing.T, value []byte) {
	name := "p"
	ext := &corev3.TypedExtensionConfig{}
	if proto.Unmarshal(value, ext) == nil {
		name = ext.Name
	}
	b, err := parse(&discoveryv3.Resource{Name: name, Resource: &anypb.Any{TypeUrl: typePrefix + extensionConfig, Value: value}})
	if err != nil {
		return
	}
	if b.plugin == nil {
		if out := must(b.build("/m", 0)); !bytes.Equal(out.Value, value) {
			t.Fatal("a resource of another type was changed")
		}
		return
	}
	out, err := b.build("/store/m", 0)
	if err != nil {
		t.Fatalf("understood, but cannot be converted: %v", err)
	}
	if again := must(b.build("/store/m", 0)); !bytes.Equal(again.Value, out.Value) {
		t.Fatal("the same resource gave another result")
	}
	if err := checkConverted(name, out); err != nil {
		t.Fatalf("not safe: %v", err)
	}
	second, err := parse(&discoveryv3.Resource{Name: name, Resource: out})
	if err != nil {
		t.Fatalf("the result cannot be read: %v", err)
	}
	if twice := must(second.build("/store/m", 0)); !bytes.Equal(twice.Value, out.Value) {
		t.Fatal("converting twice differs from converting once")
	}
	in, isTyped := b.plugin.(*typedPlugin)
	if !isTyped {
		return
	}
	before, ok := in.msg.(*httpwasmv3.Wasm)
	if !ok {
		return
	}
	after := second.plugin.(*typedPlugin).msg.(*httpwasmv3.Wasm)
	if diff := cmp.Diff(neutral(before), neutral(after), protocmp.Transform()); diff != "" {
		t.Fatalf("something else changed:\n%s", diff)
	}
}
