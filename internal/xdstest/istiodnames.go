package xdstest

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// Name is what the name table says of a host.
type Name struct {
	IPs                            []string
	Registry, Shortname, Namespace string // the last two of a Kubernetes service
}

// SetNames sets the name table that NDS tells; it is empty at first.
func (c *Istiod) SetNames(hosts map[string]Name) {
	table := encodeNames(hosts)
	c.change(func(w *world) { w.names = table })
}

// encodeNames writes an istio.networking.nds.v1.NameTable, whose only field is a map from host to NameInfo.
func encodeNames(hosts map[string]Name) (table []byte) {
	for _, host := range slices.Sorted(maps.Keys(hosts)) {
		name := hosts[host]
		var info []byte
		for _, ip := range name.IPs {
			info = appendText(info, 1, ip)
		}
		info = appendText(appendText(appendText(info, 2, name.Registry), 3, name.Shortname), 4, name.Namespace)
		table = appendText(table, 1, string(appendText(appendText(nil, 1, host), 2, string(info))))
	}
	return table
}

func appendText(data []byte, field protowire.Number, text string) []byte {
	return protowire.AppendString(protowire.AppendTag(data, field, protowire.BytesType), text)
}
