// Package testca is a certificate authority for tests.
//
// It works inside synctest bubbles: it reads the time only through [time.Now] and starts nothing.
package testca

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Key is a type of private key.
type Key string

// The key types a test can ask for. The last three are ones that Envoy refuses.
const (
	P256    Key = "P-256"
	P384    Key = "P-384"
	P521    Key = "P-521"
	Ed25519 Key = "Ed25519"
	RSA2048 Key = "RSA-2048"
	RSA3072 Key = "RSA-3072"
	RSA1024 Key = "RSA-1024"
	P224    Key = "P-224"
)

// Form is how a private key is written.
type Form string

// The forms of private keys. PKCS8 is the default.
const (
	PKCS8 Form = "PKCS#8"
	SEC1  Form = "SEC1"
	PKCS1 Form = "PKCS#1"
)

// CA signs certificates.
type CA struct {
	Cert *x509.Certificate
	Key  crypto.Signer
	PEM  []byte // its own certificate
	up   *CA
}

// Leaf says what a certificate shall be like; the zero value is a good server and client certificate for localhost.
type Leaf struct {
	Name      string    // common name; default "leaf"
	Nameless  bool      // without a subject, as istiod's are
	Hosts     []string  // DNS names, IP addresses, URIs; default localhost and 127.0.0.1
	Key       Key       // default P256
	Form      Form      // default PKCS8
	NotBefore time.Time // default an hour ago
	NotAfter  time.Time // default in a day
}

// Pair is a certificate with its chain (leaf first, root left out) and its private key, both PEM.
type Pair struct {
	CertPEM, KeyPEM []byte
	Cert            *x509.Certificate
}

// New makes a root CA that is valid from a day ago for ten years.
func New(tb testing.TB, name string) *CA {
	tb.Helper()
	return newCA(tb, name, nil)
}

// Sub makes an intermediate CA below c.
func (c *CA) Sub(tb testing.TB, name string) *CA {
	tb.Helper()
	return newCA(tb, name, c)
}

func newCA(tb testing.TB, name string, up *CA) *CA {
	tb.Helper()
	key := NewKey(tb, P256)
	template := &x509.Certificate{
		SerialNumber:          serial(tb),
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             time.Now().Add(-24 * time.Hour),
		NotAfter:              time.Now().AddDate(10, 0, 0),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	parent, signer := template, key
	if up != nil {
		parent, signer = up.Cert, up.Key
	}
	cert, text, err := sign(template, parent, key.Public(), signer)
	if err != nil {
		tb.Fatal(err)
	}
	return &CA{Cert: cert, Key: key, PEM: text, up: up}
}

// Issue makes a certificate and its key.
func (c *CA) Issue(tb testing.TB, l Leaf) Pair {
	tb.Helper()
	key := NewKey(tb, l.Key)
	cert, text, err := c.Sign(key.Public(), l)
	if err != nil {
		tb.Fatal(err)
	}
	return Pair{CertPEM: append(text, c.Chain()...), KeyPEM: KeyPEM(tb, key, l.Form), Cert: cert}
}

// Sign makes a certificate for somebody else's key, without a chain. It may be called from any goroutine.
func (c *CA) Sign(pub crypto.PublicKey, l Leaf) (*x509.Certificate, []byte, error) {
	l = l.withDefaults()
	n, err := newSerial()
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: n,
		Subject:      pkix.Name{CommonName: l.Name},
		NotBefore:    l.NotBefore,
		NotAfter:     l.NotAfter,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	addHosts(template, l.Hosts)
	return sign(template, c.Cert, pub, c.Key)
}

// Chain is the certificates of the CAs between the root and a certificate that c signs, the nearest first; a root's is empty.
func (c *CA) Chain() []byte {
	var text []byte
	for up := c; up.up != nil; up = up.up {
		text = append(text, up.PEM...)
	}
	return text
}

// Root is the CA on which all c signs hangs; a root's is itself.
func (c *CA) Root() *CA {
	for c.up != nil {
		c = c.up
	}
	return c
}

func (l Leaf) withDefaults() Leaf {
	if l.Name == "" && !l.Nameless {
		l.Name = "leaf"
	}
	if l.Hosts == nil {
		l.Hosts = []string{"localhost", "127.0.0.1"}
	}
	if l.Key == "" {
		l.Key = P256
	}
	if l.NotBefore.IsZero() {
		l.NotBefore = time.Now().Add(-time.Hour)
	}
	if l.NotAfter.IsZero() {
		l.NotAfter = time.Now().Add(24 * time.Hour)
	}
	return l
}

// CRL makes a certificate revocation list that is valid until next.
func (c *CA) CRL(tb testing.TB, next time.Time, revoked ...*x509.Certificate) []byte {
	tb.Helper()
	template := &x509.RevocationList{Number: serial(tb), ThisUpdate: time.Now().Add(-48 * time.Hour), NextUpdate: next}
	for _, r := range revoked {
		template.RevokedCertificateEntries = append(template.RevokedCertificateEntries,
			x509.RevocationListEntry{SerialNumber: r.SerialNumber, RevocationTime: time.Now().Add(-time.Hour)})
	}
	der, err := x509.CreateRevocationList(rand.Reader, template, c.Cert, c.Key)
	if err != nil {
		tb.Fatalf("create CRL: %v", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der})
}

// Write puts the pair into dir as tls.crt and tls.key and returns the two paths.
func (p Pair) Write(tb testing.TB, dir string) (cert, key string) {
	tb.Helper()
	cert, key = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	for path, data := range map[string][]byte{cert: p.CertPEM, key: p.KeyPEM} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			tb.Fatalf("write pair: %v", err)
		}
	}
	return cert, key
}

