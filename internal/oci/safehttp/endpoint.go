package safehttp

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
)

// Endpoint is a host with the operator's settings for it.
type Endpoint struct {
	// Host is a name or address with an optional port.
	Host string
	// Plain allows plain HTTP, there and where it leads.
	Plain bool
	// SkipVerify takes any certificate from Host, and only from it.
	SkipVerify bool
	// RootCAs are trusted for Host and for https hosts that it leads to. Default: the client's.
	RootCAs *x509.CertPool
	// Certificates are shown to Host when it asks for one, and to nobody else. Default: none.
	Certificates []tls.Certificate
	// Key is equal for endpoints that may share connections. It must differ when the settings above do. Default: they are shared
	// by endpoints of this host with the same RootCAs and as many Certificates.
	Key string
	// Led has the operator's settings for a host that Host leads to; false: none, and then those above count as they say. Such a host
	// may still not be on loopback. Default: none.
	Led func(host string) (Endpoint, bool)
}

func (e Endpoint) tlsKey(own bool) string {
	if e.RootCAs == nil && !own || e.RootCAs == nil && !e.SkipVerify && len(e.Certificates) == 0 {
		return ""
	}
	key := e.Key
	if key == "" {
		key = fmt.Sprintf("%p %d", e.RootCAs, len(e.Certificates))
	}
	return fmt.Sprintf("%s %t %t %s", e.Host, own, e.SkipVerify, key)
}

func (e Endpoint) tlsConfig(cfg Config, own bool) *tls.Config {
	out := &tls.Config{RootCAs: cfg.RootCAs, MinVersion: tls.VersionTLS12}
	if e.RootCAs != nil {
		out.RootCAs = e.RootCAs
	}
	if own {
		out.InsecureSkipVerify = e.SkipVerify
		out.Certificates = e.Certificates
	}
	return out
}
