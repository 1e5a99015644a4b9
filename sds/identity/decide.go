package identity

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"
)

// The sources of an identity. As a mode, Auto takes the first in this order that is there: files, an external server, an authority.
const (
	Auto     = "auto"
	Files    = "files"
	External = "external"
	CA       = "ca"
	None     = "none"
)

// Triple is a certificate chain, its key, and the roots that peers are checked with: three PEM files.
type Triple struct {
	Cert, Key, Root string
	Whole           bool // where there is an authority, a part of it is as good as nothing
}

// Places is where an identity may come from.
type Places struct {
	Mode   string   // one of the sources: that one and no other, waited for if need be; default Auto
	Files  []Triple // mounted files, the best first; default those of [Mounted]
	Socket string   // of an external server; default none
	CA     bool     // an authority is configured
	Output string   // directory that the identity is written to, which is never where it comes from; default none
}

// Choice is who provides the workload's identity, decided once: to change the issuer of a running gateway because a file or socket comes or
// goes would surprise everybody.
type Choice struct {
	Source string // Files, External, CA or None
	Files  Triple // source Files; with CA, Root may be one that replaces the authority's
	Socket string // source External
	Why    string // in words
}

const spiffeFiles = "var/run/secrets/workload-spiffe-credentials"

// Mounted is where platforms mount a workload's certificate, below root, which is / outside of tests.
func Mounted(root string) []Triple {
	return []Triple{
		triple(root, spiffeFiles, "cert-chain.pem", "key.pem", "root-cert.pem", true),
		MountedByGKE(root),
		triple(root, "etc/certs", "cert-chain.pem", "key.pem", "root-cert.pem", false),
	}
}

// MountedByGKE is the one of them that Google's platform uses.
func MountedByGKE(root string) Triple {
	return triple(root, spiffeFiles, "certificates.pem", "private_key.pem", "ca_certificates.pem", true)
}

func triple(root, dir, cert, key, ca string, whole bool) Triple {
	dir = filepath.Join(root, dir)
	return Triple{filepath.Join(dir, cert), filepath.Join(dir, key), filepath.Join(dir, ca), whole}
}

// row is a line of the table of sources.
type row struct {
	source string
	there  func(p *Places) (Choice, bool)
	absent string // why not, when this source is the only one allowed and cannot be waited for
}

// table is who serves the workload's identity: the first row that is there.
var table = []row{
	{source: Files, there: mountedFiles},
	{source: External, there: externalSocket, absent: "no socket is named"},
	{source: CA, there: authority, absent: "no certificate authority is configured"},
}

// Decide looks which source there is.
func Decide(p Places) (Choice, error) {
	if p.Mode == "" {
		p.Mode = Auto
	}
	if p.Files == nil {
		p.Files = Mounted("/")
	}
	for _, path := range append(allPaths(p.Files), p.Socket, p.Output) {
		if path != "" && !filepath.IsAbs(path) {
			return Choice{}, fmt.Errorf("identity: path %q must be absolute", path)
		}
	}
	if p.Mode == None {
		return Choice{Source: None, Why: "an identity is not wanted"}, nil
	}
	known := p.Mode == Auto
	for _, r := range table {
		known = known || r.source == p.Mode
		if p.Mode != Auto && p.Mode != r.source {
			continue
		}
		if choice, ok := r.there(&p); ok {
			choice.Source = r.source
			return choice, nil
		}
		if p.Mode == r.source {
			return r.only(&p)
		}
	}
	if !known {
		return Choice{}, fmt.Errorf("identity: source %q is unknown: choose %s, %s, %s, %s or %s", p.Mode, Auto, Files, External, CA, None)
	}
	return Choice{Source: None, Why: "there are no mounted files, no external server and no certificate authority"}, nil
}

// only is the choice when nothing else is allowed: files and sockets that are not there yet are waited for.
func (r row) only(p *Places) (Choice, error) {
	switch {
	case r.source == Files && len(p.Files) > 0:
		return Choice{Source: Files, Files: p.Files[len(p.Files)-1], Why: "only mounted files are allowed; none are there yet"}, nil
	case r.source == External && p.Socket != "":
		return Choice{Source: External, Socket: p.Socket, Why: "only the external server is allowed; it does not answer yet"}, nil
	}
	return Choice{}, fmt.Errorf("identity: source %q is the only one allowed, but %s", r.source, r.absent)
}

func allPaths(files []Triple) []string {
	var all []string
	for _, f := range files {
		all = append(all, f.Cert, f.Key, f.Root)
	}
	return all
}

func mountedFiles(p *Places) (Choice, bool) {
	for _, f := range p.Files {
		there := exists(f.Cert) && exists(f.Key) && (exists(f.Root) || !f.Whole || !p.CA)
		if there && !sameDir(filepath.Dir(f.Cert), p.Output) {
			return Choice{Files: f, Why: "files are mounted at " + filepath.Dir(f.Cert)}, true
		}
	}
	return Choice{}, false
}

// externalSocket wants somebody to answer: a socket file may be left over, even from an agent in our place.
func externalSocket(p *Places) (Choice, bool) {
	if p.Socket == "" {
		return Choice{}, false
	}
	conn, err := net.DialTimeout("unix", p.Socket, time.Second)
	if err != nil {
		return Choice{}, false
	}
	_ = conn.Close()
	return Choice{Socket: p.Socket, Why: "an external server answers at " + p.Socket}, true
}

func authority(p *Places) (Choice, bool) {
	if !p.CA {
		return Choice{}, false
	}
	choice := Choice{Why: "nothing else is there, and a certificate authority is configured"}
	for _, f := range p.Files {
		if !f.Whole && exists(f.Root) && !exists(f.Cert) && !sameDir(filepath.Dir(f.Root), p.Output) {
			choice.Files.Root = f.Root // mounted alone
			choice.Why += "; " + f.Root + " is mounted and replaces its root"
			break
		}
	}
	return choice, true
}

func exists(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() || errors.Is(err, fs.ErrPermission) // that it cannot be read is for people to know
}

// sameDir says whether two names are of one directory, or of what will be one.
func sameDir(a, b string) bool {
	if b == "" {
		return false
	}
	if filepath.Clean(a) == filepath.Clean(b) {
		return true
	}
	one, err1 := os.Stat(a)
	two, err2 := os.Stat(b)
	return err1 == nil && err2 == nil && os.SameFile(one, two)
}
