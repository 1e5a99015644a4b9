package standalone

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const okListener = `static_resources:
  listeners:
  - name: l1
    address: { socket_address: { address: 127.0.0.1, port_value: 8080 } }
    filter_chains:
    - filters: [{ name: echo, typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.network.echo.v3.Echo } }]
`

// hcm is a listener l1 with what is given as the rest of its HTTP connection manager, from line 9 on.
func hcm(rest string) string {
	return `static_resources:
  listeners:
  - name: l1
    address: { socket_address: { address: 127.0.0.1, port_value: 8080 } }
    filter_chains:
    - filters:
      - name: hcm
        typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager, stat_prefix: x,
` + rest + "\n        }\n"
}

// TestBad: each mistake is reported with file, line and reason.
func TestBad(t *testing.T) {
	const router = `http_filters: [{ name: router, typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router } }]`
	const extra = "- \"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster\n  name: "
	tests := []struct {
		name  string
		files map[string]string
		want  []string
	}{
		{"empty directory", nil, []string{
			"/etc/edge: no listener in any /etc/edge/*.yaml|yml|json: put at least one under static_resources.listeners, or into a resources list with @type type.googleapis.com/envoy.config.listener.v3.Listener",
		}},
		{"syntax", map[string]string{"a.yaml": "static_resources:\n  listeners: [\n  - a: b\n", "b.yaml": hcm("route_config: { virtual_hosts: [{ name: a, domains: ['*'], routes: [{ match: { prefix: / }, route: { cluster: from-a } }] }] }")}, []string{
			"/etc/edge/a.yaml:3: not valid YAML: did not find expected node content",
		}},
		{"tab", map[string]string{"a.yaml": "static_resources:\n\tlisteners: []\n"}, []string{
			"/etc/edge/a.yaml:2: not valid YAML: found character that cannot start any token",
		}},
		{"JSON syntax", map[string]string{"a.json": "{\"static_resources\": {\n\"listeners\": [],\n}}"}, []string{
			"/etc/edge/a.json:3: not valid JSON: invalid character '}' looking for beginning of object key string",
		}},
		{"JSON cut", map[string]string{"a.json": "{\"static_resources\": {\n\"listeners\": ["}, []string{
			"/etc/edge/a.json:2: not valid JSON: the file ends too early",
		}},
		{"duplicate key", map[string]string{"a.yaml": okListener + "    name: l2\n"}, []string{
			`/etc/edge/a.yaml:7: key "name" is already given in line 3`,
		}},
		{"JSON duplicate key", map[string]string{"a.json": "{\n\"a\":1,\n\"a\":2}"}, []string{
			`/etc/edge/a.json:3: key "a" is already given in line 2`,
		}},
		{"not a document", map[string]string{"a.yaml": "- a\n- b\n", "b.yaml": "hello\n", "c.yaml": okListener}, []string{
			"/etc/edge/a.yaml:1: a document must be a mapping with static_resources or resources, not a list",
			"/etc/edge/b.yaml:1: a document must be a mapping with static_resources or resources, not a value",
		}},
		{"unknown top key", map[string]string{"a.yaml": okListener + "listener: []\n"}, []string{
			`/etc/edge/a.yaml:7: unknown field "listener": a document has static_resources (as in an envoy.yaml) or resources (a list with @type)`,
		}},
		{"unknown static key", map[string]string{"a.yaml": okListener + "  routes: []\n"}, []string{
			`/etc/edge/a.yaml:7: unknown field "routes" in static_resources: known are listeners, clusters and secrets`,
		}},
		{"unknown fields, all at once", map[string]string{"a.yaml": hcm("rout_config: {},\n" + router + ",\nroute_config: { virtual_hosts: [{ name: a, domans: ['*'] }] }")}, []string{
			`/etc/edge/a.yaml:9: unknown field "rout_config" in envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager (did you mean "route_config"?)`,
			`/etc/edge/a.yaml:11: unknown field "domans" in envoy.config.route.v3.VirtualHost (did you mean "domains"?)`,
		}},
		{"wrong types", map[string]string{"a.yaml": `static_resources:
  listeners:
  - name: 80
    address: []
    per_connection_buffer_limit_bytes: many
    drain_type: SOMETIMES
    use_original_dst: "maybe"
    filter_chains: {}
    metadata: { filter_metadata: { a: [1] } }
    listener_filters_timeout: 5
    tcp_backlog_size: -1
    stat_prefix: yes
`}, []string{
			`/etc/edge/a.yaml:3: name needs a string (write it in quotes), not the number 80`,
			`/etc/edge/a.yaml:4: envoy.config.core.v3.Address needs a mapping, not a list`,
			`/etc/edge/a.yaml:5: UInt32Value needs a whole number, not "many"`,
			`/etc/edge/a.yaml:6: drain_type needs one of DEFAULT, MODIFY_ONLY, not "SOMETIMES"`,
			`/etc/edge/a.yaml:7: BoolValue needs true or false, not "maybe"`,
			`/etc/edge/a.yaml:8: filter_chains needs a list, not a mapping`,
			`/etc/edge/a.yaml:9: google.protobuf.Struct needs a mapping, not a list`,
			`/etc/edge/a.yaml:10: google.protobuf.Duration needs seconds such as 5s or 0.25s, not the number 5`,
			`/etc/edge/a.yaml:11: UInt32Value needs a whole number from 0 to 4294967295, not the number -1`,
			`/etc/edge/a.yaml:12: stat_prefix needs a string (write it in quotes), not the boolean yes`,
		}},
		{"two of a oneof, two spellings", map[string]string{"a.yaml": hcm("route_config: { name: a },\nrds: { route_config_name: b },\nstatPrefix: y, " + router)}, []string{
			"/etc/edge/a.yaml:10: route_config and rds cannot both be given",
			"/etc/edge/a.yaml:11: stat_prefix is given twice, in two spellings",
		}},
		{"missing required", map[string]string{"a.yaml": "static_resources:\n  clusters:\n  - type: STATIC\n  listeners:\n  - name: l1\n    address:\n      socket_address: { address: 127.0.0.1 }\n    filter_chains:\n    - filters:\n      - typed_config:\n          \"@type\": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy\n          stat_prefix: \"\"\n"}, []string{
			"/etc/edge/a.yaml:3: name in envoy.config.cluster.v3.Cluster must not be empty",
			"/etc/edge/a.yaml:7: one of port_value, named_port in envoy.config.core.v3.SocketAddress is required",
			"/etc/edge/a.yaml:10: name in envoy.config.listener.v3.Filter must not be empty",
			"/etc/edge/a.yaml:11: one of cluster, weighted_clusters in envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy is required",
			"/etc/edge/a.yaml:12: stat_prefix in envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy must not be empty",
		}},
		{"@type", map[string]string{"a.yaml": "resources:\n- name: x\n- \"@type\": type.googleapis.com/envoy.api.v2.Listener\n- \"@type\": type.googleapis.com/acme.Filter\n- \"@type\": type.googleapis.com/envoy.config.endpoint.v3.Endpoint\n- text\n"}, []string{
			`/etc/edge/a.yaml:2: "@type" is missing: it says which message this is, as in "@type": type.googleapis.com/envoy.…`,
			`/etc/edge/a.yaml:3: unknown @type "type.googleapis.com/envoy.api.v2.Listener": Envoy no longer has its v2 API; use the v3 name`,
			`/etc/edge/a.yaml:4: unknown @type "type.googleapis.com/acme.Filter": it is not in the Envoy API that this agent knows`,
			`/etc/edge/a.yaml:5: envoy.config.endpoint.v3.Endpoint cannot be a resource here: known are Listener, RouteConfiguration, Cluster, ClusterLoadAssignment, TypedExtensionConfig and Secret`,
			`/etc/edge/a.yaml:6: needs a mapping with @type, not "text"`,
		}},
		{"duplicate names", map[string]string{"a.yaml": okListener, "b.yaml": strings.ReplaceAll(okListener, "8080", "8081"), "c.yaml": "resources:\n" + extra + "c\n" + extra + "c\n"}, []string{
			"/etc/edge/b.yaml:3: listener l1: this name is already used in /etc/edge/a.yaml:3; Envoy would silently take only one of them",
			"/etc/edge/c.yaml:4: cluster c: this name is already used in /etc/edge/c.yaml:2; Envoy would silently take only one of them",
		}},
		{"same address", map[string]string{"a.yaml": okListener, "b.yaml": strings.ReplaceAll(okListener, "name: l1", "name: l2")}, []string{
			"/etc/edge/b.yaml:4: listener l2: address 127.0.0.1:8080 is already taken by listener l1 (/etc/edge/a.yaml:3)",
		}},
		{"dangling", map[string]string{"a.yaml": hcm(router + `,
route_config: { virtual_hosts: [{ name: a, domains: ['*'], routes: [
{ match: { prefix: /a }, route: { cluster: none1, request_mirror_policies: [{ cluster: none2 }] } },
{ match: { prefix: /b }, route: { weighted_clusters: { clusters: [{ name: none3, weight: 1 }] } } },
{ match: { prefix: /c }, route: { cluster_header: h } },
{ match: { prefix: /d }, route: { cluster: prometheus_stats } },
{ match: { prefix: /e }, route: { cluster: c1 } } ] }] }`), "b.yaml": `static_resources:
  clusters:
  - name: c1
    type: EDS
    eds_cluster_config: { eds_config: { ads: {} } }
  - name: c2
    type: STATIC
    transport_socket:
      name: tls
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
        common_tls_context:
          tls_certificate_sds_secret_configs: [{ name: none5 }]
  - name: sds-grpc
  listeners:
  - name: l2
    address: { socket_address: { address: 127.0.0.1, port_value: 8081 } }
    filter_chains:
    - filters:
      - name: none6
        config_discovery: { config_source: { ads: {} }, type_urls: [x] }
      - name: hcm
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: x
          rds: { route_config_name: none7, config_source: { ads: {} } }
`}, []string{
			`/etc/edge/a.yaml:11: listener l1: cluster "none1" does not exist in /etc/edge`,
			`/etc/edge/a.yaml:11: listener l1: cluster "none2" does not exist in /etc/edge`,
			`/etc/edge/a.yaml:12: listener l1: cluster "none3" does not exist in /etc/edge`,
			`/etc/edge/b.yaml:5: cluster c1: endpoints "c1" does not exist in /etc/edge`,
			`/etc/edge/b.yaml:13: cluster c2: secret "none5" does not exist in /etc/edge`,
			`/etc/edge/b.yaml:14: cluster sds-grpc: this name is used by the agent itself: choose another one`,
			`/etc/edge/b.yaml:20: listener l2: extension config "none6" does not exist in /etc/edge`,
			`/etc/edge/b.yaml:26: listener l2: route configuration "none7" does not exist in /etc/edge`,
		}},
		{"the agent's own names", map[string]string{"a.yaml": strings.ReplaceAll(okListener, "l1", "gateway_agent_prometheus")}, []string{
			"/etc/edge/a.yaml:3: listener gateway_agent_prometheus: this name is used by the agent itself: choose another one",
		}},
		{"a secret of the wrong kind", map[string]string{
			"a.yaml": okListener,
			"b.yaml": `resources:
- "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret
  name: pair
  tls_certificate: { certificate_chain: { filename: /c }, private_key: { filename: /k } }
- "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret
  name: ca
  validation_context: { trusted_ca: { filename: /ca } }
- "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
  name: c1
  transport_socket:
    name: tls
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
      common_tls_context:
        tls_certificate_sds_secret_configs:
        - name: ca
        validation_context_sds_secret_config:
          name: pair
`,
		}, []string{
			`/etc/edge/b.yaml:16: cluster c1: secret "ca" is no tls_certificate, which is wanted here`,
			`/etc/edge/b.yaml:18: cluster c1: secret "pair" is no validation_context, which is wanted here: Envoy would verify no peer with it`,
		}},
		{"explicitly not validated", map[string]string{"a.yaml": hcm(router + ", route_config: { validate_clusters: false, virtual_hosts: [{ name: a, domains: ['*'], routes: [{ match: { prefix: / }, route: { cluster: later } }] }] }")}, nil},
		{"Wasm references", map[string]string{"a.yaml": hcm(`route_config: {}, http_filters: [
{ name: a, typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm, config: { vm_config: { code: { remote: { http_uri: { uri: "ftp://x/y" } } } } } } },
{ name: b, typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm, config: { vm_config: { code: { remote: { http_uri: { uri: "oci://Registry/A B" } } } } } } },
{ name: c, typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm, config: { vm_config: { code: { remote: { http_uri: { uri: "oci://r/b" }, sha256: "12" } } } } } },
{ name: d, typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm, config: { vm_config: { code: { remote: { http_uri: { } } } } } } },
{ name: e, typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm, config: { vm_config: { code: {} } } } }],
access_log: [{ name: w, typed_config: { "@type": type.googleapis.com/envoy.extensions.access_loggers.wasm.v3.WasmAccessLog, config: { vm_config: { code: {
remote: { http_uri: { uri: "oci://r/b" } } } } } } }]`)}, []string{
			`/etc/edge/a.yaml:13: uri in envoy.config.core.v3.HttpUri must not be empty`,
			`/etc/edge/a.yaml:14: one of local, remote in envoy.config.core.v3.AsyncDataSource is required`,
		}},
		{"Wasm references 2", map[string]string{"a.yaml": hcm(`route_config: {}, http_filters: [
{ name: a, typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm, config: { vm_config: { code: { remote: { http_uri: { uri: "ftp://x/y" } } } } } } },
{ name: b, typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm, config: { vm_config: { code: { remote: { http_uri: { uri: "oci://Registry/A B" } } } } } } },
{ name: c, typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm, config: { vm_config: { code: { remote: { http_uri: { uri: "oci://r/b" }, sha256: "12" } } } } } }],
access_log: [{ name: w, typed_config: { "@type": type.googleapis.com/envoy.extensions.access_loggers.wasm.v3.WasmAccessLog, config: { vm_config: { code: {
remote: { http_uri: { uri: "oci://r/b" } } } } } } }]`)}, []string{
			`/etc/edge/a.yaml:10: listener l1: "ftp://x/y" is not where a module can be pulled from: write oci://host/repository:tag, https://… or http://…`,
			`/etc/edge/a.yaml:11: listener l1: "oci://Registry/A B" is not an image: write oci://host/repository:tag or oci://host/repository@sha256:… (could not parse reference: Registry/A B)`,
			`/etc/edge/a.yaml:12: listener l1: sha256 needs 64 hexadecimal digits, not "12"`,
			`/etc/edge/a.yaml:14: listener l1: remote Wasm can be used here only as Envoy fetches it (http, with cluster, timeout and sha256): the agent pulls modules of listeners' HTTP and network filters and of extension configs`,
		}},
		{"other remote code keeps Envoy's rules", map[string]string{"a.yaml": hcm(`route_config: {}, http_filters: [{ name: jwt, typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication,
providers: { p: { remote_jwks: { http_uri: { uri: "https://x/y" } } } } } }]`)}, []string{
			`/etc/edge/a.yaml:10: cluster in envoy.config.core.v3.HttpUri is required`,
			`/etc/edge/a.yaml:10: timeout in envoy.config.core.v3.HttpUri is required`,
		}},
		{"alias bomb", map[string]string{"a.yaml": bomb()}, []string{
			"/etc/edge/a.yaml:1: the configuration has too many values (YAML aliases are counted each time they are used): split or simplify it",
		}},
		{"anchor in itself", map[string]string{"a.yaml": "static_resources: &a\n  listeners: [*a]\n"}, []string{
			`/etc/edge/a.yaml:2: anchor "a" contains itself`,
		}},
		{"deep", map[string]string{"a.yaml": strings.Repeat("[", 500) + strings.Repeat("]", 500), "b.yaml": strings.Repeat("[", 1000000), "c.json": strings.Repeat("[", 1000000)}, []string{
			"/etc/edge/a.yaml:1: nested too deeply (more than 400 levels)",
			"/etc/edge/b.yaml: not valid YAML: exceeded max depth of 10000",
			"/etc/edge/c.json:1: nested too deeply (more than 400 levels)",
		}},
		{"no name", map[string]string{"a.yaml": okListener, "b.yaml": "resources:\n- \"@type\": type.googleapis.com/envoy.config.route.v3.RouteConfiguration\n"}, []string{
			"/etc/edge/b.yaml:2: a route configuration needs a name",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := loadDir(t, write(t, tt.files))
			var got []string
			for _, p := range c.problems {
				got = append(got, p.Error())
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("load(%v): problems differ (-want +got):\n%s", tt.files, diff)
			}
		})
	}
}

