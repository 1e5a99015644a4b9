package e2e

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"maps"
	"net/url"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	pb "istio.io/api/security/v1alpha1"

	"github.com/gateway-agent/gateway-agent/internal/testca"
)

const day = 24 * time.Hour

// petition is one request for a certificate. Its zero value is what the agent asks.
type petition struct {
	name    string
	way     string            // as of a conversation
	headers map[string]string // as of a conversation
	key     testca.Key        // default P256
	csr     x509.CertificateRequest
	change  func(text string) string // of the CSR's text
	life    time.Duration            // default a day
	meta    map[string]any           // default an empty CertSigner; {} none at all
}

var petitions = []petition{
	{name: "usual"},
	{name: "RSA", key: testca.RSA2048},
	{name: "P-384", key: testca.P384},
	{name: "another identity", csr: x509.CertificateRequest{URIs: uris("spiffe://cluster.local/ns/other/sa/other")}},
	{name: "no identity", csr: x509.CertificateRequest{DNSNames: []string{"x.test"}}},
	{name: "an organization", csr: x509.CertificateRequest{Subject: pkix.Name{Organization: []string{"x"}}}},
	{name: "no PEM", change: func(string) string { return "x" }},
	{name: "no CSR in the PEM", change: func(string) string {
		return "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"
	}},
	{name: "PEM of another type", change: func(text string) string { return strings.ReplaceAll(text, "CERTIFICATE REQUEST", "X") }},
	{name: "text after the CSR", change: func(text string) string { return text + "x" }},
	{name: "a wrong signature", change: badSignature},
	{name: "no metadata", meta: map[string]any{}},
	{name: "a signer", meta: map[string]any{"CertSigner": "signer.example/gw"}},
	{name: "a signer that is no text", meta: map[string]any{"CertSigner": 1.0}},
	{name: "a life of less than nothing", life: -time.Hour},
	{name: "an hour", life: time.Hour},
	{name: "90 days", life: 90 * day},
	{name: "90 days and a second", life: 90*day + time.Second},
	{name: "no token", headers: map[string]string{"authorization": ""}},
	{name: "a wrong token", headers: map[string]string{"authorization": "Bearer other"}},
	{name: "a token without a scheme", headers: map[string]string{"authorization": "token-1"}},
	{name: "an unknown cluster", headers: map[string]string{"clusterid": "elsewhere"}},
	{name: "no cluster header", headers: map[string]string{"clusterid": ""}},
	{name: "a certificate", way: "certificate", headers: map[string]string{"authorization": ""}},
	{name: "a certificate, an unknown cluster", way: "certificate", headers: map[string]string{"authorization": "", "clusterid": "elsewhere"}},
	{name: "plain", way: "plain"},
}

func uris(all ...string) (parsed []*url.URL) {
	for _, text := range all {
		u, err := url.Parse(text)
		if err != nil {
			panic(err)
		}
		parsed = append(parsed, u)
	}
	return parsed
}

// badSignature changes a CSR's last byte.
func badSignature(text string) string {
	block, _ := pem.Decode([]byte(text))
	block.Bytes[len(block.Bytes)-1] ^= 1
	return string(pem.EncodeToMemory(block))
}

// asked is the request that a petition makes.
func (p petition) asked(t *testing.T) (*pb.IstioCertificateRequest, crypto.PublicKey) {
	t.Helper()
	if p.key == "" {
		p.key = testca.P256
	}
	if len(p.csr.URIs)+len(p.csr.DNSNames) == 0 {
		p.csr.URIs = uris(gatewayID)
	}
	if p.life == 0 {
		p.life = day
	}
	if p.meta == nil {
		p.meta = map[string]any{"CertSigner": ""}
	}
	key := testca.NewKey(t, p.key)
	der, err := x509.CreateCertificateRequest(rand.Reader, &p.csr, key)
	if err != nil {
		t.Fatal(err)
	}
	text := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
	if p.change != nil {
		text = p.change(text)
	}
	request := &pb.IstioCertificateRequest{Csr: text, ValidityDuration: int64(p.life / time.Second)}
	if len(p.meta) > 0 {
		request.Metadata = structOf(p.meta)
	}
	return request, key.Public()
}

// petition is the transcript of one.
func (s side) petition(t *testing.T, p petition) string {
	t.Helper()
	headers := usualHeaders(p.headers)
	request, key := p.asked(t)
	ctx, cancel := context.WithTimeout(metadata.NewOutgoingContext(t.Context(), metadata.New(headers)), 10*time.Second)
	defer cancel()
	response, err := pb.NewIstioCertificateServiceClient(s.dial(t, p.way)).CreateCertificate(ctx, request)
	if err != nil {
		return "  " + status.Code(err).String() + "\n"
	}
	var b strings.Builder
	for i, text := range response.GetCertChain() {
		fmt.Fprintf(&b, "  %d.", i+1)
		for block, rest := pem.Decode([]byte(text)); block != nil; block, rest = pem.Decode(rest) {
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			b.WriteString(" " + certified(cert, key))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// certified says what a certificate is.
func certified(cert *x509.Certificate, key crypto.PublicKey) string {
	switch {
	case cert.IsCA && cert.CheckSignatureFrom(cert) == nil:
		return "root"
	case cert.IsCA:
		return "intermediate"
	}
	own := "the"
	if !key.(interface{ Equal(crypto.PublicKey) bool }).Equal(cert.PublicKey) {
		own = "another"
	}
	return fmt.Sprintf("leaf of %s key, subject %q, URIs %v, names %v, usage %v, from %v before now to %v after", own, cert.Subject, cert.URIs, cert.DNSNames,
		cert.ExtKeyUsage, time.Since(cert.NotBefore).Round(30*time.Second), time.Until(cert.NotAfter).Round(time.Minute))
}

// usualHeaders are those of a gateway, and more; "" removes one.
func usualHeaders(more map[string]string) map[string]string {
	headers := map[string]string{"authorization": "Bearer token-1", "clusterid": "Kubernetes"}
	maps.Copy(headers, more)
	maps.DeleteFunc(headers, func(_, value string) bool { return value == "" })
	return headers
}
