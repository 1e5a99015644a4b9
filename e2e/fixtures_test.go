package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

const (
	wasmType    = "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm"
	rbacType    = "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC"
	netWasmType = "type.googleapis.com/envoy.extensions.filters.network.wasm.v3.Wasm"
	netRBACType = "type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC"
)

// plugin is a Wasm plugin in a configuration. The zero policy is Envoy's: fail closed.
type plugin struct {
	name, uri, sha256, policy string
	value                     string // plugin configuration: a StringValue

	network  bool              // a network filter
	wrapper  string            // type URL of a TypedStruct around the filter
	failOpen bool              // the deprecated field
	local    string            // a module's file instead of uri
	env      map[string]string // of the virtual machine
}

// filterType is the type URL of the plugin's filter.
func (p plugin) filterType() string {
	if p.network {
		return netWasmType
	}
	return wasmType
}

func (p plugin) typedConfig(indent int) string {
	if p.wrapper != "" {
		return indented(indent, fmt.Sprintf("\"@type\": %s\ntype_url: %s\nvalue:\n%s", p.wrapper, p.filterType(), indented(2, p.config())))
	}
	return indented(indent, fmt.Sprintf("\"@type\": %s\n%s", p.filterType(), p.config()))
}

// config is the filter's only field. Lines that stay empty are dropped by indented.
func (p plugin) config() string {
	policy, env := "", ""
	if p.policy != "" {
		policy = "failure_policy: " + p.policy
	}
	if p.failOpen {
		policy = "fail_open: true"
	}
	if p.env != nil {
		values, _ := json.Marshal(p.env) // a map of strings is always possible
		env = fmt.Sprintf("environment_variables: { key_values: %s }", values)
	}
	return fmt.Sprintf(`config:
  name: %s
  %s
  vm_config:
    runtime: envoy.wasm.runtime.v8
    %s
    code:
%s
  configuration:
    "@type": type.googleapis.com/google.protobuf.StringValue
    value: '%s'
`, p.name, policy, env, indented(6, p.code()), p.value)
}

func (p plugin) code() string {
	if p.local != "" {
		return fmt.Sprintf("local: { filename: %q }\n", p.local)
	}
	sha := ""
	if p.sha256 != "" {
		sha = "sha256: " + p.sha256
	}
	return fmt.Sprintf("remote:\n  http_uri: { uri: %q }\n  %s\n", p.uri, sha)
}

// inline is the plugin written into a listener's http_filters.
func (p plugin) inline() string {
	return fmt.Sprintf("- name: %s\n  typed_config:\n%s", p.name, p.typedConfig(4))
}

// discovered is a filter that takes the plugin from an extension config.
func (p plugin) discovered(types ...string) string {
	if len(types) == 0 {
		types = []string{p.filterType(), strings.Replace(p.filterType(), ".wasm.v3.Wasm", ".rbac.v3.RBAC", 1)}
	}
	return fmt.Sprintf(`- name: %s
  config_discovery:
    config_source: { ads: {}, resource_api_version: V3 }
    type_urls: [%s]
`, p.name, strings.Join(types, ", "))
}

// extension is the plugin as a document of extension configs.
func (p plugin) extension() string {
	return fmt.Sprintf(`- "@type": type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig
  name: %s
  typed_config:
%s`, p.name, p.typedConfig(4))
}

func resources(items ...string) string { return "resources:\n" + strings.Join(items, "\n") }

// listener is an HTTP listener that routes everything to the cluster "origin" through the filters.
func listener(name, address string, filters ...string) string {
	return listenerTLS(name, address, "", filters...)
}

func listenerTLS(name, address, transportSocket string, filters ...string) string {
	return fmt.Sprintf(`- "@type": type.googleapis.com/envoy.config.listener.v3.Listener
  name: %s
  address: { socket_address: { address: 127.0.0.1, port_value: %s } }
  filter_chains:
  - filters:
    - name: envoy.filters.network.http_connection_manager
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
        stat_prefix: %s
        route_config:
          name: %s
          virtual_hosts:
          - name: all
            domains: ["*"]
            routes:
            - match: { prefix: / }
              route: { cluster: origin, timeout: 60s }
        http_filters:
%s
        - name: envoy.filters.http.router
          typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }
%s`, name, port(address), name, name, indented(8, strings.Join(filters, "\n")), indented(4, transportSocket))
}

// echoListener is a TCP listener that sends back what it gets, behind the filters.
func echoListener(name, address string, filters ...string) string {
	return fmt.Sprintf(`- "@type": type.googleapis.com/envoy.config.listener.v3.Listener
  name: %s
  address: { socket_address: { address: 127.0.0.1, port_value: %s } }
  filter_chains:
  - filters:
%s
    - name: echo
      typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.network.echo.v3.Echo }
`, name, port(address), indented(4, strings.Join(filters, "\n")))
}

func cluster(name, address string) string {
	return fmt.Sprintf(`- "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
  name: %s
  type: STATIC
  connect_timeout: 1s
  load_assignment:
    cluster_name: %s
    endpoints:
    - lb_endpoints:
      - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: %s } } }
`, name, name, port(address))
}

func indented(n int, text string) string {
	pad := strings.Repeat(" ", n)
	var b strings.Builder
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) != "" {
			b.WriteString(pad + line)
		}
	}
	return b.String()
}

// startOrigin serves the upstream of every configuration: it answers 200, after /slow/<duration> that long.
func startOrigin(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if wait, ok := strings.CutPrefix(r.URL.Path, "/slow/"); ok {
			d, _ := time.ParseDuration(wait)
			select {
			case <-time.After(d):
			case <-r.Context().Done():
			}
		}
		fmt.Fprint(w, "origin")
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Close() })
	return listener.Addr().String()
}
