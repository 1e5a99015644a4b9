package oci

import (
	"io"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// meter counts what is uploaded of some blobs. The library's own progress ends in a panic when a registry answers before it has read a blob:
// the connection still reads it then (send on closed channel, go-containerregistry v0.22.1).
type meter struct {
	blobs []*metered
	seen  map[v1.Hash]bool
	total int64

	mu       sync.Mutex // held while progress is called, which is told from one goroutine at a time
	done     int64
	progress func(done, total int64) // nil: nobody listens
}

// metered is a blob that is counted while it is read.
type metered struct {
	v1.Layer
	meter  *meter
	digest v1.Hash
	size   int64
	done   int64 // guarded by meter.mu
}

// add notes the blobs of an image, or of all images of an index.
func (m *meter) add(image remote.Taggable) error {
	switch image := image.(type) {
	case v1.Image:
		return m.addImage(image)
	case v1.ImageIndex:
		index, err := image.IndexManifest()
		if err != nil {
			return err
		}
		for _, child := range index.Manifests {
			if err := m.addChild(image, child); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *meter) addChild(index v1.ImageIndex, child v1.Descriptor) error {
	switch {
	case child.MediaType.IsImage():
		image, err := index.Image(child.Digest)
		if err != nil {
			return err
		}
		return m.addImage(image)
	case child.MediaType.IsIndex():
		inner, err := index.ImageIndex(child.Digest)
		if err != nil {
			return err
		}
		return m.add(inner)
	}
	return nil
}

func (m *meter) addImage(image v1.Image) error {
	layers, err := image.Layers()
	if err != nil {
		return err
	}
	config, err := partial.ConfigLayer(image)
	if err != nil {
		return err
	}
	for _, layer := range append(layers[:len(layers):len(layers)], config) {
		digest, err := layer.Digest()
		if err != nil {
			return err
		}
		size, err := layer.Size()
		if err != nil {
			return err
		}
		if !m.seen[digest] {
			m.seen[digest] = true
			m.total += size
			m.blobs = append(m.blobs, &metered{Layer: layer, meter: m, digest: digest, size: size})
		}
	}
	return nil
}

// stop ends the calls of progress.
func (m *meter) stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.progress = nil
}

// set says how much of the blob is uploaded.
func (b *metered) set(done int64) {
	b.meter.mu.Lock()
	defer b.meter.mu.Unlock()
	b.setLocked(done)
}

func (b *metered) setLocked(done int64) {
	m := b.meter
	done = min(done, b.size)
	m.done += done - b.done
	b.done = done
	if m.progress != nil {
		m.progress(m.done, m.total)
	}
}

// Compressed implements v1.Layer. An upload begins with it, also the second one of a blob.
func (b *metered) Compressed() (io.ReadCloser, error) {
	rc, err := b.Layer.Compressed()
	if err != nil {
		return nil, err
	}
	b.set(0)
	return &meteredBody{rc, b}, nil
}

type meteredBody struct {
	io.ReadCloser
	blob *metered
}

func (r *meteredBody) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	r.blob.meter.mu.Lock()
	defer r.blob.meter.mu.Unlock()
	r.blob.setLocked(r.blob.done + int64(n))
	return n, err
}
