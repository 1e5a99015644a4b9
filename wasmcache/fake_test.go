package wasmcache

import (
	"context"
	"sync"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/oci"
	"github.com/gateway-agent/gateway-agent/wasmcache/fetch"
)

// tags is a registry in memory, for tests under a fake clock. Each tag leads to a module of its content.
type tags struct {
	mu       sync.Mutex
	content  map[string]string // URL → what it leads to
	err      error             // of everything
	hang     bool              // no answer at all
	heads    []time.Time
	resolves int
}

func (f *tags) set(url, content string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.content == nil {
		f.content = map[string]string{}
	}
	f.content[url] = content
}

func (f *tags) fail(err error, hang bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err, f.hang = err, hang
}

func (f *tags) asked() (heads, resolves int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.heads), f.resolves
}

func (f *tags) answer(ctx context.Context, url string) (string, error) {
	f.mu.Lock()
	content, err, hang := f.content[url], f.err, f.hang
	f.mu.Unlock()
	if hang {
		<-ctx.Done()
		return "", context.Cause(ctx)
	}
	return content, err
}

func (f *tags) Head(ctx context.Context, req fetch.Request) (string, error) {
	f.mu.Lock()
	f.heads = append(f.heads, time.Now())
	f.mu.Unlock()
	content, err := f.answer(ctx, req.URL)
	return "sha256:" + hexOf([]byte(content)), err
}

func (f *tags) Resolve(ctx context.Context, req fetch.Request) (*fetch.Resolved, error) {
	f.mu.Lock()
	f.resolves++
	f.mu.Unlock()
	content, err := f.answer(ctx, req.URL)
	return &fetch.Resolved{Manifest: "sha256:" + hexOf([]byte(content)), Repository: content, Size: -1}, err
}

func (f *tags) Fetch(ctx context.Context, r *fetch.Resolved, dst fetch.Sink, report func(int64, int64)) (fetch.Result, error) {
	return inline{size: 1000}.Fetch(ctx, r, dst, report)
}

func refused(kind oci.Kind) error {
	return &oci.Error{Kind: kind, Op: "ask the registry", Err: context.Canceled}
}
