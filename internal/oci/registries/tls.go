package registries

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"hash"
	"io/fs"
	"net/http"
	"slices"
	"strings"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/gateway-agent/gateway-agent/internal/oci/configfile"
)

// maxPEM bounds a file of certificates, in bytes. Bundles of all public authorities have a quarter of a MiB.
const maxPEM = 4 << 20

// A pair is a client certificate and its key; key "" means that both are in one file.
type pair struct{ cert, key string }

// access says how to connect to a host. Paths are complete.
type access struct {
	plain, skipVerify bool
	ca                []string
	pairs             []pair
	header            http.Header
}

// secured reports settings of TLS.
func (a access) secured() bool { return a.skipVerify || len(a.ca) > 0 || len(a.pairs) > 0 }

// stated reports that somebody said how to connect.
func (a access) stated() bool { return a.plain || a.secured() }

func (a access) id() string {
	parts := slices.Clone(a.ca)
	for _, p := range a.pairs {
		parts = append(parts, "\x01"+p.cert+"\x01"+p.key)
	}
	return strings.Join(parts, "\x00")
}

func secretHeader(h http.Header) bool {
	return slices.ContainsFunc([]string{"Authorization", "Proxy-Authorization", "Cookie", "X-Api-Key", "Private-Token", "X-Auth-Token"}, func(name string) bool { return h.Get(name) != "" })
}

// identity is what the files of an access hold.
type identity struct {
	sum   [sha256.Size]byte // of everything in the files
	key   string            // the same for equal certificates and authorities
	roots *x509.CertPool
	certs []tls.Certificate
}

// identities keeps what was read, so that a bundle is parsed once and a half-written rotation changes nothing.
type identities struct {
	env   *environment
	cache *lru.Cache[string, *identity]
}

func newIdentities(env *environment) *identities {
	cache, _ := lru.New[string, *identity](256) // fails only for a size below 1
	return &identities{env: env, cache: cache}
}

// load reads the certificates of an access. When the files became unusable, what they held before still counts.
func (s *identities) load(a access) (*identity, error) {
	const msg = "certificates of a registry became unusable, using the previous ones"
	if len(a.ca)+len(a.pairs) == 0 {
		return &identity{}, nil
	}
	before, known := s.cache.Get(a.id())
	now, err := s.read(a, before)
	switch {
	case err == nil:
		s.cache.Add(a.id(), now)
		s.env.warnings.Settled(a.id(), msg)
		return now, nil
	case known:
		s.env.warnings.Warn(a.id(), msg, err.Error())
		return before, nil
	}
	return nil, err
}

func (s *identities) read(a access, before *identity) (*identity, error) {
	var files [][]byte
	content, public := sha256.New(), sha256.New()
	for _, name := range a.ca {
		data, _, err := configfile.Read(name, maxPEM)
		if err != nil {
			return nil, fmt.Errorf("read the CA: %w", err)
		}
		files = append(files, data)
		add(data, content, public)
	}
	for _, p := range a.pairs {
		cert, key, err := s.readPair(p)
		if err != nil {
			return nil, err
		}
		files = append(files, cert, key)
		add(cert, content)
		add(key, content)
	}
	id := &identity{}
	content.Sum(id.sum[:0])
	if before != nil && before.sum == id.sum {
		return before, nil
	}
	return id, id.parse(a, files, public)
}

func add(data []byte, to ...hash.Hash) {
	sum := sha256.Sum256(data)
	for _, h := range to {
		h.Write(sum[:])
	}
}

func (s *identities) readPair(p pair) (cert, key []byte, err error) {
	cert, info, err := configfile.Read(p.cert, maxPEM)
	if err != nil {
		return nil, nil, fmt.Errorf("read the client certificate: %w", err)
	}
	name, key := p.cert, cert
	if p.key != "" {
		name = p.key
		var keyInfo fs.FileInfo
		if key, keyInfo, err = configfile.Read(p.key, maxPEM); err != nil {
			return nil, nil, fmt.Errorf("read the client key: %w", err)
		}
		info = keyInfo
	}
	s.env.warnings.Secret(name, info)
	return cert, key, nil
}

func (id *identity) parse(a access, files [][]byte, public hash.Hash) error {
	if len(a.ca) > 0 {
		roots, err := x509.SystemCertPool()
		if err != nil {
			roots = x509.NewCertPool()
		}
		id.roots = roots
	}
	for n, name := range a.ca {
		if !id.roots.AppendCertsFromPEM(files[n]) {
			return fmt.Errorf("the CA file %s holds no certificate in PEM", name)
		}
	}
	for n, p := range a.pairs {
		at := len(a.ca) + 2*n
		cert, err := tls.X509KeyPair(files[at], files[at+1])
		if err != nil {
			return fmt.Errorf("the client certificate %s with its key %s: %w", p.cert, p.key, err)
		}
		for _, der := range cert.Certificate {
			add(der, public)
		}
		id.certs = append(id.certs, cert)
	}
	id.key = hex.EncodeToString(public.Sum(nil)[:12])
	return nil
}
