package fetch

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"syscall"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/oci"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// drip is a body that brings a chunk each second.
type drip struct {
	chunk, left int
	stop        <-chan struct{}
}

func (d *drip) Read(p []byte) (int, error) {
	if d.left == 0 {
		return 0, io.EOF
	}
	d.left--
	select {
	case <-time.After(time.Second):
		return min(d.chunk, len(p)), nil
	case <-d.stop:
		return 0, context.Canceled
	}
}

func (d *drip) Close() error { return nil }

func copyAll(r io.Reader) (int64, error) { return io.Copy(io.Discard, r) }

func marshal(v any) ([]byte, error) { return json.Marshal(v) }

// isENOSPC reports a full disk that is not called a permanent fault.
func isENOSPC(err error) bool {
	_, classified := errors.AsType[*oci.Error](err)
	return errors.Is(err, syscall.ENOSPC) && !classified
}
