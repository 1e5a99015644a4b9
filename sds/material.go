package sds

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// material is a checked secret in the form in which Envoy gets it: everything inline, nothing but what is needed.
type material struct {
	kind     string
	body     *anypb.Any
	cert     *x509.Certificate // leaf, or the authority that lasts longest; nil: none
	from, to time.Time         // when it works: the leaf's dates, or what the revocation lists cover; zero is unlimited
	warnings []string
}

// LogValue keeps the content out of logs.
func (m *material) LogValue() slog.Value { return slog.StringValue(m.kind) }

func (m *material) same(o *material) bool {
	return o != nil && bytes.Equal(m.body.GetValue(), o.body.GetValue())
}

func (m *material) works(now time.Time) bool {
	return (m.from.IsZero() || !now.Before(m.from)) && (m.to.IsZero() || now.Before(m.to))
}

// dates says why a material does not work now.
func (m *material) dates(now time.Time) string {
	what := "certificate"
	if m.kind == kindValidation {
		what = "revocation list"
	}
	switch {
	case m.works(now):
		return ""
	case now.Before(m.from):
		return fmt.Sprintf("%s is not valid before %s", what, m.from.UTC().Format(time.RFC3339))
	default:
		return fmt.Sprintf("%s has expired at %s", what, m.to.UTC().Format(time.RFC3339))
	}
}

// The kinds of secrets, as Envoy names their fields.
const (
	kindCertificate = "tls_certificate"
	kindValidation  = "validation_context"
	kindTickets     = "session_ticket_keys"
	kindGeneric     = "generic_secret"
)

func kindName(s *tlsv3.Secret) string {
	switch s.GetType().(type) {
	case *tlsv3.Secret_TlsCertificate:
		return kindCertificate
	case *tlsv3.Secret_ValidationContext:
		return kindValidation
	case *tlsv3.Secret_SessionTicketKeys:
		return kindTickets
	case *tlsv3.Secret_GenericSecret:
		return kindGeneric
	}
	return ""
}

// sources lists every data source of a secret.
func sources(s *tlsv3.Secret) []*corev3.DataSource {
	var all []*corev3.DataSource
	add := func(some ...*corev3.DataSource) {
		for _, d := range some {
			if d != nil {
				all = append(all, d)
			}
		}
	}
	switch t := s.GetType().(type) {
	case *tlsv3.Secret_TlsCertificate:
		c := t.TlsCertificate
		add(c.GetCertificateChain(), c.GetPrivateKey(), c.GetPkcs12(), c.GetPassword(), c.GetOcspStaple())
		add(c.GetSignedCertificateTimestamp()...)
	case *tlsv3.Secret_ValidationContext:
		add(t.ValidationContext.GetTrustedCa(), t.ValidationContext.GetCrl())
	case *tlsv3.Secret_SessionTicketKeys:
		add(t.SessionTicketKeys.GetKeys()...)
	case *tlsv3.Secret_GenericSecret:
		add(t.GenericSecret.GetSecret())
		for _, d := range t.GenericSecret.GetSecrets() {
			add(d)
		}
	}
	return all
}

// paths lists the files of a secret, each once.
func paths(s *tlsv3.Secret) []string {
	var out []string
	seen := map[string]bool{}
	for _, d := range sources(s) {
		if f, ok := d.GetSpecifier().(*corev3.DataSource_Filename); ok && !seen[f.Filename] {
			seen[f.Filename] = true
			out = append(out, f.Filename)
		}
	}
	return out
}

// build fills a secret with what its files hold and checks it.
func build(template *tlsv3.Secret, files map[string][]byte) (*material, error) {
	secret := proto.CloneOf(template)
	origin := map[*corev3.DataSource]string{}
	for _, d := range sources(secret) {
		from, err := embed(d, files)
		if err != nil {
			return nil, err
		}
		origin[d] = from
	}
	m := &material{kind: kindName(secret)}
	if err := m.check(secret, func(d *corev3.DataSource) text { return text{origin[d], d.GetInlineBytes()} }); err != nil {
		return nil, err
	}
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(secret)
	if err != nil {
		return nil, fmt.Errorf("encode secret: %w", err)
	}
	m.body = &anypb.Any{TypeUrl: TypeURL, Value: value}
	return m, nil
}

// embed makes a data source inline and says where its content came from.
func embed(d *corev3.DataSource, files map[string][]byte) (string, error) {
	d.WatchedDirectory = nil // the agent watches
	switch t := d.GetSpecifier().(type) {
	case *corev3.DataSource_Filename:
		d.Specifier = &corev3.DataSource_InlineBytes{InlineBytes: files[t.Filename]}
		return t.Filename, nil
	case *corev3.DataSource_InlineString:
		d.Specifier = &corev3.DataSource_InlineBytes{InlineBytes: []byte(t.InlineString)}
		return "the inline text", nil
	case *corev3.DataSource_InlineBytes:
		return "the inline text", nil
	case *corev3.DataSource_EnvironmentVariable:
		return "", fmt.Errorf("environment_variable %q is not read: give the secret as filename or inline", t.EnvironmentVariable)
	}
	return "", errors.New("a data source has neither filename nor inline content")
}

