package oci

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
)

// A server on this machine that speaks plain HTTP, and answers to TLS with neither: what is told is what came of HTTP.
func TestPlainServerIsToldAsWhatItIs(t *testing.T) {
	for answer, want := range map[string]string{
		"302 Found\r\nLocation: http://169.254.169.254/latest\r\n": "link-local address",
		"302 Found\r\nLocation: file:///etc/passwd\r\n":            "scheme file",
		"503 Service Unavailable\r\n":                              "503",
	} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { listener.Close() })
		go serveOdd(listener, answer)
		repository, err := name.NewRepository(listener.Addr().String() + "/x")
		if err != nil {
			t.Fatal(err)
		}
		repo, err := New(Config{}).Open(t.Context(), repository, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := repo.Manifest(t.Context(), "v1"); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "TLS") {
			t.Errorf("Manifest of a server that answers %q = %v, want %q", answer, err, want)
		}
	}
}

// serveOdd answers to HTTP with a status and header lines, to TLS with nonsense.
func serveOdd(listener net.Listener, answer string) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		r := bufio.NewReader(conn)
		if first, _ := r.Peek(1); len(first) == 1 && first[0] == 0x16 {
			fmt.Fprint(conn, "nonsense")
		} else if req, err := http.ReadRequest(r); err == nil {
			fmt.Fprintf(conn, "HTTP/1.1 %sContent-Length: 0\r\nConnection: close\r\n\r\n", answer)
			_ = req.Body.Close()
		}
		conn.Close()
	}
}
