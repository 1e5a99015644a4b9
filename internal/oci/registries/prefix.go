package registries

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
)

// An image is a repository of a registry.
type image struct{ host, repository string }

func newImage(host, repository string) image {
	return image{host: canonical(host), repository: repository}
}

// canonical gives a host one spelling. Docker Hub has several names; docker.io is what images and files call it.
func canonical(host string) string {
	switch host = strings.ToLower(host); host {
	case "index.docker.io", "registry-1.docker.io", "registry.hub.docker.com":
		return "docker.io"
	}
	return host
}

// address is the host to connect to for an image host: docker.io itself is no registry.
func address(host string) string {
	if strings.EqualFold(host, "docker.io") {
		return "index.docker.io"
	}
	return host
}

// A prefix covers the repositories of a host, of the hosts below a domain ("*.example.com"), or of all hosts ("*"), below a path.
type prefix struct {
	text string
	host string // without the "*."
	path string
	wild bool
}

var (
	hostPattern = regexp.MustCompile(`^(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?$`)
	pathPattern = regexp.MustCompile(`^[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*$`)
)

var errScheme = errors.New("it must have no scheme")

// parseLocation splits host[:port][/path].
func parseLocation(text string) (image, error) {
	if strings.Contains(text, "://") {
		return image{}, errScheme
	}
	host, path, _ := strings.Cut(strings.TrimRight(text, "/"), "/")
	if !hostPattern.MatchString(host) {
		return image{}, errors.New("it must begin with a host or host:port")
	}
	if path != "" && !pathPattern.MatchString(path) {
		return image{}, errors.New("what follows the host must be a repository's name or the beginning of one, without tag and digest")
	}
	return newImage(host, path), nil
}

func parsePrefix(text string) (prefix, error) {
	rest, wild := strings.CutPrefix(text, "*")
	if wild && rest == "" {
		return prefix{text: text, wild: true}, nil
	}
	if wild && !strings.HasPrefix(rest, ".") {
		return prefix{}, errors.New("a * stands for all of a host's first labels, as in *.example.com, or for every host")
	}
	at, err := parseLocation(strings.TrimPrefix(rest, "."))
	if err != nil {
		return prefix{}, err
	}
	if wild {
		return prefix{text: text, host: strings.ToLower(strings.SplitN(rest[1:], "/", 2)[0]), path: at.repository, wild: true}, nil
	}
	return prefix{text: text, host: at.host, path: at.repository}, nil
}

// under returns what remains of the repository's name below the prefix.
func (p prefix) under(i image) (rest string, ok bool) {
	switch {
	case p.wild && p.host != "" && !strings.HasSuffix(i.host, "."+p.host), !p.wild && p.host != i.host:
		return "", false
	case p.path == "":
		return i.repository, true
	case i.repository == p.path:
		return "", true
	}
	return strings.CutPrefix(i.repository, p.path+"/")
}

// sample is an image that the prefix covers.
func (p prefix) sample() image {
	host := p.host
	if p.wild {
		host = strings.Trim("x."+host, ".")
	}
	return image{host: host, repository: p.path}
}

// compare is positive when p is more specific than q; both cover the same image.
func (p prefix) compare(q prefix) int {
	if n := cmp.Compare(len(p.host)+len(p.path), len(q.host)+len(q.path)); n != 0 {
		return n
	}
	switch {
	case p.wild == q.wild:
		return 0
	case p.wild:
		return -1
	}
	return 1
}

// below is a location with the rest of a repository's name.
func (i image) below(rest string) image {
	switch {
	case rest == "":
		return i
	case i.repository == "":
		return image{host: i.host, repository: rest}
	}
	return image{host: i.host, repository: i.repository + "/" + rest}
}

// checkHost says what is wrong with a host that came as an argument.
func checkHost(host string) error {
	if !hostPattern.MatchString(host) {
		return fmt.Errorf("%q is not a host or host:port", host)
	}
	return nil
}

func portOf(host string) string {
	_, port, err := net.SplitHostPort(host)
	if err != nil {
		return ""
	}
	return port
}
