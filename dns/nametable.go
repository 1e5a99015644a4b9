package dns

import (
	"errors"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// nameInfo is what the table says of a host: istio.networking.nds.v1.NameTable.NameInfo.
type nameInfo struct {
	IPs       []string `json:"ips,omitempty"`
	Registry  string   `json:"registry,omitempty"`
	Shortname string   `json:"shortname,omitempty"` // of a Kubernetes service
	Namespace string   `json:"namespace,omitempty"` // of a Kubernetes service
	AltHosts  []string `json:"altHosts,omitempty"`
}

var (
	errDamaged = errors.New("it is damaged")
	errText    = errors.New("it has text that is not UTF-8")
)

// parseTable reads a NameTable. Its messages are few and small: generated code would come with a registration at each start.
func parseTable(data []byte) (map[string]*nameInfo, error) {
	infos := map[string]*nameInfo{}
	err := eachBytes(data, func(field protowire.Number, value []byte) error {
		if field != 1 {
			return nil
		}
		host, info, err := parseEntry(value)
		infos[host] = info
		return err
	})
	return infos, err
}

// parseEntry reads an entry of the map from host to NameInfo.
func parseEntry(data []byte) (host string, info *nameInfo, err error) {
	info = &nameInfo{}
	err = eachBytes(data, func(field protowire.Number, value []byte) error {
		switch field {
		case 1:
			return setText(&host, value)
		case 2:
			return eachBytes(value, info.set)
		}
		return nil
	})
	return host, info, err
}

func (i *nameInfo) set(field protowire.Number, value []byte) error {
	switch field {
	case 1:
		return addText(&i.IPs, value)
	case 2:
		return setText(&i.Registry, value)
	case 3:
		return setText(&i.Shortname, value)
	case 4:
		return setText(&i.Namespace, value)
	case 5:
		return addText(&i.AltHosts, value)
	}
	return nil
}

func setText(to *string, value []byte) error {
	if !utf8.Valid(value) {
		return errText
	}
	*to = string(value)
	return nil
}

func addText(to *[]string, value []byte) error {
	var text string
	if err := setText(&text, value); err != nil {
		return err
	}
	*to = append(*to, text)
	return nil
}

// eachBytes calls f for each field with a length, which all of ours are. Others are skipped, as protobuf does with fields that it does not know.
func eachBytes(data []byte, f func(protowire.Number, []byte) error) error {
	for len(data) > 0 {
		field, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return errDamaged
		}
		data = data[n:]
		var value []byte
		if kind == protowire.BytesType {
			value, n = protowire.ConsumeBytes(data)
		} else {
			n = protowire.ConsumeFieldValue(field, kind, data)
		}
		if n < 0 {
			return errDamaged
		}
		data = data[n:]
		if kind != protowire.BytesType {
			continue
		}
		if err := f(field, value); err != nil {
			return err
		}
	}
	return nil
}
