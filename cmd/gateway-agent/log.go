package main

import (
	"fmt"
	"io"
	"log/slog"
)

// newLogger returns the agent's logger and the level that the control socket can change.
func newLogger(w io.Writer, s *settings) (*slog.Logger, *slog.LevelVar) {
	level := new(slog.LevelVar)
	_ = setLevel(level, s.logLevel) // checked by settings.complete
	options := &slog.HandlerOptions{Level: level}
	if s.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, options)), level
	}
	return slog.New(slog.NewTextHandler(w, options)), level
}

func setLevel(level *slog.LevelVar, name string) error {
	if err := level.UnmarshalText([]byte(name)); err != nil {
		return fmt.Errorf("log level %q: want debug, info, warn or error", name)
	}
	return nil
}

// envoyLevel is the level of Envoy that goes with the agent's. Envoy says about 130 lines at info on every start, so info means
// warning there.
func envoyLevel(name string) string {
	switch name {
	case "info", "warn":
		return "warning"
	}
	return name
}
