package registries

import (
	"bytes"
	"log/slog"
	"sync"

	"github.com/gateway-agent/gateway-agent/internal/oci/configfile"
)

// maxConfig bounds a configuration file, in bytes.
const maxConfig = 1 << 20

// environment is what all sources of one Registries share.
type environment struct {
	warnings *configfile.Warnings
}

func newEnvironment(log *slog.Logger) *environment {
	return &environment{warnings: configfile.NewWarnings(log)}
}

// A file is read at each use and parsed when its content changed. While a newer content is unusable, the last good one counts.
type file[T any] struct {
	env    *environment
	path   string
	parse  func([]byte) (T, error)
	secret func(T) bool // tells that it holds a secret; nil: never

	mu    sync.Mutex
	raw   []byte
	value T
	err   error // of the newest content
	good  bool  // value is one
}

func newFile[T any](env *environment, path string, parse func([]byte) (T, error)) *file[T] {
	return &file[T]{env: env, path: path, parse: parse}
}

// get returns the value; with an error it is what could be understood.
func (f *file[T]) get() (T, error) {
	const msg = "registry configuration became unusable, using the previous one"
	f.mu.Lock()
	defer f.mu.Unlock()
	data, info, err := configfile.Read(f.path, maxConfig)
	if err == nil && (f.raw == nil || !bytes.Equal(data, f.raw)) {
		var value T
		f.raw = append([]byte{}, data...)
		if value, f.err = f.parse(data); f.err == nil || !f.good {
			f.value, f.good = value, f.err == nil
		}
	}
	if err == nil {
		err = f.err
	}
	switch {
	case err == nil:
		f.env.warnings.Settled(f.path, msg)
		if f.secret != nil && f.secret(f.value) {
			f.env.warnings.Secret(f.path, info)
		}
	case f.good:
		f.env.warnings.Warn(f.path, msg, err.Error())
		err = nil
	}
	return f.value, err
}
