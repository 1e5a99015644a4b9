package policywasm_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/wasmtest"
	"github.com/gateway-agent/gateway-agent/policywasm"
)

func TestCommittedModulesAreTheGeneratedOnes(t *testing.T) {
	if !bytes.Equal(policywasm.Allow(), wasmtest.PolicyAllow()) || !bytes.Equal(policywasm.Deny(), wasmtest.PolicyDeny()) {
		t.Error("allow.wasm or deny.wasm is stale: run go generate ./policywasm")
	}
	for name, module := range map[string][]byte{"allow": policywasm.Allow(), "deny": policywasm.Deny()} {
		if len(module) >= 2048 {
			t.Errorf("%s has %d bytes, want less than 2 KiB", name, len(module))
		}
	}
	policywasm.Deny()[0] = 'x'
	if policywasm.Deny()[0] == 'x' {
		t.Error("Deny gives out the embedded bytes themselves")
	}
}

func write(t *testing.T, module []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policy.wasm")
	if err := os.WriteFile(path, module, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestHTTPInEnvoy(t *testing.T) {
	for _, tt := range []struct {
		name   string
		module []byte
		status int
		body   string
	}{
		{"allow", policywasm.Allow(), 200, "passed\n"},
		{"deny", policywasm.Deny(), 403, "access denied\n"},
	} {
		// A plugin configuration is what the refused plugin had; the policy modules must not mind it.
		address := wasmtest.Serve(t, wasmtest.HTTP, write(t, tt.module), `{"for": "another plugin"}`)
		for _, request := range []func() (*http.Response, error){
			func() (*http.Response, error) { return http.Get("http://" + address + "/") },
			func() (*http.Response, error) {
				return http.Post("http://"+address+"/", "text/plain", bytes.NewReader(make([]byte, 1<<16)))
			},
		} {
			response, err := request()
			if err != nil {
				t.Fatalf("%s: %v", tt.name, err)
			}
			body, _ := io.ReadAll(response.Body)
			response.Body.Close()
			if response.StatusCode != tt.status || string(body) != tt.body {
				t.Errorf("%s: %d %q, want %d %q", tt.name, response.StatusCode, body, tt.status, tt.body)
			}
		}
	}
}

func TestNetworkInEnvoy(t *testing.T) {
	for _, tt := range []struct {
		name   string
		module []byte
		want   string
	}{
		{"allow", policywasm.Allow(), "ping"},
		{"deny", policywasm.Deny(), ""},
	} {
		address := wasmtest.Serve(t, wasmtest.Network, write(t, tt.module), "")
		for range 3 { // every connection, not only the first
			if got := echo(t, address); got != tt.want {
				t.Errorf("%s: echo %q, want %q", tt.name, got, tt.want)
			}
		}
	}
}

// echo sends a word and returns what comes back before the connection ends, or the word.
func echo(t *testing.T, address string) string {
	t.Helper()
	conn, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	conn.Write([]byte("ping"))
	got := make([]byte, 4)
	n, err := io.ReadFull(conn, got)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("neither an answer nor an end after 10 s")
	}
	return string(got[:n])
}
