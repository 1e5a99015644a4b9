package dns

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/anypb"
)

// encode writes a NameTable, in the order of the hosts' names.
func encode(infos map[string]*nameInfo) []byte {
	var data []byte
	for _, host := range slices.Sorted(maps.Keys(infos)) {
		i := infos[host]
		var info []byte
		for field, texts := range [][]string{{}, i.IPs, {i.Registry}, {i.Shortname}, {i.Namespace}, i.AltHosts} {
			for _, text := range texts {
				info = protowire.AppendString(protowire.AppendTag(info, protowire.Number(field), protowire.BytesType), text)
			}
		}
		entry := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), host)
		entry = protowire.AppendBytes(protowire.AppendTag(entry, 2, protowire.BytesType), info)
		data = protowire.AppendBytes(protowire.AppendTag(data, 1, protowire.BytesType), entry)
	}
	return data
}

func resources(infos map[string]*nameInfo) []*anypb.Any {
	return []*anypb.Any{{TypeUrl: TypeURL, Value: encode(infos)}}
}

func service(name, namespace string, ips ...string) *nameInfo {
	return &nameInfo{IPs: ips, Registry: kubernetes, Shortname: name, Namespace: namespace}
}

func entry(ips ...string) *nameInfo { return &nameInfo{IPs: ips, Registry: "External"} }

// mesh is a table with one of each kind.
func mesh() map[string]*nameInfo {
	return map[string]*nameInfo{
		"web.ingress.svc.cluster.local":             service("web", "ingress", "10.0.0.1"),
		"db.shop.svc.cluster.local":                 service("db", "shop", "10.0.0.2", "fd00::2"),
		"mysql-0.mysql.shop.svc.cluster.local":      service("mysql-0.mysql", "shop", "10.1.0.1"),
		"far.shop.svc.other.example":                service("far", "shop", "10.0.0.3"),
		"web.ingress.svc.clusterset.local":          {IPs: []string{"10.0.0.4"}, Registry: kubernetes},
		"API.Example.com":                           entry("240.240.0.1", "240.240.0.2"),
		"six.example.com":                           entry("2001:db8::6"),
		"*.wild.example.com":                        entry("240.240.0.3"),
		"*.deep.wild.example.com":                   entry("240.240.0.4"),
		"db.shop":                                   entry("240.240.0.5"), // also short for a service
		"bad.example.com":                           entry("10.0.0.0/24", "fe80::1%eth0", ""),
		"*":                                         entry("240.240.0.6"),
		strings.Repeat("x", 64) + ".example.com":    entry("240.240.0.7"),
		"":                                          entry("240.240.0.8"),
		"nameless.shop.svc.cluster.local":           {IPs: []string{"10.0.0.9"}, Registry: kubernetes, Namespace: "shop"},
		"old.shop.svc.cluster.local":                {IPs: []string{"10.0.0.10"}, Registry: kubernetes, Shortname: "old", Namespace: "shop", AltHosts: []string{"older.example"}},
		"dotted.example.com.":                       entry("240.240.0.11"),
		"mapped.example.com":                        entry("::ffff:10.0.0.12"),
		"entry.ingress.svc.cluster.local":           entry("240.240.0.13"),
		"decoy.ingress.svc.cluster.local.other.org": service("decoy", "ingress", "10.0.0.14"),
	}
}

