package fetch

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"

	"github.com/klauspost/compress/zstd"

	"github.com/gateway-agent/gateway-agent/internal/oci/safehttp"
)

// limits bound what one module may cost, in bytes.
type limits struct {
	download int64
	unpacked int64
	module   int64
	entries  int
}

const (
	wasmMagic = "\x00asm"
	gzipMagic = "\x1f\x8b"
	zstdMagic = "\x28\xb5\x2f\xfd"
	tarMagic  = "ustar"
)

// zstdWindow bounds the memory for unpacking zstd; the format asks every reader for 8 MiB at least.
const zstdWindow = 16 << 20

const blockSize = 512 // of tar

// unbox writes the module found in src to dst, whatever it is wrapped in: nothing, tar, gzip or zstd, or tar in one of these. known is the SHA-256 of
// all of src when reading it to its end proves that, else "": a module that is wrapped in nothing is not hashed again.
func unbox(src io.Reader, dst Sink, l limits, known string) (digest string, size int64, err error) {
	in := bufio.NewReaderSize(src, 64<<10)
	head, err := peek(in)
	if err != nil {
		return "", 0, err
	}
	plain, done, err := decompress(in, head)
	if err != nil {
		return "", 0, err
	}
	if plain == nil {
		return unpack(in, head, dst, l, known)
	}
	defer done()
	in = bufio.NewReaderSize(&bounded{inner: plain, left: l.unpacked, limit: l.unpacked}, 64<<10)
	if head, err = peek(in); err != nil {
		return "", 0, unpackError(err)
	}
	digest, size, err = unpack(in, head, dst, l, "")
	if err != nil {
		return "", 0, unpackError(err)
	}
	// The checksum of the box is at its end.
	if _, err := io.Copy(io.Discard, in); err != nil {
		return "", 0, unpackError(err)
	}
	return digest, size, nil
}

func peek(in *bufio.Reader) ([]byte, error) {
	head, err := in.Peek(blockSize)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(head) == 0 {
		return nil, format("it is empty")
	}
	return head, nil
}

// decompress returns nil when head is not that of a compressed stream.
func decompress(in io.Reader, head []byte) (io.Reader, func(), error) {
	switch {
	case bytes.HasPrefix(head, []byte(gzipMagic)):
		r, err := gzip.NewReader(in)
		if err != nil {
			return nil, nil, unpackError(err)
		}
		return r, func() { _ = r.Close() }, nil
	case bytes.HasPrefix(head, []byte(zstdMagic)):
		r, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(zstdWindow))
		if err != nil {
			return nil, nil, unpackError(err)
		}
		return r, r.Close, nil
	}
	return nil, nil, nil
}

// unpack handles what is inside the compression.
func unpack(in *bufio.Reader, head []byte, dst Sink, l limits, known string) (string, int64, error) {
	switch {
	case bytes.HasPrefix(head, []byte(wasmMagic)):
		m, err := copyModule(in, dst, l.module, known)
		return m.digest, m.size, err
	case isTar(head):
		return untar(in, dst, l)
	case bytes.HasPrefix(head, []byte(gzipMagic)), bytes.HasPrefix(head, []byte(zstdMagic)):
		return "", 0, format("it is compressed twice: compress it once")
	}
	return "", 0, notWasm(head)
}

func isTar(head []byte) bool {
	if len(head) < blockSize {
		return false
	}
	if string(head[257:257+len(tarMagic)]) == tarMagic {
		return true
	}
	// Old archives have no magic, but a checksum.
	_, err := tar.NewReader(io.MultiReader(bytes.NewReader(head), bytes.NewReader(make([]byte, 2*blockSize)))).Next()
	return err == nil || errors.Is(err, io.EOF) && bytes.Count(head, []byte{0}) == blockSize
}

func notWasm(head []byte) error {
	return format("not a Wasm module: it begins with %q; check that the reference names a .wasm, an image with one in its last layer, or an archive with one",
		safehttp.OneLine(string(head[:min(len(head), 24)]), 60))
}

// unpackError says that what came is damaged, unless the download failed: that error passes source.finish first anyway.
func unpackError(err error) error {
	if _, ok := errors.AsType[*writeError](err); ok {
		return err
	}
	if _, ok := errors.AsType[*limitError](err); ok {
		return err
	}
	if _, ok := errors.AsType[*formatError](err); ok {
		return err
	}
	if errors.Is(err, zstd.ErrWindowSizeExceeded) || errors.Is(err, zstd.ErrDecoderSizeExceeded) {
		return format("its zstd window is larger than %d MiB: compress it without --long or --ultra", zstdWindow>>20)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return format("it is truncated: push it again")
	}
	return format("it cannot be unpacked: %v: push it again", err)
}

// module is one that was copied.
type module struct {
	digest string
	size   int64
}

// copyModule copies in to dst when it is a core Wasm module of at most limit bytes. known is its digest, "" when that has to be found out.
func copyModule(in io.Reader, dst Sink, limit int64, known string) (module, error) {
	var head [8]byte
	if n, err := io.ReadFull(in, head[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			return module{}, format("it is not a Wasm module: only %d bytes long", n)
		}
		return module{}, err
	}
	if string(head[:4]) != wasmMagic {
		return module{}, notWasm(head[:])
	}
	if head[4] != 1 && head[6] == 1 {
		return module{}, format("it is a WebAssembly component, not a core module: Proxy-Wasm needs a core module (build for wasip1, not wasip2)")
	}
	h := sha256.New()
	var out io.Writer = &sinkWriter{dst: dst}
	if known == "" {
		out = io.MultiWriter(out, h)
	}
	body := io.MultiReader(bytes.NewReader(head[:]), in)
	size, err := io.CopyBuffer(struct{ io.Writer }{out}, io.LimitReader(body, limit+1), make([]byte, 256<<10))
	switch {
	case err != nil:
		return module{}, err
	case size > limit:
		return module{}, tooBig("the module is larger than the limit of %d bytes: raise --wasm-max-size, or make it smaller", limit)
	}
	return module{digest: cmp.Or(known, hex.EncodeToString(h.Sum(nil))), size: size}, nil
}

// sinkWriter marks the sink's own errors.
type sinkWriter struct{ dst io.Writer }

func (w *sinkWriter) Write(p []byte) (int, error) {
	n, err := w.dst.Write(p)
	if err != nil {
		return n, &writeError{err}
	}
	return n, nil
}

func reset(dst Sink) error {
	if err := dst.Truncate(0); err != nil {
		return &writeError{err}
	}
	if _, err := dst.Seek(0, io.SeekStart); err != nil {
		return &writeError{err}
	}
	return nil
}

// bounded fails when more than its limit comes out.
type bounded struct {
	inner       io.Reader
	left, limit int64
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.inner.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, tooBig("it unpacks to more than %d bytes: raise --wasm-max-size if that is intended", b.limit)
	}
	return n, err
}
