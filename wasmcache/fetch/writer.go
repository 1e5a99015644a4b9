package fetch

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/gateway-agent/gateway-agent/wasmcache/pack"
)

// LayoutWriter makes an OCI image layout: a tar file when its path ends in .tar, else a directory. What is at the path stays as it is
// until Commit, which replaces it whole; a process that dies leaves the old layout, the new one, or, where the file system cannot exchange
// two directories, for a moment none. Use it from one goroutine at a time.
type LayoutWriter struct {
	stage  stage
	have   map[v1.Hash]bool
	roots  []v1.Descriptor
	broken error // why nothing more can be added: a failure that could not be cleaned up, or Commit
}

// stage is where a layout grows.
type stage interface {
	// add writes a file; size is known to be right.
	add(name string, size int64, body io.Reader) error
	// mark and rewind forget what was added since.
	mark() (any, error)
	rewind(to any) error
	// files reads back what was added.
	files() blobFiles
	commit() error
	discard() error
}

// CreateLayout begins a layout for path. What is there already must be a layout, which Commit will replace. Close it in any case.
func CreateLayout(path string) (*LayoutWriter, error) {
	s, err := newStage(path)
	if err != nil {
		return nil, fmt.Errorf("write layout %s: %w", path, err)
	}
	return &LayoutWriter{stage: s, have: map[v1.Hash]bool{}}, nil
}

// Pack adds the module in the file named path as an image made here, for references whose own image is not to be had: web servers, files, a
// registry that is down. An import finds it under rawURL, but not under any digest of a manifest. So a reference with a digest cannot be packed.
func (w *LayoutWriter) Pack(ctx context.Context, rawURL, path string, annotations map[string]string) error {
	ref, err := Parse(rawURL)
	if err != nil {
		return err
	}
	op := "export " + ref.String()
	if err := packable(ref); err != nil {
		return broken(op, "%w", err)
	}
	img, err := pack.Image(path, pack.Artifact, annotations)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return w.transaction(op, func() error {
		desc, err := w.addImage(ctx, img)
		if err != nil {
			return err
		}
		desc.Annotations = map[string]string{packedKey: "true", urlKey: ref.Key()}
		w.addRoot(ref, desc)
		return nil
	})
}

func packable(ref Reference) error {
	switch {
	case ref.Fixed():
		return format("its registry is needed: a digest in a reference names the image there, which cannot be made from the module alone")
	case ref.kind == kindHTTP && (ref.url.User != nil || ref.url.RawQuery != ""):
		return format("its URL has a password or a query, which may be secret, and would be in the layout for all to read: serve it without")
	}
	return nil
}

// addImage writes an image that was made here; it is one of pack's.
func (w *LayoutWriter) addImage(ctx context.Context, img v1.Image) (v1.Descriptor, error) {
	manifest, err := img.Manifest()
	if err != nil {
		return v1.Descriptor{}, err
	}
	for _, desc := range append(slices.Clone(manifest.Layers), manifest.Config) {
		layer, err := img.LayerByDigest(desc.Digest)
		if err != nil {
			return v1.Descriptor{}, err
		}
		blob, err := layer.Compressed()
		if err != nil {
			return v1.Descriptor{}, err
		}
		err = w.addBlob(ctx, desc, blob)
		blob.Close()
		if err != nil {
			return v1.Descriptor{}, err
		}
	}
	body, err := img.RawManifest()
	if err != nil {
		return v1.Descriptor{}, err
	}
	digest, err := img.Digest()
	if err != nil {
		return v1.Descriptor{}, err
	}
	return w.addManifest(ctx, digest, string(manifest.MediaType), body)
}

// Len is how many references are in the layout.
func (w *LayoutWriter) Len() int { return len(w.roots) }

// Commit puts the layout in its place.
func (w *LayoutWriter) Commit() error {
	err := w.broken
	if err == nil {
		err = w.finish()
	}
	w.broken = errors.New("it is finished already")
	if err != nil {
		return fmt.Errorf("finish the layout: %w", err)
	}
	return nil
}

func (w *LayoutWriter) finish() error {
	slices.SortFunc(w.roots, func(a, b v1.Descriptor) int {
		return cmp.Compare(a.Annotations[refNameKey], b.Annotations[refNameKey])
	})
	index, err := json.MarshalIndent(v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: append([]v1.Descriptor{}, w.roots...)}, "", "  ")
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		body []byte
	}{{indexFile, index}, {layoutFile, []byte(`{"imageLayoutVersion":"1.0.0"}`)}} {
		if err := w.stage.add(f.name, int64(len(f.body)), bytesReader(f.body)); err != nil {
			return err
		}
	}
	return w.stage.commit()
}

// Close removes what was not committed.
func (w *LayoutWriter) Close() error { return w.stage.discard() }

// transaction adds all of an image or nothing of it.
func (w *LayoutWriter) transaction(op string, fn func() error) error {
	if w.broken != nil {
		return fmt.Errorf("%s: the layout cannot be continued: %w", op, w.broken)
	}
	have, roots := maps.Clone(w.have), slices.Clone(w.roots)
	mark, err := w.stage.mark()
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	if err = fn(); err == nil {
		return nil
	}
	w.have, w.roots = have, roots
	if w.broken = w.stage.rewind(mark); w.broken != nil {
		err = errors.Join(err, w.broken)
	}
	return named(op, err)
}

// addBlob writes blob unless it is there already. blob must fail by itself when it is not what desc says, but its size is checked.
func (w *LayoutWriter) addBlob(ctx context.Context, desc v1.Descriptor, blob io.Reader) error {
	if w.have[desc.Digest] {
		return nil
	}
	if err := w.stage.add(blobName(desc.Digest), desc.Size, &interruptible{ctx: ctx, inner: blob}); err != nil {
		return err
	}
	w.have[desc.Digest] = true
	return nil
}

func (w *LayoutWriter) addManifest(ctx context.Context, digest v1.Hash, mediaType string, body []byte) (v1.Descriptor, error) {
	desc := v1.Descriptor{MediaType: types.MediaType(mediaType), Digest: digest, Size: int64(len(body))}
	return desc, w.addBlob(ctx, desc, bytesReader(body))
}

// addRoot names an image as containerd, podman and skopeo do; a later one replaces an earlier one with the same name.
func (w *LayoutWriter) addRoot(ref Reference, desc v1.Descriptor) {
	if desc.Annotations == nil {
		desc.Annotations = map[string]string{}
	}
	desc.Annotations[refNameKey] = refName(ref)
	if ref.kind == kindOCI {
		desc.Annotations[imageNameKey] = desc.Annotations[refNameKey]
	}
	w.roots = slices.DeleteFunc(w.roots, func(d v1.Descriptor) bool { return d.Annotations[refNameKey] == desc.Annotations[refNameKey] })
	w.roots = append(w.roots, desc)
}

// refName is a reference in the grammar of that annotation, which has no scheme. That of a URL or file is a name that no registry has.
func refName(ref Reference) string {
	if ref.kind == kindOCI {
		return ref.image.Name()
	}
	parts := strings.FieldsFunc(ref.Key(), func(r rune) bool { return r > 'z' || !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	sum := sha256.Sum256([]byte(ref.Key()))
	return fmt.Sprintf("%s-%x", strings.Join(parts, "."), sum[:6])
}

// interruptible ends a long copy when its context does.
type interruptible struct {
	ctx   context.Context
	inner io.Reader
}

func (i *interruptible) Read(p []byte) (int, error) {
	if err := context.Cause(i.ctx); err != nil {
		return 0, err
	}
	return i.inner.Read(p)
}
