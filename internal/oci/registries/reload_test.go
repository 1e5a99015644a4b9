package registries

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/gateway-agent/gateway-agent/internal/testca"
)

// one returns the only endpoint.
func one(t *testing.T, r *Registries, host string) Endpoint {
	t.Helper()
	got, err := r.Endpoints(host, "x", true)
	if err != nil || len(got) != 1 {
		t.Fatalf("Endpoints(%q) = %s, %v; want one", host, describe(got), err)
	}
	return got[0]
}

func TestCertificatesRotate(t *testing.T) {
	dir, log := t.TempDir(), &bytes.Buffer{}
	path := filepath.Join(dir, "own.yaml")
	write(t, path, "r.example.com: {ca: ca.pem, cert: c.pem, key: k.pem}\n")
	put := func(ca *testca.CA, p testca.Pair) {
		write(t, filepath.Join(dir, "ca.pem"), ca.PEM)
		write(t, filepath.Join(dir, "c.pem"), p.CertPEM)
		write(t, filepath.Join(dir, "k.pem"), p.KeyPEM)
	}
	oldCA, newCA := testca.New(t, "old"), testca.New(t, "new")
	oldPair, newPair := oldCA.Issue(t, testca.Leaf{Name: "old"}), newCA.Issue(t, testca.Leaf{Name: "new"})
	put(oldCA, oldPair)
	r := load(t, Config{Paths: []string{path}, Log: slog.New(slog.NewTextHandler(log, nil))})
	first, again := one(t, r, "r.example.com"), one(t, r, "r.example.com")
	if first.Key != again.Key || first.RootCAs != again.RootCAs {
		t.Errorf("nothing changed, yet the keys are %s and %s", first.Key, again.Key)
	}
	if other := one(t, r, "other.example.com"); other.Key == first.Key {
		t.Error("two hosts have one key")
	}

	write(t, filepath.Join(dir, "c.pem"), newPair.CertPEM) // half of a rotation: the key is still the old one
	if half := one(t, r, "r.example.com"); half.Key != first.Key || !bytes.Equal(half.Certificates[0].Certificate[0], oldPair.Cert.Raw) {
		t.Error("half a rotation changed the endpoint")
	}
	one(t, r, "r.example.com")
	if n := strings.Count(log.String(), "became unusable"); n != 1 {
		t.Errorf("half a rotation was logged %d times, want once:\n%s", n, log)
	}

	put(newCA, newPair)
	now := one(t, r, "r.example.com")
	if now.Key == first.Key || !bytes.Equal(now.Certificates[0].Certificate[0], newPair.Cert.Raw) || now.RootCAs.Equal(first.RootCAs) {
		t.Error("the rotation is not seen")
	}

	write(t, path, "r.example.com: {skip-verify: true}\n")
	if e := one(t, r, "r.example.com"); !e.SkipVerify || e.RootCAs != nil {
		t.Errorf("the change of the file is not seen: %s", describe([]Endpoint{e}))
	}
	write(t, path, "r.example.com: {skip-")
	if e := one(t, r, "r.example.com"); !e.SkipVerify {
		t.Errorf("the broken file is not ignored: %s", describe([]Endpoint{e}))
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if e := one(t, r, "r.example.com"); !e.SkipVerify {
		t.Errorf("the missing file is not ignored: %s", describe([]Endpoint{e}))
	}
}

func TestRegistriesComeAndGo(t *testing.T) {
	dir := t.TempDir()
	r := load(t, Config{Paths: []string{dir}})
	want := func(text string) {
		t.Helper()
		got, err := r.Endpoints("r.example.com", "x", true)
		if err != nil || describe(got) != text {
			t.Errorf("Endpoints = %q, %v; want %q", describe(got), err, text)
		}
	}
	want("https r.example.com x\n")
	toml := filepath.Join(dir, "r.example.com", "hosts.toml")
	write(t, toml, "[host.\"m.example.com\"]\n")
	want("https m.example.com x mirror ns=r.example.com\nhttps r.example.com x\n")
	write(t, toml, "")
	want("https r.example.com x\n")
	write(t, toml, "server = 7\n")
	want("https m.example.com x mirror ns=r.example.com\nhttps r.example.com x\n") // the last good one
	if err := os.RemoveAll(filepath.Dir(toml)); err != nil {
		t.Fatal(err)
	}
	want("https r.example.com x\n")

	write(t, filepath.Join(dir, "new.example.com", "hosts.toml"), "server = 7\n")
	if got, err := r.Endpoints("new.example.com", "x", true); err == nil || !strings.Contains(err.Error(), "hosts.toml:1") {
		t.Errorf("a hosts.toml that never was good: %s, %v; want an error with its place", describe(got), err)
	}
}

func TestMirrorWithoutItsCertificatesIsLeftOut(t *testing.T) {
	dir, log := t.TempDir(), &bytes.Buffer{}
	r := load(t, Config{Paths: []string{dir}, Log: slog.New(slog.NewTextHandler(log, nil))})
	write(t, filepath.Join(dir, "r.example.com", "hosts.toml"), "[host.\"https://m.example.com\"]\nca = \"absent.pem\"\n")
	got, err := r.Endpoints("r.example.com", "x", true)
	if want := "https r.example.com x\n"; err != nil || describe(got) != want {
		t.Errorf("Endpoints = %q, %v; want %q", describe(got), err, want)
	}
	if !strings.Contains(log.String(), "absent.pem") {
		t.Errorf("log: %s; want the missing file", log)
	}
	write(t, filepath.Join(dir, "s.example.com", "hosts.toml"), "server = \"https://s.example.com\"\nca = \"absent.pem\"\n")
	if got, err := r.Endpoints("s.example.com", "x", true); err == nil || !strings.Contains(err.Error(), "absent.pem") {
		t.Errorf("Endpoints = %q, %v; want an error with the missing file, never the system's roots instead", describe(got), err)
	}
}

func TestExposedKeysAreReported(t *testing.T) {
	dir, log := site(t), &bytes.Buffer{}
	for _, name := range []string{"tls/client-key.pem", "registries.yaml"} {
		if err := os.Chmod(filepath.Join(dir, name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r := load(t, Config{Paths: []string{filepath.Join(dir, "registries.yaml")}, Log: slog.New(slog.NewTextHandler(log, nil))})
	one(t, r, "registry.example.com")
	if n := strings.Count(log.String(), "client-key.pem"); n != 1 || strings.Count(log.String(), "\n") != 1 {
		t.Errorf("log, want the key once and nothing else:\n%s", log)
	}
	log.Reset()
	write(t, filepath.Join(dir, "registries.yaml"), "r.example.com: {header: {Authorization: Basic c2VjcmV0OnNlY3JldA==}}\n")
	one(t, r, "r.example.com")
	if !strings.Contains(log.String(), "registries.yaml") || strings.Contains(log.String(), "c2VjcmV0") {
		t.Errorf("log, want the file that everybody can read and no secret:\n%s", log)
	}
}

// TestEndpointsConnect uses the endpoints against a server that wants client certificates.
func TestEndpointsConnect(t *testing.T) {
	dir := t.TempDir()
	ca := testca.New(t, "ca")
	server, client := ca.Issue(t, testca.Leaf{Name: "server"}), ca.Issue(t, testca.Leaf{Name: "client"})
	cert, err := tls.X509KeyPair(server.CertPEM, server.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAnyClientCert}
	s.StartTLS()
	t.Cleanup(s.Close)
	host := strings.TrimPrefix(s.URL, "https://")
	at := strings.LastIndexByte(host, ':')
	hostDir := filepath.Join(dir, host[:at]+"_"+host[at+1:]+"_")
	write(t, filepath.Join(hostDir, "ca.crt"), ca.PEM)
	write(t, filepath.Join(hostDir, "client.cert"), bytes.Join([][]byte{client.CertPEM, client.KeyPEM}, nil)) // the key beside its certificate
	e := one(t, load(t, Config{Paths: []string{dir}}), host)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: e.RootCAs, Certificates: e.Certificates}}
	t.Cleanup(transport.CloseIdleConnections)
	resp, err := (&http.Client{Transport: transport}).Get(s.URL)
	if err != nil {
		t.Fatalf("connect with the endpoint's settings: %v", err)
	}
	resp.Body.Close()
}

func TestConcurrentUseAndChange(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "own.yaml")
	replace := func(n int) {
		write(t, path+".new", fmt.Sprintf("r.example.com: {mirrors: [m%d.example.com]}\n", n))
		if err := os.Rename(path+".new", path); err != nil {
			t.Error(err)
		}
	}
	replace(0)
	r := load(t, Config{Paths: []string{path}})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				if got, err := r.Endpoints("r.example.com", "x", true); err != nil || len(got) != 2 || !strings.HasPrefix(got[0].Host, "m") {
					t.Errorf("Endpoints = %s, %v", describe(got), err)
				}
			}
		})
	}
	for n := range 50 {
		replace(n)
	}
	wg.Wait()
}
