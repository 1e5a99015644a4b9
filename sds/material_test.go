package sds

import (
	"bytes"
	"crypto/ecdh"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"github.com/gateway-agent/gateway-agent/internal/testca"
)

const (
	certFile = "/c/tls.crt"
	keyFile  = "/c/tls.key"
	caFile   = "/c/ca.pem"
	crlFile  = "/c/ca.crl"
)

func certSecret() *tlsv3.Secret {
	return &tlsv3.Secret{Name: "s", Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
		CertificateChain: fileSource(certFile), PrivateKey: fileSource(keyFile),
	}}}
}

func rootSecret(crl bool) *tlsv3.Secret {
	v := &tlsv3.CertificateValidationContext{TrustedCa: fileSource(caFile)}
	if crl {
		v.Crl = fileSource(crlFile)
	}
	return &tlsv3.Secret{Name: "s", Type: &tlsv3.Secret_ValidationContext{ValidationContext: v}}
}

func cat(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

func TestBuildRefuses(t *testing.T) {
	ca := testca.New(t, "ca")
	good, other := ca.Issue(t, testca.Leaf{}), ca.Issue(t, testca.Leaf{})
	chained := ca.Sub(t, "sub").Issue(t, testca.Leaf{})
	rsa1024, p224 := ca.Issue(t, testca.Leaf{Key: testca.RSA1024}), ca.Issue(t, testca.Leaf{Key: testca.P224})
	ed := ca.Issue(t, testca.Leaf{Key: testca.Ed25519})
	leaf, _ := pem.Decode(chained.CertPEM)
	sub := chained.CertPEM[len(pem.EncodeToMemory(leaf)):]
	x25519, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	x25519DER, err := x509.MarshalPKCS8PrivateKey(x25519)
	if err != nil {
		t.Fatal(err)
	}
	crl := ca.CRL(t, time.Now().Add(time.Hour))
	garbage := func(kind string) []byte { return encode(kind, []byte("not ASN.1 at all")) }
	pair := func(cert, key []byte) map[string][]byte { return map[string][]byte{certFile: cert, keyFile: key} }
	root := func(ca, crl []byte) map[string][]byte { return map[string][]byte{caFile: ca, crlFile: crl} }

	for name, tc := range map[string]struct {
		secret *tlsv3.Secret
		files  map[string][]byte
		want   string
	}{
		"mismatched pair":          {certSecret(), pair(good.CertPEM, other.KeyPEM), "/c/tls.key does not match the certificate in /c/tls.crt"},
		"key of another type":      {certSecret(), pair(good.CertPEM, ed.KeyPEM), "does not match"},
		"CA first":                 {certSecret(), pair(cat(sub, pem.EncodeToMemory(leaf)), chained.KeyPEM), "must start with the certificate of the key, which is number 2"},
		"empty certificate":        {certSecret(), pair(nil, good.KeyPEM), "/c/tls.crt is empty"},
		"blank certificate":        {certSecret(), pair([]byte("\n \n"), good.KeyPEM), "/c/tls.crt is empty"},
		"empty key":                {certSecret(), pair(good.CertPEM, nil), "/c/tls.key is empty"},
		"garbage certificate":      {certSecret(), pair(garbage("CERTIFICATE"), good.KeyPEM), "/c/tls.crt: certificate 1 cannot be parsed"},
		"garbage second":           {certSecret(), pair(cat(good.CertPEM, garbage("CERTIFICATE")), good.KeyPEM), "certificate 2 cannot be parsed"},
		"truncated certificate":    {certSecret(), pair(good.CertPEM[:len(good.CertPEM)/2], good.KeyPEM), "/c/tls.crt is truncated or damaged: 0 of 1"},
		"truncated second":         {certSecret(), pair(chained.CertPEM[:len(chained.CertPEM)-40], chained.KeyPEM), "truncated or damaged: 1 of 2"},
		"damaged first of two":     {certSecret(), pair(cat(good.CertPEM[:90], []byte("\n"), good.CertPEM), good.KeyPEM), "truncated or damaged"},
		"DER certificate":          {certSecret(), pair(good.Cert.Raw, good.KeyPEM), "/c/tls.crt is not PEM: convert DER"},
		"text":                     {certSecret(), pair([]byte("hello"), good.KeyPEM), "not PEM"},
		"key as certificate":       {certSecret(), pair(good.KeyPEM, good.KeyPEM), "holds no certificate but PRIVATE KEY"},
		"trusted certificate":      {certSecret(), pair(encode("TRUSTED CERTIFICATE", good.Cert.Raw), good.KeyPEM), "TRUSTED CERTIFICATE"},
		"certificate as key":       {certSecret(), pair(good.CertPEM, good.CertPEM), "/c/tls.key holds no private key but CERTIFICATE"},
		"garbage key":              {certSecret(), pair(good.CertPEM, garbage("PRIVATE KEY")), "/c/tls.key: private key cannot be parsed"},
		"encrypted PKCS#8":         {certSecret(), pair(good.CertPEM, garbage("ENCRYPTED PRIVATE KEY")), "/c/tls.key is encrypted: store it without a passphrase"},
		"encrypted PEM":            {certSecret(), pair(good.CertPEM, []byte("-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\nAAAA\n-----END EC PRIVATE KEY-----\n")), "is encrypted"},
		"RSA 1024":                 {certSecret(), pair(rsa1024.CertPEM, rsa1024.KeyPEM), "RSA with 1024 bits"},
		"P-224":                    {certSecret(), pair(p224.CertPEM, p224.KeyPEM), "curve P-224"},
		"X25519":                   {certSecret(), pair(good.CertPEM, encode("PRIVATE KEY", x25519DER)), "Envoy takes ECDSA, RSA and Ed25519"},
		"garbage CA":               {rootSecret(false), root(garbage("CERTIFICATE"), nil), "/c/ca.pem holds no certificate that can be parsed"},
		"empty CA":                 {rootSecret(false), root(nil, nil), "/c/ca.pem is empty"},
		"truncated CA":             {rootSecret(false), root(ca.PEM[:200], nil), "truncated"},
		"key as CA":                {rootSecret(false), root(good.KeyPEM, nil), "holds no certificate but PRIVATE KEY"},
		"CRL only as CA":           {rootSecret(false), root(crl, nil), "no certificate that can be parsed"},
		"garbage CRL":              {rootSecret(true), root(ca.PEM, garbage("X509 CRL")), "/c/ca.crl: revocation list in block 1 cannot be parsed"},
		"garbage CRL among CAs":    {rootSecret(false), root(cat(ca.PEM, garbage("X509 CRL")), nil), "/c/ca.pem: revocation list in block 2"},
		"empty CRL":                {rootSecret(true), root(ca.PEM, nil), "/c/ca.crl is empty"},
		"DER CRL":                  {rootSecret(true), root(ca.PEM, []byte{0x30, 0x82, 1, 2}), "not PEM"},
		"certificate as CRL":       {rootSecret(true), root(ca.PEM, ca.PEM), "holds no revocation list"},
		"no type":                  {&tlsv3.Secret{Name: "s"}, nil, "secret has no type"},
		"nothing verified":         {&tlsv3.Secret{Name: "s", Type: &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{}}}, nil, "verifies nothing"},
		"no chain":                 {&tlsv3.Secret{Name: "s", Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{PrivateKey: fileSource(keyFile)}}}, pair(nil, good.KeyPEM), "no certificate_chain"},
		"no key":                   {&tlsv3.Secret{Name: "s", Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{CertificateChain: fileSource(certFile)}}}, pair(good.CertPEM, nil), "no private_key"},
		"PKCS#12":                  {&tlsv3.Secret{Name: "s", Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{Pkcs12: fileSource(certFile)}}}, pair([]byte{1}, nil), "pkcs12 is not served: convert it"},
		"environment":              {genericSecret(&corev3.DataSource{Specifier: &corev3.DataSource_EnvironmentVariable{EnvironmentVariable: "TOKEN"}}), nil, `environment_variable "TOKEN" is not read`},
		"data source without any":  {genericSecret(&corev3.DataSource{}), nil, "neither filename nor inline"},
		"generic without anything": {genericSecret(nil), nil, "generic_secret holds nothing"},
		"ticket key of 79 bytes":   {ticketSecret(make([]byte, 80), make([]byte, 79)), nil, "has 80 bytes (openssl rand 80), not 79"},
		"no ticket keys":           {ticketSecret(), nil, "has no keys"},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := build(tc.secret, tc.files)
			if err == nil {
				t.Fatalf("build: accepted as %v, want error with %q", m, tc.want)
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("build: %q, want %q in it", err, tc.want)
			}
			if strings.Contains(err.Error(), "BEGIN") || strings.Contains(err.Error(), "not ASN.1") {
				t.Errorf("build: %q quotes the file", err)
			}
		})
	}
}

