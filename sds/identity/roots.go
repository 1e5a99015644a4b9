package identity

import (
	"crypto/x509"
	"slices"
	"time"
)

// previous is a root that the authority no longer uses, but peers may still hold certificates of; or one of the trust bundle from before
// a restart.
type previous struct {
	cert    *x509.Certificate
	until   time.Time
	bundled bool // of the bundle: counts only until the control plane speaks
}

// unique drops what is there twice.
func unique(certs []*x509.Certificate) []*x509.Certificate {
	var out []*x509.Certificate
	seen := map[string]bool{}
	for _, c := range certs {
		if !seen[string(c.Raw)] {
			seen[string(c.Raw)] = true
			out = append(out, c)
		}
	}
	return out
}

func contains(certs []*x509.Certificate, c *x509.Certificate) bool {
	return slices.ContainsFunc(certs, c.Equal)
}

// sameSet says whether two lists without duplicates hold the same certificates.
func sameSet(a, b []*x509.Certificate) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(c *x509.Certificate) bool { return !contains(b, c) })
}
