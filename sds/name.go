package sds

import (
	"fmt"
	"os"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
)

const (
	certPrefix = "file-cert:"
	rootPrefix = "file-root:"
)

// systemBundles is where operating systems keep their trust bundle, in the order in which they are tried.
func systemBundles() []string {
	return []string{
		"/etc/ssl/certs/ca-certificates.crt",                // Debian, Ubuntu, Arch, distroless
		"/etc/pki/tls/certs/ca-bundle.crt",                  // Fedora, RHEL
		"/etc/ssl/ca-bundle.pem",                            // SUSE
		"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // RHEL 7 and later
		"/etc/pki/tls/cacert.pem",                           // OpenELEC
		"/etc/ssl/cert.pem",                                 // Alpine, macOS
		"/usr/local/etc/ssl/cert.pem",                       // FreeBSD
		"/etc/certs/ca-certificates.crt",                    // Solaris
	}
}

// isFileName says whether a name stands for files by itself.
func isFileName(name string) bool {
	return strings.HasPrefix(name, certPrefix) || strings.HasPrefix(name, rootPrefix)
}

// fromName makes the secret that a name stands for, with file names as data sources.
func fromName(name string) (*tlsv3.Secret, error) {
	if pair, ok := strings.CutPrefix(name, certPrefix); ok {
		cert, key, ok := strings.Cut(pair, "~")
		if !ok || strings.Contains(key, "~") {
			return nil, fmt.Errorf("secret name %q must be %s<certificate file>~<key file>", name, certPrefix)
		}
		return &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
			CertificateChain: fileSource(cert), PrivateKey: fileSource(key),
		}}}, nil
	}
	if path, ok := strings.CutPrefix(name, rootPrefix); ok {
		return fromRoot(name, path)
	}
	if name == "default" || name == "ROOTCA" {
		return nil, fmt.Errorf("secret %q is the workload's identity and nothing is configured to give it one (a certificate authority, mounted files or a SPIFFE agent): name files instead (%s…, %s…)", name, certPrefix, rootPrefix)
	}
	return nil, fmt.Errorf("secret %q is unknown: it must be one of the configuration's secrets, %s<certificate>~<key> or %s<bundle>", name, certPrefix, rootPrefix)
}

func fromRoot(name, path string) (*tlsv3.Secret, error) {
	if strings.Contains(path, "~") {
		return nil, fmt.Errorf("secret name %q must be %s<bundle file>, without a ~", name, rootPrefix)
	}
	if path == "system" {
		found, err := firstExisting(systemBundles())
		if err != nil {
			return nil, err
		}
		path = found
	}
	return &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
		TrustedCa: fileSource(path),
	}}}, nil
}

func firstExisting(paths []string) (string, error) {
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", fmt.Errorf("this system has no trust bundle (looked for %s): install its ca-certificates package or name a file", strings.Join(paths, ", "))
}

func fileSource(path string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: path}}
}
