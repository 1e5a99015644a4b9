package registries

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
)

// confRegistry is a [[registry]] of a containers-registries.conf(5).
type confRegistry struct {
	Prefix     string       `toml:"prefix"`
	Location   string       `toml:"location"`
	Insecure   bool         `toml:"insecure"`
	Blocked    bool         `toml:"blocked"`
	DigestOnly bool         `toml:"mirror-by-digest-only"`
	Mirrors    []confMirror `toml:"mirror"`
}

type confMirror struct {
	Location string `toml:"location"`
	Insecure bool   `toml:"insecure"`
	Pull     string `toml:"pull-from-mirror"`
}

// confText is the file; the second half is version 1 of the format.
type confText struct {
	Registries []confRegistry `toml:"registry"`
	Old        struct {
		Insecure confList `toml:"insecure"`
		Block    confList `toml:"block"`
	} `toml:"registries"`
}

type confList struct {
	Registries []string `toml:"registries"`
}

// A rule is a [[registry]], checked.
type rule struct {
	prefix            prefix
	location          image // host "": the image's own
	insecure, blocked bool
	mirrors           []confPlace
}

type confPlace struct {
	location              image
	insecure              bool
	notByTag, notByDigest bool
}

// confFile is a source: a containers-registries.conf(5).
type confFile struct {
	path string
	file *file[[]rule]
}

// parseConf reads a containers-registries.conf(5). Keys that it does not know are logged: they have no effect here.
func parseConf(path string, data []byte, log *slog.Logger) ([]rule, error) {
	var text confText
	if err := decodeTOML(path, data, &text, log, "unqualified-search-registries", "short-name-mode", "aliases", "credential-helpers",
		"additional-layer-store-auth-helper", "registries.search"); err != nil {
		return nil, err
	}
	for _, host := range text.Old.Block.Registries {
		text.Registries = append(text.Registries, confRegistry{Location: host, Blocked: true})
	}
	for _, host := range text.Old.Insecure.Registries {
		text.Registries = append(text.Registries, confRegistry{Location: host, Insecure: true})
	}
	var rules []rule
	var errs []error
	for n, r := range text.Registries {
		got, err := r.rule()
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: [[registry]] %d (%q): %w", path, n+1, strings.TrimSpace(withoutUser(r.Prefix)+" "+withoutUser(r.Location)), err))
			continue
		}
		rules = append(rules, got)
	}
	rules, err := unite(path, rules)
	return rules, errors.Join(append(errs, err)...)
}

func (r confRegistry) rule() (rule, error) {
	text := r.Prefix
	if text == "" {
		text = r.Location
	}
	if text == "" {
		return rule{}, errors.New("it has neither prefix nor location")
	}
	p, err := parsePrefix(text)
	if err != nil {
		return rule{}, fmt.Errorf("the prefix cannot be used: %w", err)
	}
	out := rule{prefix: p, insecure: r.Insecure, blocked: r.Blocked}
	switch {
	case r.Location != "" && r.Location != text:
		if out.location, err = parseLocation(r.Location); err != nil {
			return rule{}, fmt.Errorf("the location cannot be used: %w", err)
		}
	case !p.wild:
		out.location = image{host: p.host, repository: p.path}
	}
	for _, m := range r.Mirrors {
		got, err := m.place(r.DigestOnly)
		if err != nil {
			return rule{}, fmt.Errorf("mirror %q: %w", withoutUser(m.Location), err)
		}
		out.mirrors = append(out.mirrors, got)
	}
	return out, nil
}

func (m confMirror) place(digestOnly bool) (confPlace, error) {
	at, err := parseLocation(m.Location)
	if err != nil {
		return confPlace{}, err
	}
	p := confPlace{location: at, insecure: m.Insecure, notByTag: digestOnly}
	switch m.Pull {
	case "", "all":
	case "digest-only":
		p.notByTag = true
	case "tag-only":
		p.notByDigest = true
	default:
		return p, fmt.Errorf("pull-from-mirror is %q; it must be all, digest-only or tag-only", m.Pull)
	}
	if digestOnly && m.Pull != "" {
		return p, errors.New("pull-from-mirror and the registry's mirror-by-digest-only exclude each other; keep one")
	}
	return p, nil
}

// unite makes one rule of those with the same prefix: the first one counts, but what is blocked by any is blocked.
func unite(path string, rules []rule) ([]rule, error) {
	var all []rule
	var errs []error
	at := map[prefix]int{}
	for _, r := range rules {
		key := r.prefix
		key.text = ""
		n, ok := at[key]
		if !ok {
			at[key] = len(all)
			all = append(all, r)
			continue
		}
		if all[n].insecure != r.insecure && !all[n].blocked && !r.blocked {
			errs = append(errs, fmt.Errorf("%s: the prefix %q is there twice, once insecure and once not; remove one", path, r.prefix.text))
		}
		all[n].blocked = all[n].blocked || r.blocked
	}
	return all, errors.Join(errs...)
}

func (f *confFile) route(i image, byDigest bool) ([]place, error) {
	rules, err := f.file.get()
	if err != nil {
		return nil, err
	}
	best, rest := -1, ""
	for n, r := range rules {
		if below, ok := r.prefix.under(i); ok && (best < 0 || r.prefix.compare(rules[best].prefix) > 0) {
			best, rest = n, below
		}
	}
	if best < 0 {
		return nil, nil
	}
	r := rules[best]
	if r.blocked {
		return nil, blocked(i, f.path)
	}
	var places []place
	for _, m := range r.mirrors {
		if byDigest && !m.notByDigest || !byDigest && !m.notByTag {
			places = append(places, place{image: m.location.below(rest), mirror: true, insecure: m.insecure})
		}
	}
	to := i
	if r.location.host != "" {
		to = r.location.below(rest)
	}
	return append(places, place{image: to, mirror: to != i, insecure: r.insecure}), nil
}

// access implements source. This format has no certificates; podman looks for them in certs.d.
func (f *confFile) access(image) (access, error) { return access{}, nil }

func (f *confFile) check() ([]access, error) {
	_, err := f.file.get()
	return nil, err
}
