package fetch

import (
	"archive/tar"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/gateway-agent/gateway-agent/internal/oci"
	"github.com/gateway-agent/gateway-agent/internal/oci/safehttp"
)

func blobName(digest v1.Hash) string {
	return path.Join(blobsDir, digest.Algorithm, digest.Hex)
}

func openFiles(name string, entries int) (blobFiles, error) {
	info, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, &oci.Error{Kind: oci.NotFound, Err: format("no such file or directory")}
	case err != nil:
		return nil, err
	case info.IsDir():
		return openDir(name)
	case !info.Mode().IsRegular():
		return nil, format("it is neither a directory nor a regular file")
	}
	return openTar(name, entries)
}

// dirFiles are those of a directory. Links that lead out of it are refused.
type dirFiles struct{ root *os.Root }

func openDir(name string) (blobFiles, error) {
	root, err := os.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	return &dirFiles{root}, nil
}

func (d *dirFiles) Close() error { return d.root.Close() }

func (d *dirFiles) open(name string) (io.ReadCloser, int64, error) {
	// A named pipe would block the open for ever.
	f, err := d.root.OpenFile(filepath.FromSlash(name), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, noFile(name)
	}
	if err != nil {
		return nil, 0, format("%s cannot be read: %v", name, pathless(err))
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = format("%s is not a regular file", name)
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, info.Size(), nil
}

func noFile(name string) error {
	if name == layoutFile || name == indexFile {
		return &oci.Error{Kind: oci.NotFound, Err: format("it has no %s, so it is not an OCI layout (an archive of docker save: convert it with skopeo copy docker-archive:… oci-archive:…)", name)}
	}
	return &oci.Error{Kind: oci.NotFound, Err: format("it has no %s", name)}
}

func pathless(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}

// tarFiles are those of an archive, which is read once for their places and then at these.
type tarFiles struct {
	file  *os.File
	files map[string]extent
}

type extent struct{ offset, size int64 }

func openTar(name string, entries int) (blobFiles, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	t := &tarFiles{file: f, files: map[string]extent{}}
	if err := t.scan(entries); err != nil {
		f.Close()
		return nil, err
	}
	return t, nil
}

func (t *tarFiles) Close() error { return t.file.Close() }

func (t *tarFiles) open(name string) (io.ReadCloser, int64, error) {
	at, ok := t.files[name]
	if !ok {
		return nil, 0, noFile(name)
	}
	return io.NopCloser(io.NewSectionReader(t.file, at.offset, at.size)), at.size, nil
}

// scan notes where the files of the layout are. The archive's reader reads headers only and seeks over the rest.
func (t *tarFiles) scan(entries int) error {
	if err := t.sniff(); err != nil {
		return err
	}
	archive := tar.NewReader(t.file)
	for n := 0; ; n++ {
		h, err := archive.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, io.ErrUnexpectedEOF):
			return format("the archive is truncated: copy it again")
		case err != nil:
			return format("it is not a readable tar archive: %s", safehttp.OneLine(err.Error(), 100))
		case n == entries:
			return tooBig("the archive has more than %d entries", entries)
		}
		if err := t.note(h); err != nil {
			return err
		}
	}
}

func (t *tarFiles) sniff() error {
	var head [4]byte
	if _, err := t.file.ReadAt(head[:], 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if s := string(head[:]); strings.HasPrefix(s, gzipMagic) || s == zstdMagic {
		return format("the archive is compressed: unpack it first, with gunzip or unzstd")
	}
	return nil
}

func (t *tarFiles) note(h *tar.Header) error {
	name := strings.TrimLeft(h.Name, "/")
	if !filepath.IsLocal(name) && name != "" {
		return format("the archive has an entry outside of itself: %q", safehttp.OneLine(h.Name, 100))
	}
	name = path.Clean(name)
	if name != layoutFile && name != indexFile && !strings.HasPrefix(name, blobsDir+"/") || h.Typeflag == tar.TypeDir {
		return nil
	}
	if h.Typeflag != tar.TypeReg || isSparse(h) {
		return format("%q in the archive is a link, a sparse or a special file: pack the layout again", safehttp.OneLine(name, 100))
	}
	offset, err := t.file.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	if _, twice := t.files[name]; twice {
		return format("%q is in the archive twice: pack the layout again", safehttp.OneLine(name, 100))
	}
	t.files[name] = extent{offset, h.Size}
	return nil
}

// isSparse tells whether the bytes in the archive are not those of the file.
func isSparse(h *tar.Header) bool {
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// checked is a blob that fails instead of ending when it is not what the descriptor says.
type checked struct {
	io.ReadCloser
	hash hash.Hash
	want v1.Descriptor
	got  int64
}

func checkBlob(blob io.ReadCloser, desc v1.Descriptor) (*checked, error) {
	h, err := v1.Hasher(desc.Digest.Algorithm)
	if err != nil {
		return nil, format("unusable digest: %v", err)
	}
	return &checked{ReadCloser: blob, hash: h, want: desc}, nil
}

func (c *checked) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.got += int64(n)
	c.hash.Write(p[:n])
	switch {
	case c.got > c.want.Size:
		return 0, format("there are more than the %d bytes that the manifest says: copy it again", c.want.Size)
	case err == nil || !errors.Is(err, io.EOF):
		return n, err
	case c.got < c.want.Size:
		return n, format("it ended after %d of %d bytes: copy it again", c.got, c.want.Size)
	}
	if sum := hex.EncodeToString(c.hash.Sum(nil)); sum != c.want.Digest.Hex {
		return n, format("its bytes have the digest %s:%s: it was damaged or changed; copy it again", c.want.Digest.Algorithm, sum)
	}
	return n, io.EOF
}