func genericSecret(d *corev3.DataSource) *tlsv3.Secret {
	return &tlsv3.Secret{Name: "s", Type: &tlsv3.Secret_GenericSecret{GenericSecret: &tlsv3.GenericSecret{Secret: d}}}
}

func ticketSecret(keys ...[]byte) *tlsv3.Secret {
	t := &tlsv3.TlsSessionTicketKeys{}
	for _, k := range keys {
		t.Keys = append(t.Keys, inlineSource(k))
	}
	return &tlsv3.Secret{Name: "s", Type: &tlsv3.Secret_SessionTicketKeys{SessionTicketKeys: t}}
}

func pushed(t *testing.T, m *material) *tlsv3.Secret {
	t.Helper()
	got := &tlsv3.Secret{}
	if err := m.body.UnmarshalTo(got); err != nil {
		t.Fatal(err)
	}
	return got
}

// A key in the certificate's file, comments and watched directories stay behind: Envoy shows certificate chains in its configuration dump.
func TestBuildPushesOnlyWhatIsNeeded(t *testing.T) {
	ca := testca.New(t, "ca")
	good := ca.Sub(t, "sub").Issue(t, testca.Leaf{Form: testca.SEC1})
	both := cat([]byte("subject=leaf\n"), good.KeyPEM, good.CertPEM, []byte("bye\n"))
	secret := certSecret()
	secret.GetTlsCertificate().WatchedDirectory = &corev3.WatchedDirectory{Path: "/c"}
	params := encode("EC PARAMETERS", []byte{6, 1, 1})
	m, err := build(secret, map[string][]byte{certFile: both, keyFile: cat(params, both)})
	if err != nil {
		t.Fatal(err)
	}
	got := pushed(t, m).GetTlsCertificate()
	if chain := got.GetCertificateChain().GetInlineBytes(); !bytes.Equal(chain, good.CertPEM) {
		t.Errorf("chain pushed:\n%s\nwant the certificates only", chain)
	}
	if key := got.GetPrivateKey().GetInlineBytes(); !bytes.Equal(key, good.KeyPEM) {
		t.Error("private key pushed is not just the key")
	}
	if got.GetWatchedDirectory() != nil {
		t.Error("watched_directory is pushed")
	}
}

