package pack

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"syscall"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// layer is a blob that is made from the module's file each time it is read. It implements partial.CompressedLayer.
type layer struct {
	path      string
	mediaType types.MediaType
	digest    v1.Hash
	diff      v1.Hash // digest of what is inside the compression
	size      int64
	open      func(*layer) (content, error)
}

// content is a blob while it is read; diff is the digest of what is inside the compression, once it is at its end.
type content struct {
	io.Reader
	close func() error
	diff  func() v1.Hash
}

// measure reads the blob once to learn its digest and size.
func (l *layer) measure() (diff v1.Hash, err error) {
	c, err := l.open(l)
	if err != nil {
		return v1.Hash{}, err
	}
	defer func() { _ = c.close() }()
	h := sha256.New()
	if l.size, err = io.CopyBuffer(struct{ io.Writer }{h}, c.Reader, make([]byte, chunk)); err != nil {
		return v1.Hash{}, err
	}
	l.digest, l.diff = sum(h), c.diff()
	return l.diff, nil
}

func (l *layer) Digest() (v1.Hash, error)            { return l.digest, nil }
func (l *layer) DiffID() (v1.Hash, error)            { return l.diff, nil }
func (l *layer) Size() (int64, error)                { return l.size, nil }
func (l *layer) MediaType() (types.MediaType, error) { return l.mediaType, nil }

func (l *layer) descriptor() v1.Descriptor {
	return v1.Descriptor{MediaType: l.mediaType, Size: l.size, Digest: l.digest}
}

// Compressed makes the blob again, and fails when it is not what was measured.
func (l *layer) Compressed() (io.ReadCloser, error) {
	c, err := l.open(l)
	if err != nil {
		return nil, fmt.Errorf("pack %s: %w", l.path, err)
	}
	return &same{content: c, layer: l, hash: sha256.New()}, nil
}

// same fails at the end instead of ending when the file has changed since it was measured.
type same struct {
	content
	layer *layer
	hash  hash.Hash
}

func (s *same) Read(p []byte) (int, error) {
	n, err := s.content.Read(p)
	s.hash.Write(p[:n])
	if errors.Is(err, io.EOF) && sum(s.hash) != s.layer.digest {
		err = errors.New("the file changed while it was read: try again")
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("pack %s: %w", s.layer.path, err)
	}
	return n, err
}

func (s *same) Close() error { return s.close() }

// literal is a blob of a few bytes.
func literal(mediaType types.MediaType, body []byte) *layer {
	h := sha256.New()
	h.Write(body)
	return &layer{path: string(mediaType), mediaType: mediaType, digest: sum(h), diff: sum(h), size: int64(len(body)), open: func(*layer) (content, error) {
		return content{Reader: bytes.NewReader(body), close: func() error { return nil }, diff: func() v1.Hash { return sum(h) }}, nil
	}}
}

func openModule(path string) (*os.File, int64, error) {
	// A named pipe would block the open for ever.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is not a regular file")
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, info.Size(), nil
}

// check refuses what no agent would load.
func check(path string) error {
	f, _, err := openModule(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var head [8]byte
	if _, err := io.ReadFull(f, head[:]); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return err
	}
	switch {
	case string(head[:4]) != "\x00asm":
		return errors.New("it is not a Wasm module: give the .wasm file itself, not an archive of it")
	case head[6] == 1:
		return errors.New("it is a WebAssembly component, not a core module: Proxy-Wasm needs a core module (build for wasip1, not wasip2)")
	}
	return nil
}

// openPlain is the module as it is.
func openPlain(l *layer) (content, error) {
	f, size, err := openModule(l.path)
	if err != nil {
		return content{}, err
	}
	h := sha256.New()
	return content{Reader: io.TeeReader(io.LimitReader(f, size), h), close: f.Close, diff: func() v1.Hash { return sum(h) }}, nil
}

// openBox is the module as plugin.wasm in a tar archive in gzip.
func openBox(l *layer) (content, error) {
	f, size, err := openModule(l.path)
	if err != nil {
		return content{}, err
	}
	var head bytes.Buffer
	err = tar.NewWriter(&head).WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: fileName, Mode: 0o644, Size: size})
	if err != nil {
		f.Close()
		return content{}, err
	}
	h := sha256.New()
	// A member is padded to whole blocks, and two empty blocks end the archive.
	tail := make([]byte, (block-size%block)%block+2*block)
	archive := io.MultiReader(&head, &exactly{inner: f, left: size}, bytes.NewReader(tail))
	return content{Reader: newGzip(io.TeeReader(archive, h)), close: f.Close, diff: func() v1.Hash { return sum(h) }}, nil
}

const (
	block = 512 // of tar
	chunk = 64 << 10
)

// exactly fails when there are fewer bytes than the archive's header says, and hides those that are more.
type exactly struct {
	inner io.Reader
	left  int64
}

func (e *exactly) Read(p []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	n, err := e.inner.Read(p[:min(int64(len(p)), e.left)])
	e.left -= int64(n)
	if errors.Is(err, io.EOF) && e.left > 0 {
		return n, errors.New("the file became shorter while it was read: try again")
	}
	return n, err
}

// gzipReader compresses what it reads.
type gzipReader struct {
	src  io.Reader
	out  bytes.Buffer
	zip  *gzip.Writer
	buf  []byte
	done bool
}

func newGzip(src io.Reader) *gzipReader {
	g := &gzipReader{src: src, buf: make([]byte, chunk)}
	g.zip = gzip.NewWriter(&g.out)
	return g
}

func (g *gzipReader) Read(p []byte) (int, error) {
	for g.out.Len() == 0 && !g.done {
		if err := g.fill(); err != nil {
			return 0, err
		}
	}
	return g.out.Read(p)
}

func (g *gzipReader) fill() error {
	n, err := g.src.Read(g.buf)
	if _, err := g.zip.Write(g.buf[:n]); err != nil {
		return err
	}
	if errors.Is(err, io.EOF) {
		g.done = true
		return g.zip.Close()
	}
	return err
}

func sum(h hash.Hash) v1.Hash {
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(h.Sum(nil))}
}
