package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/gateway-agent/gateway-agent/envoy"
	"github.com/gateway-agent/gateway-agent/internal/istio"
)

func (g *gateway) findEnvoy(ctx context.Context, s *settings) error {
	if s.envoy == "none" {
		return nil
	}
	path, err := envoy.Find(s.envoy)
	if err != nil {
		return fmt.Errorf("--envoy: %w", err)
	}
	found, err := envoy.ReadVersion(ctx, path)
	if err != nil {
		return fmt.Errorf("--envoy: %w", err)
	}
	if !found.AtLeast("1.38") {
		s.runtime = slices.DeleteFunc(s.runtime, func(pair string) bool { return strings.HasPrefix(pair, istio.CoalesceGuard+"=") })
	}
	g.envoyPath = path
	g.envoy, err = envoy.New(g.envoyConfig(path, found.String()))
	return err
}

func (g *gateway) envoyConfig(path, found string) envoy.Config {
	s := g.settings
	config := envoy.Config{
		Path: path, Version: found, Bootstrap: s.bootstrapFile, Admin: s.admin(), Concurrency: s.concurrency, Args: s.envoyArguments(),
		DrainDelay: s.drainDelay, DrainMin: s.drainMin, DrainTimeout: s.drainTimeout, ListenerDrain: s.listenerDrain,
		MinListeners: s.readyMinListeners,
		Stdout:       os.Stdout,
		LogLevel:     s.envoyLevel(),
		OnDrain:      func() { g.draining.Store(true) },
		Log:          g.part("envoy"),
	}
	if s.drainTimeout == 0 {
		config.DrainTimeout = -1
	}
	if s.onCrash == "exit" {
		config.Restarts = -1
	}
	return config
}

func (s *settings) envoyArguments() []string {
	if s.envoyComponentLog == "" {
		return s.envoyArgs
	}
	return append([]string{"--component-log-level", s.envoyComponentLog}, s.envoyArgs...)
}

func (s *settings) envoyLevel() string {
	if s.envoyLogLevel != "" {
		return s.envoyLogLevel
	}
	return envoyLevel(s.logLevel)
}
