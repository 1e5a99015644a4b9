package registries

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
	"golang.org/x/net/http/httpguts"
)

// An entry is what our own file says of a prefix. A nil field says nothing, and a shorter prefix is asked.
type entry struct {
	prefix     prefix
	line       int
	mirrors    *[]image
	digestOnly *bool // mirrors serve only what is asked for by digest
	only       *bool // the registry itself is not asked
	blocked    *bool
	plain      *bool
	skipVerify *bool
	ca         *string
	pair       *pair
	header     *http.Header
}

// A yamlReader collects everything that is wrong with a file.
type yamlReader struct {
	path string
	errs []error
}

func (r *yamlReader) fail(n *yaml.Node, format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("%s:%d: %w", r.path, n.Line, fmt.Errorf(format, args...)))
}

// parseYAML reads a file of our own: a mapping from prefixes to what is said of them.
func parseYAML(path string, data []byte) ([]entry, error) {
	doc, err := oneDocument(path, data)
	if err != nil || len(doc.Content) == 0 {
		return nil, err
	}
	r := &yamlReader{path: path}
	var entries []entry
	seen := map[string]bool{}
	for key, value := range r.pairs(doc.Content[0], "prefixes (host, host/path, *.domain or *), each with its settings") {
		p, err := parsePrefix(key.Value)
		if err != nil {
			r.fail(key, "the prefix %q cannot be used: %w", withoutUser(key.Value), err)
			continue
		}
		id := fmt.Sprintf("%t %s/%s", p.wild, p.host, p.path)
		if seen[id] {
			r.fail(key, "the prefix %q is there twice", key.Value)
		}
		seen[id] = true
		e := entry{prefix: p, line: key.Line}
		r.entry(&e, value)
		entries = append(entries, e)
	}
	r.conflicts(entries)
	return entries, errors.Join(r.errs...)
}

func oneDocument(path string, data []byte) (*yaml.Node, error) {
	var doc, second yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		text := strings.TrimPrefix(err.Error(), "yaml: ")
		if strings.Contains(text, "anchor") { // it quotes what is there, and that may be a secret without its quotes
			text = "an alias (*) of something that is not there"
		}
		return nil, fmt.Errorf("%s: %s", path, text)
	}
	if err := d.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: it must be one YAML document; remove what begins with ---", path)
	}
	return &doc, nil
}

// pairs walks a mapping in its order.
func (r *yamlReader) pairs(n *yaml.Node, what string) func(func(key, value *yaml.Node) bool) {
	return func(yield func(key, value *yaml.Node) bool) {
		if n.Tag == "!!null" {
			return
		}
		if n.Kind != yaml.MappingNode {
			r.fail(n, "here must be a mapping: %s", what)
			return
		}
		seen := map[string]bool{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i]
			if key.Kind != yaml.ScalarNode {
				r.fail(key, "a key must be a plain string")
				continue
			}
			if seen[key.Value] {
				r.fail(key, "the key %q is there twice", key.Value)
				continue
			}
			seen[key.Value] = true
			if !yield(key, n.Content[i+1]) {
				return
			}
		}
	}
}

func (r *yamlReader) entry(e *entry, n *yaml.Node) {
	var cert, key *string
	for k, v := range r.pairs(n, "mirrors, ca, cert, key, …") {
		switch k.Value {
		case "mirrors":
			e.mirrors = r.mirrors(v)
		case "mirrors-by-digest-only":
			e.digestOnly = r.bool(k, v)
		case "mirrors-only":
			e.only = r.bool(k, v)
		case "blocked":
			e.blocked = r.bool(k, v)
		case "plain-http":
			e.plain = r.bool(k, v)
		case "skip-verify":
			e.skipVerify = r.bool(k, v)
		case "ca":
			e.ca = r.file(k, v)
		case "cert":
			cert = r.file(k, v)
		case "key":
			key = r.file(k, v)
		case "header":
			e.header = r.header(v)
		default:
			r.fail(k, "the key %q is not known; known are mirrors, mirrors-by-digest-only, mirrors-only, blocked, plain-http, skip-verify, ca, cert, key, header", k.Value)
		}
	}
	if key != nil && cert == nil {
		r.fail(n, "a key needs a cert beside it")
	}
	if cert != nil {
		e.pair = &pair{cert: *cert}
		if key != nil {
			e.pair.key = *key
		}
	}
}

func (r *yamlReader) bool(k, v *yaml.Node) *bool {
	var b bool
	if v.Kind != yaml.ScalarNode || v.Tag != "!!bool" || v.Decode(&b) != nil {
		r.fail(v, "%s must be true or false", k.Value)
		return nil
	}
	return &b
}

// file returns a path; a relative one is meant beside the file that names it.
func (r *yamlReader) file(k, v *yaml.Node) *string {
	if v.Kind != yaml.ScalarNode || v.Tag != "!!str" {
		r.fail(v, "%s must be the path of a file", k.Value)
		return nil
	}
	path := v.Value
	if path != "" {
		path = beside(r.path, path)
	}
	return &path
}

func (r *yamlReader) mirrors(v *yaml.Node) *[]image {
	if v.Kind != yaml.SequenceNode {
		r.fail(v, "mirrors must be a list of host[:port][/path]")
		return nil
	}
	mirrors := []image{}
	for _, item := range v.Content {
		at, err := parseLocation(item.Value)
		switch {
		case item.Kind != yaml.ScalarNode:
			r.fail(item, "a mirror is written as host[:port][/path]; its certificates and plain-http go under a prefix of its own")
		case errors.Is(err, errScheme):
			r.fail(item, "the mirror must be written without a scheme; for plain HTTP give its host an entry with plain-http: true")
		case err != nil:
			r.fail(item, "the mirror %q cannot be used: %w", withoutUser(item.Value), err)
		default:
			mirrors = append(mirrors, at)
		}
	}
	return &mirrors
}

func (r *yamlReader) header(v *yaml.Node) *http.Header {
	h := http.Header{}
	for name, value := range r.pairs(v, "header names with their values") {
		switch {
		case !httpguts.ValidHeaderFieldName(name.Value):
			r.fail(name, "%q is not the name of a header", name.Value)
		case value.Kind != yaml.ScalarNode || !httpguts.ValidHeaderFieldValue(value.Value):
			r.fail(value, "the header %s has no usable value", name.Value)
		default:
			h.Add(name.Value, value.Value)
		}
	}
	return &h
}

// conflicts finds settings that would be without effect.
func (r *yamlReader) conflicts(entries []entry) {
	for _, e := range entries {
		at := &yaml.Node{Line: e.line}
		all := merge(entries, e.prefix.sample())
		a := all.access()
		states := e.plain != nil || e.ca != nil || e.pair != nil || e.skipVerify != nil
		if states && a.plain && (a.skipVerify || len(a.ca) > 0 || len(a.pairs) > 0) {
			r.fail(at, "%q: with plain-http there is no TLS, so ca, cert and skip-verify (here or under a shorter prefix) have no effect; remove one or the other", e.prefix.text)
		}
		if is(e.only) && (all.mirrors == nil || len(*all.mirrors) == 0) {
			r.fail(at, "%q: mirrors-only needs mirrors", e.prefix.text)
		}
	}
}

func is(b *bool) bool { return b != nil && *b }

func beside(file, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(filepath.Dir(file), path)
}
