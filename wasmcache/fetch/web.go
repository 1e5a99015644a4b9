package fetch

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"syscall"

	"github.com/gateway-agent/gateway-agent/internal/oci"
)

func (c *Client) resolveHTTP(ref Reference, w want) *Resolved {
	op := "fetch module " + ref.String()
	open := func(ctx context.Context) (io.ReadCloser, int64, error) { return c.openHTTP(ctx, op, ref) }
	return &Resolved{Size: -1, want: w, op: op, open: open}
}

func (c *Client) openHTTP(ctx context.Context, op string, ref Reference) (io.ReadCloser, int64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, ref.url.String(), nil)
	if err != nil {
		return nil, 0, broken(op, "not a usable URL")
	}
	req.Header.Set("Accept", "application/wasm, */*;q=0.5")
	resp, err := c.http.Do(ctx, c.oci.Web(ref.url.Host, ref.url.Scheme == "http"), req)
	if err != nil {
		return nil, 0, oci.Classify(op, err)
	}
	if resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		return nil, 0, statusError(op, resp.StatusCode)
	}
	return resp.Body, resp.ContentLength, nil
}

func statusError(op string, status int) error {
	e := &oci.Error{Kind: oci.Broken, Op: op, Err: format("the server answered %d %s", status, http.StatusText(status))}
	switch status {
	case http.StatusNotFound, http.StatusGone:
		e.Kind, e.Hint = oci.NotFound, "check the URL"
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired:
		e.Kind, e.Hint = oci.Unauthorized, "web servers get no credentials: serve it without, or push it to a registry"
	}
	return e
}

func (c *Client) resolveFile(ref Reference, w want) *Resolved {
	op := "read module " + ref.String()
	open := func(context.Context) (io.ReadCloser, int64, error) { return openFile(op, ref.path) }
	return &Resolved{Size: -1, want: w, op: op, open: open}
}

func openFile(op, path string) (io.ReadCloser, int64, error) {
	// A named pipe would block the open for ever.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, &oci.Error{Kind: oci.NotFound, Op: op, Err: format("no such file")}
	}
	if err != nil {
		return nil, 0, broken(op, "%w", err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = format("it is not a regular file")
	}
	if err != nil {
		f.Close()
		return nil, 0, broken(op, "%w", err)
	}
	return f, info.Size(), nil
}