func TestBuildAccepts(t *testing.T) {
	ca, second := testca.New(t, "ca"), testca.New(t, "second")
	good := ca.Issue(t, testca.Leaf{})
	crlEnd := time.Now().Add(time.Hour).Truncate(time.Second)
	provider := &tlsv3.Secret{Name: "s", Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
		CertificateChain: inlineSource(good.CertPEM), PrivateKeyProvider: &tlsv3.PrivateKeyProvider{ProviderName: "cryptomb"},
	}}}
	inlineText := &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: "token"}}
	untrusted := &tlsv3.Secret{Name: "s", Type: &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
		TrustChainVerification: tlsv3.CertificateValidationContext_ACCEPT_UNTRUSTED,
	}}}
	odd := encode("CERTIFICATE", []byte("Envoy may understand what we do not"))
	for name, tc := range map[string]struct {
		secret   *tlsv3.Secret
		files    map[string][]byte
		kind     string
		to       time.Time
		warnings int
	}{
		"pair":                      {certSecret(), map[string][]byte{certFile: good.CertPEM, keyFile: good.KeyPEM}, kindCertificate, good.Cert.NotAfter, 0},
		"key provider":              {provider, nil, kindCertificate, good.Cert.NotAfter, 0},
		"bundle of two":             {rootSecret(false), map[string][]byte{caFile: cat(ca.PEM, second.PEM)}, kindValidation, time.Time{}, 0},
		"bundle with an odd one":    {rootSecret(false), map[string][]byte{caFile: cat(ca.PEM, odd)}, kindValidation, time.Time{}, 1},
		"bundle and CRL":            {rootSecret(true), map[string][]byte{caFile: ca.PEM, crlFile: cat(ca.CRL(t, crlEnd), second.CRL(t, crlEnd.Add(time.Hour)))}, kindValidation, crlEnd, 0},
		"CRL inside bundle":         {rootSecret(false), map[string][]byte{caFile: cat(ca.PEM, ca.CRL(t, crlEnd))}, kindValidation, crlEnd, 0},
		"untrusted on purpose":      {untrusted, nil, kindValidation, time.Time{}, 0},
		"ticket keys":               {ticketSecret(make([]byte, 80)), nil, kindTickets, time.Time{}, 0},
		"generic from inline text":  {genericSecret(inlineText), nil, kindGeneric, time.Time{}, 0},
		"generic, several by names": {&tlsv3.Secret{Name: "s", Type: &tlsv3.Secret_GenericSecret{GenericSecret: &tlsv3.GenericSecret{Secrets: map[string]*corev3.DataSource{"a": fileSource(caFile)}}}}, map[string][]byte{caFile: []byte("x")}, kindGeneric, time.Time{}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := build(tc.secret, tc.files)
			if err != nil {
				t.Fatalf("build: %v", err)
			}
			if m.kind != tc.kind || !m.to.Equal(tc.to) || len(m.warnings) != tc.warnings {
				t.Errorf("build: kind %s until %v with warnings %q, want %s until %v with %d", m.kind, m.to, m.warnings, tc.kind, tc.to, tc.warnings)
			}
			for _, d := range sources(pushed(t, m)) {
				if d.GetFilename() != "" || d.GetInlineString() != "" {
					t.Errorf("data source %T is pushed, want inline bytes", d.GetSpecifier())
				}
			}
		})
	}
}

