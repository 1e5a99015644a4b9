package main

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	agent := func() {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		os.Exit(run(ctx, arguments(os.Args), os.Environ(), os.Stdout, os.Stderr))
	}
	testscript.Main(m, map[string]func(){"gateway-agent": agent, pilotAgent: agent})
}

func TestScripts(t *testing.T) {
	envoy, err := filepath.Abs("../../.tools/envoy")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(envoy); err != nil {
		t.Fatalf("%v: run 'make tools'", err)
	}
	modules := newModuleRig(t)
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv("ENVOY", envoy)
			env.Setenv("HOME", env.WorkDir)
			return modules.setup(t, env)
		},
		Cmds: modules.commands(),
	})
}
