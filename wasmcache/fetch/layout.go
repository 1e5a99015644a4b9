package fetch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/gateway-agent/gateway-agent/internal/oci"
	"github.com/gateway-agent/gateway-agent/internal/oci/safehttp"
)

// The annotations by which an entry of a layout says what it is.
const (
	refNameKey   = "org.opencontainers.image.ref.name"
	imageNameKey = "io.containerd.image.name"
	// urlKey has the URL of a module that did not come from a registry.
	urlKey = "io.github.gateway-agent.url"
	// packedKey says that the manifest was made here: it is not the one that the reference names.
	packedKey = "io.github.gateway-agent.packed"
)

const (
	layoutFile = "oci-layout"
	indexFile  = "index.json"
	blobsDir   = "blobs"
)

// Layout is an OCI image layout, a directory or a tar file, from which modules come as from a registry: by their reference. Nothing in
// it is believed: every byte is checked against a digest. It is safe for concurrent use.
type Layout struct {
	path   string
	files  blobFiles
	limits limits
	roots  []root
}

// blobFiles are the files of a layout.
type blobFiles interface {
	// open returns a regular file by its name in the layout and its size; fs.ErrNotExist when there is none.
	open(name string) (io.ReadCloser, int64, error)
	Close() error
}

// root is one entry of a layout's index.
type root struct {
	v1.Descriptor
	url    string // for Parse; "" when it has no full reference
	key    string // of url
	packed bool
}

// OpenLayout opens the layout at path. Only the limits of cfg matter.
func OpenLayout(path string, cfg Config) (*Layout, error) {
	op := "open layout " + path
	l := &Layout{path: path, limits: cfg.limits()}
	files, err := openFiles(path, l.limits.entries)
	if err != nil {
		return nil, named(op, err)
	}
	l.files = files
	if err := l.readIndex(); err != nil {
		return nil, errors.Join(named(op, err), files.Close())
	}
	return l, nil
}

// Close closes its files.
func (l *Layout) Close() error { return l.files.Close() }

func (l *Layout) readIndex() error {
	var version struct {
		Version string `json:"imageLayoutVersion"`
	}
	if err := l.readJSON(layoutFile, &version); err != nil {
		return err
	}
	if !strings.HasPrefix(version.Version, "1.") {
		return format("its layout version is %q: only 1.x is known", safehttp.OneLine(version.Version, 40))
	}
	var index v1.IndexManifest
	if err := l.readJSON(indexFile, &index); err != nil {
		return err
	}
	for _, desc := range index.Manifests {
		l.roots = append(l.roots, newRoot(desc))
	}
	return nil
}

func (l *Layout) readJSON(name string, into any) error {
	body, err := l.read(name, maxIndex)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, into); err != nil {
		return format("%s is damaged: %s: export it again", name, safehttp.OneLine(err.Error(), 200))
	}
	return nil
}

// The bounds of a manifest and of index.json, which has room for some thousand images, in bytes.
const (
	maxDocument = 4 << 20
	maxIndex    = 1 << 20
)

func (l *Layout) read(name string, limit int64) ([]byte, error) {
	f, size, err := l.files.open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size > limit {
		return nil, format("%s is larger than %d bytes", name, limit)
	}
	body, err := io.ReadAll(io.LimitReader(f, size))
	if err == nil && int64(len(body)) < size {
		err = format("%s is truncated: copy the layout again", name)
	}
	return body, err
}

func newRoot(desc v1.Descriptor) root {
	r := root{Descriptor: desc, packed: desc.Annotations[packedKey] != ""}
	for _, url := range []string{desc.Annotations[urlKey], withScheme(desc.Annotations[imageNameKey]), withScheme(desc.Annotations[refNameKey])} {
		if url == "" {
			continue
		}
		if ref, err := Parse(url); err == nil {
			r.url, r.key = url, ref.Key()
			break
		}
	}
	return r
}

// withScheme makes a URL of an image's full name: its first part is a host. Others are tags, which lack what they are tags of.
func withScheme(name string) string {
	host, _, ok := strings.Cut(name, "/")
	if !ok || host != "localhost" && !strings.ContainsAny(host, ".:") {
		return ""
	}
	return "oci://" + name
}

// References are the URLs of the modules in the layout, sorted. Entries without a full reference are not among them: see Unnamed.
func (l *Layout) References() []string {
	var urls []string
	for _, r := range l.roots {
		if r.url != "" {
			urls = append(urls, r.url)
		}
	}
	slices.Sort(urls)
	return slices.Compact(urls)
}

// Unnamed are the digests of images without a full reference, unless they are part of another: tools like skopeo may write a tag only,
// or nothing.
func (l *Layout) Unnamed() []string {
	parts := l.parts()
	var digests []string
	for _, r := range l.roots {
		if r.url == "" && !parts[r.Digest] {
			digests = append(digests, r.Digest.String())
		}
	}
	slices.Sort(digests)
	return slices.Compact(digests)
}

// parts are the children of the indexes in the layout: some tools list them beside these.
func (l *Layout) parts() map[v1.Hash]bool {
	parts := map[v1.Hash]bool{}
	for i, r := range l.roots {
		if i == maxManifests || r.MediaType != "" && !r.MediaType.IsIndex() {
			continue
		}
		got, err := l.Manifest(context.Background(), r.Digest.String())
		if err != nil {
			continue
		}
		if doc, err := parseManifest(got); err == nil && doc.isIndex() {
			for _, child := range doc.Manifests {
				parts[child.Digest] = true
			}
		}
	}
	return parts
}

