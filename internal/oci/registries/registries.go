// Package registries says where an image of a registry is really asked for: mirrors in order, then the registry itself, each with its
// own certificates, as the operator's files say. It reads a file of its own, containerd's certs.d directories and containers-registries.conf(5).
//
// The file of its own is YAML: prefixes, each with settings. All settings are optional; each one comes from the longest prefix that has it.
//
//	docker.io:                      # host, host:port, host/path, *.domain or *
//	  mirrors:                      # asked first, in this order; what follows the prefix is added to the name
//	    - mirror.example.com/hub
//	  mirrors-by-digest-only: true  # tags are asked of the registry itself
//	  mirrors-only: false           # true: the registry itself is never asked
//	mirror.example.com:             # how to connect to a host stands under its own name
//	  ca: ca.pem                    # paths are relative to this file; beside the system's authorities
//	  cert: client.pem
//	  key: client-key.pem
//	  skip-verify: false
//	  plain-http: false
//	  header: {X-Team: gateways}
//	untrusted.example.com:
//	  blocked: true
package registries

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
)

// Config says which files to read. They are read again when they change, certificates too.
type Config struct {
	// Paths are files or directories: a directory is laid out as containerd's certs.d (HOST/hosts.toml), a *.conf file is a
	// containers-registries.conf(5), any other file is YAML of our own. The first path that says where an image is decides that; how to
	// connect to a host is asked of the same entry, then of each path under the host's own name. Default: none.
	Paths []string
	// Insecure lists registries and mirrors ("host", "host:port", or "*" for all) that are asked by HTTPS without verification, then by plain
	// HTTP. A path's settings for the host come before "*". Default: none.
	Insecure []string
	// Log hears of files that became unusable, of keys without effect and of secrets that others can read. Default: nothing is logged.
	Log *slog.Logger
}

// An Endpoint is one place to ask for the content of a repository.
type Endpoint struct {
	Host         string            // host[:port] to connect to
	Repository   string            // the repository's name there
	Path         string            // root of the API when it is not "/v2", else ""; "/" is the root of the server
	Plain        bool              // http instead of https
	SkipVerify   bool              // any certificate will do
	RootCAs      *x509.CertPool    // nil: the system's; else the system's and those of the CA files
	Certificates []tls.Certificate // client certificates, may be none
	Header       http.Header       // sent with each request to Host, may be nil; may hold secrets
	Namespace    string            // the original host, sent as ?ns=; "" means none
	Mirror       bool              // not the original registry
	Key          string            // equal for endpoints that can share connections: same host, same TLS settings
}

// A place is an endpoint whose files are not read yet.
type place struct {
	image
	address   string // other name of the host to connect to; "" means none
	root      string
	access    access
	insecure  bool // without verification, then by plain HTTP
	mirror    bool
	namespace string
}

// A source says where images are. Each file or directory in Config is one.
type source interface {
	// route returns the places for an image in their order; none: nothing is said.
	route(i image, byDigest bool) ([]place, error)
	// access returns how to connect to where an image is.
	access(i image) (access, error)
	// check returns everything that it says of access, and everything that is wrong.
	check() ([]access, error)
}

// Registries knows the endpoints of every registry. It is safe for concurrent use.
type Registries struct {
	sources    []source
	insecure   []string
	identities *identities
	env        *environment
}

