package oci

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/gateway-agent/gateway-agent/internal/oci/safehttp"
)

const (
	maxResumes   = 4                      // in a row that bring less than refill
	maxBreaks    = 64                     // in all: a server that knows no ranges sends everything again each time
	refill       = 1 << 20                // bytes
	firstPause   = 100 * time.Millisecond // doubled for each further one
	longestPause = 30 * time.Second       // that a server may ask for within one download
)

// Blob streams the blob that desc names. The reader ends with io.EOF only after exactly desc.Size bytes with desc.Digest. Where the
// connection breaks it goes on from there, at the same place or the next one, a bounded number of times.
func (r *Repository) Blob(ctx context.Context, desc v1.Descriptor) (io.ReadCloser, error) {
	op := fmt.Sprintf("read blob %s@%s", r.repo.Name(), desc.Digest)
	if desc.Size < 0 {
		return nil, wrap(op, false, broken("the manifest gives it a size of %d", desc.Size))
	}
	hasher, err := v1.Hasher(desc.Digest.Algorithm)
	if err != nil {
		return nil, wrap(op, false, broken("unusable digest: %v", err))
	}
	d := &download{size: desc.Size, pause: func(d time.Duration) error { return sleep(ctx, d) }}
	d.open = func(at int64) (io.ReadCloser, error) {
		body, t, err := r.openBlob(ctx, op, desc, at)
		if err == nil {
			d.from = t
		}
		return body, err
	}
	d.elsewhere = func(stall error) bool {
		r.learn(d.from.endpoint.Host, desc.Digest.String(), stall)
		return r.hasOther(desc.Digest.String())
	}
	if d.body, err = d.open(0); err != nil {
		return nil, err
	}
	blame := func(err error) bool {
		r.learn(d.from.endpoint.Host, desc.Digest.String(), err)
		return r.hasOther(desc.Digest.String())
	}
	return &verified{op: op, inner: d, hasher: hasher, want: desc, blame: blame}, nil
}

// hasOther reports that the next try asks a place that is neither known to have wrong bytes nor to hang.
func (r *Repository) hasOther(identifier string) bool {
	targets, err := r.places(pullActions, true)
	if err != nil {
		return false
	}
	next := r.order(targets, identifier)[0].endpoint.Host
	return !r.client.isAvoided(next+"@"+identifier) && !r.client.isAvoided(next)
}

// openBlob asks the places for the blob from a position on.
func (r *Repository) openBlob(ctx context.Context, op string, desc v1.Descriptor, at int64) (io.ReadCloser, *target, error) {
	var body io.ReadCloser
	var from *target
	err := r.each(ctx, op, desc.Digest.String(), func(t *target) error {
		resp, err := t.blob(ctx, desc, at)
		if err == nil {
			body, err = positioned(resp, desc.Size, at)
		}
		from = t
		return err
	})
	return body, from, err
}

func (t *target) blob(ctx context.Context, desc v1.Descriptor, at int64) (*http.Response, error) {
	header := http.Header{}
	codes := []int{http.StatusOK}
	if at > 0 {
		header.Set("Range", fmt.Sprintf("bytes=%d-", at))
		codes = append(codes, http.StatusPartialContent)
	}
	return t.do(ctx, http.MethodGet, "blobs/"+desc.Digest.String(), header, codes...)
}

// positioned returns the body from the position on. Servers may ignore that they were asked for a part, and send the whole.
func positioned(resp *http.Response, size, at int64) (body io.ReadCloser, err error) {
	defer func() {
		if err != nil {
			resp.Body.Close()
		}
	}()
	expect := size
	if resp.StatusCode == http.StatusPartialContent {
		sent := resp.Header.Get("Content-Range")
		if sent != fmt.Sprintf("bytes %d-%d/%d", at, size-1, size) && sent != fmt.Sprintf("bytes %d-%d/*", at, size-1) {
			return nil, broken("asked for the bytes from %d of %d on, it sends %s", at, size, safehttp.OneLine(sent, 80))
		}
		expect -= at
	}
	if resp.ContentLength >= 0 && resp.ContentLength != expect {
		return nil, broken("the registry sends %d bytes, the manifest says %d%s: push the image again", resp.ContentLength, expect, encoded(resp))
	}
	body = resp.Body
	if resp.ContentLength < 0 && len(resp.TransferEncoding) == 0 && resp.ProtoMajor == 1 {
		body = &untold{resp.Body, expect}
	}
	if expect == size {
		if _, err := io.CopyN(io.Discard, body, at); err != nil {
			return nil, err
		}
	}
	return body, nil
}

