package sds

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
)

// text is PEM text and where it came from, for errors.
type text struct {
	from string
	data []byte
}

// blocks splits the text. A block that cannot be decoded is an error, never skipped: it is a file half written.
func (t text) blocks() ([]*pem.Block, error) {
	if len(bytes.TrimSpace(t.data)) == 0 {
		return nil, fmt.Errorf("%s is empty", t.from)
	}
	begun := bytes.Count(t.data, []byte("\n-----BEGIN "))
	if bytes.HasPrefix(t.data, []byte("-----BEGIN ")) {
		begun++
	}
	var all []*pem.Block
	rest := t.data
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		all = append(all, block)
	}
	if begun == 0 {
		return nil, fmt.Errorf("%s is not PEM: convert DER with openssl x509 -inform der, PKCS#12 with openssl pkcs12 -nodes", t.from)
	}
	if len(all) != begun {
		return nil, fmt.Errorf("%s is truncated or damaged: %d of %d PEM blocks can be decoded", t.from, len(all), begun)
	}
	return all, nil
}

// chain reads a certificate chain. The PEM it gives back has the certificates only: a key in the same file would be
// shown in Envoy's configuration dump.
func (t text) chain() ([]*x509.Certificate, []byte, error) {
	blocks, err := t.blocks()
	if err != nil {
		return nil, nil, err
	}
	var certs []*x509.Certificate
	var out []byte
	for _, b := range blocks {
		if !isCertificate(b) {
			continue
		}
		cert, err := x509.ParseCertificate(b.Bytes)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: certificate %d cannot be parsed: %w", t.from, len(certs)+1, err)
		}
		certs = append(certs, cert)
		out = append(out, encode("CERTIFICATE", b.Bytes)...)
	}
	if len(certs) == 0 {
		return nil, nil, fmt.Errorf("%s holds no certificate but %s", t.from, kinds(blocks))
	}
	return certs, out, nil
}

func isCertificate(b *pem.Block) bool { return b.Type == "CERTIFICATE" || b.Type == "X509 CERTIFICATE" }

// kinds names the types of blocks; they are from a file, so only known ones are repeated.
func kinds(blocks []*pem.Block) string {
	var names []string
	for _, b := range blocks {
		switch b.Type {
		case "CERTIFICATE", "TRUSTED CERTIFICATE", "X509 CRL", "CERTIFICATE REQUEST", "PRIVATE KEY", "EC PRIVATE KEY", "RSA PRIVATE KEY",
			"ENCRYPTED PRIVATE KEY", "OPENSSH PRIVATE KEY", "PUBLIC KEY", "EC PARAMETERS", "DH PARAMETERS", "PKCS7":
			names = append(names, b.Type)
		default:
			names = append(names, "something else")
		}
		if len(names) == 5 {
			break
		}
	}
	return strings.Join(names, ", ")
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// key reads the private key, which is the first one in the text.
func (t text) key() (crypto.Signer, []byte, error) {
	blocks, err := t.blocks()
	if err != nil {
		return nil, nil, err
	}
	for _, b := range blocks {
		if b.Type == "ENCRYPTED PRIVATE KEY" || b.Headers["DEK-Info"] != "" || strings.Contains(b.Headers["Proc-Type"], "ENCRYPTED") {
			return nil, nil, fmt.Errorf("%s is encrypted: store it without a passphrase (openssl pkey -in old.key -out new.key, mode 0600)", t.from)
		}
		if b.Type != "PRIVATE KEY" && b.Type != "EC PRIVATE KEY" && b.Type != "RSA PRIVATE KEY" {
			continue
		}
		key, err := parseKey(b)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", t.from, err)
		}
		return key, encode(b.Type, b.Bytes), nil
	}
	return nil, nil, fmt.Errorf("%s holds no private key but %s", t.from, kinds(blocks))
}

