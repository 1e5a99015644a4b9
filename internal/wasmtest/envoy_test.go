package wasmtest_test

import (
	"bufio"
	"bytes"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/wasmtest"
)

func TestEnvoyTakesAndRefusesTheSmallModules(t *testing.T) {
	tests := []struct {
		name             string
		module           []byte
		accepted, killed bool
	}{
		{"minimal", wasmtest.Minimal(), true, false},
		{"no marker", wasmtest.NoMarker(), false, false},
		{"no malloc", wasmtest.NoMalloc(), false, false},
		{"missing import", wasmtest.MissingImport("env", "nothing"), false, false},
		{"fitting import", wasmtest.MissingImport("env", "proxy_done"), false, false}, // another signature
		{"global import", wasmtest.GlobalImport(), false, false},
		{"huge memory", wasmtest.HugeMemory(), false, false},
		{"wrong callback", wasmtest.WrongCallback(), false, false},
		{"fails configure", wasmtest.FailConfigure(), false, false},
		{"traps", wasmtest.TrapInStart(), false, false},
		{"invalid code", wasmtest.InvalidCode(), false, false},
		{"truncated", wasmtest.Truncated(), false, false},
		{"start calls host", wasmtest.HostCallInStart(), false, true},
		{"no memory", wasmtest.NoMemory(), false, true},
		{"tag import", wasmtest.TagImport(), false, true},
	}
	var modules [][]byte
	for _, tt := range tests {
		modules = append(modules, tt.module)
	}
	all := wasmtest.LoadAll(t, modules)
	for i, tt := range tests {
		// Envoy says the same at its start and as an update.
		for how, got := range map[string]wasmtest.Loaded{"Load": wasmtest.Load(t, tt.module), "LoadAll": all[i]} {
			if got.Accepted != tt.accepted || got.Killed != tt.killed {
				t.Errorf("%s(%s): accepted %t, killed %t, want %t, %t\n%s", how, tt.name, got.Accepted, got.Killed, tt.accepted, tt.killed, got.Log)
			}
		}
	}
}

func TestHelloSetsHeaders(t *testing.T) {
	plugin := wasmtest.Plugin(t, "hello", "main.version=v2")
	tests := []struct{ configuration, want string }{
		{"", "v2"},
		{"good day", "good day"},
		{`{"value": "a \"word\""}`, `a "word"`},
		{`{"start_delay_ms": 20}`, "v2"},
	}
	var configurations []string
	for _, tt := range tests {
		configurations = append(configurations, tt.configuration)
	}
	for i, address := range wasmtest.ServeEach(t, wasmtest.HTTP, plugin, configurations...) {
		tt := tests[i]
		response, err := http.Get("http://" + address + "/")
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if got := response.Header.Get("x-hello"); response.StatusCode != 200 || got != tt.want {
			t.Errorf("configuration %q: status %d, x-hello %q, want 200, %q", tt.configuration, response.StatusCode, got, tt.want)
		}
		if got := response.Header.Get("x-hello-version"); got != "v2" {
			t.Errorf("configuration %q: x-hello-version %q, want v2", tt.configuration, got)
		}
	}
}

func TestSmallHelloIsLikeHello(t *testing.T) {
	plugin := filepath.Join(t.TempDir(), "small.wasm")
	if err := os.WriteFile(plugin, wasmtest.SmallHello("v2"), 0o600); err != nil {
		t.Fatal(err)
	}
	configurations := []string{"", "good day", "other"}
	addresses := wasmtest.ServeEach(t, wasmtest.HTTP, plugin, configurations...)
	for range 3 {
		for i, want := range []string{"v2", "good day", "other"} {
			response, err := http.Get("http://" + addresses[i] + "/")
			if err != nil {
				t.Fatal(err)
			}
			response.Body.Close()
			if got := response.Header.Get("x-hello"); response.StatusCode != 200 || got != want {
				t.Errorf("configuration %q: status %d, x-hello %q, want 200, %q", configurations[i], response.StatusCode, got, want)
			}
			if got := response.Header.Get("x-hello-version"); got != "v2" {
				t.Errorf("configuration %q: x-hello-version %q, want v2", configurations[i], got)
			}
		}
	}
	if got := wasmtest.LoadFile(t, plugin, `{"fail_configure": true}`); got.Accepted || got.Killed {
		t.Errorf("fail_configure: accepted %t, killed %t, want neither", got.Accepted, got.Killed)
	}
}

func TestHelloRefusesOnDemand(t *testing.T) {
	plugin := wasmtest.Plugin(t, "hello")
	if got := wasmtest.LoadFile(t, plugin, `{"fail_configure": true}`); got.Accepted || got.Killed {
		t.Errorf("fail_configure: accepted %t, killed %t, want neither", got.Accepted, got.Killed)
	}
}

func TestHelloStartsSlowly(t *testing.T) {
	plugin := wasmtest.Plugin(t, "hello")
	began := time.Now()
	got := wasmtest.LoadFile(t, plugin, `{"start_delay_ms": 300}`)
	if took := time.Since(began); !got.Accepted || took < 300*time.Millisecond {
		t.Errorf("start_delay_ms: accepted %t after %v, want true after at least 0.3 s", got.Accepted, took)
	}
}

func TestNetcountCountsAndCloses(t *testing.T) {
	plugin := wasmtest.Plugin(t, "netcount", "main.version=v1")
	address := wasmtest.Serve(t, wasmtest.Network, plugin, "")
	for _, want := range []string{"v1 1: ping\n", "v1 2: ping\n"} {
		if got := echo(t, address); got != want {
			t.Errorf("echo through netcount: %q, want %q", got, want)
		}
	}
	address = wasmtest.Serve(t, wasmtest.Network, plugin, "close")
	if got := echo(t, address); got != "" {
		t.Errorf("echo through netcount that closes: %q, want nothing", got)
	}
}

// echo sends a line and returns the one that comes back; none if the connection is closed first.
func echo(t *testing.T, address string) string {
	t.Helper()
	conn, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(5 * time.Second))
	conn.Write([]byte("ping\n"))
	line, err := bufio.NewReader(conn).ReadString('\n')
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("no answer: %v", err)
	}
	return line
}

func TestPluginIsBuiltOnce(t *testing.T) {
	first, again := wasmtest.Plugin(t, "hello", "main.version=v2"), wasmtest.Plugin(t, "hello", "main.version=v2")
	if first != again {
		t.Errorf("Plugin: %s, then %s", first, again)
	}
	if bytes.Equal(wasmtest.PluginBytes(t, "hello", "main.version=v1"), wasmtest.PluginBytes(t, "hello", "main.version=v2")) {
		t.Error("Plugin gives the same module for two versions")
	}
}
