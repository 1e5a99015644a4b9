package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
)

// checkIdentity wants the gateway's certificate from its mesh's authority.
func checkIdentity(state tls.ConnectionState, roots *x509.CertPool) error {
	leaf := state.PeerCertificates[0]
	intermediates := x509.NewCertPool()
	for _, cert := range state.PeerCertificates[1:] {
		intermediates.AddCert(cert)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		return err
	}
	if len(leaf.URIs) != 1 || leaf.URIs[0].String() != gatewayID {
		return fmt.Errorf("certificate of %v, want %s", leaf.URIs, gatewayID)
	}
	return nil
}
