package standalone

import (
	"strings"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
)

// certificates makes certificates that are named by file come from the agent's secret service, which checks them and
// notices when the files are replaced.
func (c *config) certificates() {
	for _, r := range c.resources {
		c.tree.Walk(r.msg, func(m proto.Message) bool {
			if tls, ok := m.(*tlsv3.CommonTlsContext); ok {
				ownCertificates(tls)
				trustedCA(tls)
			}
			return true
		})
	}
}

// ownCertificates moves all certificates of a context or none: Envoy does not take some of each.
func ownCertificates(tls *tlsv3.CommonTlsContext) {
	if len(tls.GetTlsCertificates()) == 0 || len(tls.GetTlsCertificateSdsSecretConfigs()) > 0 {
		return
	}
	var refs []*tlsv3.SdsSecretConfig
	for _, cert := range tls.GetTlsCertificates() {
		name := certificateName(cert)
		if name == "" {
			return
		}
		refs = append(refs, &tlsv3.SdsSecretConfig{Name: name, SdsConfig: sdsSource(nil)})
	}
	tls.TlsCertificates, tls.TlsCertificateSdsSecretConfigs = nil, refs
}

// certificateName is the secret's name for a certificate of two files, "" for one that needs more than a name can say.
func certificateName(cert *tlsv3.TlsCertificate) string {
	chain, key := cert.GetCertificateChain().GetFilename(), cert.GetPrivateKey().GetFilename()
	rest := proto.CloneOf(cert)
	rest.CertificateChain, rest.PrivateKey, rest.WatchedDirectory = nil, nil, nil
	if chain == "" || key == "" || strings.Contains(chain+key, "~") || proto.Size(rest) > 0 {
		return ""
	}
	return "file-cert:" + chain + "~" + key
}

// trustedCA moves a CA bundle that is named by file; the other settings of its context stay beside it.
func trustedCA(tls *tlsv3.CommonTlsContext) {
	own := tls.GetValidationContext()
	file := own.GetTrustedCa().GetFilename()
	if file == "" {
		return
	}
	ref := &tlsv3.SdsSecretConfig{Name: "file-root:" + file, SdsConfig: sdsSource(nil)}
	own.TrustedCa = nil
	if own.GetCrl().GetFilename() == "" {
		own.WatchedDirectory = nil
	}
	if proto.Size(own) == 0 {
		tls.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContextSdsSecretConfig{ValidationContextSdsSecretConfig: ref}
		return
	}
	tls.ValidationContextType = &tlsv3.CommonTlsContext_CombinedValidationContext{
		CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
			DefaultValidationContext:         own,
			ValidationContextSdsSecretConfig: ref,
		},
	}
}
