package fetch

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/gateway-agent/gateway-agent/internal/oci"
	"github.com/gateway-agent/gateway-agent/internal/oci/safehttp"
)

// maxDepth is how many indexes may lead to a manifest.
const maxDepth = 3

// title is the annotation in which ORAS puts a file's name.
const title = "org.opencontainers.image.title"

// shelf is where manifests and blobs are: a repository of a registry, or a layout.
type shelf interface {
	Manifest(ctx context.Context, identifier string) (oci.Manifest, error)
	Blob(ctx context.Context, desc v1.Descriptor) (io.ReadCloser, error)
}

// pinned is the tag or digest of ref to ask for: digest, if there is one, is what a tag is taken to mean.
func pinned(ref Reference, digest string) (string, error) {
	if digest == "" || ref.Fixed() {
		return ref.image.Identifier(), nil
	}
	if _, err := v1.NewHash(digest); err != nil {
		return "", format("%s is not a digest", safehttp.OneLine(digest, 100))
	}
	return digest, nil
}

func (c *Client) resolveOCI(ctx context.Context, ref Reference, w want, req Request) (*Resolved, error) {
	r := &Resolved{want: w, op: "pull " + ref.String(), Repository: ref.image.Context().Name()}
	identifier, err := pinned(ref, req.Digest)
	if err != nil {
		return nil, named(r.op, err)
	}
	repo, err := c.oci.Open(ctx, ref.image.Context(), req.PullSecret)
	if err != nil {
		return nil, underRef(r.op, err)
	}
	if err := r.find(ctx, repo, identifier, c.limits); err != nil {
		return nil, err
	}
	return r, nil
}

// find follows identifier to the module's layer.
func (r *Resolved) find(ctx context.Context, from shelf, identifier string, l limits) error {
	manifest, err := findManifest(ctx, from, identifier, r)
	if err != nil {
		return underRef(r.op, err)
	}
	layer, err := pickLayer(manifest)
	if err != nil {
		return broken(r.op, "manifest %s: %w", r.Manifest, err)
	}
	r.describe(manifest, layer)
	if layer.Size > l.download {
		return broken(r.op, "its layer is %d bytes, more than the limit of %d: raise --wasm-max-size, or make it smaller", layer.Size, l.download)
	}
	r.Size, r.verified = layer.Size, true
	if layer.Digest.Algorithm == "sha256" {
		r.digest = layer.Digest.Hex
	}
	r.open = func(ctx context.Context) (io.ReadCloser, int64, error) {
		blob, err := from.Blob(ctx, layer)
		return blob, layer.Size, underRef(r.op, err)
	}
	return nil
}

func (r *Resolved) describe(m *v1.Manifest, module v1.Descriptor) {
	r.ArtifactType, r.Annotations = m.ArtifactType, m.Annotations
	if r.ArtifactType == "" && !m.Config.MediaType.IsConfig() {
		r.ArtifactType = string(m.Config.MediaType)
	}
	for _, l := range m.Layers {
		r.Layers = append(r.Layers, Layer{
			MediaType: string(l.MediaType), Size: l.Size, Digest: l.Digest.String(), Title: l.Annotations[title],
			Module: l.Digest == module.Digest && l.MediaType == module.MediaType,
		})
	}
}

// underRef puts the reference in front of an error about a part of it.
func underRef(op string, err error) error {
	if err == nil {
		return nil
	}
	e := *oci.Classify(op, err)
	if e.Op != op {
		e.Op = op + ": " + e.Op
	}
	return &e
}

// findManifest follows indexes to the manifest of the module and notes both digests in r.
func findManifest(ctx context.Context, from shelf, identifier string, r *Resolved) (*v1.Manifest, error) {
	for range maxDepth {
		got, err := from.Manifest(ctx, identifier)
		if err != nil {
			return nil, err
		}
		if got.Source != "" {
			r.Source = got.Source
		}
		doc, err := parseManifest(got)
		if err != nil {
			return nil, broken("", "manifest %s: %w", got.Digest, err)
		}
		if !doc.isIndex() {
			r.Manifest, r.MediaType = got.Digest.String(), string(typeOf(doc, got))
			return &doc.Manifest, nil
		}
		if r.Index == "" {
			r.Index = got.Digest.String()
		}
		child, err := pickChild(doc.Manifests)
		if err != nil {
			return nil, broken("", "index %s: %w", got.Digest, err)
		}
		identifier = child.Digest.String()
	}
	return nil, broken("", "more than %d indexes inside each other", maxDepth)
}

// document is a manifest or an index: media types lie, fields tell.
type document struct {
	v1.Manifest
	Manifests []v1.Descriptor `json:"manifests"`
}

func (d *document) isIndex() bool { return d.Manifest.Layers == nil && d.Manifests != nil }

