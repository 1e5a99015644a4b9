package oci

import (
	"encoding/hex"
	"errors"
	"hash"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// verified is a blob's body that fails instead of ending when it is not what the descriptor says.
type verified struct {
	op     string
	inner  io.ReadCloser
	hasher hash.Hash
	want   v1.Descriptor
	got    int64
	blame  func(error) bool // remembers who sent wrong bytes; reports whether another place is asked next
	failed error            // what ended it
}

func (v *verified) Read(p []byte) (int, error) {
	if v.failed != nil {
		return 0, v.failed
	}
	n, err := v.read(p)
	if err != nil {
		v.failed = err
	}
	return n, err
}

func (v *verified) read(p []byte) (int, error) {
	// One byte more than announced is enough to know that the size was a lie.
	if rest := v.want.Size - v.got + 1; int64(len(p)) > rest {
		p = p[:max(rest, 0)]
	}
	n, err := v.inner.Read(p)
	v.got += int64(n)
	v.hasher.Write(p[:n])
	switch {
	case v.got > v.want.Size:
		return 0, v.wrong("the registry sends more than the %d bytes that the manifest says", v.want.Size)
	case err == nil:
		return n, nil
	case !errors.Is(err, io.EOF):
		return n, wrap(v.op, false, err)
	case v.got < v.want.Size:
		return n, v.wrong("it ended after %d of %d bytes", v.got, v.want.Size)
	}
	if sum := hex.EncodeToString(v.hasher.Sum(nil)); sum != v.want.Digest.Hex {
		return n, v.wrong("its bytes have the digest %s:%s", v.want.Digest.Algorithm, sum)
	}
	return n, io.EOF
}

// wrong is the error of bytes that are not the blob's.
func (v *verified) wrong(text string, args ...any) error {
	err := broken(text, args...)
	e := wrap(v.op, false, err)
	if v.blame(err) {
		e.Kind, e.Elsewhere, e.Hint = Temporary, true, "the next try asks another of the places configured for it"
		return e
	}
	e.Hint = "push the image again"
	return e
}

func (v *verified) Close() error { return v.inner.Close() }