// parseKey reads a private key and refuses what Envoy refuses. The texts of its errors hold nothing of the key.
func parseKey(b *pem.Block) (crypto.Signer, error) {
	var key any
	var err error
	switch b.Type {
	case "EC PRIVATE KEY":
		key, err = x509.ParseECPrivateKey(b.Bytes)
	case "RSA PRIVATE KEY":
		key, err = x509.ParsePKCS1PrivateKey(b.Bytes)
	default:
		key, err = x509.ParsePKCS8PrivateKey(b.Bytes)
	}
	if err != nil {
		return nil, fmt.Errorf("private key cannot be parsed: %w", err)
	}
	switch k := key.(type) {
	case *ecdsa.PrivateKey:
		if c := k.Curve; c != elliptic.P256() && c != elliptic.P384() && c != elliptic.P521() {
			return nil, fmt.Errorf("private key has curve %s: Envoy takes P-256, P-384 and P-521", k.Curve.Params().Name)
		}
		return k, nil
	case *rsa.PrivateKey:
		if bits := k.N.BitLen(); bits < 2048 {
			return nil, fmt.Errorf("private key is RSA with %d bits: Envoy wants 2048 or more", bits)
		}
		return k, nil
	case ed25519.PrivateKey:
		return k, nil
	}
	return nil, fmt.Errorf("private key is of type %T: Envoy takes ECDSA, RSA and Ed25519", key)
}

// match says whether the key belongs to the first certificate of the chain.
func match(chain []*x509.Certificate, key crypto.Signer, certFrom, keyFrom string) error {
	if samePublic(chain[0], key) {
		return nil
	}
	for i, cert := range chain[1:] {
		if samePublic(cert, key) {
			return fmt.Errorf("%s: the chain must start with the certificate of the key, which is number %d in it", certFrom, i+2)
		}
	}
	return fmt.Errorf("the private key in %s does not match the certificate in %s (being replaced one after the other?)", keyFrom, certFrom)
}

func samePublic(cert *x509.Certificate, key crypto.Signer) bool {
	public, ok := cert.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	return ok && public.Equal(key.Public())
}

// bundle reads certificate authorities and revocation lists.
func (t text) bundle() (roots []*x509.Certificate, crls []*x509.RevocationList, out []byte, warnings []string, err error) {
	blocks, err := t.blocks()
	if err != nil {
		return nil, nil, nil, nil, err
	}
	odd := 0
	for i, b := range blocks {
		switch {
		case isCertificate(b):
			if cert, err := x509.ParseCertificate(b.Bytes); err == nil {
				roots = append(roots, cert)
			} else {
				odd++ // Envoy's parser may be more lenient than ours; it decides
			}
			out = append(out, encode("CERTIFICATE", b.Bytes)...)
		case b.Type == "X509 CRL":
			crl, err := x509.ParseRevocationList(b.Bytes)
			if err != nil {
				return nil, nil, nil, nil, fmt.Errorf("%s: revocation list in block %d cannot be parsed: %w", t.from, i+1, err)
			}
			crls = append(crls, crl)
			out = append(out, encode(b.Type, b.Bytes)...)
		}
	}
	if odd > 0 {
		warnings = append(warnings, fmt.Sprintf("%s: %d certificates cannot be parsed here", t.from, odd))
	}
	if len(out) == 0 {
		return nil, nil, nil, nil, fmt.Errorf("%s holds no certificate but %s", t.from, kinds(blocks))
	}
	return roots, crls, out, warnings, nil
}

// authorities reads a trust bundle.
func (t text) authorities() (roots []*x509.Certificate, crls []*x509.RevocationList, out []byte, warnings []string, err error) {
	roots, crls, out, warnings, err = t.bundle()
	if err == nil && len(roots) == 0 {
		err = fmt.Errorf("%s holds no certificate that can be parsed", t.from)
	}
	return roots, crls, out, warnings, err
}

// revocations reads a list of revocation lists. Envoy accepts garbage here and then refuses every client.
func (t text) revocations() ([]*x509.RevocationList, []byte, error) {
	roots, crls, out, _, err := t.bundle()
	if err != nil {
		return nil, nil, err
	}
	if len(crls) == 0 {
		return nil, nil, fmt.Errorf("%s holds no revocation list (a PEM block X509 CRL); convert DER with openssl crl -inform der", t.from)
	}
	if len(roots) > 0 {
		return nil, nil, errors.New(t.from + " holds certificates, a revocation list is expected")
	}
	return crls, out, nil
}
