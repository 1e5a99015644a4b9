package credential

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/gateway-agent/gateway-agent/internal/oci/configfile"
)

// kubeletConfig is a CredentialProviderConfig of the kubelet, of any of its versions.
type kubeletConfig struct {
	APIVersion string     `json:"apiVersion"`
	Kind       string     `json:"kind"`
	Providers  []provider `json:"providers"`
}

// A provider is a plugin and the images that it is asked for.
type provider struct {
	Name                 string           `json:"name"`
	MatchImages          []string         `json:"matchImages"`
	DefaultCacheDuration *duration        `json:"defaultCacheDuration"`
	APIVersion           string           `json:"apiVersion"`
	Args                 []string         `json:"args"`
	Env                  []variable       `json:"env"`
	TokenAttributes      *tokenAttributes `json:"tokenAttributes"`

	id   string // differs for different settings
	path string // of the program
}

type variable struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// tokenAttributes ask the kubelet for a token of the pod's service account, which it alone can give.
type tokenAttributes struct {
	RequireServiceAccount *bool `json:"requireServiceAccount"`
}

type duration time.Duration

// UnmarshalJSON implements json.Unmarshaler.
func (d *duration) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) != nil {
		return errors.New("a duration must be a string as 12h0m0s")
	}
	parsed, err := time.ParseDuration(text)
	if err != nil {
		return errors.New("a duration must be a string as 12h0m0s")
	}
	*d = duration(parsed)
	return nil
}

const (
	configGroup   = "kubelet.config.k8s.io/"
	providerGroup = "credentialprovider.kubelet.k8s.io/"
)

var versions = []string{"v1", "v1beta1", "v1alpha1"}

func known(apiVersion, group string) bool {
	version, ok := strings.CutPrefix(apiVersion, group)
	return ok && slices.Contains(versions, version)
}

// providers reads the kubelet's configuration. It is either usable as a whole, or every problem is reported.
func (s *Store) providers() ([]provider, error) {
	if s.cfg.KubeletConfig == "" {
		return nil, nil
	}
	files, err := kubeletFiles(s.cfg.KubeletConfig)
	if err != nil {
		return nil, fmt.Errorf("read the credential provider configuration: %w", err)
	}
	var all []provider
	var errs []error
	for _, file := range files {
		data, info, err := configfile.Read(file, maxFile)
		if err != nil {
			errs = append(errs, fmt.Errorf("read the credential provider configuration: %w", err))
			continue
		}
		config, err := parseKubelet(data)
		if err != nil {
			errs = append(errs, fmt.Errorf("credential provider configuration %s: %w", file, err))
			continue
		}
		if slices.ContainsFunc(config.Providers, func(p provider) bool { return len(p.Env) > 0 }) {
			s.warnings.Secret(file, info)
		}
		for _, p := range config.Providers {
			if slices.ContainsFunc(all, func(o provider) bool { return o.Name == p.Name }) {
				errs = append(errs, fmt.Errorf("credential provider configuration %s: the provider %q is there twice", file, p.Name))
			}
			if err := s.locate(&p); err != nil {
				errs = append(errs, fmt.Errorf("credential provider configuration %s: %w", file, err))
			}
			all = append(all, p)
		}
	}
	return all, errors.Join(errs...)
}

func (s *Store) locate(p *provider) error {
	if s.cfg.KubeletBinDir == "" {
		return fmt.Errorf("the provider %q needs the directory of the plugins (--image-credential-provider-bin-dir)", p.Name)
	}
	p.path = filepath.Join(s.cfg.KubeletBinDir, p.Name)
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	p.id = fmt.Sprintf("%x", sha256.Sum256(text))
	if err := executable(p.path); err != nil {
		return fmt.Errorf("the provider %q: %w", p.Name, err)
	}
	return nil
}

// kubeletFiles returns the file, or those in a directory that the kubelet would read, in its order.
func kubeletFiles(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return []string{path}, err
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		if slices.Contains([]string{".json", ".yaml", ".yml"}, filepath.Ext(e.Name())) && !e.IsDir() {
			files = append(files, filepath.Join(path, e.Name()))
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s has no .yaml or .json file: %w", path, fs.ErrNotExist)
	}
	return files, nil
}

var lineNumber = regexp.MustCompile(`line \d+`)

// parseKubelet reads and checks one file. Errors never quote it: the environment of plugins may hold secrets.
func parseKubelet(data []byte) (kubeletConfig, error) {
	var config kubeletConfig
	if err := yaml.Unmarshal(data, &config); err != nil {
		kind, ok := errors.AsType[*json.UnmarshalTypeError](err)
		switch at := lineNumber.FindString(err.Error()); {
		case strings.Contains(err.Error(), "a duration must be"):
			return config, errors.New("defaultCacheDuration must be a string as 12h0m0s")
		case ok:
			return config, fmt.Errorf("%s must be a %s", kind.Field, kind.Type)
		case at != "":
			return config, fmt.Errorf("%s: it is not YAML", at)
		}
		return config, errors.New("it is not YAML")
	}
	var errs []error
	if !known(config.APIVersion, configGroup) || config.Kind != "CredentialProviderConfig" {
		errs = append(errs, fmt.Errorf("it is %q of %q; it must be CredentialProviderConfig of %sv1, v1beta1 or v1alpha1", config.Kind, config.APIVersion, configGroup))
	}
	if len(config.Providers) == 0 {
		errs = append(errs, errors.New("it has no providers"))
	}
	for n, p := range config.Providers {
		for _, err := range p.problems() {
			errs = append(errs, fmt.Errorf("provider %d (%q): %w", n+1, p.Name, err))
		}
	}
	return config, errors.Join(errs...)
}

func (p *provider) problems() (errs []error) {
	if p.Name == "" || p.Name == "." || p.Name == ".." || strings.ContainsAny(p.Name, "/\\ \x00") {
		errs = append(errs, errors.New("the name must be that of a file in the directory of the plugins"))
	}
	if !known(p.APIVersion, providerGroup) {
		errs = append(errs, fmt.Errorf("the apiVersion is %q; it must be %sv1, v1beta1 or v1alpha1", p.APIVersion, providerGroup))
	}
	if len(p.MatchImages) == 0 {
		errs = append(errs, errors.New("it has no matchImages"))
	}
	if p.DefaultCacheDuration == nil || *p.DefaultCacheDuration < 0 {
		errs = append(errs, errors.New("it needs a defaultCacheDuration that is not negative"))
	}
	for _, v := range p.Env {
		if v.Name == "" || strings.ContainsAny(v.Name+v.Value, "\x00") || strings.Contains(v.Name, "=") {
			errs = append(errs, errors.New("a variable in env has no usable name"))
		}
	}
	return errs
}

// matches tells whether the plugin is for the image. Unlike a key of credentials, a path need not end at a slash.
func (p *provider) matches(i image) bool {
	return slices.ContainsFunc(p.MatchImages, func(pattern string) bool {
		host, prefix, _ := strings.Cut(pattern, "/")
		return hostMatches(canonicalHost(host), i.host) && strings.HasPrefix(i.repository, prefix)
	})
}

// needsPod tells that only the kubelet can run the plugin.
func (p *provider) needsPod() bool {
	return p.TokenAttributes != nil && p.TokenAttributes.RequireServiceAccount != nil && *p.TokenAttributes.RequireServiceAccount
}
