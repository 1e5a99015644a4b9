package bootstrap

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/testing/protocmp"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const envoyBinary = "../.tools/envoy"

func minimal() Config {
	return Config{
		NodeID: "edge-1", NodeCluster: "edge",
		XDSSocket: "/run/gateway-agent/xds.sock", AdminSocket: "/run/gateway-agent/admin.sock",
	}
}

func full() Config {
	c := minimal()
	c.Mode = ModeSotW
	c.NodeMetadata = map[string]any{"zone": "a", "labels": map[string]any{"app": "edge", "tier": nil}, "ports": []any{80, 443}}
	c.StatusAddress = "0.0.0.0:15020"
	c.ReadyAddress = ":15021"
	c.PrometheusAddress = "[::1]:15090"
	c.MaxConnections = 50000
	return c
}

func TestGolden(t *testing.T) {
	for name, c := range map[string]Config{"minimal": minimal(), "full": full()} {
		t.Run(name, func(t *testing.T) {
			got := marshal(t, c)
			file := filepath.Join("testdata", name+".json")
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("Marshal(New(%s)) differs from %s (-want +got):\n%s", name, file, diff)
			}
		})
	}
}

func TestMarshalIsStableAndLossless(t *testing.T) {
	b, err := New(full())
	if err != nil {
		t.Fatal(err)
	}
	first := marshal(t, full())
	for range 20 {
		if got := marshal(t, full()); !bytes.Equal(got, first) {
			t.Fatalf("Marshal of equal bootstraps differs:\n%s\n%s", first, got)
		}
	}
	var back bootstrapv3.Bootstrap
	if err := protojson.Unmarshal(first, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(b, &back, protocmp.Transform()); diff != "" {
		t.Errorf("bootstrap changed by Marshal (-want +got):\n%s", diff)
	}
}

func TestEnvoyAccepts(t *testing.T) {
	if _, err := os.Stat(envoyBinary); err != nil {
		t.Fatalf("%v: run make tools", err)
	}
	delta := full()
	delta.Mode = ModeDelta
	for name, c := range map[string]Config{"minimal": minimal(), "full": full(), "full delta": delta} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "bootstrap.json")
			if err := os.WriteFile(file, marshal(t, c), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := exec.CommandContext(t.Context(), envoyBinary, "--mode", "validate", "-c", file, "-l", "warning").CombinedOutput()
			if err != nil {
				t.Fatalf("envoy --mode validate: %v\n%s", err, out)
			}
			if strings.Contains(string(out), "eprecated") {
				t.Errorf("envoy --mode validate warns of deprecated fields:\n%s", out)
			}
		})
	}
}

func TestStatusAddressIsDialled(t *testing.T) {
	for in, want := range map[string]string{
		"127.0.0.1:15020": "127.0.0.1", "localhost:15020": "127.0.0.1", ":15020": "127.0.0.1", "0.0.0.0:15020": "127.0.0.1",
		"[::]:15020": "::1", "[::1]:15020": "::1", "10.0.0.7:15020": "10.0.0.7", "[::ffff:10.0.0.7]:15020": "10.0.0.7",
	} {
		a, err := dialAddress("status address", in)
		if err != nil || a.GetSocketAddress().GetAddress() != want || a.GetSocketAddress().GetPortValue() != 15020 {
			t.Errorf("dialAddress(%q) = %v, %v; want %s port 15020", in, a, err, want)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	long := "/" + strings.Repeat("d", 100) + "/xds.sock"
	tests := map[string]struct {
		change func(*Config)
		want   string
	}{
		"no id":             {func(c *Config) { c.NodeID = "" }, "--node-id"},
		"no cluster":        {func(c *Config) { c.NodeCluster = "" }, "--node-cluster"},
		"id not UTF-8":      {func(c *Config) { c.NodeID = "a\xff" }, "not valid UTF-8"},
		"metadata":          {func(c *Config) { c.NodeMetadata = map[string]any{"f": func() {}} }, "--node-metadata"},
		"metadata UTF-8":    {func(c *Config) { c.NodeMetadata = map[string]any{"a": "\xff"} }, "--node-metadata"},
		"no socket":         {func(c *Config) { c.XDSSocket = "" }, "xDS socket: no path"},
		"relative socket":   {func(c *Config) { c.AdminSocket = "run/admin.sock" }, "run/admin.sock is relative"},
		"long socket":       {func(c *Config) { c.XDSSocket = long }, long + " has 110 bytes, a unix socket allows 107: choose a shorter --run-dir"},
		"zero byte":         {func(c *Config) { c.XDSSocket = "/run/\x00" }, "not a usable file name"},
		"same sockets":      {func(c *Config) { c.AdminSocket = c.XDSSocket }, "are the same path"},
		"mode":              {func(c *Config) { c.Mode = "rest" }, `"rest" (--xds-mode)`},
		"limit":             {func(c *Config) { c.MaxConnections = -1 }, "connection limit -1"},
		"status":            {func(c *Config) { c.StatusAddress = "15020" }, `status address "15020": want IP:port`},
		"host name":         {func(c *Config) { c.StatusAddress = "agent.example:15020" }, "want IP:port"},
		"port 0":            {func(c *Config) { c.ReadyAddress = "127.0.0.1:0" }, "choose a port"},
		"port too high":     {func(c *Config) { c.ReadyAddress = "127.0.0.1:70000" }, "want IP:port"},
		"zone":              {func(c *Config) { c.PrometheusAddress = "[fe80::1%eth0]:1" }, "want IP:port"},
		"nobody answers":    {func(c *Config) { c.ReadyAddress = ":15021" }, "--status-address"},
		"clash":             {func(c *Config) { c.StatusAddress, c.ReadyAddress = "127.0.0.1:1", ":1" }, "overlap"},
		"clash among own":   {func(c *Config) { c.PrometheusAddress, c.StatusAddress = "[::1]:2", "[::1]:2" }, "overlap"},
		"localhost clashes": {func(c *Config) { c.PrometheusAddress, c.StatusAddress = "localhost:2", "127.0.0.1:2" }, "overlap"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := minimal()
			tt.change(&c)
			b, err := New(c)
			if err == nil || !strings.Contains(err.Error(), tt.want) || b != nil {
				t.Errorf("New = %v, %v; want nil and an error with %q", b, err, tt.want)
			}
		})
	}
}

func TestNewSaysAllProblemsAtOnce(t *testing.T) {
	_, err := New(Config{Mode: "x", ReadyAddress: "nowhere", MaxConnections: -2})
	for _, want := range []string{"--node-id", "--node-cluster", "xDS socket", "admin socket", "--xds-mode", `"nowhere"`, "connection limit -2"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New(many problems) = %v; want it to mention %q", err, want)
		}
	}
}

func TestSocketPathOfExactlyTheLimit(t *testing.T) {
	c := minimal()
	c.XDSSocket = "/" + strings.Repeat("x", maxSocketPath-1)
	if _, err := New(c); err != nil {
		t.Errorf("New with a socket path of %d bytes: %v", len(c.XDSSocket), err)
	}
}

func marshal(t *testing.T, c Config) []byte {
	t.Helper()
	b, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	out, err := Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
