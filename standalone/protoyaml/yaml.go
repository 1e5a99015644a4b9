package protoyaml

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Parse reads the documents of one file: JSON when its name ends in .json, else YAML. Empty documents are left out.
// The documents that could be read are returned together with the errors.
func Parse(file string, data []byte, budget *Budget) ([]*Node, []Error) {
	if strings.HasSuffix(file, ".json") {
		return parseJSON(file, data, budget)
	}
	return parseYAML(file, data, budget)
}

func parseYAML(file string, data []byte, budget *Budget) ([]*Node, []Error) {
	var docs []*Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var y yaml.Node
		err := decodeDocument(dec, &y)
		if errors.Is(err, io.EOF) {
			return docs, nil
		}
		if err != nil {
			return docs, []Error{syntaxError(file, err)}
		}
		c := converter{file: file, budget: budget}
		n := c.convert(&y, 0)
		if len(c.errs) > 0 {
			return docs, c.errs
		}
		if n != nil && n.Kind != Null {
			docs = append(docs, n)
		}
	}
}

// decodeDocument is dec.Decode, with the library's own panics as errors: what a file holds must never end the agent.
func decodeDocument(dec *yaml.Decoder, y *yaml.Node) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("yaml: cannot be read (%v)", r)
		}
	}()
	return dec.Decode(y)
}

var yamlLine = regexp.MustCompile(`^line (\d+): `)

// syntaxError takes the line out of the parser's message ("yaml: line 3: …").
func syntaxError(file string, err error) Error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	m := yamlLine.FindStringSubmatch(text)
	if m == nil {
		return Error{File: file, Reason: "not valid YAML: " + text}
	}
	line, _ := strconv.Atoi(m[1])
	text = text[len(m[0]):]
	if strings.HasPrefix(text, "did not find expected") {
		line++ // the library counts these from zero
	}
	if text == "did not find expected key" || text == "did not find expected '-' indicator" {
		text += " (check the indentation of what begins here)"
	}
	return Error{File: file, Line: line, Reason: "not valid YAML: " + text}
}

// converter turns the parser's nodes into ours, with aliases and merge keys expanded.
type converter struct {
	file   string
	budget *Budget
	errs   []Error
	open   map[*yaml.Node]bool // aliases being expanded, to see one inside itself
}

// maxDepth bounds nesting: Envoy itself reads no message that is nested deeper than 100.
const maxDepth = 400

func (c *converter) convert(y *yaml.Node, depth int) *Node {
	n := &Node{File: c.file, Line: y.Line}
	switch {
	case len(c.errs) > 0:
		return n
	case depth > maxDepth:
		return c.fail(n, "nested too deeply (more than %d levels)", maxDepth)
	case !c.budget.take(1):
		return c.fail(n, overBudget)
	}
	switch y.Kind {
	case yaml.DocumentNode:
		if len(y.Content) == 0 {
			return n
		}
		return c.convert(y.Content[0], depth)
	case yaml.AliasNode:
		return c.alias(n, y, depth)
	case yaml.SequenceNode:
		n.Kind = List
		for _, item := range y.Content {
			n.Items = append(n.Items, c.convert(item, depth+1))
		}
	case yaml.MappingNode:
		n.Kind = Map
		c.mapping(n, y, depth)
	case yaml.ScalarNode:
		c.scalar(n, y)
	}
	return n
}

func (c *converter) fail(n *Node, format string, args ...any) *Node {
	c.errs = append(c.errs, n.Errorf(format, args...))
	return n
}

func (c *converter) alias(n *Node, y *yaml.Node, depth int) *Node {
	if y.Alias == nil {
		return c.fail(n, "unknown anchor %q", y.Value)
	}
	if c.open[y.Alias] {
		return c.fail(n, "anchor %q contains itself", y.Value)
	}
	if c.open == nil {
		c.open = map[*yaml.Node]bool{}
	}
	c.open[y.Alias] = true
	defer delete(c.open, y.Alias)
	return c.convert(y.Alias, depth+1)
}

func (c *converter) scalar(n *Node, y *yaml.Node) {
	const quoted = yaml.DoubleQuotedStyle | yaml.SingleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle
	n.Kind, n.Value = Scalar, y.Value
	tagged := y.Style&yaml.TaggedStyle != 0 && y.Tag == "!!str"
	n.Plain = y.Style&quoted == 0 && !tagged
	if n.Plain && isNull(y.Value) {
		n.Kind = Null
	}
}

func isNull(s string) bool {
	switch s {
	case "", "~", "null", "Null", "NULL":
		return true
	}
	return false
}

func (c *converter) mapping(n *Node, y *yaml.Node, depth int) {
	var merges []*yaml.Node
	seen := map[string]int{}
	for i := 0; i+1 < len(y.Content); i += 2 {
		k, v := y.Content[i], y.Content[i+1]
		if k.Kind == yaml.ScalarNode && k.Tag == "!!merge" {
			merges = append(merges, v)
			continue
		}
		key := c.convert(k, depth+1)
		if len(c.errs) > 0 {
			return
		}
		if key.Kind != Scalar && key.Kind != Null {
			c.fail(key, "a key must be a plain value, not %s", key.Kind)
			return
		}
		if at, dup := seen[key.Value]; dup {
			c.fail(key, "key %q is already given in line %d", key.Value, at)
			return
		}
		seen[key.Value] = key.Line
		n.Keys = append(n.Keys, key)
		n.Items = append(n.Items, c.convert(v, depth+1))
	}
	for _, m := range merges {
		c.merge(n, m, seen, depth)
	}
}

// merge adds what a "<<" key names, without replacing what the mapping has.
func (c *converter) merge(n *Node, y *yaml.Node, seen map[string]int, depth int) {
	from := c.convert(y, depth+1)
	sources := []*Node{from}
	if from.Kind == List {
		sources = from.Items
	}
	for _, s := range sources {
		if s.Kind != Map {
			c.fail(from, "<< needs a mapping, not %s", s.Kind)
			return
		}
		for i, k := range s.Keys {
			if _, have := seen[k.Value]; have {
				continue
			}
			seen[k.Value] = k.Line
			n.Keys, n.Items = append(n.Keys, k), append(n.Items, s.Items[i])
		}
	}
}
