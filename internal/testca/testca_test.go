package testca

import (
	"crypto/tls"
	"crypto/x509"
	"testing"
	"testing/synctest"
	"time"
)

func TestChainsVerify(t *testing.T) {
	for _, key := range []Key{P256, P384, P521, Ed25519, RSA2048} {
		t.Run(string(key), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				root := New(t, "root")
				pair := root.Sub(t, "sub").Issue(t, Leaf{Key: key})
				got, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
				if err != nil {
					t.Fatalf("X509KeyPair: %v", err)
				}
				if len(got.Certificate) != 2 {
					t.Errorf("chain has %d certificates, want leaf and intermediate", len(got.Certificate))
				}
				roots, subs := x509.NewCertPool(), x509.NewCertPool()
				roots.AddCert(root.Cert)
				subs.AppendCertsFromPEM(pair.CertPEM)
				opts := x509.VerifyOptions{Roots: roots, Intermediates: subs, DNSName: "localhost", CurrentTime: time.Now()}
				if _, err := pair.Cert.Verify(opts); err != nil {
					t.Errorf("Verify: %v", err)
				}
				opts.CurrentTime = time.Now().Add(25 * time.Hour)
				if _, err := pair.Cert.Verify(opts); err == nil {
					t.Error("Verify after a day: accepted, want expired")
				}
			})
		})
	}
}
