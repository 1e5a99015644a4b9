package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/gateway-agent/gateway-agent/sds/identity"
)

// identitySettings are whose certificate `default` is, and where it comes from.
type identitySettings struct {
	identity       string
	identityFiles  []identity.Triple // mounted files to look for; no flag
	identitySocket string
	identityID     string
	identityLife   time.Duration
	identityGrace  float64
	identityJitter float64
	identityKey    string
	identityBits   int
	identityPKCS8  bool
	identityKeep   bool
	identityOutput string
	identityCRL    string
	identityOpen   bool // no flags, as the next two: the CA knows namespace and account where identityID has none
	identityShared bool // everybody may read the key in identityOutput
	identityTrust  bool // whom the control plane says to trust counts beside mounted roots

	caAddress    string
	caCA         string
	caServerName string
	caPlaintext  bool
	caCert       string
	caKey        string
	caTokenFile  string
	caHeader     []string
	caSigner     string

	caTokenOptional  bool // no flags, as those of the control plane
	caTokenPlaintext bool
}

func (s *identitySettings) identityFlags(f *pflag.FlagSet) {
	f.StringVar(&s.identity, "identity", "", "who provides the certificate 'default' and the roots 'ROOTCA': files, external, ca, none, or auto for the first that is there (default auto with --ca-address or --identity-socket, else none)")
	f.StringVar(&s.identitySocket, "identity-socket", "", "unix socket of an SDS server that has them, such as a SPIFFE agent's")
	f.StringVar(&s.identityID, "identity-id", "", "SPIFFE id to ask the CA for")
	f.DurationVar(&s.identityLife, "identity-life", 24*time.Hour, "lifetime to ask the CA for")
	f.Float64Var(&s.identityGrace, "identity-grace", 0.5, "share of the lifetime that is left when the certificate is renewed")
	f.Float64Var(&s.identityJitter, "identity-jitter", 0.1, "share of the lifetime by which that varies")
	f.StringVar(&s.identityKey, "identity-key", identity.KeyP256, "kind of key: P-256, P-384 or RSA")
	f.IntVar(&s.identityBits, "identity-rsa-bits", 2048, "size of an RSA key")
	f.BoolVar(&s.identityPKCS8, "identity-pkcs8", false, "write private keys as PKCS#8")
	f.BoolVar(&s.identityKeep, "identity-keep", true, "keep key and certificate in --data-dir, so that a restart finds them when the CA is away")
	f.StringVar(&s.identityOutput, "identity-output", "", "directory that cert-chain.pem, key.pem and root-cert.pem are written to")
	f.StringVar(&s.identityCRL, "identity-crl", "", "PEM file of revocation lists for ROOTCA")
	f.StringVar(&s.caAddress, "ca-address", "", "HOST:PORT of an Istio certificate authority")
	f.StringVar(&s.caCA, "ca-ca", "", "PEM file of the CAs that may sign its server certificate (default: the system's)")
	f.StringVar(&s.caServerName, "ca-server-name", "", "name expected in that certificate (default: the host of --ca-address)")
	f.BoolVar(&s.caPlaintext, "ca-plaintext", false, "talk to it without TLS")
	f.StringVar(&s.caCert, "ca-cert", "", "PEM file of a client certificate for it")
	f.StringVar(&s.caKey, "ca-key", "", "PEM file of its key")
	f.StringVar(&s.caTokenFile, "ca-token-file", "", "file of the bearer token for it")
	f.StringArrayVar(&s.caHeader, "ca-header", nil, "NAME=VALUE to send to it with each request; may be repeated")
	f.StringVar(&s.caSigner, "ca-signer", "", "which of its signers to use (default: its choice)")
}

// completeIdentity gives --identity its default and checks what belongs together.
func (s *settings) completeIdentity() error {
	if s.identity == "" {
		s.identity = identity.None
		if s.caAddress != "" || s.identitySocket != "" {
			s.identity = identity.Auto
		}
	}
	s.identitySocket = defaultPath(s.identitySocket, "")
	for _, path := range []*string{&s.identityOutput, &s.identityCRL, &s.caCA, &s.caCert, &s.caKey, &s.caTokenFile} {
		*path = defaultPath(*path, "")
	}
	problems := []error{
		oneOf("--identity", s.identity, identity.Auto, identity.Files, identity.External, identity.CA, identity.None),
		oneOf("--identity-key", s.identityKey, identity.KeyP256, identity.KeyP384, identity.KeyRSA),
		checkAddress("--ca-address", s.caAddress),
		atLeastZero("--identity-life", s.identityLife),
		checkShare("--identity-grace", s.identityGrace),
		checkShare("--identity-jitter", s.identityJitter),
	}
	if (s.caCert == "") != (s.caKey == "") {
		problems = append(problems, errors.New("--ca-cert and --ca-key belong together: give both"))
	}
	if s.caAddress != "" && s.identityID == "" {
		problems = append(problems, errors.New("--ca-address needs --identity-id, as spiffe://cluster.local/ns/NAMESPACE/sa/ACCOUNT"))
	}
	if s.identity == identity.CA && s.caAddress == "" || s.identity == identity.External && s.identitySocket == "" {
		problems = append(problems, fmt.Errorf("--identity=%s needs --ca-address or --identity-socket", s.identity))
	}
	_, err := pairs("--ca-header", s.caHeader)
	return errors.Join(append(problems, err)...)
}

func checkShare(flag string, value float64) error {
	if value >= 0 && value <= 1 {
		return nil
	}
	return fmt.Errorf("%s %v is no share of a whole: give a number from 0 to 1", flag, value)
}

// pairs never shows a value: it may be a secret.
func pairs(flag string, all []string) (map[string]string, error) {
	values := make(map[string]string, len(all))
	for i, pair := range all {
		name, value, ok := strings.Cut(pair, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("%s: number %d is not NAME=VALUE", flag, i+1)
		}
		values[name] = value
	}
	return values, nil
}
