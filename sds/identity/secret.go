package identity

import (
	"context"
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
)

// runFiles has the server follow the mounted files.
func (w *Workload) runFiles(ctx context.Context) {
	f := w.cfg.Choice.Files
	w.cfg.Server.Assign(Certificate, pairSecret(file(f.Cert), file(f.Key)), nil)
	if f.Root == "" {
		w.cfg.Server.Assign(Roots, nil, fmt.Errorf("no file with roots is named beside %s", f.Cert))
		<-ctx.Done()
		return
	}
	for first, before := true, false; first || pause(ctx, w.cfg.Poll); first = false {
		if crl := w.cfg.CRL != "" && exists(w.cfg.CRL); first || crl != before { // the server follows what is in the files
			w.cfg.Server.Assign(Roots, w.rootSecret(file(f.Root)), nil)
			before = crl
		}
	}
}

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
