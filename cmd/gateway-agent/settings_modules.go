package main

import (
	"errors"
	"time"

	"github.com/spf13/pflag"
)

// moduleSettings are the settings of Wasm modules: the store, registries, and what `run` does with them.
type moduleSettings struct {
	env environment // for credentials and proxies

	wasm          string
	wasmDir       string
	wasmHold      time.Duration
	wasmRetryMax  time.Duration
	wasmRefresh   time.Duration
	wasmPreloaded string
	readyWasm     bool
	lockfile      string

	wasmUnvouch   string
	wasmMaxSize   byteSize
	wasmStore     byteSize
	wasmExpiry    time.Duration
	requireDigest bool

	registryConfig     []string
	insecureRegistries []string
	providerConfig     string
	providerBinDir     string
}

// wasmFlags are the flags of `run`.
func (s *moduleSettings) wasmFlags(f *pflag.FlagSet) {
	f.StringVar(&s.wasm, "wasm", "on", "'off' passes Wasm configurations on untouched")
	f.DurationVar(&s.wasmHold, "wasm-hold", 10*time.Second, "how long a new plugin may wait for its module before its failure policy answers")
	f.DurationVar(&s.wasmRetryMax, "wasm-retry-max", time.Minute, "longest wait between two tries to get a module that cannot be had")
	f.DurationVar(&s.wasmRefresh, "wasm-refresh", 0, "how often the registry is asked whether the tags in use have moved (default: never)")
	f.BoolVar(&s.readyWasm, "ready-requires-wasm", false, "not ready before each plugin that Envoy wants runs, be it in an earlier version")
	f.StringVar(&s.wasmPreloaded, "wasm-preloaded", "trust", "modules put into the store by 'wasm pull' or 'wasm import': 'trust' lets every plugin use them, 'verify' asks the registry for each plugin's pull secret")
	f.StringVar(&s.lockfile, "lockfile", "", "file of 'wasm pull --lockfile': references mean what it says, and what it lacks is refused")
	s.retentionFlags(f)
	s.storeFlags(f)
}

// storeFlags are shared by `run` and the commands that bring modules.
func (s *moduleSettings) storeFlags(f *pflag.FlagSet) {
	s.wasmMaxSize = 256 << 20
	f.StringVar(&s.wasmUnvouch, "wasm-unvouched", "warn", "modules the checker cannot judge: warn or refuse")
	f.Var(&s.wasmMaxSize, "wasm-max-size", "largest module accepted, as 64MiB")
	f.BoolVar(&s.requireDigest, "require-digest", false, "refuse references without a digest (@sha256:… or the plugin's sha256)")
	s.registryFlags(f)
}

// retentionFlags say how long modules stay; only `run` and `wasm prune` remove any.
func (s *moduleSettings) retentionFlags(f *pflag.FlagSet) {
	s.wasmStore = 1 << 30
	f.Var(&s.wasmStore, "wasm-store-size", "modules not in use are dropped, oldest first, above this total")
	f.DurationVar(&s.wasmExpiry, "wasm-expiry", 7*24*time.Hour, "modules not in use for so long are dropped")
}

// registryFlags are shared by everything that talks to a registry.
func (s *moduleSettings) registryFlags(f *pflag.FlagSet) {
	f.StringArrayVar(&s.registryConfig, "registry-config", nil, "mirrors, CAs and certificates of registries: our YAML, a containerd certs.d directory, or a registries.conf; may be repeated")
	f.StringArrayVar(&s.insecureRegistries, "insecure-registry", nil, "HOST[:PORT] that may have any certificate or none, or '*'; may be repeated")
	f.StringVar(&s.providerConfig, "image-credential-provider-config", "", "the kubelet's CredentialProviderConfig file")
	f.StringVar(&s.providerBinDir, "image-credential-provider-bin-dir", "", "directory of the kubelet's credential provider plugins")
}

// completeModules checks what the flags say.
func (s *moduleSettings) completeModules(env environment) error {
	s.env = env
	return errors.Join(
		oneOf("--wasm", s.wasm, "on", "off"),
		oneOf("--wasm-preloaded", s.wasmPreloaded, "trust", "verify"),
		atLeastZero("--wasm-hold", s.wasmHold),
		atLeastZero("--wasm-retry-max", s.wasmRetryMax),
		atLeastZero("--wasm-refresh", s.wasmRefresh),
		s.completeStore(env),
	)
}

// completeStore checks what storeFlags and registryFlags say.
func (s *moduleSettings) completeStore(env environment) error {
	s.env = env
	problems := []error{atLeastZero("--wasm-expiry", s.wasmExpiry)}
	if s.wasmUnvouch != "" {
		problems = append(problems, oneOf("--wasm-unvouched", s.wasmUnvouch, "warn", "refuse"))
	}
	if (s.providerConfig == "") != (s.providerBinDir == "") {
		problems = append(problems, errors.New("--image-credential-provider-config and --image-credential-provider-bin-dir go together: give both"))
	}
	return errors.Join(problems...)
}
