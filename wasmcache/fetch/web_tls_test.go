package fetch

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gateway-agent/gateway-agent/internal/oci/registries"
)

// TestWebServersOfTheOperator: what the operator says of a host counts for its web server too, and for where that redirects.
func TestWebServersOfTheOperator(t *testing.T) {
	module := core("web", 5000)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Error("a web server was sent credentials")
		}
		_, _ = w.Write(module)
	}))
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "https://")
	redirector := httptest.NewServer(http.RedirectHandler(server.URL+"/m.wasm", http.StatusFound))
	t.Cleanup(redirector.Close)
	dir := t.TempDir()
	ca, plain := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "plain.yaml")
	own := filepath.Join(dir, "own.yaml")
	for path, text := range map[string]string{
		ca:    string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})),
		own:   fmt.Sprintf("%q: {ca: %q}\n", host, ca),
		plain: fmt.Sprintf("%q: {plain-http: true}\n", host),
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, tt := range map[string]struct {
		config registries.Config
		fails  string
	}{
		"insecure":     {config: registries.Config{Insecure: []string{host}}},
		"all insecure": {config: registries.Config{Insecure: []string{"*"}}},
		"ca":           {config: registries.Config{Paths: []string{own}}},
		"nothing":      {fails: "signed by an unknown CA"},
		"another":      {config: registries.Config{Insecure: []string{"127.0.0.1:1"}}, fails: "signed by an unknown CA"},
		"plain":        {config: registries.Config{Paths: []string{plain}}, fails: "signed by an unknown CA"}, // the URL says https
	} {
		t.Run(name, func(t *testing.T) {
			r, err := registries.Load(tt.config)
			if err != nil {
				t.Fatal(err)
			}
			c := New(Config{Registries: r})
			defer c.Close()
			for _, url := range []string{server.URL + "/m.wasm", redirector.URL} {
				got, _, _, err := pull(t.Context(), t, c, Request{URL: url})
				if tt.fails == "" && (err != nil || string(got) != string(module)) {
					t.Errorf("pull %s = %d bytes, %v, want the module", url, len(got), err)
				}
				if tt.fails != "" && (err == nil || !strings.Contains(err.Error(), tt.fails)) {
					t.Errorf("pull %s = %d bytes, %v, want %q", url, len(got), err, tt.fails)
				}
			}
		})
	}
}
