package dns

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

const kubernetes = "Kubernetes" // the registry whose hosts have short names

// table is a name table, made ready for lookups. It does not change.
type table struct {
	infos    map[string]*nameInfo  // as received
	hosts    map[string]*addresses // by name in lower case with a dot at its end
	unusable int
	received time.Time
}

// addresses are a host's.
type addresses struct{ v4, v6 []netip.Addr }

// newTable finds out all names of the hosts. A name that a host really has wins over one that follows from another host's; of two such, that
// of the host which is first in the alphabet.
func newTable(infos map[string]*nameInfo, domain string) *table {
	t := &table{infos: infos, hosts: make(map[string]*addresses, 2*len(infos)), received: time.Now()}
	hosts := slices.Sorted(maps.Keys(infos))
	for _, host := range hosts {
		found := parseAddresses(infos[host].IPs)
		if name := canonical(host); found == nil || name == "" || name == "*." { // the last would take every name
			t.unusable++
		} else {
			t.hosts[name] = found
		}
	}
	for _, host := range hosts {
		found := t.hosts[canonical(host)]
		if found == nil {
			continue
		}
		for _, name := range shortNames(host, infos[host], domain) {
			if _, taken := t.hosts[name]; !taken {
				t.hosts[name] = found
			}
		}
	}
	return t
}

// parseAddresses leaves out what is none; nil: there are no others.
func parseAddresses(texts []string) *addresses {
	a := &addresses{}
	for _, text := range texts {
		ip, err := netip.ParseAddr(text)
		switch ip = ip.Unmap(); {
		case err != nil || ip.Zone() != "":
		case ip.Is4():
			a.v4 = append(a.v4, ip)
		default:
			a.v6 = append(a.v6, ip)
		}
	}
	if len(a.v4)+len(a.v6) == 0 {
		return nil
	}
	return a
}

// canonical is a name as queries have it, "" if it cannot be one.
func canonical(host string) string {
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if _, ok := dns.IsDomainName(host); !ok || host == "" {
		return ""
	}
	return host + "."
}

// shortNames are the names besides its own that a Kubernetes service has in this gateway. Services of other cluster domains have none:
// nobody could say which of them is meant.
func shortNames(host string, info *nameInfo, domain string) []string {
	namespace, clusterDomain, _ := strings.Cut(strings.ToLower(domain), ".")
	inside := clusterDomain != "" && strings.HasSuffix(canonical(host), "."+clusterDomain+".")
	if info.Registry != kubernetes || !inside || info.Shortname == "" || info.Namespace == "" {
		return nil
	}
	full := info.Shortname + "." + info.Namespace
	first, _, _ := strings.Cut(clusterDomain, ".")
	all := append([]string{full, full + "." + first}, info.AltHosts...)
	if strings.EqualFold(info.Namespace, namespace) {
		all = append(all, info.Shortname)
	}
	names := all[:0]
	for _, name := range all {
		if name = canonical(name); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// lookup finds the addresses of a name, in lower case with a dot at its end; nil: it is not the table's. A resolver tries the search domains
// before the name itself: what only the first of them (with a dot at its end, or empty) hides is found at once, alias is then the name
// without it. A host *.x has every name below x; the longest such host counts.
func (t *table) lookup(name, search string) (found *addresses, alias string) {
	found, hidden := t.find(name, search)
	for at, end := dns.NextLabel(name, 0); found == nil && !end; at, end = dns.NextLabel(name, at) {
		found, hidden = t.find("*."+name[at:], search)
	}
	if found == nil || !hidden {
		return found, ""
	}
	return found, strings.TrimSuffix(name, search)
}

// find looks for exactly this name, then for what is before the search domain.
func (t *table) find(name, search string) (found *addresses, hidden bool) {
	if found = t.hosts[name]; found != nil || search == "" {
		return found, false
	}
	inner, ok := strings.CutSuffix(name, "."+search)
	if inner += "."; !ok || strings.HasSuffix(inner, "."+search) {
		return nil, false
	}
	found = t.hosts[inner]
	return found, found != nil
}

// document is the table as pilot-agent shows it: what was received, and the other names, all of them as if they were of Kubernetes.
func (t *table) document() any {
	all := make(map[string]*nameInfo, len(t.infos)+len(t.hosts))
	for name, found := range t.hosts {
		info := &nameInfo{Registry: kubernetes}
		for _, ip := range slices.Concat(found.v4, found.v6) {
			info.IPs = append(info.IPs, ip.String())
		}
		all[name] = info
	}
	maps.Copy(all, t.infos)
	return struct {
		Table map[string]*nameInfo `json:"table,omitempty"`
	}{all}
}
