package oci

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/gateway-agent/gateway-agent/internal/oci/registries"
	"github.com/gateway-agent/gateway-agent/internal/registrytest"
	"github.com/gateway-agent/gateway-agent/internal/testca"
)

func descriptorOf(b []byte) v1.Descriptor {
	hash, err := v1.NewHash(registrytest.Digest(b))
	if err != nil {
		panic(err)
	}
	return v1.Descriptor{Size: int64(len(b)), Digest: hash}
}

func repository(t testing.TB, s string) name.Repository {
	t.Helper()
	repo, err := name.NewRepository(s)
	if err != nil {
		t.Fatal(err)
	}
	return repo
}

func wantKind(t *testing.T, err error, kind Kind, texts ...string) {
	t.Helper()
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Kind != kind {
		t.Errorf("error = %v, want one of kind %s", err, kind)
		return
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("error = %v, want it to say %q", err, text)
		}
	}
}

// basic is a pull secret for one host.
func basic(key, user, password string) []byte {
	return fmt.Appendf(nil, `{"auths":{%q:{"auth":%q}}}`, key, base64.StdEncoding.EncodeToString([]byte(user+":"+password)))
}

func read(t *testing.T, c *Client, repo name.Repository, secret []byte) (Manifest, error) {
	t.Helper()
	r, err := c.Open(t.Context(), repo, secret)
	if err != nil {
		return Manifest{}, err
	}
	return r.Manifest(t.Context(), "v1")
}

// readBlob opens repo, reads the blob and gives what came.
func readBlob(t *testing.T, c *Client, repo name.Repository, blob []byte) (string, error) {
	t.Helper()
	r, err := c.Open(t.Context(), repo, nil)
	if err != nil {
		t.Fatal(err)
	}
	rc, err := r.Blob(t.Context(), descriptorOf(blob))
	if err != nil {
		return "", err
	}
	defer rc.Close()
	body, err := io.ReadAll(rc)
	return string(body), err
}

// places are the endpoints of every repository.
type places []registries.Endpoint

func (p places) Endpoints(_, repository string, _ bool) ([]registries.Endpoint, error) {
	all := make([]registries.Endpoint, len(p))
	for i, e := range p {
		if e.Repository == "" {
			e.Repository = repository
		}
		if e.Key == "" {
			e.Key = e.Host
		}
		all[i] = e
	}
	return all, nil
}

// serveTLS serves handler over https as hosts.
func serveTLS(t testing.TB, ca *testca.CA, handler http.Handler, change func(*tls.Config), hosts ...string) (addr string) {
	t.Helper()
	pair := ca.Issue(t, testca.Leaf{Hosts: hosts})
	cert, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(handler)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // refused handshakes
	if change != nil {
		change(s.TLS)
	}
	s.StartTLS()
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s.Listener.Addr().String()
}

func roots(ca *testca.CA) *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.Cert)
	return pool
}

func clientCertificate(t testing.TB, ca *testca.CA) []tls.Certificate {
	t.Helper()
	pair := ca.Issue(t, testca.Leaf{Name: "agent"})
	cert, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	return []tls.Certificate{cert}
}
