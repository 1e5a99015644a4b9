package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
)

// credentials looks in the pull secret first, then in this machine's keychain.
func (c *Client) credentials(ctx context.Context, repo name.Repository, pullSecret []byte) (authn.Authenticator, error) {
	if len(pullSecret) > 0 {
		auths, err := parseSecret(pullSecret)
		if err != nil {
			return nil, &Error{Kind: Broken, Err: err, Hint: "it must be a docker config JSON with auths"}
		}
		if auth, ok := match(auths, repo); ok {
			return authn.FromConfig(auth), nil
		}
	}
	auth, err := authn.Resolve(ctx, c.cfg.Keychain, repo)
	if err != nil {
		return nil, fmt.Errorf("find credentials: %w", err)
	}
	return auth, nil
}

// parseSecret reads both kinds of Kubernetes pull secret. Only literal credentials count: a secret comes from the control plane,
// which must not choose programs (credHelpers) to run here. Errors never quote it.
func parseSecret(secret []byte) (map[string]authn.AuthConfig, error) {
	var file struct {
		Auths map[string]authn.AuthConfig `json:"auths"`
	}
	if err := json.Unmarshal(secret, &file); err != nil {
		return nil, errors.New("the pull secret cannot be parsed")
	}
	if file.Auths != nil {
		return file.Auths, nil
	}
	old := map[string]json.RawMessage{}
	if err := json.Unmarshal(secret, &old); err != nil {
		return nil, errors.New("the pull secret cannot be parsed")
	}
	auths := map[string]authn.AuthConfig{}
	for key, raw := range old {
		var auth authn.AuthConfig
		if json.Unmarshal(raw, &auth) == nil && auth != (authn.AuthConfig{}) {
			auths[key] = auth
		}
	}
	return auths, nil
}

// match finds the entry for repo: keys are hosts, URLs or hosts with a path; hosts may hold globs; the longest wins.
func match(auths map[string]authn.AuthConfig, repo name.Repository) (authn.AuthConfig, bool) {
	keys := make([]string, 0, len(auths))
	for key := range auths {
		if matches(key, repo) {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return authn.AuthConfig{}, false
	}
	best := slices.MaxFunc(keys, func(a, b string) int {
		if n := len(bareKey(a)) - len(bareKey(b)); n != 0 {
			return n
		}
		return strings.Compare(a, b)
	})
	return auths[best], true
}

func bareKey(key string) string {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	key = strings.TrimSuffix(key, "/")
	// Docker writes the API's version into its keys.
	return strings.TrimSuffix(strings.TrimSuffix(key, "/v1"), "/v2")
}

func matches(key string, repo name.Repository) bool {
	host, prefix, _ := strings.Cut(bareKey(key), "/")
	if host == "docker.io" || host == "registry-1.docker.io" {
		host = name.DefaultRegistry
	}
	if !hostMatches(host, repo.RegistryStr()) {
		return false
	}
	return prefix == "" || repo.RepositoryStr() == prefix || strings.HasPrefix(repo.RepositoryStr(), prefix+"/")
}

// hostMatches compares label by label, so that a glob never spans a dot.
func hostMatches(pattern, host string) bool {
	patterns, labels := strings.Split(strings.ToLower(pattern), "."), strings.Split(strings.ToLower(host), ".")
	if len(patterns) != len(labels) {
		return false
	}
	for i := range labels {
		if ok, err := path.Match(patterns[i], labels[i]); err != nil || !ok {
			return false
		}
	}
	return true
}
