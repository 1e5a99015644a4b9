package wasmtest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The two kinds of Wasm filter.
const (
	HTTP    = "http"
	Network = "network"
)

// EnvoyPath returns the path of the real Envoy.
func EnvoyPath(t testing.TB) string {
	t.Helper()
	path := filepath.Join(Root(t), ".tools", "envoy")
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("no Envoy at %s: run make tools", path)
	}
	return path
}

// Loaded is what a real Envoy said of a module.
type Loaded struct {
	Accepted bool
	// Killed: Envoy ended by a signal.
	Killed bool
	// Log is Envoy's, errors and worse.
	Log string
}

// Load has a real Envoy validate a configuration with the module in an HTTP filter, which loads, starts and configures it.
func Load(t testing.TB, module []byte) Loaded {
	t.Helper()
	path := filepath.Join(t.TempDir(), "m.wasm")
	if err := os.WriteFile(path, module, 0o600); err != nil {
		t.Fatal(err)
	}
	return LoadFile(t, path, "")
}

// LoadFile is Load for a module in a file, with a plugin configuration.
func LoadFile(t testing.TB, path, configuration string) Loaded {
	t.Helper()
	// A module that loops in its start would hang Envoy.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, EnvoyPath(t), "--mode", "validate", "-l", "error", "-c", writeBootstrap(t, listener("test", HTTP, path, configuration)))
	out, err := cmd.CombinedOutput()
	exit, _ := errors.AsType[*exec.ExitError](err)
	switch {
	case ctx.Err() != nil:
		t.Fatalf("Envoy did not end: %v\n%s", context.Cause(ctx), out)
	case err != nil && exit == nil:
		t.Fatalf("cannot run Envoy: %v", err)
	}
	loaded := Loaded{Accepted: err == nil, Log: string(out)}
	if exit != nil {
		status, ok := exit.Sys().(syscall.WaitStatus)
		loaded.Killed = ok && status.Signaled()
	}
	return loaded
}

// Serve runs a real Envoy until the test ends and returns the address of its listener: the module as an HTTP filter before a route that answers
// 200, or as a network filter before an echo.
func Serve(t testing.TB, kind, path, configuration string) string {
	t.Helper()
	return ServeEach(t, kind, path, configuration)[0]
}

// ServeEach is Serve with a listener for each plugin configuration. The listeners share one VM.
func ServeEach(t testing.TB, kind, path string, configurations ...string) []string {
	t.Helper()
	var listeners []any
	for i, configuration := range configurations {
		listeners = append(listeners, listener(strconv.Itoa(i), kind, path, configuration))
	}
	dir := t.TempDir()
	admin := filepath.Join(dir, "admin")
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var log strings.Builder
	cmd := exec.CommandContext(ctx, EnvoyPath(t), "--concurrency", "1", "--use-dynamic-base-id", "-l", "error",
		"--admin-address-path", admin, "-c", writeBootstrap(t, listeners...))
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatalf("cannot run Envoy: %v", err)
	}
	ended := make(chan struct{})
	var exit error // once ended is closed
	go func() { exit = cmd.Wait(); close(ended) }()
	t.Cleanup(func() { cancel(); <-ended })
	for deadline := time.Now().Add(30 * time.Second); ; {
		if addresses := listenerAddresses(ctx, admin); len(addresses) == len(configurations) {
			return addresses
		}
		select {
		case <-ended:
			t.Fatalf("Envoy ended: %v\n%s", exit, log.String())
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatal("Envoy is not listening after 30 s")
		}
	}
}

// listenerAddresses asks Envoy for the ports that it was given, once it is live. The listeners are named 0, 1, 2.
func listenerAddresses(ctx context.Context, adminFile string) []string {
	admin, err := os.ReadFile(adminFile)
	if err != nil || get(ctx, "http://"+string(admin)+"/ready") != "LIVE\n" {
		return nil
	}
	lines := slices.Sorted(strings.Lines(get(ctx, "http://"+string(admin)+"/listeners")))
	for i, line := range lines {
		_, address, _ := strings.Cut(line, "::")
		lines[i] = strings.TrimSpace(address)
	}
	return lines
}

func get(ctx context.Context, url string) string {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return ""
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return ""
	}
	return string(body)
}

type object = map[string]any

func writeBootstrap(t testing.TB, listeners ...any) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bootstrap.json")
	b, err := json.Marshal(object{"admin": object{"address": loopback()}, "static_resources": object{"listeners": listeners}})
	if err == nil {
		err = os.WriteFile(path, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func loopback() object {
	return object{"socket_address": object{"address": "127.0.0.1", "port_value": 0}}
}

// listener has the module as an HTTP filter before a route that answers 200, or as a network filter before an echo.
func listener(name, kind, module, configuration string) object {
	filters := []any{wasmFilter(kind, module, configuration)}
	if kind == Network {
		filters = append(filters, typed("envoy.filters.network.echo", "envoy.extensions.filters.network.echo.v3.Echo", object{}))
	} else {
		filters = append(filters, typed("envoy.filters.http.router", "envoy.extensions.filters.http.router.v3.Router", object{}))
		route := object{"match": object{"prefix": "/"}, "direct_response": object{"status": 200, "body": object{"inline_string": "passed\n"}}}
		filters = []any{typed("envoy.filters.network.http_connection_manager",
			"envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager", object{
				"stat_prefix": "test", "http_filters": filters,
				"route_config": object{"virtual_hosts": []any{object{"name": "all", "domains": []any{"*"}, "routes": []any{route}}}},
			})}
	}
	return object{"name": name, "address": loopback(), "filter_chains": []any{object{"filters": filters}}}
}

func wasmFilter(kind, module, configuration string) object {
	return typed("envoy.filters."+kind+".wasm", "envoy.extensions.filters."+kind+".wasm.v3.Wasm", object{"config": object{
		"name":          "test",
		"configuration": object{"@type": "type.googleapis.com/google.protobuf.StringValue", "value": configuration},
		"vm_config":     object{"runtime": "envoy.wasm.runtime.v8", "code": object{"local": object{"filename": module}}},
	}})
}

func typed(name, typeName string, config object) object {
	config["@type"] = "type.googleapis.com/" + typeName
	return object{"name": name, "typed_config": config}
}
