package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/gateway-agent/gateway-agent/ecds"
	"github.com/gateway-agent/gateway-agent/internal/atomicfile"
	"github.com/gateway-agent/gateway-agent/policywasm"
	"github.com/gateway-agent/gateway-agent/wasmcache"
	"github.com/gateway-agent/gateway-agent/wasmcache/abi"
)

func (g *gateway) buildPlugins() (err error) {
	s := g.settings
	if s.wasm == "off" {
		return nil
	}
	opened, err := openStore(s, g.part("wasmcache"), func(c *wasmcache.Config) {
		c.Pins = func() []string { return g.plugins.Pins() }
		c.Refresh, c.OnChange = s.wasmRefresh, func(url string) { g.plugins.Recheck(url) }
	})
	if err != nil {
		return err
	}
	g.store, g.lock = opened.Store, opened.lock
	config := ecds.Config{
		Modules:      modules{opened},
		Hold:         s.wasmHold,
		RetryMax:     s.wasmRetryMax,
		PolicyModule: func(allow bool) (string, error) { return policyModule(s.data("policy"), allow) },
		Whole:        modules{opened}.whole,
		Log:          g.part("ecds"),
	}
	if g.dataLock != nil {
		config.State, config.Owner = stateFile(s.data("plugins.json")), s.nodeID+" of "+g.sourceText()
	}
	if g.source != nil {
		config.OnLive = g.source.ExtensionLive
	}
	g.plugins, err = ecds.New(config)
	return err
}

// runStore runs the store, and follows the lockfile.
func (g *gateway) runStore(ctx context.Context) error {
	if g.lock == nil {
		return g.store.Run(ctx)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return g.store.Run(ctx) })
	group.Go(func() error { return g.lock.run(ctx, g.plugins.Recheck) })
	return group.Wait()
}

// modules lets ecds ask the store.
type modules struct{ store *openedStore }

func (m modules) Get(ctx context.Context, ref ecds.Reference) (ecds.Module, error) {
	module, err := m.store.get(ctx, wasmcache.Request{
		URL:             ref.URL,
		SHA256:          ref.SHA256,
		PullSecret:      ref.PullSecret,
		Always:          ref.Always,
		ResourceVersion: ref.ResourceVersion,
		Resource:        ref.Resource,
		Host:            abi.HostOf(ref.Node),
	})
	if err != nil {
		return ecds.Module{}, err
	}
	return ecds.Module{Digest: module.Digest, Path: module.Path, Warning: module.Warning}, nil
}

// whole says that what a restart finds can be given to Envoy. A store that was moved has other paths.
func (m modules) whole(ctx context.Context, digest, path string) bool {
	now, err := m.store.Whole(ctx, digest) // why it cannot be read is told when the plugin asks for it
	return err == nil && now == path
}

// stateFile keeps the accepted plugins over a restart.
type stateFile string

func (f stateFile) Load() ([]byte, error) {
	data, err := os.ReadFile(string(f))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

func (f stateFile) Save(data []byte) error { return atomicfile.Write(string(f), data, 0o600) }

// policyModule writes the built-in filter that allows or denies everything to where Envoy can read it. The name carries the
// content, because Envoy takes an unchanged path for an unchanged module.
func policyModule(dir string, allow bool) (string, error) {
	name, code := "deny", policywasm.Deny()
	if allow {
		name, code = "allow", policywasm.Allow()
	}
	path := filepath.Join(dir, fmt.Sprintf("%s-%.8x.wasm", name, sha256.Sum256(code)))
	if there, err := os.ReadFile(path); err == nil && bytes.Equal(there, code) {
		return path, nil // also where nothing can be written
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	return path, atomicfile.Write(path, code, 0o644)
}