func TestLookup(t *testing.T) {
	infos, err := parseTable(encode(mesh()))
	if err != nil {
		t.Fatal(err)
	}
	table := newTable(infos, "ingress.svc.cluster.local")
	const search = "ingress.svc.cluster.local."
	for name, want := range map[string]string{
		"web.ingress.svc.cluster.local.":    "10.0.0.1",
		"web.ingress.svc.":                  "10.0.0.1",
		"web.ingress.":                      "10.0.0.1",
		"web.":                              "10.0.0.1",
		"db.shop.svc.cluster.local.":        "10.0.0.2 fd00::2",
		"db.shop.svc.":                      "10.0.0.2 fd00::2",
		"db.shop.":                          "240.240.0.5", // what is there wins over what is short
		"db.":                               "",            // another namespace
		"mysql-0.mysql.shop.":               "10.1.0.1",
		"mysql-0.mysql.":                    "",
		"older.example.":                    "10.0.0.10",
		"far.shop.svc.other.example.":       "10.0.0.3",
		"far.shop.":                         "", // another cluster's
		"web.ingress.svc.clusterset.local.": "10.0.0.4",
		"nameless.shop.svc.cluster.local.":  "10.0.0.9",
		".shop.":                            "",
		"decoy.":                            "",
		"entry.":                            "", // no service of Kubernetes
		"entry.ingress.svc.cluster.local.":  "240.240.0.13",

		"api.example.com.":         "240.240.0.1 240.240.0.2",
		"six.example.com.":         "2001:db8::6",
		"dotted.example.com.":      "240.240.0.11",
		"mapped.example.com.":      "10.0.0.12",
		"bad.example.com.":         "",
		"x.wild.example.com.":      "240.240.0.3",
		"y.x.wild.example.com.":    "240.240.0.3",
		"*.wild.example.com.":      "240.240.0.3",
		"wild.example.com.":        "",
		"xwild.example.com.":       "",
		"x.deep.wild.example.com.": "240.240.0.4",
		"deep.wild.example.com.":   "240.240.0.3",
		"nowhere.example.":         "",
		".":                        "",
		"com.":                     "",

		// With the first search domain behind.
		"api.example.com." + search:          "240.240.0.1 240.240.0.2 as api.example.com.",
		"x.wild.example.com." + search:       "240.240.0.3 as x.wild.example.com.",
		"x.deep.wild.example.com." + search:  "240.240.0.4 as x.deep.wild.example.com.",
		"web.ingress." + search:              "10.0.0.1 as web.ingress.",
		"db.shop.svc." + search:              "10.0.0.2 fd00::2 as db.shop.svc.",
		search:                               "",
		"nowhere." + search:                  "",
		"web." + search + search:             "", // the resolver's second try is not ours to save
		"api.example.com.svc.cluster.local.": "",
	} {
		found, alias := table.lookup(name, search)
		got := ""
		if found != nil {
			var all []string
			for _, ip := range slices.Concat(found.v4, found.v6) {
				all = append(all, ip.String())
			}
			got = strings.Join(all, " ")
		}
		if alias != "" {
			got += " as " + alias
		}
		if got != want {
			t.Errorf("lookup(%s) = %q, want %q", name, got, want)
		}
	}
	if table.unusable != 4 {
		t.Errorf("%d hosts cannot be used, want 4", table.unusable)
	}
	if found, _ := table.lookup("api.example.com."+search, ""); found != nil {
		t.Errorf("without a search domain: %v", found)
	}
}

// Without a domain nothing is short, and a domain without a namespace makes nothing a name of one label.
func TestDomains(t *testing.T) {
	for domain, want := range map[string]string{
		"":                          "web.ingress.svc.cluster.local.",
		".svc.cluster.local":        "web.ingress. web.ingress.svc. web.ingress.svc.cluster.local.",
		"shop.svc.cluster.local":    "web.ingress. web.ingress.svc. web.ingress.svc.cluster.local.",
		"Ingress.SVC.Cluster.local": "web. web.ingress. web.ingress.svc. web.ingress.svc.cluster.local.",
		"ingress":                   "web.ingress.svc.cluster.local.",
	} {
		table := newTable(map[string]*nameInfo{"web.ingress.svc.cluster.local": service("web", "ingress", "10.0.0.1")}, domain)
		if got := strings.Join(slices.Sorted(maps.Keys(table.hosts)), " "); got != want {
			t.Errorf("domain %q: names %s, want %s", domain, got, want)
		}
	}
}

