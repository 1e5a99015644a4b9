package lockfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// format is the version of the format; a newer one is refused.
const format = 1

const header = `# Written by 'gateway-agent wasm pull --lockfile'; do not edit. 'wasm pull --frozen' and 'run --lockfile' obey it.
`

var (
	digest = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	plain  = regexp.MustCompile(`^[a-z]+://[A-Za-z0-9._:/@%+~=&?-]*[A-Za-z0-9/]$`) // needs no quotes in YAML
)

// Marshal returns the file's text. Equal files have equal texts.
func (f *File) Marshal() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%sversion: %d\nmodules:", header, format)
	if len(f.entries) == 0 {
		b.WriteString(" []\n")
		return b.Bytes()
	}
	b.WriteString("\n")
	for _, e := range f.entries {
		fmt.Fprintf(&b, "- ref: %s\n", quote(e.Ref))
		if e.Manifest != "" {
			fmt.Fprintf(&b, "  manifest: %s\n", e.Manifest)
		}
		fmt.Fprintf(&b, "  module: %s\n  size: %d\n", e.Module, e.Size)
	}
	return b.Bytes()
}

func quote(s string) string {
	if plain.MatchString(s) {
		return s
	}
	quoted, err := json.Marshal(s) // a JSON string is a YAML string
	if err != nil {
		return strconv.Quote(s)
	}
	return string(quoted)
}

// Parse reads a file's text; name is what errors call it. The error has every problem, each as "name:line: reason".
func Parse(name string, data []byte) (*File, error) {
	p := &parser{name: name, file: &File{}, lines: map[string]int{}}
	if len(data) > maxBytes {
		return nil, fmt.Errorf("%s: larger than %d MiB: it is not a lockfile", name, maxBytes>>20)
	}
	if i := bytes.Index(append([]byte("\n"), data...), []byte("\n<<<<<<< ")); i >= 0 {
		line := 1 + bytes.Count(data[:i], []byte("\n"))
		return nil, fmt.Errorf("%s:%d: unresolved merge conflict: take either side whole, then run 'wasm pull --lockfile' again", name, line)
	}
	p.parse(data)
	if len(p.problems) > 0 {
		return nil, errors.Join(p.problems...)
	}
	return p.file, nil
}

// maxProblems bounds what is said of one file.
const maxProblems = 20

type parser struct {
	name     string
	file     *File
	lines    map[string]int // of each reference
	problems []error
}

func (p *parser) failf(n *yaml.Node, text string, args ...any) {
	if len(p.problems) < maxProblems {
		p.problems = append(p.problems, fmt.Errorf("%s:%d: %s", p.name, n.Line, fmt.Sprintf(text, args...)))
	}
}

func (p *parser) parse(data []byte) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	err := decode(decoder, &doc)
	switch {
	case errors.Is(err, io.EOF):
		p.problems = append(p.problems, fmt.Errorf("%s: empty: delete it, or restore it", p.name))
		return
	case err != nil:
		p.problems = append(p.problems, fmt.Errorf("%s: not a lockfile: %w", p.name, err))
		return
	}
	if err := decode(decoder, &second); !errors.Is(err, io.EOF) {
		p.failf(&second, "a lockfile is one YAML document")
		return
	}
	p.root(doc.Content[0])
}

// decode is d.Decode with the library's own panics as errors.
func decode(d *yaml.Decoder, n *yaml.Node) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("yaml: cannot be read (%v)", r)
		}
	}()
	return d.Decode(n)
}

func (p *parser) root(n *yaml.Node) {
	fields := p.fields(n, "version", "modules")
	if fields == nil {
		return
	}
	if v := fields["version"]; v == nil || v.Value != strconv.Itoa(format) {
		p.failf(n, "not version %d: a newer gateway-agent wrote it, or it is no lockfile", format)
		return
	}
	list := fields["modules"]
	switch {
	case list == nil || list.Kind != yaml.SequenceNode:
		p.failf(n, "modules: want a list")
		return
	case len(list.Content) > maxEntries:
		p.failf(list, "modules: more than %d", maxEntries)
		return
	}
	entries := make([]Entry, 0, len(list.Content))
	for _, item := range list.Content {
		if e, ok := p.entry(item); ok {
			entries = append(entries, e)
		}
	}
	p.file.entries = sorted(entries)
}

func (p *parser) entry(n *yaml.Node) (Entry, bool) {
	fields := p.fields(n, "ref", "manifest", "module", "size")
	if fields == nil {
		return Entry{}, false
	}
	before := len(p.problems)
	e := Entry{Ref: p.text(n, fields, "ref"), Module: p.text(n, fields, "module")}
	if fields["manifest"] != nil {
		e.Manifest = p.text(n, fields, "manifest")
		p.digest(fields["manifest"], "manifest", e.Manifest)
	}
	if e.Module != "" {
		p.digest(fields["module"], "module", e.Module)
	}
	var err error
	if e.Size, err = strconv.ParseInt(p.text(n, fields, "size"), 10, 64); err != nil || e.Size <= 0 {
		p.failf(n, "size: want a number of bytes")
	}
	if e.Ref != "" && (len(e.Ref) > maxRef || strings.ContainsFunc(e.Ref, unprintable)) {
		p.failf(n, "ref: too long, or not printable")
	}
	if first, twice := p.lines[e.Ref]; twice {
		p.failf(n, "%s is already in line %d: remove one", e.Ref, first)
	}
	p.lines[e.Ref] = n.Line
	return e, len(p.problems) == before
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }

func (p *parser) digest(n *yaml.Node, key, value string) {
	if !digest.MatchString(value) {
		p.failf(n, "%s: %.80q is not sha256: and 64 hexadecimal digits", key, value)
	}
}

// text is the value of a key that must be there.
func (p *parser) text(n *yaml.Node, fields map[string]*yaml.Node, key string) string {
	value := fields[key]
	if value == nil || value.Kind != yaml.ScalarNode || value.Value == "" || value.Tag == "!!null" {
		p.failf(n, "%s is missing", key)
		return ""
	}
	return value.Value
}

// fields returns a mapping's values by key; nil when it is none or has a key that is not known.
func (p *parser) fields(n *yaml.Node, known ...string) map[string]*yaml.Node {
	if n.Kind != yaml.MappingNode {
		p.failf(n, "want %s", strings.Join(known, ", "))
		return nil
	}
	fields := map[string]*yaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		name := ""
		for _, k := range known {
			if key.Kind == yaml.ScalarNode && key.Value == k {
				name = k
			}
		}
		switch {
		case name == "":
			p.failf(key, "unknown key %.80q: the keys are %s", key.Value, strings.Join(known, ", "))
			return nil
		case fields[name] != nil:
			p.failf(key, "%s comes twice", name)
			return nil
		}
		fields[name] = n.Content[i+1]
	}
	return fields
}
