package sds

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/atomicfile"
)

const (
	selfSignedLife  = 365 * 24 * time.Hour
	selfSignedRenew = 30 * 24 * time.Hour // left, below which a new one is made
)

// SelfSigned makes a certificate for development in dir, for host names and IP addresses (none: localhost, 127.0.0.1 and ::1), and returns
// the two files. One that is there already is used again while it is for the same hosts and valid for another month.
func SelfSigned(dir string, hosts []string) (cert, key string, err error) {
	if len(hosts) == 0 {
		hosts = []string{"localhost", "127.0.0.1", "::1"}
	}
	cert, key = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	if reusable(cert, key, hosts) {
		return cert, key, nil
	}
	certPEM, keyPEM, err := selfSign(hosts)
	if err != nil {
		return "", "", fmt.Errorf("make self-signed certificate: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", "", fmt.Errorf("make directory for self-signed certificate: %w", err)
	}
	err = errors.Join(atomicfile.Write(key, keyPEM, 0o600), atomicfile.Write(cert, certPEM, 0o644))
	if err != nil {
		return "", "", fmt.Errorf("write self-signed certificate: %w", err)
	}
	return cert, key, nil
}

func reusable(cert, key string, hosts []string) bool {
	var r reader
	got, err := r.all([]string{cert, key})
	if err != nil {
		return false
	}
	if info, err := os.Stat(key); err != nil || info.Mode()&fs.ModePerm&0o077 != 0 {
		return false
	}
	template, err := fromName(certPrefix + cert + "~" + key)
	if err != nil {
		return false
	}
	m, err := build(template, got.files)
	if err != nil {
		return false
	}
	want := &x509.Certificate{}
	addHosts(want, hosts)
	now := time.Now()
	return m.works(now) && m.to.Sub(now) > selfSignedRenew && slices.Equal(names(want), names(m.cert))
}

func selfSign(hosts []string) (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "gateway-agent development certificate"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(selfSignedLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	addHosts(template, hosts)
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	return encode("CERTIFICATE", der), encode("PRIVATE KEY", private), nil
}

func addHosts(c *x509.Certificate, hosts []string) {
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else {
			c.DNSNames = append(c.DNSNames, h)
		}
	}
}
