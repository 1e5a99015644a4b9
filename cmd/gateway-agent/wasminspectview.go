package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/gateway-agent/gateway-agent/wasmcache/abi"
)

const textWidth = 100

// renderInspection writes what is known of a module for a person.
func renderInspection(w io.Writer, i *inspection, colors bool) {
	s := &screen{w: w, colors: colors}
	s.line("reference", i.Ref)
	s.line("file", i.File)
	s.line("module", i.Digest)
	s.line("stored", i.Stored)
	s.painted("note", s.pale, i.Note)
	if i.Verdict != nil {
		text := fmt.Sprintf("%s for %s", s.verdict(i.Verdict.Outcome), i.Verdict.Host)
		if i.Verdict.Reason != "" {
			text += ": " + i.Verdict.Reason
		}
		s.line("verdict", text)
		for _, warning := range i.Verdict.Warnings {
			s.line("", s.pale("warning: "+warning))
		}
	}
	if i.Image != nil {
		s.image(i.Image)
	}
	if i.Module != nil {
		s.module(i.Module)
	}
}

// line writes one fact; an empty one is left out.
func (s *screen) line(name, text string) {
	if strings.TrimSpace(text) != "" {
		fmt.Fprintf(s.w, "%-12s %s\n", name, text)
	}
}

func (s *screen) painted(name string, paint func(string) string, text string) {
	if text != "" {
		s.line(name, paint(text))
	}
}

func (s *screen) image(i *imageInfo) {
	s.line("manifest", i.Manifest)
	s.line("index", i.Index)
	s.line("media type", printable(i.MediaType))
	s.line("artifact", printable(i.ArtifactType))
	s.line("from", printable(i.Source))
	for n, key := range slices.Sorted(maps.Keys(i.Annotations)) {
		s.line(first(n, "annotations"), printable(key)+"="+printable(i.Annotations[key]))
	}
	for n, l := range i.Layers {
		text := fmt.Sprintf("%s  %s  %s", short(strings.TrimPrefix(l.Digest, "sha256:")), size(l.Size), printable(l.MediaType))
		if l.Title != "" {
			text += "  " + printable(l.Title)
		}
		if l.Module {
			text += "  <- the module"
		}
		s.line(first(n, "layers"), text)
	}
}

func (s *screen) module(d *abi.Description) {
	s.painted("damaged", s.bad, d.Fault)
	s.line("name", d.Name)
	abiVersion := d.ABI
	if abiVersion == "" {
		abiVersion = s.bad("none: not a Proxy-Wasm module")
	}
	s.line("proxy-wasm", abiVersion)
	s.line("size", fmt.Sprintf("%s, %s", size(d.Size), count(d.Functions, "function")))
	s.line("features", d.Features)
	if d.Start {
		s.line("start", "a function runs before Envoy calls the module")
	}
	for n, m := range d.Memories {
		s.line(first(n, "memory"), memoryText(m))
	}
	for n, p := range d.Producers {
		s.line(first(n, "made by"), strings.TrimSpace(fmt.Sprintf("%s: %s %s", p.Field, p.Name, p.Version)))
	}
	s.imports(d.Imports)
	var names []string
	for _, e := range d.Exports {
		names = append(names, e.Name)
	}
	s.wrapped("exports", "", names)
	s.sections(d)
	if d.Cut {
		s.line("", s.pale("there is more than is shown here"))
	}
}

func memoryText(m abi.MemoryInfo) string {
	text := size(int64(min(m.Min, 1<<40) << 16))
	if m.Max > 0 {
		text += " to " + size(int64(min(m.Max, 1<<40)<<16))
	}
	for _, is := range []struct {
		true bool
		name string
	}{{m.Imported, "imported"}, {m.Shared, "shared"}, {m.Wide, "64-bit"}} {
		if is.true {
			text += ", " + is.name
		}
	}
	return text
}

// imports are grouped by the module that they come from.
func (s *screen) imports(all []abi.ImportInfo) {
	var order []string
	names := map[string][]string{}
	for _, i := range all {
		if names[i.Module] == nil {
			order = append(order, i.Module)
		}
		name := i.Name
		if i.Kind != "function" {
			name += " (" + i.Kind + ")"
		}
		names[i.Module] = append(names[i.Module], name)
	}
	for n, module := range order {
		s.wrapped(first(n, "imports"), module+": ", names[module])
	}
}

// sections are the largest ones: what makes a module large.
func (s *screen) sections(d *abi.Description) {
	sections := slices.Clone(d.Sections)
	slices.SortStableFunc(sections, func(a, b abi.SectionInfo) int { return int(b.Size - a.Size) })
	const most = 8
	for n, section := range sections[:min(len(sections), most)] {
		text := fmt.Sprintf("%-10s %s", size(section.Size), section.Name)
		if section.Custom {
			text += " (custom)"
		}
		s.line(first(n, "sections"), text)
	}
	if more := len(sections) - most; more > 0 {
		s.line("", fmt.Sprintf("and %d smaller ones", more))
	}
}

// wrapped writes a list of names over as many lines as it needs.
func (s *screen) wrapped(name, prefix string, list []string) {
	line := prefix
	for n, item := range list {
		if n < len(list)-1 {
			item += ","
		}
		if len(line)+len(item)+1 > textWidth-13 && strings.TrimSpace(line) != "" {
			s.line(name, line)
			name, line = "", "  "
		}
		if line != "" && !strings.HasSuffix(line, " ") {
			line += " "
		}
		line += item
	}
	s.line(name, line)
}

// first names the first line of several.
func first(n int, name string) string {
	if n == 0 {
		return name
	}
	return ""
}

// printable keeps what a stranger wrote from steering a terminal.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '?'
		}
		return r
	}, text)
}