func TestMaterialIsNotLogged(t *testing.T) {
	good := testca.New(t, "ca").Issue(t, testca.Leaf{})
	m, err := build(certSecret(), map[string][]byte{certFile: good.CertPEM, keyFile: good.KeyPEM})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	slog.New(slog.NewJSONHandler(&out, nil)).Info("m", "material", m)
	if got := out.String(); strings.Contains(got, "BEGIN") || len(got) > 200 {
		t.Errorf("logged: %s", got)
	}
}

func TestNames(t *testing.T) {
	for name, want := range map[string]string{
		"file-cert:/a/b":       "must be file-cert:<certificate file>~<key file>",
		"file-cert:/a~/b~/c":   "must be file-cert:",
		"file-root:/a~/b":      "without a ~",
		"default":              "nothing is configured to give it one",
		"ROOTCA":               "nothing is configured to give it one",
		"kubernetes://ns/cert": "is unknown",
		"":                     "is unknown",
		"file-cert:/a/c~/a/k":  "",
		"file-root:/a/ca":      "",
	} {
		_, err := fromName(name)
		if got := fmt.Sprint(err); (want == "") != (err == nil) || !strings.Contains(got, want) && want != "" {
			t.Errorf("fromName(%q): %v, want %q", name, err, want)
		}
	}
}

func TestSystemBundle(t *testing.T) {
	dir := t.TempDir()
	testca.New(t, "ca").Issue(t, testca.Leaf{}).Write(t, dir)
	if got, err := firstExisting([]string{dir + "/none", dir, dir + "/tls.crt", dir + "/tls.key"}); err != nil || got != dir+"/tls.crt" {
		t.Errorf("firstExisting: %q, %v, want the first regular file", got, err)
	}
	if _, err := firstExisting([]string{dir + "/none"}); err == nil || !strings.Contains(err.Error(), "ca-certificates package") {
		t.Errorf("firstExisting without any: %v", err)
	}
}

func TestAcceptByDate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := testca.New(t, "ca")
		now := time.Now()
		make := func(from, to time.Duration) *material {
			p := ca.Issue(t, testca.Leaf{NotBefore: now.Add(from), NotAfter: now.Add(to)})
			m, err := build(certSecret(), map[string][]byte{certFile: p.CertPEM, keyFile: p.KeyPEM})
			if err != nil {
				t.Fatal(err)
			}
			return m
		}
		valid, newer := make(-time.Hour, time.Hour), make(-time.Hour, 2*time.Hour)
		expired, expired2, future := make(-3*time.Hour, -time.Hour), make(-2*time.Hour, -time.Hour), make(time.Minute, time.Hour)
		for name, tc := range map[string]struct {
			current, next *material
			want          bool
			reason        string
		}{
			"first":                   {nil, valid, true, ""},
			"first, expired":          {nil, expired, true, ""},
			"first, not yet valid":    {nil, future, true, ""},
			"same":                    {valid, valid, false, ""},
			"newer":                   {valid, newer, true, ""},
			"expired over valid":      {valid, expired, false, "has expired at"},
			"future over valid":       {valid, future, false, "is not valid before"},
			"expired over expired":    {expired, expired2, true, ""},
			"future over expired":     {expired, future, true, ""},
			"valid over expired":      {expired, valid, true, ""},
			"valid over not yet":      {future, valid, true, ""},
			"older but valid, too":    {newer, valid, true, ""},
			"expired over not yet ok": {future, expired, true, ""},
		} {
			e := &entry{name: "s", current: tc.current}
			got, err := e.acceptLocked(tc.next, time.Now())
			if got != tc.want || (err != nil) != (tc.reason != "") || err != nil && !strings.Contains(err.Error(), tc.reason) {
				t.Errorf("%s: accepted %v (%v), want %v (%s)", name, got, err, tc.want, tc.reason)
			}
		}
		e := &entry{name: "s", current: valid}
		time.Sleep(2 * time.Minute)
		if got, err := e.acceptLocked(future, time.Now()); !got || err != nil {
			t.Errorf("once it is valid: accepted %v (%v), want true", got, err)
		}
	})
}
