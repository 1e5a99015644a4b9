package e2e

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/bootstrap/internal_listener/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/compression/brotli/compressor/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/compression/gzip/compressor/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/compression/zstd/compressor/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/compressor/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/proxy_protocol/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/least_request/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/downstream_connections/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"
)

const (
	realAgent    = "/usr/local/bin/istio-pilot-agent" // in a container, where pilot-agent is ours
	realTemplate = "var/lib/istio/envoy/envoy_bootstrap_tmpl.json"
	customDir    = "etc/istio/custom-bootstrap"
)

// TestBootstrapAsPilotAgents has the real pilot-agent and this one write the bootstrap of the same pod, and compares them: every difference that
// is meant is in the table of differences, and nothing else differs. Envoy accepts both.
func TestBootstrapAsPilotAgents(t *testing.T) {
	if !inSpace(t) {
		return
	}
	c := newContainer(t)
	withRealAgent(t, c)
	withOverrides(t, c)
	ours := c.program
	base := c.env
	used := map[string]bool{}
	for _, tt := range bootstrapCases {
		if tt.ethernet != "" {
			if err := addEthernet("eth0", netip.MustParseAddr(tt.ethernet)); err != nil {
				t.Fatalf("interface eth0: %v", err)
			}
		}
		c.env, c.proxy = maps.Clone(base), map[string]any{}
		maps.Copy(c.proxy, tt.proxy)
		c.env["CLOUD_PLATFORM"] = "none"
		maps.Copy(c.env, tt.env)
		c.project("etc/istio/pod", map[string]string{"labels": "app=\"gw\"\nistio=\"ingress\"\n", "annotations": annotations(tt.annotations)})
		want := c.bootstrapOf([]string{realAgent}, tt.args...)
		got := c.bootstrapOf(ours, tt.args...)
		for _, line := range differences(flat(t, want), flat(t, got)) {
			if strings.HasPrefix(line, "/node/metadata/") {
				continue // TestPilotAgentNodes
			}
			row := slices.IndexFunc(meantDifferences, func(d difference) bool { return d.covers(tt.name, line) })
			if row < 0 {
				t.Errorf("%s: %s", tt.name, line)
				continue
			}
			used[meantDifferences[row].where] = true
		}
		for who, b := range map[string]*bootstrapv3.Bootstrap{"pilot-agent's": want, "ours": got} {
			if tt.refused[who] == "" {
				acceptedByEnvoy(t, tt.name+", "+who, b)
			}
		}
	}
	for _, d := range meantDifferences {
		if !used[d.where] {
			t.Errorf("no such difference any more, take it out of the table: %s", d.where)
		}
	}
}

// withRealAgent puts the real pilot-agent and its template into the container.
func withRealAgent(t *testing.T, c *container) {
	t.Helper()
	tools, err := filepath.Abs("../.tools/istio")
	if err != nil {
		t.Fatal(err)
	}
	for source, name := range map[string]string{"pilot-agent": realAgent, "envoy_bootstrap_tmpl.json": realTemplate} {
		source = filepath.Join(tools, source)
		if _, err := os.Stat(source); err != nil {
			t.Fatalf("%v: run make istio", err)
		}
		target := filepath.Join(c.root, name)
		makeDirs(t, filepath.Dir(target))
		makeFile(t, target, "", 0o755)
		bind(t, source, target, unix.MS_RDONLY)
	}
}

// withOverrides gives the container a directory for ISTIO_BOOTSTRAP_OVERRIDE.
func withOverrides(t *testing.T, c *container) {
	t.Helper()
	own, target := filepath.Join(c.volumes, customDir), filepath.Join(c.root, customDir)
	makeDirs(t, own, target)
	bind(t, own, target, 0)
}

// bootstrapOf starts a program as the container's, until it has written Envoy's bootstrap.
func (c *container) bootstrapOf(program []string, args ...string) *bootstrapv3.Bootstrap {
	c.t.Helper()
	file := filepath.Join(c.root, "etc/istio/proxy/envoy-rev.json")
	if err := os.Remove(file); err != nil && !os.IsNotExist(err) {
		c.t.Fatal(err)
	}
	c.program = program
	c.start(args...)
	defer c.agent.kill()
	b := &bootstrapv3.Bootstrap{}
	c.agent.eventually(20*time.Second, program[0]+" starts Envoy with a bootstrap", func() error {
		_, pid := c.processes()
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || !bytes.Contains(line, []byte("--drain-time-s")) {
			return fmt.Errorf("Envoy does not serve: %q", line)
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		return parseBootstrap(data, b)
	})
	return b
}

// parseBootstrap reads what Envoy reads: JSON with commas at the ends of lists, messages in untyped structs.
func parseBootstrap(data []byte, into proto.Message) error {
	document, err := yaml.YAMLToJSON(data)
	if err != nil {
		return err
	}
	if !bytes.Contains(document, []byte("static_resources")) {
		return fmt.Errorf("only %d bytes so far", len(data))
	}
	proto.Reset(into)
	return protojson.Unmarshal(boxedNumber.ReplaceAll(document, []byte("$1")), into)
}

// boxedNumber is how pilot-agent writes the numbers of a keepalive; Envoy reads them, too.
var boxedNumber = regexp.MustCompile(`\{"value":(\d+)\}`)

func annotations(all map[string]string) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&b, "%s=%q\n", name, all[name])
	}
	return b.String()
}

