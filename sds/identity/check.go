package identity

import (
	"bytes"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
)

const (
	skew       = time.Minute // how far the authority's clock may be before ours
	maxChain   = 1 << 20     // bytes of PEM
	maxCerts   = 1000        // in one text; a system's whole bundle has some 150
	maxBetween = 10          // certificates between leaf and root
)

// credential is a checked certificate with its key. It is never changed.
type credential struct {
	leaf    *x509.Certificate
	chain   []*x509.Certificate // what is shown to peers: leaf first, self-signed ones left out
	roots   []*x509.Certificate
	key     crypto.Signer
	keyPEM  []byte
	issued  time.Time // when we got it; NotBefore is earlier, because authorities backdate
	ends    time.Time // when the first certificate between leaf and root ends
	early   error     // it is not valid yet, by our clock
	remarks []string  // what is odd about it and no reason to refuse it
}

// check makes a credential of an authority's answer, or says why it is none: whatever passes may replace a good one.
func check(answer []string, key crypto.Signer, keyPEM []byte, id *url.URL, now time.Time) (*credential, error) {
	if len(answer) < 2 {
		return nil, fmt.Errorf("the answer has %d texts: want at least the certificate, first, and the root, last", len(answer))
	}
	size := 0
	for _, text := range answer {
		size += len(text)
	}
	if size > maxChain {
		return nil, fmt.Errorf("the answer has %d bytes: want at most %d", size, maxChain)
	}
	roots, err := certificates(answer[len(answer)-1])
	if err != nil {
		return nil, fmt.Errorf("the last text, the root: %w", err)
	}
	chain, err := certificates(strings.Join(answer[:len(answer)-1], "\n"))
	if err != nil {
		return nil, fmt.Errorf("the chain: %w", err)
	}
	if len(chain)-1 > maxBetween {
		return nil, fmt.Errorf("the chain has %d certificates: want at most %d", len(chain), maxBetween+1)
	}
	c := &credential{leaf: chain[0], roots: unique(roots), key: key, keyPEM: keyPEM, issued: now}
	c.chain = shown(chain, roots)
	return c, c.verify(id, now)
}

// shown is what peers get to see: no self-signed certificates, which they have or do not trust, but what links the chain to another root.
func shown(chain, roots []*x509.Certificate) []*x509.Certificate {
	out := chain[:1:1]
	for _, cert := range chain[1:] {
		if !selfSigned(cert) {
			out = append(out, cert)
		}
	}
	last := out[len(out)-1]
	for _, cert := range roots {
		if bytes.Equal(cert.RawSubject, last.RawIssuer) && !selfSigned(cert) {
			out = append(out, cert)
		}
	}
	return out
}

// verify checks what must be true of a credential now, whether it comes from an authority or from disk.
func (c *credential) verify(id *url.URL, now time.Time) error {
	public, ok := c.leaf.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(c.key.Public()) {
		return errors.New("the first certificate is not for the key of the request")
	}
	if !now.Before(c.leaf.NotAfter) {
		return fmt.Errorf("the certificate has expired at %s, it is %s here", stamp(c.leaf.NotAfter), stamp(now))
	}
	if now.Add(skew).Before(c.leaf.NotBefore) {
		c.early = fmt.Errorf("the certificate is not valid before %s, it is %s here: one of the clocks is wrong", stamp(c.leaf.NotBefore), stamp(now))
		c.remarks = append(c.remarks, c.early.Error())
	}
	if err := c.checkID(id); err != nil {
		return err
	}
	return c.checkChain(now)
}

// checkID compares names. The authority takes the identity from the caller's token, so the trust domain may be another than ours
// says; another namespace or account would be somebody else's certificate.
func (c *credential) checkID(want *url.URL) error {
	if len(c.leaf.URIs) != 1 || c.leaf.URIs[0].Scheme != "spiffe" {
		return fmt.Errorf("the certificate has the URIs %.200q: want one SPIFFE id", fmt.Sprint(c.leaf.URIs))
	}
	got := c.leaf.URIs[0]
	if !fits(got.Path, want.Path) {
		return fmt.Errorf("the certificate is for %.200q, wanted is %q: are namespace and service account those of the token?", got, want)
	}
	if got.Host != want.Host {
		c.remarks = append(c.remarks, fmt.Sprintf("the authority's trust domain is %.200q and ours %q: set ours to the same", got.Host, want.Host))
	}
	return nil
}

// fits compares paths; a part of want that is empty may be anything.
func fits(got, want string) bool {
	parts, wanted := strings.Split(got, "/"), strings.Split(want, "/")
	if len(parts) != len(wanted) {
		return false
	}
	for i := range parts {
		if wanted[i] != "" && wanted[i] != parts[i] {
			return false
		}
	}
	return true
}

func (c *credential) checkChain(now time.Time) error {
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	for _, cert := range c.roots {
		roots.AddCert(cert)
	}
	for _, cert := range c.chain[1:] {
		between.AddCert(cert)
	}
	at := now
	if at.Before(c.leaf.NotBefore) {
		at = c.leaf.NotBefore
	}
	paths, err := c.leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	if err != nil {
		return fmt.Errorf("the chain does not lead to the root that came with it: %w", err)
	}
	for _, path := range paths {
		if end := firstEnd(path); end.After(c.ends) {
			c.ends = end
		}
	}
	return nil
}

func firstEnd(path []*x509.Certificate) time.Time {
	end := path[0].NotAfter
	for _, cert := range path[1:] {
		if cert.NotAfter.Before(end) {
			end = cert.NotAfter
		}
	}
	return end
}

// life is how long a certificate is good for us. The clocks of the authority and this machine may differ: what it was issued for is the
// most.
func (c *credential) life() time.Duration {
	return min(c.ends.Sub(c.issued), c.leaf.NotAfter.Sub(c.leaf.NotBefore))
}

// pair is the credential in the form of crypto/tls.
func (c *credential) pair() *tls.Certificate {
	pair := &tls.Certificate{PrivateKey: c.key, Leaf: c.leaf}
	for _, cert := range c.chain {
		pair.Certificate = append(pair.Certificate, cert.Raw)
	}
	return pair
}

// certificates reads PEM text whose blocks are all certificates.
func certificates(text string) ([]*x509.Certificate, error) {
	var all []*x509.Certificate
	rest := []byte(text)
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("after %d certificates there is a PEM block of another type", len(all))
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d cannot be parsed: %w", len(all)+1, err)
		}
		if all = append(all, cert); len(all) > maxCerts {
			return nil, fmt.Errorf("there are more than %d certificates", maxCerts)
		}
	}
	if len(all) == 0 {
		return nil, errors.New("there is no certificate")
	}
	if begun := strings.Count(text, "-----BEGIN "); begun != len(all) {
		return nil, fmt.Errorf("it is damaged: %d of %d PEM blocks can be decoded", len(all), begun)
	}
	return all, nil
}

func selfSigned(c *x509.Certificate) bool {
	return bytes.Equal(c.RawSubject, c.RawIssuer) && c.CheckSignatureFrom(c) == nil
}

// encode writes certificates as PEM.
func encode(certs []*x509.Certificate) []byte {
	var out []byte
	for _, c := range certs {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return out
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
