package fetch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/gateway-agent/gateway-agent/internal/oci"
)

// The bounds of what one reference may lead to.
const (
	maxManifests     = 256
	maxManifestBytes = 16 << 20
	maxBlobs         = 4096
)

func bytesReader(b []byte) io.Reader { return bytes.NewReader(b) }

// Copy copies the image that req names from its registry into w, exactly as it is there: all manifests of an index, all configurations and
// layers, with their digests. The module in it is unpacked once to see that it is one, and its digest is in the result. progress, if not
// nil, is called now and then with the bytes downloaded and the total.
func (c *Client) Copy(ctx context.Context, req Request, w *LayoutWriter, progress func(done, total int64)) (*Resolved, Result, error) {
	ref, err := Parse(req.URL)
	if err != nil {
		return nil, Result{}, err
	}
	op := "export " + ref.String()
	if ref.kind != kindOCI {
		return nil, Result{}, broken(op, "only images can be copied; pack the module instead")
	}
	want, err := newWant(ref, req.SHA256)
	if err != nil {
		return nil, Result{}, err
	}
	repo, err := c.oci.Open(ctx, ref.image.Context(), req.PullSecret)
	if err != nil {
		return nil, Result{}, underRef(op, err)
	}
	r := &Resolved{want: want, op: op, Repository: ref.image.Context().Name()}
	k := &copier{from: repo, to: w, limits: c.limits, progress: progress, seen: map[v1.Hash]bool{}}
	var result Result
	err = w.transaction(op, func() error {
		if err := k.copy(ctx, ref, req.Digest); err != nil {
			return err
		}
		result, err = k.verify(ctx, r)
		return err
	})
	if err != nil {
		return nil, Result{}, err
	}
	return r, result, nil
}

// copier copies one image.
type copier struct {
	from     shelf
	to       *LayoutWriter
	limits   limits
	progress func(done, total int64)

	root          v1.Descriptor
	source        string // the host that sent the last manifest
	manifests     []oci.Manifest
	manifestBytes int
	blobs         []v1.Descriptor
	seen          map[v1.Hash]bool // manifests and blobs on the list
	done, total   int64
}

func (k *copier) copy(ctx context.Context, ref Reference, digest string) error {
	identifier, err := pinned(ref, digest)
	if err != nil {
		return err
	}
	first, err := k.walk(ctx, identifier, maxDepth+1)
	if err != nil {
		return err
	}
	for _, blob := range k.blobs {
		if err := k.download(ctx, blob); err != nil {
			return err
		}
	}
	for _, m := range k.manifests {
		desc, err := k.to.addManifest(ctx, m.Digest, string(m.MediaType), m.Body)
		if err != nil {
			return err
		}
		if m.Digest == first {
			k.root = desc
		}
	}
	k.to.addRoot(ref, k.root)
	return nil
}

// walk lists what identifier leads to. Since each manifest is read once, and only by its digest, indexes cannot go round in circles.
func (k *copier) walk(ctx context.Context, identifier string, depth int) (v1.Hash, error) {
	if depth == 0 {
		return v1.Hash{}, format("more than %d indexes inside each other", maxDepth)
	}
	got, err := k.from.Manifest(ctx, identifier)
	if err != nil {
		return v1.Hash{}, err
	}
	if k.manifestBytes += len(got.Body); k.manifestBytes > maxManifestBytes || len(k.manifests) == maxManifests {
		return v1.Hash{}, tooBig("it has more than %d manifests, or %d bytes of them", maxManifests, maxManifestBytes)
	}
	doc, err := parseManifest(got)
	if err != nil {
		return v1.Hash{}, fmt.Errorf("manifest %s: %w", got.Digest, err)
	}
	got.MediaType, k.source = typeOf(doc, got), got.Source
	k.seen[got.Digest] = true
	k.manifests = append(k.manifests, got)
	if !doc.isIndex() {
		return got.Digest, k.list(append([]v1.Descriptor{doc.Config}, doc.Layers...))
	}
	for _, child := range doc.Manifests {
		if k.seen[child.Digest] {
			continue
		}
		// An index may name platforms that nobody copied to this registry. That the module's is there will show in the end.
		if _, err := k.walk(ctx, child.Digest.String(), depth-1); err != nil && !notFound(err) {
			return v1.Hash{}, err
		}
	}
	return got.Digest, nil
}

func notFound(err error) bool {
	e, ok := errors.AsType[*oci.Error](err)
	return ok && e.Kind == oci.NotFound
}

// list notes the blobs that are still to be downloaded.
func (k *copier) list(blobs []v1.Descriptor) error {
	for _, d := range blobs {
		// A layer that may not be distributed is not in the registry, and an old artifact may have no configuration.
		elsewhere := len(d.URLs) > 0 && !d.MediaType.IsDistributable()
		if k.seen[d.Digest] || k.to.have[d.Digest] || elsewhere || d.Digest == (v1.Hash{}) {
			continue
		}
		k.seen[d.Digest] = true
		if d.Size > k.limits.download {
			return tooBig("layer %s is %d bytes, more than the limit of %d: raise --wasm-max-size", d.Digest, d.Size, k.limits.download)
		}
		if k.total += d.Size; k.total > maxCopy*k.limits.download || len(k.blobs) == maxBlobs {
			return tooBig("all its platforms together are larger than %d bytes, or more than %d layers: export one platform, by its digest", maxCopy*k.limits.download, maxBlobs)
		}
		k.blobs = append(k.blobs, d)
	}
	return nil
}

// maxCopy is how many times the limit for one layer an image with all its platforms may be.
const maxCopy = 8

// download copies a blob, from another place when the first ones turn out to have sent something else.
func (k *copier) download(ctx context.Context, desc v1.Descriptor) error {
	start := k.done
	for tries := 0; ; tries++ {
		mark, err := k.to.stage.mark()
		if err != nil {
			return &writeError{err}
		}
		err = k.downloadOnce(ctx, desc, start)
		if !elsewhere(err) || tries == maxElsewhere || ctx.Err() != nil {
			return err
		}
		if err := k.to.stage.rewind(mark); err != nil {
			return &writeError{err}
		}
	}
}

func (k *copier) downloadOnce(ctx context.Context, desc v1.Descriptor, start int64) error {
	blob, err := k.from.Blob(ctx, desc)
	if err != nil {
		return err
	}
	defer blob.Close()
	src := &source{inner: blob, verified: true, limit: k.limits.download, total: desc.Size}
	src.progress = func(done, _ int64) {
		k.done = start + done
		if k.progress != nil {
			k.progress(k.done, k.total)
		}
	}
	return k.to.addBlob(ctx, desc, src)
}

// verify reads back what was written and looks for the module.
func (k *copier) verify(ctx context.Context, r *Resolved) (Result, error) {
	written := &Layout{path: "the layout", files: k.to.stage.files(), limits: k.limits}
	if err := r.find(ctx, written, k.root.Digest.String(), k.limits); err != nil {
		return Result{}, err
	}
	r.Source = k.source
	return r.fetch(ctx, discard{}, k.limits, nil)
}

// discard is a Sink for modules that are only looked at.
type discard struct{}

func (discard) Write(p []byte) (int, error)    { return len(p), nil }
func (discard) Seek(int64, int) (int64, error) { return 0, nil }
func (discard) Truncate(int64) error           { return nil }
