package fetch

import (
	"archive/tar"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/oci"
	"github.com/gateway-agent/gateway-agent/internal/registrytest"
)

// serve serves files over plain HTTP and returns the URL.
func serve(t *testing.T, files map[string][]byte) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, ok := files[r.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = w.Write(body)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func TestHTTPBoxes(t *testing.T) {
	module := core("web", 5000)
	box := registrytest.Tar(t, registrytest.File{Name: "dir/", Type: tar.TypeDir}, registrytest.File{Name: "dir/any.wasm", Body: module})
	files := map[string][]byte{
		"/raw": module, "/gzip": registrytest.Gzip(t, module), "/zstd": registrytest.Zstd(t, module),
		"/tar": box, "/tar.gz": registrytest.Gzip(t, box), "/tar.zst": registrytest.Zstd(t, box),
	}
	url := serve(t, files)
	dir := t.TempDir()
	c := New(Config{})
	defer c.Close()
	for name, body := range files {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, body, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, from := range []string{url + name, "file://" + path} {
			got, _, result, err := pull(t.Context(), t, c, Request{URL: from})
			if err != nil || string(got) != string(module) || result.Digest != hexOf(module) {
				t.Errorf("pull %s = %d bytes %+v, %v, want the module", from, len(got), result, err)
			}
		}
	}
}

func TestHTTPSNeedsTheCA(t *testing.T) {
	module := core("tls", 100)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(module) }))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	trusting := New(Config{RootCAs: roots})
	defer trusting.Close()
	got, _, _, err := pull(t.Context(), t, trusting, Request{URL: server.URL})
	if err != nil || string(got) != string(module) {
		t.Errorf("with the CA: %d bytes, %v, want the module", len(got), err)
	}
	_, _, _, err = pull(t.Context(), t, New(Config{}), Request{URL: server.URL})
	wantError(t, err, oci.Broken, "unknown CA: add that CA")
}

func TestHTTPStatuses(t *testing.T) {
	tests := []struct {
		status int
		kind   oci.Kind
		text   string
	}{
		{404, oci.NotFound, "check the URL"},
		{410, oci.NotFound, "410 Gone"},
		{401, oci.Unauthorized, "web servers get no credentials"},
		{403, oci.Unauthorized, "403 Forbidden"},
		{429, oci.RateLimited, "retry after 7s"},
		{503, oci.Temporary, "503 Service Unavailable, retry after 7s: come back later"},
		{500, oci.Temporary, "500"},
		{400, oci.Broken, "400 Bad Request"},
		{204, oci.Broken, "204 No Content"},
	}
	for _, tt := range tests {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(tt.status)
			if tt.status != 204 {
				_, _ = w.Write([]byte("come back\nlater"))
			}
		}))
		c := New(Config{})
		_, _, _, err := pull(t.Context(), t, c, Request{URL: server.URL + "/m.wasm?sig=secret"})
		wantError(t, err, tt.kind, tt.text)
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("error %v has the query in it", err)
		}
		if e, ok := errors.AsType[*oci.Error](err); ok && tt.kind == oci.RateLimited && e.RetryAfter() != 7*time.Second {
			t.Errorf("RetryAfter = %v, want 7s", e.RetryAfter())
		}
		c.Close()
		server.Close()
	}
}

func TestHTTPTruncatedIsTemporary(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "5000")
		_, _ = w.Write(core("cut", 1000))
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}))
	defer server.Close()
	c := New(Config{})
	defer c.Close()
	_, _, _, err := pull(t.Context(), t, c, Request{URL: server.URL})
	wantError(t, err, oci.Temporary, "the connection ended after 1000 of 5000 bytes")
}

func TestHTTPEndlessBodyEnds(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		chunk := core("endless", 64<<10)
		for {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	}))
	defer server.Close()
	c := New(Config{MaxSize: 1 << 20})
	defer c.Close()
	_, _, _, err := pull(t.Context(), t, c, Request{URL: server.URL})
	wantError(t, err, oci.Broken, "larger than the limit of 1048576 bytes: raise --wasm-max-size")
}

func TestHTTPSlowBodyEnds(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(core("slow", 1000))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	defer server.Close()
	c := New(Config{StallTime: 50 * time.Millisecond})
	defer c.Close()
	_, _, _, err := pull(t.Context(), t, c, Request{URL: server.URL})
	wantError(t, err, oci.Temporary, "download stalled: 1000 bytes in 50ms", "look at the server, and at what is between")
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	c := New(Config{})
	_, _, _, err := pull(t.Context(), t, c, Request{URL: "file://" + dir})
	wantError(t, err, oci.Broken, "not a regular file")
	_, _, _, err = pull(t.Context(), t, c, Request{URL: "file://" + pipe})
	wantError(t, err, oci.Broken, "not a regular file")
	_, _, _, err = pull(t.Context(), t, c, Request{URL: "file://" + filepath.Join(dir, "none.wasm")})
	wantError(t, err, oci.NotFound, "no such file")
}
