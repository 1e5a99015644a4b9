package identity

import (
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/url"
	"strings"
)

// The kinds of keys.
const (
	KeyP256 = "P-256"
	KeyP384 = "P-384"
	KeyRSA  = "RSA"
)

const (
	defaultRSABits = 2048
	minRSABits     = 2048 // Envoy refuses less
	maxRSABits     = 8192 // takes seconds to make already
)

// keySpec is what keys are like.
type keySpec struct {
	kind  string
	bits  int
	pkcs8 bool
}

func (c *Config) keySpec() (keySpec, error) {
	s := keySpec{kind: cmp.Or(c.Key, KeyP256), bits: cmp.Or(c.RSABits, defaultRSABits), pkcs8: c.PKCS8}
	if s.kind != KeyP256 && s.kind != KeyP384 && s.kind != KeyRSA {
		return s, fmt.Errorf("key %q is unknown: choose %s, %s or %s", s.kind, KeyP256, KeyP384, KeyRSA)
	}
	if s.kind == KeyRSA && (s.bits < minRSABits || s.bits > maxRSABits) {
		return s, fmt.Errorf("RSA key of %d bits: choose %d to %d", s.bits, minRSABits, maxRSABits)
	}
	return s, nil
}

func (s keySpec) make() (crypto.Signer, error) {
	switch s.kind {
	case KeyRSA:
		return rsa.GenerateKey(rand.Reader, s.bits)
	case KeyP384:
		return ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	default:
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
}

// encode writes a key as PEM, in the form of its kind unless PKCS#8 is wanted.
func (s keySpec) encode(key crypto.Signer) ([]byte, error) {
	kind, marshal := "PRIVATE KEY", func() ([]byte, error) { return x509.MarshalPKCS8PrivateKey(key) }
	if !s.pkcs8 {
		switch k := key.(type) {
		case *ecdsa.PrivateKey:
			kind, marshal = "EC PRIVATE KEY", func() ([]byte, error) { return x509.MarshalECPrivateKey(k) }
		case *rsa.PrivateKey:
			kind, marshal = "RSA PRIVATE KEY", func() ([]byte, error) { return x509.MarshalPKCS1PrivateKey(k), nil }
		}
	}
	der, err := marshal()
	if err != nil {
		return nil, fmt.Errorf("encode the private key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), nil
}

func decodeKey(text []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("the private key is not PEM")
	}
	var key any
	var err error
	switch block.Type {
	case "EC PRIVATE KEY":
		key, err = x509.ParseECPrivateKey(block.Bytes)
	case "RSA PRIVATE KEY":
		key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	default:
		key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	}
	if err != nil {
		return nil, fmt.Errorf("the private key cannot be parsed: %w", err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("the private key is a %T, which cannot sign", key)
	}
	return signer, nil
}

// request makes a certificate request: an empty subject and the id as its only name, which is what istiod and its like look for.
func request(key crypto.Signer, id *url.URL) ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{URIs: []*url.URL{id}}, key)
	if err != nil {
		return nil, fmt.Errorf("make the certificate request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), nil
}

// ID is the SPIFFE id of a Kubernetes workload.
func ID(trustDomain, namespace, serviceAccount string) string {
	return "spiffe://" + trustDomain + "/ns/" + namespace + "/sa/" + serviceAccount
}

// parseID checks a SPIFFE id. In an open one parts of the path may be empty.
func parseID(id string, open bool) (*url.URL, error) {
	u, err := url.Parse(id)
	if err != nil {
		return nil, fmt.Errorf("SPIFFE id %q: %w", id, err)
	}
	path, ok := strings.CutPrefix(u.Path, "/")
	switch {
	case u.Scheme != "spiffe" || u.Host == "" || !ok || path == "":
		return nil, fmt.Errorf("SPIFFE id %q must be spiffe://<trust domain>/<path>, for example %s", id, ID("cluster.local", "ingress", "gateway"))
	case u.User != nil || u.Port() != "" || u.RawQuery != "" || u.Fragment != "" || u.Opaque != "" || u.String() != id:
		return nil, fmt.Errorf("SPIFFE id %q has more than a trust domain and a path", id)
	}
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "" && !open || segment == "." || segment == ".." {
			return nil, fmt.Errorf("SPIFFE id %q has an empty part: is the namespace or the service account missing?", id)
		}
	}
	return u, nil
}
