package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/spf13/pflag"
)

const envPrefix = "GATEWAY_AGENT_"

// environment is the process's environment, read once in main.
type environment map[string]string

func newEnvironment(pairs []string) environment {
	env := environment{}
	for _, pair := range pairs {
		name, value, _ := strings.Cut(pair, "=")
		env[name] = value
	}
	return env
}

// apply gives each flag that the command line left alone the value of its environment variable, else that of the config file.
func apply(flags *pflag.FlagSet, configFile string, env environment) error {
	var problems []error
	flags.VisitAll(func(flag *pflag.Flag) {
		variable := envPrefix + strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
		value := env[variable]
		if value == "" || flag.Changed || flag.Name == "help" {
			return
		}
		if err := flags.Set(flag.Name, value); err != nil {
			problems = append(problems, fmt.Errorf("environment variable %s: %w", variable, err))
		}
	})
	if file := flags.Lookup("config"); file != nil && configFile == "" {
		configFile = file.Value.String()
	}
	if configFile != "" {
		problems = append(problems, applyFile(flags, configFile))
	}
	return errors.Join(problems...)
}

func applyFile(flags *pflag.FlagSet, path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return fmt.Errorf("--config %s: %w", path, err)
	}
	var problems []error
	for _, doc := range file.Docs {
		for _, entry := range entries(doc.Body) {
			line := entry.Key.GetToken().Position.Line
			if err := applyEntry(flags, entry); err != nil {
				problems = append(problems, fmt.Errorf("%s:%d: %w", path, line, err))
			}
		}
	}
	return errors.Join(problems...)
}

func entries(body ast.Node) []*ast.MappingValueNode {
	switch node := body.(type) {
	case *ast.MappingNode:
		return node.Values
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{node}
	}
	return nil
}

func applyEntry(flags *pflag.FlagSet, entry *ast.MappingValueNode) error {
	name := entry.Key.GetToken().Value
	flag := flags.Lookup(name)
	if flag == nil || name == "config" || name == "help" {
		return fmt.Errorf("unknown key %q: the keys are the long flags of this command", name)
	}
	if flag.Changed {
		return nil
	}
	values, err := scalars(entry.Value)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if list, ok := flag.Value.(pflag.SliceValue); ok {
		return list.Replace(values)
	}
	if len(values) != 1 {
		return fmt.Errorf("%s: want one value", name)
	}
	if err := flag.Value.Set(values[0]); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func scalars(node ast.Node) ([]string, error) {
	if list, ok := node.(*ast.SequenceNode); ok {
		var all []string
		for _, item := range list.Values {
			one, err := scalars(item)
			if err != nil {
				return nil, err
			}
			all = slices.Concat(all, one)
		}
		return all, nil
	}
	if _, ok := node.(ast.ScalarNode); !ok {
		return nil, errors.New("want a value or a list of values")
	}
	return []string{node.GetToken().Value}, nil
}
