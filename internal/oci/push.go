package oci

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"golang.org/x/sync/errgroup"

	"github.com/gateway-agent/gateway-agent/internal/oci/safehttp"
)

const (
	pushActions = "pull,push"
	maxUploads  = 4 // at the same time
)

// Push uploads image, a v1.Image or v1.ImageIndex, as ref and returns the digest of its manifest. It goes to the registry itself, never
// to a mirror. Blobs that are there are skipped. pullSecret is as in Open. progress, if not nil, is called with the bytes uploaded
// so far and the total, from one goroutine at a time.
func (c *Client) Push(ctx context.Context, ref name.Reference, pullSecret []byte, image remote.Taggable, progress func(done, total int64)) (v1.Hash, error) {
	op := "push " + ref.Name()
	raw, err := image.RawManifest()
	if err != nil {
		return v1.Hash{}, fmt.Errorf("%s: read its manifest: %w", op, err)
	}
	digest, _, err := v1.SHA256(bytes.NewReader(raw))
	if err != nil {
		return v1.Hash{}, fmt.Errorf("%s: %w", op, err)
	}
	if d, ok := ref.(name.Digest); ok && d.DigestStr() != digest.String() {
		return v1.Hash{}, &Error{Kind: Broken, Op: op, Err: fmt.Errorf("the image has the digest %s", digest), Hint: "push it by a tag"}
	}
	repo, err := c.Open(ctx, ref.Context(), pullSecret)
	if err != nil {
		return v1.Hash{}, wrap(op, false, err)
	}
	t, err := repo.origin(ctx)
	if err != nil {
		return v1.Hash{}, wrap(op, false, err)
	}
	if err := t.push(ctx, op, ref.Identifier(), image, progress); err != nil {
		return v1.Hash{}, err
	}
	return digest, nil
}

// origin returns the first place that answers and is not a mirror.
func (r *Repository) origin(ctx context.Context) (*target, error) {
	targets, err := r.places(pushActions, false)
	if err != nil { // a registry that is not to be asked for tags can still be pushed to
		targets, err = r.places(pushActions, true)
	}
	if err != nil {
		return nil, err
	}
	var failures []failure
	for _, t := range targets {
		if t.endpoint.Mirror {
			continue
		}
		if t.endpoint.Plain && answeredSecurely(failures, t.endpoint.Host) {
			continue
		}
		if err = t.ping(ctx); err == nil || answered(err) {
			return t, nil
		}
		failures = append(failures, failure{target: t, raw: err, err: wrap("", false, err)})
	}
	if len(failures) == 0 {
		return nil, &Error{Kind: Broken, Err: errors.New("only mirrors are configured for it"), Hint: "push to the registry behind them"}
	}
	return nil, r.sum("", failures)
}

// ping asks for anything, to learn how the registry is to be spoken to.
func (t *target) ping(ctx context.Context) error {
	resp, err := t.do(ctx, http.MethodHead, "manifests/latest", http.Header{"Accept": {accepted}}, http.StatusOK, http.StatusNotFound)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

func (t *target) push(ctx context.Context, op, identifier string, image remote.Taggable, progress func(done, total int64)) error {
	ref, err := name.ParseReference(t.endpoint.Host + "/" + t.endpoint.Repository + separator(identifier) + identifier)
	if err != nil {
		return wrap(op, false, broken("%s/%s is not a usable repository", safehttp.OneLine(t.endpoint.Host, 100), safehttp.OneLine(t.endpoint.Repository, 200)))
	}
	// The library leaves a wrapped transport alone: no handshake of its own, no credentials of its own.
	wrapped, err := transport.FromToken(ref.Context().Registry, authn.Anonymous, &rerouted{t}, &transport.Challenge{}, nil)
	if err != nil {
		return wrap(op, false, err)
	}
	pusher, err := remote.NewPusher(remote.WithTransport(wrapped), remote.WithNondistributable, remote.WithRetryPredicate(worthRetrying))
	if err != nil {
		return wrap(op, false, err)
	}
	if err := t.upload(ctx, op, pusher, ref.Context(), image, progress); err != nil {
		return err
	}
	if err := pusher.Push(ctx, ref, image); err != nil {
		return t.explainPush(op+": put manifest "+identifier+" to "+t.endpoint.Host, err)
	}
	return nil
}

// upload brings the blobs, one by one, so that an error names its blob.
func (t *target) upload(ctx context.Context, op string, pusher *remote.Pusher, repo name.Repository, image remote.Taggable, progress func(done, total int64)) error {
	m := &meter{progress: progress, seen: map[v1.Hash]bool{}}
	if err := m.add(image); err != nil {
		return fmt.Errorf("%s: read its blobs: %w", op, err)
	}
	defer m.stop()
	blobs, ctx := errgroup.WithContext(ctx)
	blobs.SetLimit(maxUploads)
	for _, blob := range m.blobs {
		blobs.Go(func() error {
			if err := pusher.Upload(ctx, repo, blob); err != nil {
				return t.explainPush(fmt.Sprintf("%s: upload blob %s to %s", op, blob.digest, t.endpoint.Host), err)
			}
			blob.set(blob.size)
			return nil
		})
	}
	return blobs.Wait()
}

// explainPush is explain with the remedies of who pushes.
func (t *target) explainPush(op string, err error) *Error {
	e := *t.explain(op, err)
	login := "docker login " + t.endpoint.Host
	refused, _ := errors.AsType[*transport.Error](err)
	switch {
	case e.Hint == hintNobody:
		e.Hint = "no credentials for this registry: log in with " + login
	case e.Hint == hintMend:
		e.Hint = "mend that, or log in with " + login
	case e.Kind == Unauthorized:
		e.Hint += "; log in with " + login + " as somebody who may push to " + t.endpoint.Repository
	case e.Kind == NotFound:
		e.Hint = "check the repository: some registries want it to be created first"
	case refused != nil && refused.StatusCode == http.StatusRequestEntityTooLarge:
		e.Hint = "the registry, or a proxy before it, has a limit for the size of a request: raise it there"
	}
	return &e
}

// worthRetrying reports that one step of an upload may be repeated at once.
func worthRetrying(err error) bool {
	if err == nil {
		return false
	}
	if e, ok := errors.AsType[*safehttp.StatusError](err); ok {
		return e.After <= time.Second
	}
	if _, ok := errors.AsType[*safehttp.StallError](err); ok {
		return false // it took long enough
	}
	e := wrap("", false, err)
	return e.Kind == Temporary && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
}

// rerouted sends the library's requests to where the target is.
type rerouted struct{ t *target }

// RoundTrip implements http.RoundTripper.
func (r *rerouted) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Response != nil || req.URL.Host != r.t.endpoint.Host {
		return (*authorized)(r.t).RoundTrip(req)
	}
	out := req.Clone(req.Context())
	// Registries behind something that ends TLS give their own addresses as http.
	out.URL.Scheme = r.t.scheme()
	if rest, ok := cutRoot(out.URL.Path, r.t.root()); ok {
		out.URL.Path, out.URL.RawPath = r.t.root()+rest, ""
	}
	return (*authorized)(r.t).RoundTrip(out)
}

// cutRoot returns what follows the API's usual root in path, if that must be replaced by root.
func cutRoot(path, root string) (string, bool) {
	rest, ok := strings.CutPrefix(path, "/v2")
	return rest, ok && root != "/v2" && !strings.HasPrefix(path, root+"/")
}