// flat is a bootstrap as lines of a path and a value. Members of lists go by their names, so that their order does not matter.
func flat(t *testing.T, b *bootstrapv3.Bootstrap) map[string]string {
	t.Helper()
	data, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	var document any
	if err := json.Unmarshal(data, &document); err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	flatten(all, "", document)
	return all
}

func flatten(into map[string]string, path string, value any) {
	switch value := value.(type) {
	case map[string]any:
		if inner, ok := value["value"].(map[string]any); ok && strings.HasSuffix(fmt.Sprint(value["@type"]), ".TypedStruct") {
			inner["@type"] = value["type_url"]
			value = inner
		}
		for name, member := range value {
			flatten(into, path+"/"+name, member)
		}
		if len(value) == 0 {
			into[path] = "{}"
		}
	case []any:
		for i, member := range value {
			flatten(into, path+"/"+memberName(i, member), member)
		}
	default:
		text, _ := json.Marshal(value)
		into[path] = strings.Replace(string(text), `"./`, `"/`, 1)
	}
}

// memberName is how a member of a list is told from the others.
func memberName(i int, member any) string {
	fields, ok := member.(map[string]any)
	if !ok {
		return fmt.Sprint(i)
	}
	if address, ok := fields["address"].(map[string]any); ok { // a listener: names of static ones mean nothing to others
		socket, _ := address["socket_address"].(map[string]any)
		return fmt.Sprint("[", net.JoinHostPort(fmt.Sprint(socket["address"]), fmt.Sprint(socket["port_value"])), "]")
	}
	for _, kind := range []string{"static_layer", "admin_layer"} { // whatever the layer is called
		if fields[kind] != nil {
			return "[" + kind + "]"
		}
	}
	for _, key := range []string{"name", "tag_name", "prefix", "suffix"} {
		if name, ok := fields[key].(string); ok {
			return "[" + name + "]"
		}
	}
	for _, kind := range []string{"safe_regex", "match"} {
		if inner, ok := fields[kind].(map[string]any); ok {
			return fmt.Sprintf("[%v]", cmp.Or(inner["regex"], inner["prefix"], inner["path"]))
		}
	}
	return fmt.Sprint(i)
}

// differences are lines that say what is where.
func differences(want, got map[string]string) (all []string) {
	paths := maps.Clone(want)
	maps.Copy(paths, got)
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		theirs, has := want[path]
		mine, have := got[path]
		switch {
		case !have:
			all = append(all, path+" missing, pilot-agent has "+theirs)
		case !has:
			all = append(all, path+" more than pilot-agent: "+mine)
		case theirs != mine:
			all = append(all, path+" is "+mine+", pilot-agent has "+theirs)
		}
	}
	return all
}

func acceptedByEnvoy(t *testing.T, what string, b *bootstrapv3.Bootstrap) {
	t.Helper()
	data, err := protojson.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "bootstrap.json")
	writeFile(t, file, data)
	cmd := exec.CommandContext(t.Context(), envoyBinary, "--mode", "validate", "-c", file, "-l", "critical", "--allow-unknown-static-fields")
	cmd.Dir = "/"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: envoy --mode validate: %v\n%s", what, err, out)
	}
}

// addEthernet makes an interface that is not loopback: a bridge, which needs no other end.
func addEthernet(name string, address netip.Addr) error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	text, err := unix.BytePtrFromString(name)
	if err != nil {
		return err
	}
	const addBridge = 0x89a0 // SIOCBRADDBR
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), addBridge, uintptr(unsafe.Pointer(text))); errno != 0 {
		return fmt.Errorf("make a bridge: %w (run this where containers can run)", errno)
	}
	request, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, request); err != nil {
		return err
	}
	if address.Is6() {
		return addAddress6To(name, address)
	}
	return addAddress(name, address)
}
