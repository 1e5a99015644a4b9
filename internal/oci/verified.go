package oci

import (
	"encoding/hex"
	"errors"
	"fmt"
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
}

func (v *verified) Read(p []byte) (int, error) {
	// One byte more than announced is enough to know that the size was a lie.
	if rest := v.want.Size - v.got + 1; int64(len(p)) > rest {
		p = p[:max(rest, 0)]
	}
	n, err := v.inner.Read(p)
	v.got += int64(n)
	v.hasher.Write(p[:n])
	switch {
	case v.got > v.want.Size:
		return 0, wrap(v.op, false, broken("the registry sends more than the %d bytes that the manifest says: push the image again", v.want.Size))
	case err == nil:
		return n, nil
	case errors.Is(err, io.ErrUnexpectedEOF):
		return n, wrap(v.op, false, &Error{
			Kind: Temporary, Hint: "look at the registry, and at what is between",
			Err: fmt.Errorf("the connection ended after %d of %d bytes: %w", v.got, v.want.Size, err),
		})
	case !errors.Is(err, io.EOF):
		return n, wrap(v.op, false, err)
	case v.got < v.want.Size:
		return n, wrap(v.op, false, broken("it ended after %d of %d bytes: push the image again", v.got, v.want.Size))
	}
	if sum := hex.EncodeToString(v.hasher.Sum(nil)); sum != v.want.Digest.Hex {
		return n, wrap(v.op, false, broken("its bytes have the digest %s:%s: push the image again", v.want.Digest.Algorithm, sum))
	}
	return n, io.EOF
}

func (v *verified) Close() error { return v.inner.Close() }
