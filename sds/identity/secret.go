package identity

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
)

func pairSecret(cert, key *corev3.DataSource) *tlsv3.Secret {
	return &tlsv3.Secret{Name: Certificate, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{CertificateChain: cert, PrivateKey: key}}}
}

// rootSecret also names the revocation lists, if there are any now: the server follows the file.
func (w *Workload) rootSecret(roots *corev3.DataSource) *tlsv3.Secret {
	v := &tlsv3.CertificateValidationContext{TrustedCa: roots}
	if w.cfg.CRL != "" && exists(w.cfg.CRL) {
		v.Crl = file(w.cfg.CRL)
	}
	return &tlsv3.Secret{Name: Roots, Type: &tlsv3.Secret_ValidationContext{ValidationContext: v}}
}

func file(path string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: path}}
}

func inline(data []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: data}}
}
