// Package protoyaml reads YAML and JSON into protobuf messages and remembers which line every message came from, so
// that whatever is later found wrong with a message can be reported with the file and line a person has to edit.
//
// Parse makes a tree of nodes from a file. A Tree decodes nodes into messages; messages packed in an Any are kept
// decoded, so that they can be inspected and changed, until Seal packs them.
package protoyaml

import "fmt"

// Kind says what a Node is.
type Kind uint8

// The kinds of nodes.
const (
	Null Kind = iota
	Scalar
	List
	Map
)

// String names the kind as a person would.
func (k Kind) String() string {
	return [...]string{"null", "a value", "a list", "a mapping"}[k]
}

// Node is one value of a document, with its place.
type Node struct {
	Kind Kind
	// Plain: a scalar written without quotes, whose type follows from its text.
	Plain bool
	File  string
	Line  int
	Value string
	// Keys are a mapping's keys, in the order of the file; Items are a mapping's or a list's values.
	Keys  []*Node
	Items []*Node
}

// Get returns the value of a mapping's first key among names, or nil.
func (n *Node) Get(names ...string) *Node {
	for _, name := range names {
		if _, v := n.entry(name); v != nil {
			return v
		}
	}
	return nil
}

func (n *Node) entry(name string) (key, value *Node) {
	if n == nil || n.Kind != Map {
		return nil, nil
	}
	for i, k := range n.Keys {
		if k.Value == name {
			return k, n.Items[i]
		}
	}
	return nil, nil
}

// Errorf makes an Error at the node's place.
func (n *Node) Errorf(format string, args ...any) Error {
	return Error{File: n.File, Line: n.Line, Reason: fmt.Sprintf(format, args...)}
}

// Error is something wrong in a file.
type Error struct {
	File   string
	Line   int // 0: the whole file
	Reason string
}

// Error is "file:line: reason".
func (e Error) Error() string {
	switch {
	case e.File == "":
		return e.Reason
	case e.Line == 0:
		return e.File + ": " + e.Reason
	}
	return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Reason)
}

// Budget bounds what documents may grow to when their aliases are expanded.
type Budget struct {
	// Nodes that may still be made; each value of a file costs one, and again for each alias that repeats it.
	Nodes int
}

func (b *Budget) take(n int) bool {
	b.Nodes -= n
	return b.Nodes >= 0
}

const overBudget = "the configuration has too many values (YAML aliases are counted each time they are used): split or simplify it"
