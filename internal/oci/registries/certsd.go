package registries

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

const defaultDir = "_default"

// certsDir is a source: a directory laid out as containerd's certs.d, with one directory for each registry.
type certsDir struct {
	path string
	log  *slog.Logger
	env  *environment

	mu    sync.Mutex
	files map[string]*file[hostsConf] // by path of the registry's directory, which exists or existed
}

// names returns what the directory of a host may be called, best first.
func names(host string) []string {
	hosts := []string{host}
	if host == "docker.io" {
		hosts = append(hosts, "index.docker.io", "registry-1.docker.io")
	}
	var all []string
	for _, h := range hosts {
		if at := strings.LastIndexByte(h, ':'); at > 0 && portOf(h) != "" {
			all = append(all, h[:at]+"_"+h[at+1:]+"_")
		}
		all = append(all, h)
	}
	return all
}

// find returns what is said of a host, nil for nothing. own tells that it is about this host and not about all.
func (d *certsDir) find(host string) (conf *hostsConf, own bool, err error) {
	if host == defaultDir || checkHost(host) != nil {
		return nil, false, nil
	}
	for _, name := range append(names(host), defaultDir) {
		dir := filepath.Join(d.path, name)
		info, err := os.Stat(dir)
		if errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() {
			continue
		}
		if err != nil {
			return nil, false, err
		}
		got, err := d.load(dir)
		return &got, name != defaultDir, err
	}
	return nil, false, nil
}

func (d *certsDir) load(dir string) (hostsConf, error) {
	d.mu.Lock()
	f, ok := d.files[dir]
	if !ok {
		name := filepath.Join(dir, "hosts.toml")
		f = newFile(d.env, name, func(data []byte) (hostsConf, error) { return parseHosts(name, data, d.log) })
		f.secret = func(c hostsConf) bool {
			secret := secretHeader(c.server.access.header)
			for _, h := range c.hosts {
				secret = secret || secretHeader(h.access.header)
			}
			return secret
		}
		d.files[dir] = f
	}
	d.mu.Unlock()
	if info, err := os.Stat(f.path); errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode().IsRegular() && info.Size() == 0 {
		return dockerCerts(dir)
	}
	return f.get()
}

// dockerCerts reads a directory as docker does: *.crt are authorities, *.cert with *.key are client certificates.
func dockerCerts(dir string) (hostsConf, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return hostsConf{}, err
	}
	conf := hostsConf{path: dir}
	conf.server.pull, conf.server.resolve = true, true
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		switch base, ok := strings.CutSuffix(name, ".cert"); {
		case e.IsDir():
		case ok:
			p := pair{cert: name}
			if _, err := os.Stat(base + ".key"); err == nil {
				p.key = base + ".key"
			}
			conf.server.access.pairs = append(conf.server.access.pairs, p)
		case strings.HasSuffix(name, ".crt"):
			conf.server.access.ca = append(conf.server.access.ca, name)
		}
	}
	return conf, nil
}

func (d *certsDir) route(i image, byDigest bool) ([]place, error) {
	conf, _, err := d.find(i.host)
	if conf == nil || err != nil || !conf.routes {
		return nil, err
	}
	var places []place
	for _, h := range append(conf.hosts[:len(conf.hosts):len(conf.hosts)], conf.server) {
		if byDigest && !h.pull || !byDigest && !h.resolve {
			continue
		}
		p := place{image: i, root: h.root, access: h.access}
		if h.host != "" && canonical(h.host) != i.host {
			p.image.host, p.mirror, p.namespace = h.host, true, i.host
		} else if h.host != "" {
			p.address = address(h.host)
		}
		// Whoever writes TLS settings beside http:// wants TLS where it is spoken, except on the port of HTTP.
		p.insecure = h.plain && h.access.secured() && portOf(h.host) != "80"
		p.access.plain = h.plain && !p.insecure
		places = append(places, p)
	}
	if len(places) == 0 {
		capability, remedy := "pull", ""
		if !byDigest {
			capability, remedy = "resolve", ", or use a reference with a digest"
		}
		return nil, fmt.Errorf("no host in %s has the capability %q for %s: add it%s", conf.path, capability, i.host, remedy)
	}
	return places, nil
}

func (d *certsDir) access(i image) (access, error) {
	conf, own, err := d.find(i.host)
	switch {
	case conf == nil || err != nil:
		return access{}, err
	case conf.server.host == "", own && canonical(conf.server.host) == i.host:
		return conf.server.access, nil
	}
	return access{}, nil
}

// check reads everything that is there.
func (d *certsDir) check() ([]access, error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil, err
	}
	var all []access
	var errs []error
	for _, e := range entries {
		dir := filepath.Join(d.path, e.Name())
		info, err := os.Stat(dir)
		switch {
		case err != nil:
			errs = append(errs, err)
			continue
		case !info.IsDir():
			if strings.HasSuffix(e.Name(), ".conf") {
				errs = append(errs, fmt.Errorf("%s is no directory of a registry: name a registries.conf by itself, not its directory", dir))
			}
			continue
		case strings.HasPrefix(e.Name(), "."):
			continue // how Kubernetes mounts a volume
		}
		conf, err := d.load(dir)
		errs = append(errs, err)
		for _, h := range append(conf.hosts, conf.server) {
			all = append(all, h.access)
		}
	}
	return all, errors.Join(errs...)
}
