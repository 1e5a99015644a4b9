// Package credential finds out who this machine is to a registry: from docker's and podman's files, from credential helpers and from the kubelet's
// credential provider plugins; and from a pull secret that came with a resource.
package credential

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/gateway-agent/gateway-agent/internal/oci/configfile"
)

// Config says where credentials come from.
type Config struct {
	// Env holds the environment: HOME, DOCKER_CONFIG, REGISTRY_AUTH_FILE, XDG_RUNTIME_DIR and XDG_CONFIG_HOME say where docker's and podman's files
	// are, PATH where helpers are. Helpers and plugins get all of it. Default: none, so that no file of docker or podman is read.
	Env map[string]string
	// KubeletConfig is a CredentialProviderConfig file, or a directory of them, as the kubelet's --image-credential-provider-config. Default: none.
	KubeletConfig string
	// KubeletBinDir is the directory of the plugins that KubeletConfig names. Default: none.
	KubeletBinDir string
	// HelperTimeout is how long a helper or plugin may take. Default 30 s.
	HelperTimeout time.Duration
	// Log hears of files that others can read and of sources that failed. Default: nothing is logged.
	Log *slog.Logger
}

const (
	defaultTimeout = 30 * time.Second
	maxFile        = 1 << 20 // bytes of a docker config or a kubelet configuration
	maxAnswers     = 512     // plugins' answers in memory
)

// A Store answers with this machine's credentials. Files are read at each question; what a plugin says is kept as long as it says. It is
// safe for concurrent use.
type Store struct {
	cfg      Config
	warnings *configfile.Warnings
	runner   *runner
	helpers  flight[authn.AuthConfig]
	plugins  flight[*answer]
	answers  *lru.Cache[string, *answer]
	alone    *lru.Cache[string, struct{}] // plugins that answer for each image by itself
}

// New returns a store; nothing is read or run before the first Resolve.
func New(cfg Config) *Store {
	answers, _ := lru.New[string, *answer](maxAnswers) // fails only for a size below 1
	alone, _ := lru.New[string, struct{}](maxAnswers)
	return &Store{
		cfg: cfg, answers: answers, alone: alone, warnings: configfile.NewWarnings(cfg.Log),
		runner: newRunner(cfg.Env, cmp.Or(cfg.HelperTimeout, defaultTimeout)),
	}
}

// Check reports what is wrong with the kubelet's configuration, which somebody asked for by name. It runs no plugin.
func (s *Store) Check() error {
	_, err := s.providers()
	return err
}

// Resolve returns the credentials for a repository of a registry. The zero value means that none are known. It asks docker's file, podman's
// files and the kubelet's plugins, in this order, until one knows. A source that fails is logged, and is an error only if none of the others
// knows: then the caller may still go on without, and say why if that is not enough.
func (s *Store) Resolve(ctx context.Context, host, repository string) (authn.AuthConfig, error) {
	auth, _, err := s.Find(ctx, host, repository)
	return auth, err
}

// Find is Resolve that also says where the credentials are from: a path.
func (s *Store) Find(ctx context.Context, host, repository string) (auth authn.AuthConfig, source string, err error) {
	const msg = "a source of credentials failed"
	i := image{canonicalHost(host), repository}
	var errs []error
	for name, ask := range s.sources() {
		auth, ok, err := ask(ctx, i)
		switch {
		case ctx.Err() != nil:
			return authn.AuthConfig{}, "", context.Cause(ctx)
		case err != nil:
			if _, told := errors.AsType[*helperError](err); !told {
				s.warnings.Warn(name, msg, err.Error())
			}
			errs = append(errs, err)
			continue
		}
		s.warnings.Settled(name, msg)
		if ok {
			return auth, name, nil
		}
	}
	return authn.AuthConfig{}, "", errors.Join(errs...)
}

// freshTime is how long an answer of a plugin is not asked for again, whatever a registry says of it: registries that refuse everything
// must not make plugins run all the time.
const freshTime = time.Minute

// Forget is for credentials that the registry refused: the next question asks the plugins for them again, though they said that they would be
// good for longer.
func (s *Store) Forget(host, repository string) {
	providers, _ := s.providers()
	i := image{canonicalHost(host), repository}
	for _, p := range providers {
		for _, key := range p.keys(i) {
			if a, ok := s.answers.Peek(key); ok && p.matches(i) && time.Since(a.asked) >= freshTime {
				s.answers.Remove(key)
			}
		}
	}
}

type question func(ctx context.Context, i image) (authn.AuthConfig, bool, error)

// sources yields what to ask, in order, with a name for the log.
func (s *Store) sources() func(func(string, question) bool) {
	return func(yield func(string, question) bool) {
		for _, path := range s.files() {
			ask := func(ctx context.Context, i image) (authn.AuthConfig, bool, error) { return s.fromFile(ctx, path, i) }
			if !yield(path, ask) {
				return
			}
		}
		if s.cfg.KubeletConfig != "" {
			yield(s.cfg.KubeletConfig, s.fromPlugins)
		}
	}
}

// files returns where docker and podman keep credentials; not all of them exist.
func (s *Store) files() []string {
	env := s.cfg.Env
	if len(env) == 0 {
		return nil
	}
	var all []string
	below := func(dir string, names ...string) {
		if dir != "" {
			all = append(all, filepath.Join(append([]string{dir}, names...)...))
		}
	}
	below(cmp.Or(env["DOCKER_CONFIG"], under(env["HOME"], ".docker")), "config.json")
	if file := env["REGISTRY_AUTH_FILE"]; file != "" {
		return append(all, file)
	}
	below(cmp.Or(env["XDG_RUNTIME_DIR"], "/run/containers/"+strconv.Itoa(os.Geteuid())), podmanFile(env["XDG_RUNTIME_DIR"] != "")...)
	below(cmp.Or(env["XDG_CONFIG_HOME"], under(env["HOME"], ".config")), "containers", "auth.json")
	return all
}

func podmanFile(runtimeDir bool) []string {
	if runtimeDir {
		return []string{"containers", "auth.json"}
	}
	return []string{"auth.json"}
}

func under(dir, name string) string {
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, name)
}

// environ is env as programs get it.
func environ(env map[string]string) []string {
	all := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		all = append(all, name+"="+env[name])
	}
	return all
}
