package fetch

import (
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"unicode"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/gateway-agent/gateway-agent/internal/oci"
	"github.com/gateway-agent/gateway-agent/internal/oci/safehttp"
)

type kind int

const (
	kindOCI kind = iota
	kindHTTP
	kindFile
)

// Reference is a parsed URL of a module.
type Reference struct {
	kind  kind
	image name.Reference // oci
	url   *url.URL       // http
	path  string         // file
}

// maxURL bounds a reference: it comes from a control plane and ends in logs.
const maxURL = 8 << 10

// Parse parses the URL of a module.
func Parse(raw string) (Reference, error) {
	op := "parse module URL " + safehttp.RedactRaw(raw)
	if len(raw) > maxURL {
		return Reference{}, broken(op, "it is longer than %d bytes", maxURL)
	}
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		return Reference{}, broken(op, "it has no scheme: write oci://, https:// or file:// in front")
	}
	switch strings.ToLower(scheme) {
	case "oci":
		image, err := oci.ParseReference(rest)
		return Reference{kind: kindOCI, image: image}, err
	case "http", "https":
		u, err := url.Parse(raw)
		if err != nil || u.Host == "" {
			return Reference{}, broken(op, "not a URL with a host and a path")
		}
		u.Scheme, u.Fragment = strings.ToLower(u.Scheme), ""
		return Reference{kind: kindHTTP, url: u}, nil
	case "file":
		if !filepath.IsAbs(rest) || strings.ContainsFunc(rest, unicode.IsControl) {
			return Reference{}, broken(op, "the path must be absolute and without control characters: file:///dir/plugin.wasm")
		}
		return Reference{kind: kindFile, path: filepath.Clean(rest)}, nil
	}
	return Reference{}, broken(op, "scheme %s is not known: use oci, https, http or file", safehttp.OneLine(scheme, 40))
}

// Key is equal for references that name the same thing. It may hold credentials that are part of a URL.
func (r Reference) Key() string {
	switch r.kind {
	case kindOCI:
		return "oci://" + r.image.Name()
	case kindFile:
		return "file://" + r.path
	default:
		return r.url.String()
	}
}

// String is the reference for people, without credentials.
func (r Reference) String() string {
	switch r.kind {
	case kindHTTP:
		return safehttp.Redact(r.url)
	case kindOCI:
		return "oci://" + r.image.String()
	}
	return r.Key()
}

// Shown is a reference for people, without credentials, whether or not it can be parsed.
func Shown(raw string) string {
	if r, err := Parse(raw); err == nil {
		return r.String()
	}
	return safehttp.RedactRaw(raw)
}

// Fixed reports that the reference itself says the content: it has a digest.
func (r Reference) Fixed() bool {
	if r.kind != kindOCI {
		return false
	}
	_, ok := r.image.(name.Digest)
	return ok
}

// Local reports that no network is needed.
func (r Reference) Local() bool { return r.kind == kindFile }

// want is the SHA-256 that a module, manifest or index must have.
type want struct {
	sha256 string // hex; "" none
	oci    bool   // may be that of a manifest or index
}

var hexDigest = regexp.MustCompile(`^[0-9a-f]{64}$`)

func newWant(ref Reference, sha256 string) (want, error) {
	sum, err := NormalizeSHA256(sha256)
	if err != nil {
		return want{}, broken("check the sha256 of "+ref.String(), "%v", err)
	}
	return want{sha256: sum, oci: ref.kind == kindOCI}, nil
}

// NormalizeSHA256 returns the lower-case hex form. "" and "nil", which old control planes write, mean none.
func NormalizeSHA256(s string) (string, error) {
	s = strings.TrimPrefix(strings.ToLower(strings.TrimSpace(s)), "sha256:")
	if s == "" || s == "nil" {
		return "", nil
	}
	if !hexDigest.MatchString(s) {
		return "", format("%q is not a SHA-256 in hex", safehttp.OneLine(s, 80))
	}
	return s, nil
}

// early says what is known before the module is there.
func (w want) early(index, manifest string) string {
	switch {
	case w.sha256 == "" || !w.oci:
		return ""
	case manifest == "sha256:"+w.sha256:
		return "manifest"
	case index == "sha256:"+w.sha256:
		return "index"
	}
	return ""
}

func (w want) match(op, index, manifest, module string) (string, error) {
	if w.sha256 == "" {
		return "", nil
	}
	if matched := w.early(index, manifest); matched != "" {
		return matched, nil
	}
	if module == w.sha256 {
		return "module", nil
	}
	text := "module " + module
	if manifest != "" {
		text += ", manifest " + manifest
	}
	if index != "" {
		text += ", index " + index
	}
	return "", broken(op, "wrong digest: sha256 %s was asked for, but this is %s: correct the sha256, or restore what was published", w.sha256, text)
}
