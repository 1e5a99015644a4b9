package main

import (
	"context"
	"path/filepath"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/file"
)

// image is one fixture. push makes it and pushes it to ref.
type image struct {
	name string
	push func(ctx context.Context, r *rig, ref string) error
}

const (
	buildah = `$B bud --timestamp 0 --layers=false -t t `
	push    = ` && $B push --tls-verify=false `
	output  = ` --output type=image,name=$REF,push=true,registry.insecure=true,rewrite-timestamp=true`
	plain   = `$K --opt filename=plain.dockerfile `
)

var images = []image{
	{"buildah-oci", sh(buildah + `-f plain.dockerfile .` + push + `t docker://$REF`)},
	{"buildah-docker", sh(buildah + `--format docker -f plain.dockerfile .` + push + `--format v2s2 t docker://$REF`)},
	{"buildah-zstd", sh(buildah + `-f zstd.dockerfile .` + push + `--compression-format zstd t docker://$REF`)},
	{"buildah-layers", sh(`$B bud --timestamp 0 --layers -t t -f layers.dockerfile .` + push + `t docker://$REF`)},
	{"buildah-other-name", sh(buildah + `-f other.dockerfile .` + push + `t docker://$REF`)},
	{"buildah-index", sh(`$B manifest create m; for p in linux/arm64 linux/s390x; do $B bud --timestamp 0 --platform $p --manifest m -f plain.dockerfile .; done` +
		` && $B manifest push --all --tls-verify=false m docker://$REF; $B manifest rm m`)},
	{"buildah-wasm-platform", sh(`$B manifest create m; $B bud --timestamp 0 --platform linux/amd64 --manifest m -f empty.dockerfile .` +
		` && $B bud --timestamp 0 --platform wasi/wasm --manifest m -f plain.dockerfile .` + ` && $B manifest push --all --tls-verify=false m docker://$REF; $B manifest rm m`)},

	{"buildkit-attestations", sh(plain + `--opt attest:provenance=mode=min` + output)},
	{"buildkit-docker", sh(plain + output)},
	{"buildkit-docker-zstd", sh(plain + output + `,compression=zstd,force-compression=true`)},
	{"buildkit-zstd", sh(plain + output + `,oci-mediatypes=true,compression=zstd,force-compression=true`)},
	{"buildkit-estargz", sh(plain + output + `,compression=estargz,force-compression=true`)},
	{"buildkit-uncompressed", sh(plain + output + `,oci-mediatypes=true,compression=uncompressed,force-compression=true`)},
	{"buildkit-wasm-platform", sh(`$K --opt filename=arch.dockerfile --opt platform=linux/amd64,wasi/wasm --opt attest:provenance=mode=min` + output)},

	{"skopeo-docker", sh(buildah + `-f plain.dockerfile .` + push + `t oci:o:t && skopeo copy --dest-tls-verify=false --format v2s2 oci:o:t docker://$REF`)},
	{"skopeo-zstd", sh(buildah + `-f skopeo.dockerfile .` + push + `t oci:z:t && skopeo copy --dest-decompress oci:z:t dir:plain` +
		` && skopeo copy --dest-tls-verify=false --dest-compress-format zstd dir:plain docker://$REF`)},

	{"crane-append", sh(`tar --owner=0 --group=0 --mtime=@0 -cf l.tar plugin.wasm && crane append -f l.tar -t $REF`)},
	{"crane-append-gzip-dotted", sh(`tar --owner=0 --group=0 --mtime=@0 -C dotted -czf l.tgz ./filter.wasm && crane append --oci-empty-base -f l.tgz -t $REF`)},
	{"crane-two-layers", sh(`tar -cf b.tar README.md && tar --format=pax -cf l.tar plugin.wasm && crane append -f b.tar -f l.tar -t $REF`)},
	{"crane-index", sh(`tar --format=v7 -cf l.tar plugin.wasm && crane append --oci-empty-base -f l.tar -t $REF && crane index append -m $REF -t $REF`)},

	{"umoci-insert", sh(`umoci init --layout u && umoci new --image u:t && umoci insert --image u:t plugin.wasm /plugin.wasm && skopeo copy --dest-tls-verify=false oci:u:t docker://$REF`)},

	{"oras-artifact", artifact("application/vnd.example.filter", nil, blob{"", "filter.wasm"})},
	{"oras-with-readme", artifact("application/vnd.example.filter", nil, blob{"", "README.md"}, blob{"", "filter.wasm"})},
	{"oras-directory", artifact("application/vnd.example.filter", nil, blob{"", "d"})},
	{"oras-solo", artifact("", &blob{"application/vnd.oci.image.config.v1+json", "config.json"},
		blob{"application/vnd.module.wasm.config.v1+json", "config.json"}, blob{"application/vnd.module.wasm.content.layer.v1+wasm", "filter.wasm"})},
	{"oras-single-layer", artifact("application/vnd.unknown.artifact.v1", nil, blob{"application/vnd.module.wasm.content.layer.v1+wasm", "plugin.wasm"})},
	{"wasm-to-oci", artifact("", &blob{"application/vnd.wasm.config.v1+json", "config.json"}, blob{"application/vnd.wasm.content.layer.v1+wasm", "wasm.wasm"})},
	{"cncf", artifact("", &blob{"application/vnd.wasm.config.v0+json", "cncf.json"}, blob{"application/wasm", "plugin.wasm"})},
	{"oras-component", artifact("", &blob{"application/vnd.wasm.config.v0+json", "cncf.json"}, blob{"application/wasm", "component.wasm"})},
}

// blob is a file to push, with the media type given after its name on the command line of oras; "": none.
type blob struct{ mediaType, file string }

// artifact does what "oras push" does with oras-go: a file or directory is a layer with its name as title, of a tar type when none is
// given; a configuration, where there is one, makes it a manifest of OCI 1.0.
func artifact(artifactType string, config *blob, layers ...blob) func(context.Context, *rig, string) error {
	return func(ctx context.Context, r *rig, ref string) error {
		store, err := file.New(r.dir)
		if err != nil {
			return err
		}
		defer func() { _ = store.Close() }()
		store.TarReproducible = true
		options := oras.PackManifestOptions{ManifestAnnotations: map[string]string{ocispec.AnnotationCreated: "1970-01-01T00:00:00Z"}}
		version := oras.PackManifestVersion1_1
		if config != nil {
			desc, err := store.Add(ctx, "config:"+config.file, config.mediaType, filepath.Join(r.dir, config.file))
			if err != nil {
				return err
			}
			desc.Annotations = nil
			version, options.ConfigDescriptor = oras.PackManifestVersion1_0, &desc
		}
		for _, l := range layers {
			desc, err := store.Add(ctx, l.file, l.mediaType, filepath.Join(r.dir, l.file))
			if err != nil {
				return err
			}
			options.Layers = append(options.Layers, desc)
		}
		desc, err := oras.PackManifest(ctx, store, version, artifactType, options)
		if err != nil {
			return err
		}
		if err := store.Tag(ctx, desc, "v1"); err != nil {
			return err
		}
		repo, err := r.repository(filepath.Base(ref[:len(ref)-len(":v1")]))
		if err != nil {
			return err
		}
		_, err = oras.Copy(ctx, store, "v1", repo, "v1", oras.DefaultCopyOptions)
		return err
	}
}
