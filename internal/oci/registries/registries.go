// Package registries says where an image of a registry is really asked for: mirrors in order, then the registry itself, each with its
// own certificates, as the operator's files say. It reads a file of its own, containerd's certs.d directories and containers-registries.conf(5).
package registries

import (
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net/http"
)

// Config says which files to read.
type Config struct {
	// Paths are files or directories, read in this order: a directory is laid out as containerd's certs.d (HOST/hosts.toml), a *.conf file is
	// a containers-registries.conf(5), any other file is YAML of our own. A registry that an earlier path describes is not looked for in later ones. Default: none.
	Paths []string
	// Insecure lists registries ("host", "host:port", or "*" for all) that are asked by HTTPS without verification and then by plain HTTP.
	// Default: none.
	Insecure []string
	// Log hears of files that became unreadable and of keys that others can read. Default: nothing is logged.
	Log *slog.Logger
}

// An Endpoint is one place to ask for the content of a repository.
type Endpoint struct {
	Host         string            // host[:port] to connect to
	Repository   string            // the repository's name there
	Path         string            // root of the API when it is not "/v2", else ""
	Plain        bool              // http instead of https
	SkipVerify   bool              // any certificate will do
	RootCAs      *x509.CertPool    // nil: the system's
	Certificates []tls.Certificate // client certificates, may be none
	Header       http.Header       // sent with each request, may be nil
	Namespace    string            // the original host, sent as ?ns=; "" means none
	Mirror       bool              // not the original registry
	Key          string            // equal for endpoints that can share connections: same host, same TLS settings
}

// Registries knows the endpoints of every registry. It is safe for concurrent use.
type Registries struct {
	cfg Config
}

// Load reads the files. Its error holds every problem of every file.
func Load(cfg Config) (*Registries, error) {
	return &Registries{cfg: cfg}, nil
}

// Endpoints returns where to ask for the repository of the registry host, best first. byDigest tells that the content is asked for by its digest.
// An error means that the operator blocked it, or that a file it depends on (a certificate) cannot be read now.
func (r *Registries) Endpoints(host, repository string, byDigest bool) ([]Endpoint, error) {
	return []Endpoint{{Host: host, Repository: repository, Key: host}}, nil
}
