package protoyaml

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sort"
)

// parseJSON reads one JSON value after another. JSON is not left to the YAML parser, which does not know all of its
// escapes.
func parseJSON(file string, data []byte, budget *Budget) ([]*Node, []Error) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	p := &jsonParser{file: file, data: data, budget: budget, dec: json.NewDecoder(bytes.NewReader(data))}
	p.dec.UseNumber()
	for i, b := range data {
		if b == '\n' {
			p.lines = append(p.lines, i)
		}
	}
	var docs []*Node
	for {
		n, err := p.value(0)
		if errors.Is(err, io.EOF) {
			return docs, nil
		}
		if err != nil {
			return docs, []Error{p.problem(err)}
		}
		if n.Kind != Null {
			docs = append(docs, n)
		}
	}
}

type jsonParser struct {
	file   string
	data   []byte
	budget *Budget
	dec    *json.Decoder
	lines  []int // offsets of the line feeds
}

func (p *jsonParser) lineAt(offset int64) int {
	return 1 + sort.SearchInts(p.lines, int(offset))
}

func (p *jsonParser) problem(err error) Error {
	if e, ok := errors.AsType[Error](err); ok {
		return e
	}
	at := p.dec.InputOffset()
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		at = max(e.Offset-1, at)
	}
	for at < int64(len(p.data))-1 && bytes.IndexByte([]byte(" \t\r\n"), p.data[at]) >= 0 {
		at++
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("the file ends too early")
	}
	return Error{File: p.file, Line: p.lineAt(at), Reason: "not valid JSON: " + err.Error()}
}

func (p *jsonParser) value(depth int) (*Node, error) {
	tok, err := p.dec.Token()
	if err != nil {
		if depth > 0 && errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	n := &Node{File: p.file, Line: p.lineAt(p.dec.InputOffset() - 1)}
	if depth > maxDepth {
		return nil, n.Errorf("nested too deeply (more than %d levels)", maxDepth)
	}
	if !p.budget.take(1) {
		return nil, n.Errorf(overBudget)
	}
	switch t := tok.(type) {
	case json.Delim:
		return n, p.collection(n, t, depth)
	case string:
		n.Kind, n.Value = Scalar, t
	case nil:
	default: // bool and json.Number
		n.Kind, n.Plain, n.Value = Scalar, true, fmt.Sprint(t)
	}
	return n, nil
}

func (p *jsonParser) collection(n *Node, open json.Delim, depth int) error {
	n.Kind = List
	if open == '{' {
		n.Kind = Map
	}
	seen := map[string]int{}
	for p.dec.More() {
		if n.Kind == Map {
			key, err := p.value(depth + 1)
			if err != nil {
				return err
			}
			if at, dup := seen[key.Value]; dup {
				return key.Errorf("key %q is already given in line %d", key.Value, at)
			}
			seen[key.Value] = key.Line
			n.Keys = append(n.Keys, key)
		}
		item, err := p.value(depth + 1)
		if err != nil {
			return err
		}
		n.Items = append(n.Items, item)
	}
	if _, err := p.dec.Token(); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	return nil
}
