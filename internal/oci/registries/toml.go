package registries

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// decodeTOML reads a file of somebody else's format. Keys that v has no place for are logged, except those (and what is in them) that
// have no business here. Errors never quote the file.
func decodeTOML(path string, data []byte, v any, log *slog.Logger, known ...string) error {
	err := toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields().Decode(v)
	missing, ok := errors.AsType[*toml.StrictMissingError](err) // first, as it wraps the other one
	if !ok && err != nil {
		decode, ok := errors.AsType[*toml.DecodeError](err)
		if !ok {
			return fmt.Errorf("%s: it is not TOML", path)
		}
		line, _ := decode.Position()
		return fmt.Errorf("%s:%d: %s", path, line, strings.TrimPrefix(decode.Error(), "toml: "))
	}
	if !ok {
		return nil
	}
	for _, e := range missing.Errors {
		key := strings.Join(e.Key(), ".")
		if slices.ContainsFunc(known, func(k string) bool { return key == k || strings.HasPrefix(key, k+".") }) {
			continue
		}
		line, _ := e.Position()
		log.LogAttrs(context.Background(), slog.LevelWarn, "a key without effect here", slog.String("path", path), slog.Int("line", line), slog.String("key", key))
	}
	return nil
}

// hostOrder returns the keys of the tables [host."…"] in the order of the file, which the decoder does not keep.
func hostOrder(data []byte) []string {
	var order, table []string
	var p unstable.Parser
	p.Reset(data)
	for p.NextExpression() {
		e := p.Expression()
		key := []string{}
		for it := e.Key(); it.Next(); {
			key = append(key, string(it.Node().Data))
		}
		switch e.Kind {
		case unstable.Table, unstable.ArrayTable:
			table = key
		case unstable.KeyValue:
			key = append(slices.Clone(table), key...)
		default:
			continue
		}
		if len(key) >= 2 && key[0] == "host" && !slices.Contains(order, key[1]) {
			order = append(order, key[1])
		}
	}
	return order
}
