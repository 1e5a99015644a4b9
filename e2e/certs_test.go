package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/testca"
)

// tlsSocket is a downstream TLS context whose certificate is named by file.
func tlsSocket(cert, key string) string {
	return tlsContext(fmt.Sprintf("tls_certificates: [{ certificate_chain: { filename: %s }, private_key: { filename: %s } }]", cert, key))
}

func tlsContext(common string) string {
	return fmt.Sprintf(`transport_socket:
  name: envoy.transport_sockets.tls
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
    common_tls_context: { %s }
`, common)
}

func certsDir(t *testing.T, a *agent) string {
	t.Helper()
	dir := filepath.Join(a.dir, "certs")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// handshake makes a new connection and returns the serial number of the certificate it got.
func handshake(address string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	dialer := &tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.String(), nil
}

// handshakes makes new connections all the time and counts those that fail.
func handshakes(t *testing.T, address string) (stop func() (made int, failures []error)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var (
		ended    sync.WaitGroup
		made     int
		failures []error
	)
	ended.Go(func() {
		for ctx.Err() == nil {
			made++
			if _, err := handshake(address); err != nil {
				failures = append(failures, err)
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	return func() (int, []error) {
		cancel()
		ended.Wait()
		return made, failures
	}
}

func TestCertificateFilesReplacedTenTimes(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			ca, a, address := testca.New(t, "e2e"), newAgent(t), freeAddress(t)
			certs := certsDir(t, a)
			pair := ca.Issue(t, testca.Leaf{})
			cert, key := pair.Write(t, certs)
			a.startConfig(map[string]string{
				"all.yaml": resources(listenerTLS("main", address, tlsSocket(cert, key)), cluster("origin", startOrigin(t))),
			}, "--xds-mode", mode)
			stop := handshakes(t, address)
			for i := range 10 {
				pair := ca.Issue(t, testca.Leaf{})
				pair.Write(t, certs)
				took := a.eventually(2*time.Second, fmt.Sprintf("certificate %d is served", i), func() error {
					serial, err := handshake(address)
					if err == nil && serial != pair.Cert.SerialNumber.String() {
						err = fmt.Errorf("the old certificate")
					}
					return err
				})
				t.Logf("certificate %d after %v", i, took)
			}
			if made, failures := stop(); len(failures) > 0 || made < 50 {
				t.Errorf("%d of %d handshakes failed: %v", len(failures), made, failures[:min(3, len(failures))])
			}
		})
	}
}

func TestSecretByNameAndMismatchedPair(t *testing.T) {
	t.Parallel()
	ca, a, address := testca.New(t, "e2e"), newAgent(t), freeAddress(t)
	certs := certsDir(t, a)
	first := ca.Issue(t, testca.Leaf{})
	cert, key := first.Write(t, certs)
	secret := fmt.Sprintf(`- "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret
  name: edge-cert
  tls_certificate: { certificate_chain: { filename: %s }, private_key: { filename: %s } }
`, cert, key)
	a.startConfig(map[string]string{"all.yaml": resources(
		listenerTLS("main", address, tlsContext("tls_certificate_sds_secret_configs: [{ name: edge-cert }]")),
		cluster("origin", startOrigin(t)), secret)})
	served := func(want testca.Pair) error {
		serial, err := handshake(address)
		if err == nil && serial != want.Cert.SerialNumber.String() {
			err = fmt.Errorf("another certificate is served")
		}
		return err
	}
	if err := served(first); err != nil {
		t.Fatal(err)
	}

	second := ca.Issue(t, testca.Leaf{})
	writeFile(t, cert, second.CertPEM) // the key is still the first one's
	a.eventually(5*time.Second, "status tells of the mismatch", func() error {
		if text := a.statusText(); !strings.Contains(text, "match") {
			return fmt.Errorf("status:\n%s", text)
		}
		return nil
	})
	if err := served(first); err != nil {
		t.Errorf("a mismatched pair on disk: %v", err)
	}
	writeFile(t, key, second.KeyPEM)
	a.eventually(2*time.Second, "the whole pair is served", func() error { return served(second) })
}

func TestMissingCertificateDelaysNoOtherListener(t *testing.T) {
	t.Parallel()
	a, tlsAddress, plain := newAgent(t), freeAddress(t), freeAddress(t)
	missing := filepath.Join(a.dir, "certs")
	a.conf = filepath.Join(a.dir, "conf")
	a.write("all.yaml", resources(
		listenerTLS("tls", tlsAddress, tlsSocket(filepath.Join(missing, "tls.crt"), filepath.Join(missing, "tls.key"))),
		listener("plain", plain), cluster("origin", startOrigin(t))))
	a.start("--config-dir", a.conf)
	took := a.eventually(12*time.Second, "the plain listener serves", func() error { return wantCode("http://"+plain+"/", 200) })
	t.Logf("the plain listener served after %v", took)
	if text := a.statusText(); !strings.Contains(text, "tls.crt") {
		t.Errorf("status does not name the missing file:\n%s", text)
	}
	pair := testca.New(t, "e2e").Issue(t, testca.Leaf{})
	pair.Write(t, certsDir(t, a))
	a.eventually(4*time.Second, "the certificate that came late is served", func() error {
		_, err := handshake(tlsAddress)
		return err
	})
}
