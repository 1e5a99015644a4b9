package credential

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net"
	"path"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
)

// An image is a repository of a registry.
type image struct{ host, repository string }

// String is the image as the kubelet names it.
func (i image) String() string {
	if i.host == name.DefaultRegistry {
		return "docker.io/" + i.repository
	}
	return i.host + "/" + i.repository
}

var (
	errSecret = errors.New("the pull secret cannot be parsed: it must be a docker config JSON with auths")
	errEntry  = errors.New("its auth must be the base64 of user:password")
)

// FromSecret looks for a repository's credentials in a pull secret, of either kind that Kubernetes has. Only literal credentials count: a
// secret comes from the control plane, which must not choose programs (credHelpers) to run here. Errors never quote it.
func FromSecret(secret []byte, host, repository string) (authn.AuthConfig, bool, error) {
	var file map[string]json.RawMessage
	if err := json.Unmarshal(secret, &file); err != nil {
		return authn.AuthConfig{}, false, errSecret
	}
	if auths, ok := file["auths"]; ok {
		file = nil
		if err := json.Unmarshal(auths, &file); err != nil {
			return authn.AuthConfig{}, false, errSecret
		}
	}
	auth, ok, err := find(file, image{canonicalHost(host), repository})
	if err != nil {
		err = errors.New("the pull secret's entry for " + host + " cannot be used: " + err.Error())
	}
	return auth, ok, err
}

// find returns what the longest key that covers the image holds. Entries that say nothing are passed over: docker writes them beside a
// credsStore. Of broken entries only the one in question matters.
func find(auths map[string]json.RawMessage, i image) (authn.AuthConfig, bool, error) {
	var keys []string
	for key := range auths {
		if covers(key, i) {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b string) int {
		if n := len(bareKey(b)) - len(bareKey(a)); n != 0 {
			return n
		}
		return strings.Compare(b, a)
	})
	for _, key := range keys {
		auth, err := decode(auths[key])
		if err != nil || auth != (authn.AuthConfig{}) {
			return auth, err == nil, err
		}
	}
	return authn.AuthConfig{}, false, nil
}

// decode reads one entry. The error quotes nothing.
func decode(raw json.RawMessage) (authn.AuthConfig, error) {
	var e struct{ Auth, Username, Password, IdentityToken, RegistryToken string }
	if json.Unmarshal(raw, &e) != nil {
		if len(raw) > 0 && raw[0] != '{' {
			return authn.AuthConfig{}, nil // something else that a docker config holds
		}
		return authn.AuthConfig{}, errEntry
	}
	auth := authn.AuthConfig{Username: e.Username, Password: e.Password, IdentityToken: e.IdentityToken, RegistryToken: e.RegistryToken}
	if e.Auth != "" {
		text, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(strings.TrimSpace(e.Auth), "="))
		user, password, ok := strings.Cut(string(text), ":")
		if err != nil || !ok || user == "" {
			return authn.AuthConfig{}, errEntry
		}
		auth.Username, auth.Password = user, strings.Trim(password, "\x00")
	}
	return identity(auth), nil
}

// tokenUser in place of a user's name says that the password is an identity token.
const tokenUser = "<token>"

func identity(auth authn.AuthConfig) authn.AuthConfig {
	if auth.Username == tokenUser {
		return authn.AuthConfig{IdentityToken: cmp.Or(auth.IdentityToken, auth.Password), RegistryToken: auth.RegistryToken}
	}
	return auth
}

// bareKey is a key without its scheme and without the version of the API, which docker writes into its keys as host/v1/.
func bareKey(key string) string {
	bare := strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	url := bare != key || strings.HasSuffix(key, "/")
	bare = strings.TrimSuffix(bare, "/")
	if host, version, _ := strings.Cut(bare, "/"); url && (version == "v1" || version == "v2") {
		return host
	}
	return bare
}

// covers tells whether a key (a host, a URL, or a host with a path; globs in the host) is for the image.
func covers(key string, i image) bool {
	pattern, prefix, _ := strings.Cut(bareKey(key), "/")
	if !hostMatches(canonicalHost(pattern), i.host) {
		return false
	}
	return prefix == "" || i.repository == prefix || strings.HasPrefix(i.repository, prefix+"/")
}

// canonicalHost gives Docker Hub's names one spelling.
func canonicalHost(host string) string {
	switch host = strings.ToLower(host); host {
	case "docker.io", "registry-1.docker.io", "registry.hub.docker.com":
		return name.DefaultRegistry
	}
	return host
}

// hostMatches compares label by label, so that a glob never spans a dot. Ports must be the same; there are no globs in them.
func hostMatches(pattern, host string) bool {
	pattern, patternPort := splitPort(pattern)
	host, port := splitPort(host)
	if port != patternPort {
		return false
	}
	if strings.ContainsAny(pattern+host, "[]") { // an IPv6 address, in which the brackets mean no set of characters
		return pattern == host
	}
	patterns, labels := strings.Split(pattern, "."), strings.Split(host, ".")
	return slices.EqualFunc(patterns, labels, func(pattern, label string) bool {
		ok, err := path.Match(pattern, label)
		return ok && err == nil
	})
}

func splitPort(host string) (string, string) {
	bare, port, err := net.SplitHostPort(host)
	if err != nil {
		return host, ""
	}
	if strings.Contains(bare, ":") {
		bare = "[" + bare + "]"
	}
	return bare, port
}
