package credential

import (
	"encoding/json"
	"errors"
	"path"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
)

// FromSecret looks for a repository's credentials in a pull secret, of either kind that Kubernetes has. Only literal credentials count: a
// secret comes from the control plane, which must not choose programs (credHelpers) to run here. Errors never quote it.
func FromSecret(secret []byte, host, repository string) (authn.AuthConfig, bool, error) {
	auths, err := parseSecret(secret)
	if err != nil {
		return authn.AuthConfig{}, false, err
	}
	auth, ok := match(auths, host, repository)
	return auth, ok, nil
}

var errSecret = errors.New("the pull secret cannot be parsed: it must be a docker config JSON with auths")

func parseSecret(secret []byte) (map[string]authn.AuthConfig, error) {
	var file struct {
		Auths map[string]authn.AuthConfig `json:"auths"`
	}
	if err := json.Unmarshal(secret, &file); err != nil {
		return nil, errSecret
	}
	if file.Auths != nil {
		return file.Auths, nil
	}
	old := map[string]json.RawMessage{}
	if err := json.Unmarshal(secret, &old); err != nil {
		return nil, errSecret
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

// match finds the longest key that covers the repository.
func match(auths map[string]authn.AuthConfig, host, repository string) (authn.AuthConfig, bool) {
	keys := make([]string, 0, len(auths))
	for key := range auths {
		if covers(key, host, repository) {
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

// bareKey is a key without its scheme and without the version of the API, which docker writes into its keys.
func bareKey(key string) string {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	key = strings.TrimSuffix(key, "/")
	return strings.TrimSuffix(strings.TrimSuffix(key, "/v1"), "/v2")
}

// covers tells whether a key (a host, a URL, or a host with a path; globs in the host) is for the repository.
func covers(key, host, repository string) bool {
	pattern, prefix, _ := strings.Cut(bareKey(key), "/")
	if !hostMatches(canonicalHost(pattern), canonicalHost(host)) {
		return false
	}
	return prefix == "" || repository == prefix || strings.HasPrefix(repository, prefix+"/")
}

// canonicalHost gives Docker Hub's names one spelling.
func canonicalHost(host string) string {
	switch host = strings.ToLower(host); host {
	case "docker.io", "registry-1.docker.io":
		return name.DefaultRegistry
	}
	return host
}

// hostMatches compares label by label, so that a glob never spans a dot.
func hostMatches(pattern, host string) bool {
	patterns, labels := strings.Split(pattern, "."), strings.Split(host, ".")
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
