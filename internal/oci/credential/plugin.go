package credential

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
)

// What a plugin is told and says is the kubelet's protocol.
type pluginRequest struct {
	Kind       string `json:"kind"`
	APIVersion string `json:"apiVersion"`
	Image      string `json:"image"`
}

type pluginResponse struct {
	Kind          string                     `json:"kind"`
	APIVersion    string                     `json:"apiVersion"`
	CacheKeyType  string                     `json:"cacheKeyType"`
	CacheDuration *duration                  `json:"cacheDuration"`
	Auth          map[string]json.RawMessage `json:"auth"`
}

// How far an answer reaches.
const (
	forImage    = "Image"
	forRegistry = "Registry"
	forAll      = "Global"
)

// An answer is what a plugin said.
type answer struct {
	auth    map[string]json.RawMessage
	reach   string
	image   image // that it was asked for
	asked   time.Time
	expires time.Time
}

// fromPlugins asks the plugins that are for the image, in the order of the configuration.
func (s *Store) fromPlugins(ctx context.Context, i image) (authn.AuthConfig, bool, error) {
	providers, err := s.providers()
	if err != nil {
		return authn.AuthConfig{}, false, err
	}
	var errs []error
	for _, p := range providers {
		if !p.matches(i) {
			continue
		}
		if p.needsPod() {
			s.warnings.Warn(p.Name, "a credential provider plugin is left out", "it requires a service account's token, which only the kubelet has")
			continue
		}
		got, err := s.ask(ctx, p, i)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		auth, ok, err := find(got.auth, i)
		if err != nil {
			errs = append(errs, fmt.Errorf("the answer of the plugin %s cannot be used", p.Name))
		}
		if ok {
			return auth, true, nil
		}
	}
	return authn.AuthConfig{}, false, errors.Join(errs...)
}

func imageKey(p provider, i image) string    { return p.id + " image " + i.String() }
func registryKey(p provider, i image) string { return p.id + " registry " + i.host }
func globalKey(p provider) string            { return p.id + " global" }

// keys are under which an answer for the image may be kept.
func (p provider) keys(i image) []string {
	return []string{imageKey(p, i), registryKey(p, i), globalKey(p)}
}

// remembered returns an answer that still counts, nil for none.
func (s *Store) remembered(p provider, i image) *answer {
	for _, key := range p.keys(i) {
		if a, ok := s.answers.Get(key); ok {
			if time.Now().Before(a.expires) {
				return a
			}
			s.answers.Remove(key)
		}
	}
	return nil
}

// ask returns what the plugin says of the image, from memory if it may be kept. Those who ask for images of one registry at the same time
// share one run, unless the plugin is known to answer for each image by itself.
func (s *Store) ask(ctx context.Context, p provider, i image) (*answer, error) {
	for {
		if a := s.remembered(p, i); a != nil {
			return a, nil
		}
		key := registryKey(p, i)
		if s.alone.Contains(p.id) {
			key = imageKey(p, i)
		}
		a, err := s.plugins.do(ctx, key, func(ctx context.Context) (*answer, error) {
			if a := s.remembered(p, i); a != nil {
				return a, nil
			}
			return s.run(ctx, p, i)
		})
		if err != nil || a.reach != forImage || a.image == i {
			return a, err
		}
	}
}

func (s *Store) run(ctx context.Context, p provider, i image) (*answer, error) {
	request, err := json.Marshal(pluginRequest{Kind: "CredentialProviderRequest", APIVersion: p.APIVersion, Image: i.String()})
	if err != nil {
		return nil, err
	}
	c := command{path: p.path, args: p.Args, input: request}
	for _, v := range p.Env {
		c.env = append(c.env, v.Name+"="+v.Value)
	}
	out, err := s.runner.run(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("the credential provider plugin for %s: %w", i, err)
	}
	a, lifetime, err := p.parse(out, i)
	if err != nil {
		return nil, fmt.Errorf("the credential provider plugin %s for %s: %w", p.Name, i, err)
	}
	key := map[string]string{forImage: imageKey(p, i), forRegistry: registryKey(p, i), forAll: globalKey(p)}[a.reach]
	if a.reach == forImage {
		s.alone.Add(p.id, struct{}{})
	}
	if lifetime > 0 {
		a.asked = time.Now()
		a.expires = a.asked.Add(lifetime)
		s.answers.Add(key, a)
	}
	return a, nil
}

// parse checks what a plugin said. Errors never quote it.
func (p *provider) parse(out []byte, i image) (*answer, time.Duration, error) {
	var r pluginResponse
	if json.Unmarshal(out, &r) != nil {
		return nil, 0, errors.New("it answered something else than a CredentialProviderResponse in JSON")
	}
	if r.Kind != "CredentialProviderResponse" || r.APIVersion != p.APIVersion {
		return nil, 0, fmt.Errorf("it did not answer with a CredentialProviderResponse of %s; set the provider's apiVersion to what the plugin speaks", p.APIVersion)
	}
	if r.CacheKeyType != forImage && r.CacheKeyType != forRegistry && r.CacheKeyType != forAll {
		return nil, 0, errors.New("the cacheKeyType of its answer is none of Image, Registry and Global")
	}
	lifetime := time.Duration(*p.DefaultCacheDuration)
	if r.CacheDuration != nil {
		lifetime = time.Duration(*r.CacheDuration)
	}
	return &answer{auth: r.Auth, reach: r.CacheKeyType, image: i}, lifetime, nil
}
