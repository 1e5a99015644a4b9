package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/gateway-agent/gateway-agent/bootstrap"
	"github.com/gateway-agent/gateway-agent/envoy"
	"github.com/gateway-agent/gateway-agent/standalone"
)

func (a *app) validateCommand() *cobra.Command {
	s := &settings{}
	cmd := &cobra.Command{
		Use: "validate --config-dir DIR", Short: "Check settings and a configuration directory without starting anything",
		Long: validateHelp, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.settle(cmd, s); err != nil {
				return err
			}
			return a.validate(cmd, s)
		},
	}
	runFlags(cmd, s)
	return cmd
}

func (a *app) validate(cmd *cobra.Command, s *settings) error {
	g := &gateway{settings: s}
	if err := checkModuleFiles(s); err != nil {
		return err
	}
	if s.configDir != "" {
		source, err := standalone.New(standalone.Config{Dir: s.configDir})
		if err != nil {
			return err
		}
		if err := source.Load(cmd.Context()); err != nil {
			return err
		}
		fmt.Fprintf(a.stdout, "%s: ok\n", s.configDir)
	}
	data, err := g.marshalBootstrap()
	if err != nil {
		return err
	}
	if s.envoy == "none" {
		fmt.Fprintln(a.stdout, "bootstrap: ok (not shown to an Envoy: --envoy=none)")
		return nil
	}
	path, err := envoy.Find(s.envoy)
	if err != nil {
		return fmt.Errorf("--envoy: %w", err)
	}
	dir, err := os.MkdirTemp("", "gateway-agent")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "bootstrap.json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		return err
	}
	if err := envoy.Validate(cmd.Context(), path, file); err != nil {
		return err
	}
	fmt.Fprintln(a.stdout, "bootstrap: ok")
	return nil
}

func (a *app) bootstrapCommand() *cobra.Command {
	s := &settings{}
	cmd := &cobra.Command{
		Use: "bootstrap (--config-dir DIR | --xds-address HOST:PORT)", Short: "Print Envoy's bootstrap",
		Long: bootstrapHelp, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.settle(cmd, s); err != nil {
				return err
			}
			data, err := (&gateway{settings: s}).marshalBootstrap()
			if err != nil {
				return err
			}
			_, err = a.stdout.Write(data)
			return err
		},
	}
	runFlags(cmd, s)
	return cmd
}

func (g *gateway) marshalBootstrap() ([]byte, error) {
	config, err := g.bootstrapConfig()
	if err != nil {
		return nil, err
	}
	message, err := bootstrap.New(config)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	data, err := bootstrap.Marshal(message)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	return data, nil
}
