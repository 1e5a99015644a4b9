package registries

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// hostsText is a hosts.toml; its root describes the server that is asked last.
type hostsText struct {
	Server string `toml:"server"`
	hostText
	Hosts map[string]hostText `toml:"host"`
}

type hostText struct {
	Capabilities []string       `toml:"capabilities"`
	CA           any            `toml:"ca"`     // a path, or several
	Client       any            `toml:"client"` // a path, several, or pairs of certificate and key
	SkipVerify   bool           `toml:"skip_verify"`
	Header       map[string]any `toml:"header"` // a string, or several
	OverridePath bool           `toml:"override_path"`
	Proxy        any            `toml:"proxy"`
}

// A hostsConf is what a directory of certs.d says of its registry.
type hostsConf struct {
	path   string // of its hosts.toml
	hosts  []hostPlace
	server hostPlace // host "": the registry itself
	routes bool      // it says more than how to connect to the registry
}

type hostPlace struct {
	host, root    string
	plain         bool
	pull, resolve bool
	access        access
}

// parseHosts reads a hosts.toml.
func parseHosts(file string, data []byte, log *slog.Logger) (hostsConf, error) {
	var text hostsText
	if err := decodeTOML(file, data, &text, log, "dial_timeout"); err != nil {
		return hostsConf{}, err
	}
	conf := hostsConf{path: file, routes: text.Server != "" || len(text.Hosts) > 0 || len(text.Capabilities) > 0}
	order := hostOrder(data)
	for _, name := range slices.Sorted(maps.Keys(text.Hosts)) {
		if !slices.Contains(order, name) {
			order = append(order, name)
		}
	}
	var errs []error
	for _, name := range order {
		section, ok := text.Hosts[name]
		if !ok {
			continue
		}
		p, wrong := section.place(file, name)
		for _, err := range wrong {
			errs = append(errs, fmt.Errorf("%s: [host.%q]: %w", file, withoutUser(name), err))
		}
		conf.hosts = append(conf.hosts, p)
	}
	server, wrong := text.place(file, text.Server)
	for _, err := range wrong {
		errs = append(errs, fmt.Errorf("%s: %w", file, err))
	}
	conf.server = server
	return conf, errors.Join(errs...)
}

// withoutUser is an address for an error text.
func withoutUser(address string) string {
	if at := strings.LastIndexByte(address, '@'); at >= 0 {
		return "…" + address[at:]
	}
	return address
}

// place checks one section. address is empty for the registry itself.
func (h hostText) place(file, address string) (p hostPlace, errs []error) {
	err := p.address(address, h.OverridePath)
	if err != nil {
		errs = append(errs, err)
	}
	if err = p.capabilities(h.Capabilities); err != nil {
		errs = append(errs, err)
	}
	p.access.skipVerify = h.SkipVerify
	if p.access.ca, err = paths(file, h.CA); err != nil {
		errs = append(errs, fmt.Errorf("ca: %w", err))
	}
	if p.access.pairs, err = clientPairs(file, h.Client); err != nil {
		errs = append(errs, fmt.Errorf("client: %w", err))
	}
	if p.access.header, err = headers(h.Header); err != nil {
		errs = append(errs, err)
	}
	if h.Proxy != nil {
		errs = append(errs, errors.New("proxy is not supported here: set HTTPS_PROXY and NO_PROXY for the agent and remove it"))
	}
	return p, errs
}

func (p *hostPlace) address(address string, override bool) error {
	if address == "" {
		return nil
	}
	if !strings.Contains(address, "://") {
		address = "https://" + address
	}
	u, err := url.Parse(address)
	switch {
	case err != nil:
		return errors.New("the address is not a URL")
	case u.Scheme != "https" && u.Scheme != "http":
		return fmt.Errorf("the address begins with %s; it must begin with https or http", u.Scheme)
	case u.User != nil:
		return errors.New("the address holds a user; put credentials into a docker config")
	case u.RawQuery != "" || u.Fragment != "":
		return errors.New("the address must end with its path")
	}
	if err := checkHost(u.Host); err != nil {
		return err
	}
	p.host, p.plain = strings.ToLower(u.Host), u.Scheme == "http"
	p.root = path.Clean("/" + u.Path)
	if !override && !strings.HasSuffix(p.root, "/v2") {
		p.root = path.Join(p.root, "v2")
	}
	if p.root == "/v2" {
		p.root = ""
	}
	return nil
}

func (p *hostPlace) capabilities(names []string) error {
	p.pull, p.resolve = len(names) == 0, len(names) == 0
	for _, name := range names {
		switch strings.ToLower(name) {
		case "pull":
			p.pull = true
		case "resolve":
			p.resolve = true
		case "push", "referrers":
		default:
			return fmt.Errorf("the capability %q is not known; known are pull, resolve, push", name)
		}
	}
	return nil
}

func stringList(v any) ([]string, error) {
	switch v := v.(type) {
	case nil:
		return nil, nil
	case string:
		return []string{v}, nil
	case []any:
		var all []string
		for _, item := range v {
			s, ok := item.(string)
			if !ok {
				return nil, errors.New("it must be a string or a list of strings")
			}
			all = append(all, s)
		}
		return all, nil
	}
	return nil, errors.New("it must be a string or a list of strings")
}

func paths(file string, v any) ([]string, error) {
	all, err := stringList(v)
	for n := range all {
		all[n] = beside(file, all[n])
	}
	return all, err
}

func clientPairs(file string, v any) ([]pair, error) {
	list, ok := v.([]any)
	if !ok {
		list = []any{v}
	}
	var pairs []pair
	for _, item := range list {
		both, err := paths(file, item)
		_, single := item.(string)
		switch {
		case err != nil || !single && item != nil && len(both) != 2:
			return nil, errors.New("it must be a path, a list of paths, or a list of pairs of certificate and key")
		case item == nil:
		case single:
			pairs = append(pairs, pair{cert: both[0]})
		case item.([]any)[1] == "": // the key is in the certificate's file
			pairs = append(pairs, pair{cert: both[0]})
		default:
			pairs = append(pairs, pair{cert: both[0], key: both[1]})
		}
	}
	return pairs, nil
}

func headers(all map[string]any) (http.Header, error) {
	if len(all) == 0 {
		return nil, nil
	}
	h := http.Header{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		values, err := stringList(all[name])
		if err != nil || !httpguts.ValidHeaderFieldName(name) || slices.ContainsFunc(values, invalidValue) {
			return nil, fmt.Errorf("the header %q cannot be sent", name)
		}
		for _, value := range values {
			h.Add(name, value)
		}
	}
	return h, nil
}

func invalidValue(value string) bool { return !httpguts.ValidHeaderFieldValue(value) }
