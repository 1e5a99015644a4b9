package fetch

import (
	"archive/tar"
	"bufio"
	"bytes"
	"errors"
	"io"
	"path"
	"path/filepath"
	"strings"

	"github.com/gateway-agent/gateway-agent/internal/oci/safehttp"
)

// pluginFile is the name that a module has by convention.
const pluginFile = "plugin.wasm"

// How well an entry fits; the best one wins, and two of the best are an error.
const (
	rankNone    = iota
	rankContent // any other name, but it begins like a module
	rankWasm    // *.wasm
	rankPlugin  // plugin.wasm in a directory
	rankExact   // plugin.wasm
)

// search walks one archive; the best candidate so far is in dst.
type search struct {
	dst    Sink
	limits limits
	best   int
	found  module
	names  []string // with the best rank
	others []string // a few of the rest, for the error text
}

// untar writes the module of an archive to dst. Nothing is ever written under an entry's name.
func untar(in io.Reader, dst Sink, l limits) (string, int64, error) {
	s := &search{dst: dst, limits: l}
	archive := tar.NewReader(&bounded{inner: in, left: l.unpacked, limit: l.unpacked})
	for n := 0; ; n++ {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", 0, unpackError(err)
		}
		if n == l.entries {
			return "", 0, tooBig("the archive has more than %d entries: put only the module into it", l.entries)
		}
		if err := s.visit(h, archive); err != nil {
			return "", 0, unpackError(err)
		}
	}
	return s.result()
}

func (s *search) visit(h *tar.Header, content io.Reader) error {
	name := strings.TrimLeft(h.Name, "/")
	if !filepath.IsLocal(name) && name != "" {
		return format("the archive has an entry outside of itself: %q: pack it again", safehttp.OneLine(h.Name, 100))
	}
	rank := rankName(name)
	if h.Typeflag != tar.TypeReg {
		if rank > rankNone && h.Typeflag != tar.TypeDir {
			return format("%q in the archive is a link or special file, not a module: put the file itself there", safehttp.OneLine(name, 100))
		}
		return nil
	}
	in := bufio.NewReaderSize(content, 16)
	if rank == rankNone {
		if magic, err := in.Peek(len(wasmMagic)); err != nil || !bytes.Equal(magic, []byte(wasmMagic)) {
			s.note(name)
			return ignoreEOF(err)
		}
		rank = rankContent
	}
	return s.take(h, name, rank, in)
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func (s *search) note(name string) {
	if len(s.others) < 5 {
		s.others = append(s.others, safehttp.OneLine(name, 60))
	}
}

func (s *search) take(h *tar.Header, name string, rank int, in io.Reader) error {
	if rank < s.best {
		return nil
	}
	if rank == s.best {
		s.names = append(s.names, safehttp.OneLine(name, 60))
		return nil
	}
	if h.Size > s.limits.module {
		return tooBig("%q is %d bytes, more than the limit of %d: raise --wasm-max-size, or make it smaller", safehttp.OneLine(name, 60), h.Size, s.limits.module)
	}
	if err := reset(s.dst); err != nil {
		return err
	}
	m, err := copyModule(in, s.dst, s.limits.module, "")
	if err != nil {
		return err
	}
	s.best, s.found, s.names = rank, m, []string{safehttp.OneLine(name, 60)}
	return nil
}

func (s *search) result() (string, int64, error) {
	switch {
	case s.best == rankNone && len(s.others) == 0:
		return "", 0, format("the archive has no files: the module must be in the last layer, as plugin.wasm")
	case s.best == rankNone:
		return "", 0, format("no .wasm file in the archive (it has %s …): the module must be in the last layer, as plugin.wasm", strings.Join(s.others, ", "))
	case len(s.names) > 1:
		return "", 0, format("several modules in the archive (%s): name one plugin.wasm", strings.Join(s.names[:min(len(s.names), 5)], ", "))
	}
	return s.found.digest, s.found.size, nil
}

func rankName(name string) int {
	name = path.Clean(name)
	base := path.Base(name)
	switch {
	case strings.HasPrefix(base, ".wh."), strings.HasPrefix(base, "._"), !strings.HasSuffix(base, ".wasm"):
		return rankNone
	case name == pluginFile:
		return rankExact
	case base == pluginFile:
		return rankPlugin
	}
	return rankWasm
}