// typeOf is what a manifest calls itself, else what the registry calls it.
func typeOf(doc *document, m oci.Manifest) types.MediaType {
	if doc.isIndex() {
		return cmp.Or(doc.MediaType, m.MediaType, types.OCIImageIndex)
	}
	return cmp.Or(doc.MediaType, m.MediaType, types.OCIManifestSchema1)
}

func parseManifest(m oci.Manifest) (*document, error) {
	var doc document
	if err := json.Unmarshal(m.Body, &doc); err != nil {
		return nil, format("not a manifest (%s): it begins with %q: check that the URL is that of a registry",
			safehttp.OneLine(string(m.MediaType), 80), safehttp.OneLine(string(m.Body[:min(len(m.Body), 40)]), 60))
	}
	switch {
	case doc.SchemaVersion == 1:
		return nil, format("a Docker schema 1 image: push it again with a current tool")
	case doc.Manifest.Layers == nil && doc.Manifests == nil:
		return nil, format("neither layers nor manifests in it")
	}
	return &doc, nil
}

// pickChild chooses the manifest of an index. A module does not depend on the platform, so any real image will do.
func pickChild(children []v1.Descriptor) (v1.Descriptor, error) {
	best, rank := v1.Descriptor{}, 0
	for _, child := range children {
		if r := rankChild(child); r > rank {
			best, rank = child, r
		}
	}
	if rank == 0 {
		return best, format("no image among its %d manifests", len(children))
	}
	return best, nil
}

func rankChild(d v1.Descriptor) int {
	if d.MediaType != "" && !d.MediaType.IsImage() && !d.MediaType.IsIndex() || d.Annotations["vnd.docker.reference.type"] != "" {
		return 0
	}
	p := d.Platform
	switch {
	case p == nil:
		return 2
	case p.OS == "unknown" || p.Architecture == "unknown":
		return 0
	case p.Architecture == "wasm" || strings.HasPrefix(p.OS, "wasi"):
		return 5
	case p.OS == "linux" && p.Architecture == runtime.GOARCH:
		return 4
	case p.OS == "linux" && p.Architecture == "amd64":
		return 3
	}
	return 1
}

// pickLayer chooses the layer that holds the module: by type, else by file name, else the last layer of an image, else the only one.
func pickLayer(m *v1.Manifest) (v1.Descriptor, error) {
	for _, is := range []func(v1.Descriptor) bool{isWasmLayer, isWasmTitle} {
		layer, n := pickBy(m.Layers, is)
		switch {
		case n == 1:
			return layer, nil
		case n > 1:
			return layer, format("%d layers are Wasm modules and none is titled plugin.wasm: push one module per image (%s)", n, describe(m.Layers))
		}
	}
	if n := len(m.Layers); n > 0 && isTarLayer(m.Layers[n-1].MediaType) {
		return m.Layers[n-1], nil
	}
	layer, n := pickBy(m.Layers, func(d v1.Descriptor) bool { return !strings.Contains(string(d.MediaType), "config") })
	if n == 1 {
		return layer, nil
	}
	return layer, format("cannot tell which layer is the module (%s)", describe(m.Layers))
}

// pickBy returns the one layer for which is holds, or the one titled plugin.wasm among several, and how many are left.
func pickBy(layers []v1.Descriptor, is func(v1.Descriptor) bool) (v1.Descriptor, int) {
	var found, named []v1.Descriptor
	for _, l := range layers {
		if !is(l) {
			continue
		}
		found = append(found, l)
		if l.Annotations[title] == pluginFile {
			named = append(named, l)
		}
	}
	if len(named) == 1 {
		found = named
	}
	if len(found) == 0 {
		return v1.Descriptor{}, 0
	}
	return found[0], len(found)
}

func isWasmLayer(d v1.Descriptor) bool {
	t := strings.ToLower(string(d.MediaType))
	return t == "application/wasm" || strings.HasSuffix(t, "+wasm")
}

func isWasmTitle(d v1.Descriptor) bool { return strings.HasSuffix(d.Annotations[title], ".wasm") }

func isTarLayer(t types.MediaType) bool {
	s := string(t)
	return strings.Contains(s, "rootfs.") || strings.Contains(s, "image.layer.") || strings.Contains(s, ".tar")
}

func describe(layers []v1.Descriptor) string {
	if len(layers) == 0 {
		return "it has no layers"
	}
	var parts []string
	for i, l := range layers {
		if i == 8 {
			parts = append(parts, fmt.Sprintf("and %d more", len(layers)-i))
			break
		}
		parts = append(parts, strings.TrimSpace(safehttp.OneLine(string(l.MediaType), 80)+" "+safehttp.OneLine(l.Annotations[title], 80)))
	}
	return "layers: " + strings.Join(parts, ", ")
}
