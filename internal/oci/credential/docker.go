package credential

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"

	"github.com/gateway-agent/gateway-agent/internal/oci/configfile"
)

// dockerConfig is what counts here in docker's config.json and podman's auth.json.
type dockerConfig struct {
	Auths       map[string]json.RawMessage `json:"auths"`
	CredHelpers map[string]string          `json:"credHelpers"`
	CredsStore  string                     `json:"credsStore"`
}

// parseDocker reads the file's content. Errors have the line and never quote it.
func parseDocker(data []byte) (dockerConfig, error) {
	var config dockerConfig
	if len(bytes.TrimSpace(data)) == 0 {
		return config, nil
	}
	err := json.Unmarshal(data, &config)
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return config, fmt.Errorf("line %d: it is not JSON", lineOf(data, syntax.Offset))
	}
	if kind, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return config, fmt.Errorf("line %d: here must be a %s", lineOf(data, kind.Offset), kind.Type)
	}
	if err != nil {
		return config, errors.New("it is not JSON")
	}
	return config, nil
}

func lineOf(data []byte, offset int64) int {
	return 1 + bytes.Count(data[:min(max(offset, 0), int64(len(data)))], []byte("\n"))
}

// fromFile asks a file: the registry's own helper, else the store for all registries, else what the file holds itself.
func (s *Store) fromFile(ctx context.Context, path string, i image) (authn.AuthConfig, bool, error) {
	if path == os.DevNull {
		return authn.AuthConfig{}, false, nil
	}
	data, info, err := configfile.Read(path, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return authn.AuthConfig{}, false, nil
	}
	if err != nil {
		return authn.AuthConfig{}, false, fmt.Errorf("read credentials: %w", err)
	}
	config, err := parseDocker(data)
	if err != nil {
		return authn.AuthConfig{}, false, fmt.Errorf("read credentials: %s: %w; repair or remove it", path, err)
	}
	if config.secret() {
		s.warnings.Secret(path, info)
	}
	helper, failed := config.helper(i.host), error(nil)
	if helper != "" {
		var auth authn.AuthConfig
		if auth, failed = s.fromHelper(ctx, path, helper, i.host); auth != (authn.AuthConfig{}) {
			return auth, true, nil
		}
	}
	auth, ok, err := find(config.Auths, i)
	switch {
	case failed != nil && !ok:
		return authn.AuthConfig{}, false, failed
	case err != nil:
		return authn.AuthConfig{}, false, fmt.Errorf("read credentials: %s: the entry for %s cannot be used: %w", path, i.host, err)
	}
	return auth, ok, nil
}

// secret tells that the file holds credentials; docker writes empty entries beside a credsStore.
func (c dockerConfig) secret() bool {
	for _, raw := range c.Auths {
		if len(bytes.Trim(raw, "{} \t\r\n")) > 0 {
			return true
		}
	}
	return false
}

// helper returns the name of the helper for a host, "" for none.
func (c dockerConfig) helper(host string) string {
	best, found := "", c.CredsStore
	for key, helper := range c.CredHelpers {
		if canonicalHost(bareKey(key)) == host && helper != "" && key >= best {
			best, found = key, helper
		}
	}
	return found
}

// What a helper says and is told is docker's protocol.
const (
	helperPrefix = "docker-credential-"
	notFound     = "credentials not found in native keychain"
	hubServer    = "https://index.docker.io/v1/"
)

// helperError is the failure of a helper, which is logged already.
type helperError struct{ error }

func (e *helperError) Unwrap() error { return e.error }

// fromHelper asks a helper that a file names. Callers that ask for the same at the same time share one run.
func (s *Store) fromHelper(ctx context.Context, file, helper, host string) (authn.AuthConfig, error) {
	const msg = "a credential helper failed, going on without it"
	program := helperPrefix + helper
	path, err := "", fmt.Errorf("the credential helper %q has a path in its name", helper)
	if filepath.Base(program) == program {
		path, err = s.runner.find(program)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", file, err)
		s.warnings.Warn(program, msg, err.Error())
		return authn.AuthConfig{}, &helperError{err}
	}
	s.warnings.Settled(program, msg)
	auth, err := s.helpers.do(ctx, program+" "+host, func(ctx context.Context) (authn.AuthConfig, error) {
		return s.runHelper(ctx, path, host)
	})
	switch {
	case ctx.Err() != nil:
		return authn.AuthConfig{}, context.Cause(ctx)
	case err != nil:
		err = fmt.Errorf("%s: %w", file, err)
		s.warnings.Warn(program+" for "+host, msg, err.Error())
		return authn.AuthConfig{}, &helperError{err}
	}
	s.warnings.Settled(program+" for "+host, msg)
	return auth, nil
}

func (s *Store) runHelper(ctx context.Context, path, host string) (authn.AuthConfig, error) {
	server, program := host, filepath.Base(path)
	if host == name.DefaultRegistry {
		server = hubServer
	}
	out, err := s.runner.run(ctx, command{path: path, args: []string{"get"}, input: []byte(server)})
	if failed, ok := errors.AsType[*exitError](err); ok && strings.TrimSpace(string(failed.output)) == notFound {
		return authn.AuthConfig{}, nil
	}
	if err != nil {
		return authn.AuthConfig{}, fmt.Errorf("%w; to see more: echo %s | %s get", err, server, program)
	}
	var got struct{ Username, Secret string }
	if json.Unmarshal(out, &got) != nil {
		return authn.AuthConfig{}, fmt.Errorf("%s answered something else than credentials in JSON", program)
	}
	return identity(authn.AuthConfig{Username: got.Username, Password: got.Secret}), nil
}
