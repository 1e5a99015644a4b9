package e2e

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

const (
	wasmType = "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm"
	rbacType = "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC"
)

// plugin is a Wasm plugin in a configuration. The zero policy is Envoy's: fail closed.
type plugin struct {
	name, uri, sha256, policy string
	value                     string // plugin configuration: a StringValue
}

func (p plugin) typedConfig(indent int) string {
	policy, sha := "", ""
	if p.policy != "" {
		policy = "failure_policy: " + p.policy
	}
	if p.sha256 != "" {
		sha = "sha256: " + p.sha256
	}
	return indented(indent, fmt.Sprintf(`"@type": %s
config:
  name: %s
  %s
  vm_config:
    runtime: envoy.wasm.runtime.v8
    code:
      remote:
        http_uri: { uri: "%s" }
        %s
  configuration:
    "@type": type.googleapis.com/google.protobuf.StringValue
    value: '%s'
`, wasmType, p.name, policy, p.uri, sha, p.value))
}

// inline is the plugin written into a listener's http_filters.
func (p plugin) inline() string {
	return fmt.Sprintf("- name: %s\n  typed_config:\n%s", p.name, p.typedConfig(4))
}

// discovered is a filter that takes the plugin from an extension config.
func (p plugin) discovered(types ...string) string {
	if len(types) == 0 {
		types = []string{wasmType, rbacType}
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