// Name gives the entry with that digest the reference url. It is for entries that are Unnamed, and must not be called while the layout
// is in use.
func (l *Layout) Name(digest, url string) error {
	ref, err := Parse(url)
	if err != nil {
		return err
	}
	for i, r := range l.roots {
		if r.Digest.String() == digest {
			l.roots[i].url, l.roots[i].key = url, ref.Key()
			return nil
		}
	}
	return broken("name an image of layout "+l.path, "it has none with the digest %s", safehttp.OneLine(digest, 100))
}

// Resolve finds the module that req names: by its reference, or by its digest, whatever it is called there.
func (l *Layout) Resolve(ctx context.Context, req Request) (*Resolved, error) {
	ref, err := Parse(req.URL)
	if err != nil {
		return nil, err
	}
	w, err := newWant(ref, req.SHA256)
	if err != nil {
		return nil, err
	}
	r := &Resolved{want: w, op: "import " + ref.String() + " from " + l.path, Source: l.path}
	if ref.Fixed() {
		r.Repository = ref.image.Context().Name()
		if err := r.find(ctx, l, ref.image.Identifier(), l.limits); err != nil {
			return nil, err
		}
		return r, nil
	}
	found, err := l.root(ref)
	if err != nil {
		return nil, named(r.op, err)
	}
	if req.Digest != "" && req.Digest != found.Digest.String() {
		return nil, broken(r.op, "it is %s there, not %s: export it again", found.Digest, safehttp.OneLine(req.Digest, 100))
	}
	if err := r.find(ctx, l, found.Digest.String(), l.limits); err != nil {
		return nil, err
	}
	if found.packed || ref.kind != kindOCI {
		// The manifest was made by an export, so its digest is nobody's.
		r.Manifest, r.Index = "", ""
		return r, nil
	}
	r.Repository = ref.image.Context().Name()
	return r, nil
}

// root finds the entry with the name of ref; several are the platforms of one image.
func (l *Layout) root(ref Reference) (root, error) {
	var found []root
	for _, r := range l.roots {
		if r.key == ref.Key() && !slices.ContainsFunc(found, func(f root) bool { return f.Digest == r.Digest }) {
			found = append(found, r)
		}
	}
	switch len(found) {
	case 0:
		return root{}, &oci.Error{Kind: oci.NotFound, Err: format("it is not in the layout, which has %s", l.contents())}
	case 1:
		return found[0], nil
	}
	descs := make([]v1.Descriptor, len(found))
	for i, r := range found {
		if r.Platform == nil {
			return root{}, format("%d different images have this name: name one by its digest", len(found))
		}
		descs[i] = r.Descriptor
	}
	best, err := pickChild(descs)
	if err != nil {
		return root{}, err
	}
	return found[slices.IndexFunc(found, func(r root) bool { return r.Digest == best.Digest })], nil
}

func (l *Layout) contents() string {
	names := l.References()
	switch {
	case len(l.roots) == 0:
		return "nothing"
	case len(names) == 0:
		return "only images without a full reference"
	case len(names) > 5:
		return strings.Join(names[:5], ", ") + " …"
	}
	return strings.Join(names, ", ")
}

// Fetch unpacks r into dst, as Client.Fetch does.
func (l *Layout) Fetch(ctx context.Context, r *Resolved, dst Sink, progress func(done, total int64)) (Result, error) {
	return r.fetch(ctx, dst, l.limits, progress)
}

// Head returns the digest of the image that req names.
func (l *Layout) Head(_ context.Context, req Request) (string, error) {
	ref, err := Parse(req.URL)
	if err != nil {
		return "", err
	}
	if ref.Fixed() {
		return ref.image.Identifier(), nil
	}
	found, err := l.root(ref)
	if err == nil && (found.packed || ref.kind != kindOCI) {
		err = format("it was packed by an export and has no digest of its registry's")
	}
	if err != nil {
		return "", named("look up "+ref.String()+" in "+l.path, err)
	}
	return found.Digest.String(), nil
}

// Manifest implements shelf; in a layout all identifiers are digests.
func (l *Layout) Manifest(_ context.Context, identifier string) (oci.Manifest, error) {
	op := "read manifest " + identifier
	digest, err := v1.NewHash(identifier)
	if err != nil {
		return oci.Manifest{}, broken(op, "not a digest")
	}
	body, err := l.read(blobName(digest), maxDocument)
	if err != nil {
		return oci.Manifest{}, named(op, l.missing(err))
	}
	checked, err := checkBlob(io.NopCloser(bytes.NewReader(body)), v1.Descriptor{Digest: digest, Size: int64(len(body))})
	if err == nil {
		_, err = io.Copy(io.Discard, checked)
	}
	if err != nil {
		return oci.Manifest{}, named(op, err)
	}
	return oci.Manifest{Digest: digest, Body: body}, nil
}

// Blob implements shelf.
func (l *Layout) Blob(_ context.Context, desc v1.Descriptor) (io.ReadCloser, error) {
	op := "read blob " + desc.Digest.String()
	f, size, err := l.files.open(blobName(desc.Digest))
	if err != nil {
		return nil, named(op, l.missing(err))
	}
	if size != desc.Size {
		f.Close()
		return nil, broken(op, "the layout has %d bytes, the manifest says %d: copy or export it again", size, desc.Size)
	}
	checked, err := checkBlob(f, desc)
	if err != nil {
		f.Close()
		return nil, named(op, err)
	}
	return checked, nil
}

func (l *Layout) missing(err error) error {
	if notFound(err) {
		return &oci.Error{Kind: oci.NotFound, Err: format("it is not in the layout: export it again, with all platforms")}
	}
	return err
}
