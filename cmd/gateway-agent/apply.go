package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gateway-agent/gateway-agent/standalone/protoyaml"
)

const (
	envPrefix       = "GATEWAY_AGENT_"
	maxConfigValues = 10_000 // of a config file
)

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
	docs, errs := protoyaml.Parse(path, data, &protoyaml.Budget{Nodes: maxConfigValues})
	var problems []error
	for _, err := range errs {
		problems = append(problems, err)
	}
	for _, doc := range docs {
		if doc.Kind != protoyaml.Map {
			problems = append(problems, doc.Errorf("want keys and values, found %s", doc.Kind))
			continue
		}
		for i, key := range doc.Keys {
			if err := applyEntry(flags, key.Value, doc.Items[i]); err != nil {
				problems = append(problems, key.Errorf("%v", err))
			}
		}
	}
	return errors.Join(problems...)
}

func applyEntry(flags *pflag.FlagSet, name string, value *protoyaml.Node) error {
	flag := flags.Lookup(name)
	if flag == nil || name == "config" || name == "help" {
		return fmt.Errorf("unknown key %q: the keys are the long flags of this command", name)
	}
	if flag.Changed {
		return nil
	}
	values, err := scalars(value)
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

func scalars(node *protoyaml.Node) ([]string, error) {
	switch node.Kind {
	case protoyaml.Scalar:
		return []string{node.Value}, nil
	case protoyaml.List:
		var all []string
		for _, item := range node.Items {
			if item.Kind != protoyaml.Scalar {
				return nil, errors.New("want a list of values")
			}
			all = append(all, item.Value)
		}
		return all, nil
	}
	return nil, errors.New("want a value or a list of values")
}