// encoded says that a body is encoded, which nobody asked for; but some stores call layers so that are as they should be.
func encoded(resp *http.Response) string {
	if encoding := resp.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return " (it calls them " + safehttp.OneLine(encoding, 40) + ": something between may compress them)"
	}
	return ""
}

// untold is a body without a length: only the end of the connection ends it, be it broken or not.
type untold struct {
	io.ReadCloser
	rest int64
}

func (u *untold) Read(p []byte) (int, error) {
	n, err := u.ReadCloser.Read(p)
	u.rest -= int64(n)
	if errors.Is(err, io.EOF) && u.rest > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// download is a body that goes on after its connection broke.
type download struct {
	size int64
	open func(at int64) (io.ReadCloser, error)
	// elsewhere reports that another place than the one that stalled is asked next.
	elsewhere func(stall error) bool
	pause     func(time.Duration) error

	from *target // the sender of body
	body io.ReadCloser
	why  error // that body broke; nil: it did not
	at   int64
	mark int64 // where it last broke
	used int   // resumes since it last made progress
	all  int   // times that it broke
}

func (d *download) Read(p []byte) (int, error) {
	for {
		if d.why != nil {
			if err := d.resume(); err != nil {
				return 0, err
			}
		}
		n, err := d.body.Read(p)
		d.at += int64(n)
		switch {
		case err == nil || errors.Is(err, io.EOF):
			return n, err
		case d.at >= d.size:
			return n, io.EOF // it broke behind its end
		}
		d.why = err
		if n > 0 {
			return n, nil
		}
	}
}

// resume opens the body again where it broke.
func (d *download) resume() error {
	_ = d.body.Close()
	if d.all++; d.at-d.mark >= refill && d.all <= maxBreaks {
		d.used = 0
	} else if _, stalled := errors.AsType[*safehttp.StallError](d.why); stalled && !d.elsewhere(d.why) {
		return d.broke() // four more waits of 30 s would hide for minutes that it hangs
	}
	d.mark = d.at
	for ; d.used < maxResumes; d.used++ {
		wait, ok := pauseFor(d.used, d.why)
		if !ok {
			break
		}
		if err := d.pause(wait); err != nil {
			return err
		}
		body, err := d.open(d.at)
		if err == nil {
			d.body, d.why = body, nil
			d.used++
			return nil
		}
		d.why = err
		if e := wrap("", false, err); e.Permanent() {
			d.used++
			break
		}
	}
	return d.broke()
}

// broke is the error of a download that cannot go on.
func (d *download) broke() error {
	out, reason := &Error{Kind: Temporary, Hint: "look at the registry, and at what is between"}, strip(d.why)
	if e, ok := errors.AsType[*Error](d.why); ok {
		out.Kind, out.After, reason = e.Kind, e.After, e.Err
		if e.Hint != "" {
			out.Hint = e.Hint
		}
	}
	text := "the connection ended after %d of %d bytes"
	if d.used > 0 {
		text += fmt.Sprintf(", and %d tries to go on did not bring the rest", d.used)
	}
	out.Err = fmt.Errorf(text+": %w", d.at, d.size, reason)
	return out
}

// pauseFor is how long to wait before the next try; false when the server wants more time than a download may wait.
func pauseFor(used int, why error) (time.Duration, bool) {
	wait := firstPause << used
	wait += rand.N(wait/2) - wait/4
	if e, ok := errors.AsType[*Error](why); ok {
		wait = max(wait, e.After)
	}
	return wait, wait <= longestPause
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (d *download) Close() error { return d.body.Close() }