// Load reads the files. Its error holds every problem of every file.
func Load(cfg Config) (*Registries, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	env := newEnvironment(cfg.Log)
	r := &Registries{env: env, identities: newIdentities(env)}
	var errs []error
	for _, host := range cfg.Insecure {
		if err := CheckInsecure(host); err != nil {
			errs = append(errs, fmt.Errorf("--insecure-registry: %w", err))
		}
		r.insecure = append(r.insecure, canonical(host))
	}
	for _, path := range cfg.Paths {
		s, err := open(path, cfg.Log, env)
		if err != nil {
			errs = append(errs, fmt.Errorf("--registry-config: %w", err))
			continue
		}
		r.sources = append(r.sources, s)
		all, err := s.check()
		if err != nil {
			errs = append(errs, fmt.Errorf("--registry-config: %w", err))
		}
		for _, a := range all {
			if _, err := r.identities.load(a); err != nil {
				errs = append(errs, fmt.Errorf("--registry-config: %s: %w", path, err))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return r, nil
}

// CheckInsecure says what is wrong with a value of Config.Insecure.
func CheckInsecure(host string) error {
	if host == "*" {
		return nil
	}
	if err := checkHost(host); err != nil {
		return fmt.Errorf("%w, nor *", err)
	}
	return nil
}

func open(path string, log *slog.Logger, env *environment) (source, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		return &certsDir{path: path, log: log, env: env, files: map[string]*file[hostsConf]{}}, nil
	case strings.HasSuffix(path, ".conf"):
		return &confFile{path: path, file: newFile(env, path, func(data []byte) ([]rule, error) { return parseConf(path, data, log) })}, nil
	case strings.HasSuffix(path, ".toml"):
		return nil, fmt.Errorf("%s: a hosts.toml is read from its directory; name the directory that holds one directory for each registry", path)
	}
	f := newFile(env, path, func(data []byte) ([]entry, error) { return parseYAML(path, data) })
	f.secret = func(entries []entry) bool {
		return slices.ContainsFunc(entries, func(e entry) bool { return e.header != nil && secretHeader(*e.header) })
	}
	return &ownFile{path: path, file: f}, nil
}

func blocked(i image, path string) error {
	return fmt.Errorf("%s/%s is blocked in %s", i.host, i.repository, path)
}

// Endpoints returns where to ask for the repository of the registry host, best first. byDigest tells that the content is asked for by its digest.
// An error means that the operator blocked it, or that the files it depends on cannot be used.
func (r *Registries) Endpoints(host, repository string, byDigest bool) ([]Endpoint, error) {
	if err := checkHost(host); err != nil {
		return nil, err
	}
	original := newImage(host, repository)
	places, err := r.route(original, byDigest)
	if err != nil {
		return nil, err
	}
	var all []Endpoint
	var errs []error
	for _, p := range places {
		if p.address == "" && p.image == original {
			p.address = host
		}
		endpoints, err := r.endpoints(p)
		if err != nil {
			errs = append(errs, fmt.Errorf("connect to %s: %w", p.host, err))
			r.env.warnings.Warn(p.host, "a registry is left out", err.Error())
			continue
		}
		for _, e := range endpoints {
			all = appendNew(all, e)
		}
	}
	if len(all) == 0 {
		return nil, errors.Join(errs...)
	}
	return all, nil
}

func appendNew(all []Endpoint, e Endpoint) []Endpoint {
	same := slices.IndexFunc(all, func(o Endpoint) bool { return o.Key == e.Key && o.Repository == e.Repository && o.Path == e.Path })
	if same < 0 {
		return append(all, e)
	}
	all[same].Mirror = all[same].Mirror && e.Mirror
	return all
}

func (r *Registries) route(i image, byDigest bool) ([]place, error) {
	for _, s := range r.sources {
		places, err := s.route(i, byDigest)
		if err != nil || len(places) > 0 {
			return places, err
		}
	}
	return []place{{image: i}}, nil
}

// endpoints adds to a place what is known of its host. An insecure one has two: by HTTPS without verification, then by plain HTTP.
func (r *Registries) endpoints(p place) ([]Endpoint, error) {
	a, err := r.access(p)
	if err != nil {
		return nil, err
	}
	id, err := r.identities.load(a)
	if err != nil {
		return nil, err
	}
	e := Endpoint{
		Host: p.address, Repository: p.repository, Path: p.root, Header: a.header.Clone(), Namespace: p.namespace, Mirror: p.mirror,
		RootCAs: id.roots, Certificates: id.certs, SkipVerify: a.skipVerify, Plain: a.plain,
	}
	if e.Host == "" {
		e.Host = address(p.host)
	}
	insecure := p.insecure || slices.Contains(r.insecure, p.host) || !a.stated() && slices.Contains(r.insecure, "*")
	if insecure && !a.plain {
		plain := e
		e.SkipVerify, plain.Plain = true, true
		return []Endpoint{e.keyed(id), plain.keyed(id)}, nil
	}
	return []Endpoint{e.keyed(id)}, nil
}

// access returns what the place says itself, else what is said of its host.
func (r *Registries) access(p place) (access, error) {
	if p.access.stated() {
		return p.access, nil
	}
	for _, s := range r.sources {
		a, err := s.access(p.image)
		if err != nil {
			return access{}, err
		}
		if !a.stated() && len(a.header) == 0 {
			continue
		}
		if len(p.access.header) > 0 {
			a.header = p.access.header
		}
		return a, nil
	}
	return p.access, nil
}

// keyed ends the making of an endpoint. What plain HTTP has no use for is removed.
func (e Endpoint) keyed(id *identity) Endpoint {
	what := "tls " + id.key
	if e.Plain {
		e.RootCAs, e.Certificates, e.SkipVerify = nil, nil, false
		what = "plain"
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %t %s", what, e.SkipVerify, strings.ToLower(e.Host)))
	e.Key = hex.EncodeToString(sum[:12])
	return e
}