func (m *material) check(s *tlsv3.Secret, of func(*corev3.DataSource) text) error {
	switch t := s.GetType().(type) {
	case *tlsv3.Secret_TlsCertificate:
		return m.checkCertificate(t.TlsCertificate, of)
	case *tlsv3.Secret_ValidationContext:
		return m.checkValidation(t.ValidationContext, of)
	case *tlsv3.Secret_SessionTicketKeys:
		return checkTickets(t.SessionTicketKeys, of)
	case *tlsv3.Secret_GenericSecret:
		if t.GenericSecret.GetSecret() == nil && len(t.GenericSecret.GetSecrets()) == 0 {
			return errors.New("generic_secret holds nothing: give secret or secrets")
		}
		return nil
	}
	return errors.New("secret has no type: give tls_certificate, validation_context, session_ticket_keys or generic_secret")
}

func (m *material) checkCertificate(c *tlsv3.TlsCertificate, of func(*corev3.DataSource) text) error {
	c.WatchedDirectory = nil
	switch {
	case c.GetPkcs12() != nil:
		return errors.New("pkcs12 is not served: convert it to certificate_chain and private_key with openssl pkcs12 -nodes")
	case c.GetCertificateChain() == nil:
		return errors.New("tls_certificate has no certificate_chain")
	case c.GetPrivateKey() == nil && c.GetPrivateKeyProvider() == nil:
		return errors.New("tls_certificate has no private_key")
	}
	chain := of(c.GetCertificateChain())
	certs, out, err := chain.chain()
	if err != nil {
		return err
	}
	c.CertificateChain = inlineSource(out)
	if c.GetPrivateKeyProvider() == nil {
		from := of(c.GetPrivateKey())
		key, out, err := from.key()
		if err != nil {
			return err
		}
		if err := match(certs, key, chain.from, from.from); err != nil {
			return err
		}
		c.PrivateKey, c.Password = inlineSource(out), nil
	}
	m.cert, m.from, m.to = certs[0], certs[0].NotBefore, certs[0].NotAfter
	return nil
}

func (m *material) checkValidation(v *tlsv3.CertificateValidationContext, of func(*corev3.DataSource) text) error {
	v.WatchedDirectory = nil
	if !verifies(v) {
		return errors.New("validation_context verifies nothing: give trusted_ca (or trust_chain_verification: ACCEPT_UNTRUSTED if that is meant)")
	}
	var crls []*x509.RevocationList
	if v.GetTrustedCa() != nil {
		roots, more, out, warnings, err := of(v.GetTrustedCa()).authorities()
		if err != nil {
			return err
		}
		v.TrustedCa = inlineSource(out)
		crls, m.warnings, m.cert = more, warnings, longest(roots)
	}
	if v.GetCrl() != nil {
		more, out, err := of(v.GetCrl()).revocations()
		if err != nil {
			return err
		}
		v.Crl = inlineSource(out)
		crls = append(crls, more...)
	}
	m.covers(crls)
	return nil
}

// verifies says whether a validation context checks anything at all: an empty one would let everybody in.
func verifies(v *tlsv3.CertificateValidationContext) bool {
	return v.GetTrustedCa() != nil || v.GetCaCertificateProviderInstance() != nil || v.GetSystemRootCerts() != nil ||
		v.GetCustomValidatorConfig() != nil || len(v.GetVerifyCertificateSpki()) > 0 || len(v.GetVerifyCertificateHash()) > 0 ||
		v.GetTrustChainVerification() == tlsv3.CertificateValidationContext_ACCEPT_UNTRUSTED
}

// longest is the authority that expires last: a bundle often still holds its expired predecessors.
func longest(roots []*x509.Certificate) *x509.Certificate {
	best := roots[0]
	for _, c := range roots[1:] {
		if c.NotAfter.After(best.NotAfter) {
			best = c
		}
	}
	return best
}

// covers sets the dates that all revocation lists have in common: with a list that is out of date Envoy refuses every client of its authority.
func (m *material) covers(crls []*x509.RevocationList) {
	for _, crl := range crls {
		if crl.ThisUpdate.After(m.from) {
			m.from = crl.ThisUpdate
		}
		if !crl.NextUpdate.IsZero() && (m.to.IsZero() || crl.NextUpdate.Before(m.to)) {
			m.to = crl.NextUpdate
		}
	}
}

func checkTickets(t *tlsv3.TlsSessionTicketKeys, of func(*corev3.DataSource) text) error {
	if len(t.GetKeys()) == 0 {
		return errors.New("session_ticket_keys has no keys")
	}
	for _, d := range t.GetKeys() {
		if key := of(d); len(key.data) != 80 {
			return fmt.Errorf("%s: a session ticket key has 80 bytes (openssl rand 80), not %d", key.from, len(key.data))
		}
	}
	return nil
}

func inlineSource(data []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: data}}
}

// fingerprint is the SHA-256 of a certificate, in hex.
func fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return hex.EncodeToString(sum[:])
}

// names lists what a certificate is good for.
func names(c *x509.Certificate) []string {
	out := append([]string{}, c.DNSNames...)
	for _, ip := range c.IPAddresses {
		out = append(out, ip.String())
	}
	for _, u := range c.URIs {
		out = append(out, u.String())
	}
	return append(out, c.EmailAddresses...)
}

func serialOf(c *x509.Certificate) string { return strings.ToLower(c.SerialNumber.Text(16)) }
