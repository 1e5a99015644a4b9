package standalone

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gateway-agent/gateway-agent/standalone/protoyaml"
)

// Problem is something wrong with the configuration: found when it was read, or said by Envoy when it was applied.
type Problem struct {
	File     string    `json:"file,omitempty"`
	Line     int       `json:"line,omitempty"`
	Resource string    `json:"resource,omitempty"` // "listener l1"
	Reason   string    `json:"reason"`
	Since    time.Time `json:"since,omitzero"` // when it was first seen
}

// Error is "file:line: resource: reason", as far as they are known.
func (p Problem) Error() string {
	text := p.Reason
	if p.Resource != "" {
		text = p.Resource + ": " + text
	}
	return protoyaml.Error{File: p.File, Line: p.Line, Reason: text}.Error()
}

func (p Problem) key() Problem {
	p.Since = time.Time{}
	return p
}

// findings collects what one load finds.
type findings struct {
	problems []Problem
	warnings []Problem
}

// maxProblems bounds what one load reports: a person mends the first few, then looks again.
const maxProblems = 200

func (f *findings) add(n *protoyaml.Node, resource, format string, args ...any) {
	f.problems = append(f.problems, at(n, resource, format, args...))
}

func (f *findings) warn(n *protoyaml.Node, resource, format string, args ...any) {
	f.warnings = append(f.warnings, at(n, resource, format, args...))
}

func at(n *protoyaml.Node, resource, format string, args ...any) Problem {
	p := Problem{Resource: resource, Reason: fmt.Sprintf(format, args...)}
	if n != nil {
		p.File, p.Line = n.File, n.Line
	}
	return p
}

func (f *findings) addErrors(errs []protoyaml.Error) {
	for _, e := range errs {
		f.problems = append(f.problems, Problem{File: e.File, Line: e.Line, Reason: e.Reason})
	}
}

// sorted orders by place, without repetitions, and cuts what is too much.
func sorted(ps []Problem) []Problem {
	slices.SortFunc(ps, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Resource, b.Resource),
			cmp.Compare(a.Reason, b.Reason))
	})
	ps = slices.Compact(ps)
	if more := len(ps) - maxProblems; more > 0 {
		ps = append(ps[:maxProblems:maxProblems], Problem{Reason: fmt.Sprintf("and %d more problems", more)})
	}
	return ps
}

func joined(ps []Problem) error {
	errs := make([]error, 0, len(ps))
	for _, p := range ps {
		errs = append(errs, p)
	}
	return errors.Join(errs...)
}
