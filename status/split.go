package status

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

const (
	maxPiece = 4 << 20  // bytes of a family held in memory as text; a larger one goes on in pieces
	maxWhole = 64 << 20 // the same for formats that need the whole family; a larger one is left out
	maxLine  = 1 << 20  // bytes; Envoy's longest lines are a few KiB
)

// piece is a run of lines of one family, comments of other kinds left out. A family of ordinary size is one piece, first and last.
type piece struct {
	name        string
	text        []byte // valid until the callee returns
	first, last bool
}

// splitter cuts an exposition in Prometheus' text format into families, in one pass and bounded memory.
type splitter struct {
	emit  func(piece) error
	most  int    // bytes of a piece
	name  string // the family that is being read; "": none yet
	kind  string // its type
	text  []byte
	begun bool // a piece of it is out
}

// splitFamilies reads an exposition and hands out its families. A family is handed out when all of it was read, or its first most bytes;
// so when reading fails, nothing is incomplete unless the error is errCut.
func splitFamilies(exposition io.Reader, most int, emit func(piece) error) error {
	s := &splitter{emit: emit, most: most}
	lines := bufio.NewReaderSize(exposition, 64<<10)
	for {
		line, err := readLine(lines)
		if err != nil && !errors.Is(err, io.EOF) {
			return s.broken(err)
		}
		if err := s.line(line); err != nil {
			return s.broken(err)
		}
		if err != nil {
			return s.end()
		}
	}
}

func (s *splitter) broken(err error) error {
	if s.begun {
		return fmt.Errorf("%w: %s: %w", errCut, s.name, err)
	}
	return err
}

// readLine returns a line without its end. It is valid until the next call.
func readLine(r *bufio.Reader) ([]byte, error) {
	part, err := r.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return bytes.TrimRight(part, "\r\n"), err
	}
	line := bytes.Clone(part)
	for errors.Is(err, bufio.ErrBufferFull) {
		part, err = r.ReadSlice('\n')
		if line = append(line, part...); len(line) > maxLine {
			return nil, fmt.Errorf("a line of over %d bytes", maxLine)
		}
	}
	return bytes.TrimRight(line, "\r\n"), err
}

func (s *splitter) line(line []byte) error {
	if len(line) == 0 {
		return nil
	}
	if line[0] == '#' {
		return s.comment(line)
	}
	name, err := sampleName(line)
	if err != nil {
		return err
	}
	if !s.owns(name) {
		if err := s.start(name); err != nil {
			return err
		}
	}
	return s.add(line)
}

// comment takes the lines that begin a family and drops the others.
func (s *splitter) comment(line []byte) error {
	fields := strings.SplitN(string(line), " ", 4)
	if len(fields) < 3 || fields[1] != "TYPE" && fields[1] != "HELP" {
		return nil
	}
	name := fields[2]
	if !isName(name) {
		return fmt.Errorf("%q is not the name of a family", clip(name))
	}
	if name != s.name {
		if err := s.start(name); err != nil {
			return err
		}
	}
	if fields[1] == "TYPE" && len(fields) == 4 {
		if s.kind != "" {
			return nil // a family has one type
		}
		s.kind = strings.TrimSpace(fields[3])
	}
	return s.add(line)
}

// owns says whether a sample belongs to the family that is being read.
func (s *splitter) owns(sample string) bool {
	suffix, ok := strings.CutPrefix(sample, s.name)
	if !ok || s.name == "" {
		return false
	}
	switch suffix {
	case "":
		return true
	case "_sum", "_count":
		return s.kind == "histogram" || s.kind == "summary"
	case "_bucket":
		return s.kind == "histogram"
	}
	return false
}

func (s *splitter) start(name string) error {
	if err := s.end(); err != nil {
		return err
	}
	s.name, s.kind = name, ""
	return nil
}

func (s *splitter) add(line []byte) error {
	if len(s.text)+len(line) > s.most && len(s.text) > 0 {
		if err := s.flush(false); err != nil {
			return err
		}
	}
	if !utf8.Valid(line) {
		line = bytes.ToValidUTF8(line, []byte("\ufffd"))
	}
	s.text = append(append(s.text, line...), '\n')
	return nil
}

func (s *splitter) end() error {
	if s.name == "" || !s.begun && len(s.text) == 0 {
		return nil
	}
	return s.flush(true)
}

func (s *splitter) flush(last bool) error {
	p := piece{name: s.name, text: s.text, first: !s.begun, last: last}
	s.begun = !last
	s.text = s.text[:0]
	return s.emit(p)
}

// sampleName reads the name of a sample; a line that has none, or no value, makes the rest untrustworthy.
func sampleName(line []byte) (string, error) {
	at := bytes.IndexAny(line, "{ \t")
	if at < 0 || !isName(string(line[:at])) {
		return "", fmt.Errorf("%q is not a sample", clip(string(line)))
	}
	return string(line[:at]), nil
}

func isName(s string) bool {
	for i, c := range []byte(s) {
		letter := c == '_' || c == ':' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

func clip(s string) string {
	if len(s) > 60 {
		return s[:60] + "…"
	}
	return s
}
