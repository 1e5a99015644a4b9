package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"

	"golang.org/x/net/http/httpproxy"

	"github.com/gateway-agent/gateway-agent/internal/oci"
	"github.com/gateway-agent/gateway-agent/internal/oci/credential"
	"github.com/gateway-agent/gateway-agent/internal/oci/registries"
	"github.com/gateway-agent/gateway-agent/internal/oci/safehttp"
	"github.com/gateway-agent/gateway-agent/wasmcache"
	"github.com/gateway-agent/gateway-agent/wasmcache/abi"
	"github.com/gateway-agent/gateway-agent/wasmcache/fetch"
)

// openedStore is the module store, and the lockfile that says what its references mean.
type openedStore struct {
	*wasmcache.Store
	lock *lock // nil: none
}

// openStore opens the module store of the settings. changes are what a command wants otherwise.
func openStore(s *settings, log *slog.Logger, changes ...func(*wasmcache.Config)) (*openedStore, error) {
	client, err := newFetcher(s, log)
	if err != nil {
		return nil, err
	}
	opened := &openedStore{}
	config := wasmcache.Config{
		Dir:           s.wasmDir,
		Fetch:         client,
		Check:         abi.Check,
		MaxSize:       int64(s.wasmMaxSize),
		Quota:         int64(s.wasmStore),
		Expiry:        s.wasmExpiry,
		Unvouched:     s.wasmUnvouch,
		Preloaded:     s.wasmPreloaded,
		RequireDigest: s.requireDigest,
		Log:           log,
	}
	if s.lockfile != "" {
		if opened.lock, err = openLock(s.lockfile, log); err != nil {
			return nil, err
		}
		config.Fetch = byDigest{client, opened.lock}
	}
	for _, change := range changes {
		change(&config)
	}
	opened.Store, err = wasmcache.Open(config)
	return opened, err
}

// get is Get under the rules of the lockfile.
func (s *openedStore) get(ctx context.Context, req wasmcache.Request) (wasmcache.Module, error) {
	req, err := s.lock.bind(req)
	if err != nil {
		return wasmcache.Module{}, err
	}
	return s.Get(ctx, req)
}

// newFetcher returns what brings modules, with this machine's credentials, registries and proxies.
func newFetcher(s *settings, log *slog.Logger) (*fetch.Client, error) {
	n, err := newNetwork(s, log)
	if err != nil {
		return nil, err
	}
	return fetch.New(fetch.Config{MaxSize: int64(s.wasmMaxSize), Credentials: n.credentials, Registries: n.registries, Proxy: n.proxy}), nil
}

// newRegistryClient returns what pushes images; call the function when done.
func newRegistryClient(s *settings, log *slog.Logger) (*oci.Client, func(), error) {
	n, err := newNetwork(s, log)
	if err != nil {
		return nil, nil, err
	}
	web := safehttp.New(safehttp.Config{Proxy: n.proxy})
	return oci.New(oci.Config{HTTP: web, Credentials: n.credentials, Registries: n.registries}), web.CloseIdleConnections, nil
}

// checkModuleFiles reads the files that the settings of modules name, as `run` does.
func checkModuleFiles(s *settings) error {
	log := slog.New(slog.DiscardHandler)
	_, err := newNetwork(s, log)
	if err == nil && s.lockfile != "" {
		_, err = openLock(s.lockfile, log)
	}
	return err
}

// network is how this machine reaches registries.
type network struct {
	credentials *credential.Store
	registries  *registries.Registries
	proxy       func(*url.URL) (*url.URL, error)
}

// newNetwork reads the registries' files; what is wrong with them is the operator's to mend, like a flag.
func newNetwork(s *settings, log *slog.Logger) (*network, error) {
	r, err := registries.Load(registries.Config{Paths: s.registryConfig, Insecure: s.insecureRegistries, Log: log})
	if err != nil {
		return nil, usageError{err} // it names the flags
	}
	c := credential.New(credential.Config{Env: s.env, KubeletConfig: s.providerConfig, KubeletBinDir: s.providerBinDir, Log: log})
	if s.providerConfig != "" {
		if err := c.Check(); err != nil {
			return nil, usageError{fmt.Errorf("--image-credential-provider-config: %w", err)}
		}
	}
	return &network{credentials: c, registries: r, proxy: proxies(s.env)}, nil
}

// proxies reads HTTP_PROXY, HTTPS_PROXY and NO_PROXY, in capitals or not.
func proxies(env environment) func(*url.URL) (*url.URL, error) {
	value := func(upper, lower string) string {
		if env[upper] != "" {
			return env[upper]
		}
		return env[lower]
	}
	config := httpproxy.Config{
		HTTPProxy: value("HTTP_PROXY", "http_proxy"), HTTPSProxy: value("HTTPS_PROXY", "https_proxy"), NoProxy: value("NO_PROXY", "no_proxy"),
	}
	return config.ProxyFunc()
}