// NewKey makes a private key.
func NewKey(tb testing.TB, kind Key) crypto.Signer {
	tb.Helper()
	key, err := newKey(kind)
	if err != nil {
		tb.Fatalf("make %s key: %v", kind, err)
	}
	return key
}

func newKey(kind Key) (crypto.Signer, error) {
	switch kind {
	case P224:
		return ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	case P384:
		return ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case P521:
		return ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	case Ed25519:
		_, key, err := ed25519.GenerateKey(rand.Reader)
		return key, err
	case RSA1024:
		return rsa.GenerateKey(rand.Reader, 1024)
	case RSA2048:
		return rsa.GenerateKey(rand.Reader, 2048)
	case RSA3072:
		return rsa.GenerateKey(rand.Reader, 3072)
	default:
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
}

// KeyPEM writes a private key as PEM.
func KeyPEM(tb testing.TB, key crypto.Signer, form Form) []byte {
	tb.Helper()
	var der []byte
	var err error
	kind := "PRIVATE KEY"
	switch form {
	case SEC1:
		kind = "EC PRIVATE KEY"
		der, err = x509.MarshalECPrivateKey(key.(*ecdsa.PrivateKey))
	case PKCS1:
		kind = "RSA PRIVATE KEY"
		der = x509.MarshalPKCS1PrivateKey(key.(*rsa.PrivateKey))
	default:
		der, err = x509.MarshalPKCS8PrivateKey(key)
	}
	if err != nil {
		tb.Fatalf("write key as %s: %v", form, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func addHosts(template *x509.Certificate, hosts []string) {
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else if u, err := url.Parse(h); err == nil && u.Scheme != "" {
			template.URIs = append(template.URIs, u)
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
}

func sign(template, parent *x509.Certificate, pub crypto.PublicKey, signer crypto.Signer) (*x509.Certificate, []byte, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, pub, signer)
	if err != nil {
		return nil, nil, fmt.Errorf("sign %s: %w", template.Subject.CommonName, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("parse %s: %w", template.Subject.CommonName, err)
	}
	return cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

func serial(tb testing.TB) *big.Int {
	tb.Helper()
	n, err := newSerial()
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

func newSerial() (*big.Int, error) {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("serial number: %w", err)
	}
	return n.Add(n, big.NewInt(1)), nil
}