// bomb would have 10^9 values.
func bomb() string {
	var b strings.Builder
	b.WriteString("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n")
	for i := 1; i < 9; i++ {
		prev := "*a" + strconv.Itoa(i-1)
		b.WriteString("a" + strconv.Itoa(i) + ": &a" + strconv.Itoa(i) + " [" + strings.Repeat(prev+", ", 9) + prev + "]\n")
	}
	return b.String()
}

// TestUnreadable: what cannot be read is a problem that names the file; what is not configuration is left alone.
func TestUnreadable(t *testing.T) {
	dir := write(t, map[string]string{"a.yaml": okListener, ".hidden.yaml": "[", "a.yaml~": "[", "#a.yaml#": "[", ".#a.yaml": "[", "README.md": "[", "a.yaml.swp": "["})
	if c := loadDir(t, dir); len(c.problems) > 0 || len(c.resources) != 1 {
		t.Fatalf("load: %d resources, problems %v; want 1 and none", len(c.resources), c.problems)
	}
	if err := os.Symlink("/does/not/exist", filepath.Join(dir, "dangling.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "dir.json"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo.yml"), 0o644); err != nil {
		t.Fatal(err)
	}
	put(t, dir, "large.yaml", strings.Repeat("#", maxFile+1))
	var got []string
	for _, p := range loadDir(t, dir).problems {
		got = append(got, p.Error())
	}
	want := []string{
		"/etc/edge/dangling.yaml: cannot be read: no such file or directory",
		"/etc/edge/dir.json: is not a regular file: move it elsewhere, or rename it",
		"/etc/edge/fifo.yml: is not a regular file: move it elsewhere, or rename it",
		"/etc/edge/large.yaml: is too large: a file may have 16 MiB, all files together 64 MiB",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("problems differ (-want +got):\n%s", diff)
	}
}