func TestUpdate(t *testing.T) {
	s, err := New(Config{Domain: "ingress.svc.cluster.local"})
	if err != nil {
		t.Fatal(err)
	}
	if s.Ready() || s.NameTable() != nil || !s.Status().ReceivedAt.IsZero() {
		t.Error("there is a table before the first")
	}
	if err := s.Update(nil); err != nil || s.Ready() {
		t.Errorf("an empty response = %v, ready %v; want nothing", err, s.Ready())
	}
	first := map[string]*nameInfo{"web.ingress.svc.cluster.local": service("web", "ingress", "10.0.0.1", "fd00::1")}
	if err := s.Update(append(resources(first), resources(mesh())...)); err != nil {
		t.Fatal(err)
	}
	good := encode(first)
	for name, any := range map[string]*anypb.Any{
		"type":  {TypeUrl: "type.googleapis.com/x", Value: good},
		"short": {TypeUrl: TypeURL, Value: good[:len(good)-1]},
		"tag":   {TypeUrl: TypeURL, Value: []byte{0}},
		"text":  {TypeUrl: TypeURL, Value: encode(map[string]*nameInfo{"\xff": entry("10.0.0.1")})},
		"group": {TypeUrl: TypeURL, Value: []byte{1<<3 | 3}},
	} {
		if err := s.Update([]*anypb.Any{any}); err == nil || !strings.HasPrefix(err.Error(), "name table: ") {
			t.Errorf("%s: Update = %v, want an error", name, err)
		}
	}
	if status := s.Status(); status.Hosts != 1 || status.Unusable != 0 {
		t.Errorf("after bad tables: %+v, want the first one", status)
	}
	got, err := json.Marshal(s.NameTable())
	want := `{"table":{"web.":{"ips":["10.0.0.1","fd00::1"],"registry":"Kubernetes"},` +
		`"web.ingress.":{"ips":["10.0.0.1","fd00::1"],"registry":"Kubernetes"},"web.ingress.svc.":{"ips":["10.0.0.1","fd00::1"],"registry":"Kubernetes"},` +
		`"web.ingress.svc.cluster.local":{"ips":["10.0.0.1","fd00::1"],"registry":"Kubernetes","shortname":"web","namespace":"ingress"},` +
		`"web.ingress.svc.cluster.local.":{"ips":["10.0.0.1","fd00::1"],"registry":"Kubernetes"}}}`
	if diff := cmp.Diff(want, string(got)); diff != "" || err != nil {
		t.Errorf("name table, %v (-want +got):\n%s", err, diff)
	}
	if err := s.Update([]*anypb.Any{{TypeUrl: TypeURL}}); err != nil {
		t.Fatal(err)
	}
	if got, _ := json.Marshal(s.NameTable()); string(got) != "{}" || !s.Ready() {
		t.Errorf("an empty table is %s, ready %v; want {} and ready", got, s.Ready())
	}
}

func FuzzTable(f *testing.F) {
	f.Add(encode(mesh()), "ingress.svc.cluster.local", "web.ingress.svc.cluster.local.")
	f.Add([]byte{1 << 3, 5, 1<<3 | 2, 0}, "", ".")
	f.Fuzz(func(t *testing.T, data []byte, domain, name string) {
		infos, err := parseTable(data)
		if err != nil {
			return
		}
		again, err := parseTable(encode(infos))
		if _, odd := infos[""]; !odd && (err != nil || len(again) != len(infos)) {
			t.Errorf("written and read again: %d hosts, %v; want %d", len(again), err, len(infos))
		}
		table := newTable(infos, domain)
		for host := range table.hosts {
			if canonical(host) != host {
				t.Errorf("name %q is not as queries have it", host)
			}
			if found, alias := table.lookup(host, "a.b."); found != table.hosts[host] || alias != "" {
				t.Errorf("lookup(%q) = %v as %q, want %v", host, found, alias, table.hosts[host])
			}
		}
		table.lookup(name, canonical(domain))
		_ = fmt.Sprint(table.document())
	})
}
