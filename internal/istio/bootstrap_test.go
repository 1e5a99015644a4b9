package istio

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

// What pilot-agent's bootstrap has besides the default one, and what becomes of values that cannot be.
func TestBootstrapSettings(t *testing.T) {
	env := func(pairs ...string) func(*pod) {
		return func(p *pod) {
			for i := 0; i < len(pairs); i += 2 {
				p.env[pairs[i]] = pairs[i+1]
			}
		}
	}
	config := func(text string) func(*pod) { return env("PROXY_CONFIG", text) }
	note := func(lines string) func(*pod) {
		return func(p *pod) { p.files["/etc/istio/pod/annotations"] = lines }
	}
	const most = "ISTIO_META_GLOBAL_DOWNSTREAM_MAX_CONNECTIONS"
	for name, tt := range map[string]struct {
		change func(*pod)
		is     func(Settings) bool
		warn   string
	}{
		"secure ports": {
			env("ENVOY_SECURE_METRICS_PORT", "15091", "ENVOY_SECURE_MERGED_METRICS_PORT", "15092"),
			func(s Settings) bool {
				return s.SecurePrometheusAddress == "0.0.0.0:15091" && s.SecureMetricsAddress == "0.0.0.0:15092"
			},
			"",
		},
		"no secure port": {env("ENVOY_SECURE_METRICS_PORT", "70000"), func(s Settings) bool { return s.SecurePrometheusAddress == "" }, "ENVOY_SECURE_METRICS_PORT"},
		"two families":   {env("ISTIO_DUAL_STACK", "true"), func(s Settings) bool { return s.DualStack }, ""},
		"one family": {
			func(p *pod) {
				p.env["ISTIO_DUAL_STACK"] = "true"
				p.faces = []Interface{{Name: "eth0", Addresses: addresses("10.1.2.3")}}
			},
			func(s Settings) bool { return !s.DualStack }, "",
		},
		"proxy protocol":      {env("ENVOY_STATUS_PORT_ENABLE_PROXY_PROTOCOL", "true"), func(s Settings) bool { return s.ReadyProxyProtocol }, ""},
		"compression":         {config("{}"), func(s Settings) bool { return !s.PlainMetrics }, ""},
		"no compression":      {config("statsCompression: false"), func(s Settings) bool { return s.PlainMetrics }, ""},
		"metrics on loopback": {config("proxyMetadata: {METRICS_LOCALHOST_ACCESS_ONLY: 'true'}"), func(s Settings) bool { return s.PrometheusAddress == "127.0.0.1:15090" }, ""},
		"most connections":    {config("proxyMetadata: {" + most + ": '70'}"), func(s Settings) bool { return s.MaxConnections == 70 }, ""},
		"most connections, runtime": {
			config("runtimeValues: {overload.global_downstream_max_connections: '71'}"), func(s Settings) bool { return s.MaxConnections == 71 }, "",
		},
		"no most connections": {env(most, "many"), func(s Settings) bool { return s.MaxConnections == mostConnections }, most},
		"override": {
			func(p *pod) { p.env[overrideVariable] = "o.json"; p.files["/o.json"] = "{}" },
			func(s Settings) bool {
				return slices.Equal(s.Overlays, []string{"/o.json"}) && s.HostIP == "192.168.0.9"
			}, "",
		},
		"no override":   {env(overrideVariable, "/none"), func(s Settings) bool { return s.Overlays == nil }, overrideVariable + "=/none cannot be read"},
		"zones":         {env("ISTIO_META_ENABLE_SELF_DISCOVERY", "true"), func(s Settings) bool { return s.LocalCluster }, ""},
		"load reports":  {env("ISTIO_META_LOAD_STATS_CONFIG_JSON", "{}"), func(s Settings) bool { return s.LoadReports == "{}" }, ""},
		"no reports":    {env("ISTIO_META_LOAD_STATS_CONFIG_JSON", "}, {"), func(s Settings) bool { return s.LoadReports == "" }, "LOAD_STATS_CONFIG_JSON is not JSON"},
		"ambient":       {env("ISTIO_META_ENABLE_HBONE", "true"), discovered, ""},
		"discovery":     {env("PEER_METADATA_DISCOVERY", "true"), discovered, ""},
		"no discovery":  {env("ISTIO_META_ENABLE_HBONE", "true", "PEER_METADATA_DISCOVERY", "false"), func(s Settings) bool { return !discovered(s) }, ""},
		"flush":         {note(flushAnnotation + "=\"1m\"\n" + evictionAnnotation + "=\"5m\"\n"), times(time.Minute, 5*time.Minute), ""},
		"eviction":      {note(evictionAnnotation + "=\"10s\"\n"), times(0, 10*time.Second), ""},
		"odd eviction":  {note(evictionAnnotation + "=\"7s\"\n"), times(0, 0), "no multiple of the flush interval 5s"},
		"long flush":    {note(flushAnnotation + "=\"5m\"\n"), times(0, 0), flushAnnotation},
		"no duration":   {note(flushAnnotation + "=\"soon\"\n"), times(0, 0), `"soon", which is not a duration`},
		"negative time": {note(flushAnnotation + "=\"-5s\"\n"), times(0, 0), "not a duration"},
		"client's files": {
			func(p *pod) {
				p.env["ISTIO_META_TLS_CLIENT_ROOT_CERT"], p.env["ISTIO_META_TLS_CLIENT_KEY"] = "/m/ca", "/m/k"
				p.env["PROXY_CONFIG"] = "envoyMetricsService: {address: 'a:1', tlsSettings: {mode: MUTUAL, clientCertificate: /c, privateKey: /k, caCertificates: /ca}}"
			},
			func(s Settings) bool {
				tls := s.Telemetry.MetricsService.TLS
				return tls.RootFile == "/m/ca" && tls.CertFile == "/c" && tls.KeyFile == "/m/k"
			}, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, warnings, err := try(t, tt.change)
			if err != nil || !tt.is(s) {
				t.Errorf("Map = %+v, %v", s, err)
			}
			if all := strings.Join(warnings, "\n"); (all != "") != (tt.warn != "") || !strings.Contains(all, tt.warn) || len(warnings) > 1 {
				t.Errorf("warnings %q, want one with %q", warnings, tt.warn)
			}
		})
	}
}

func discovered(s Settings) bool {
	return s.Discovery && s.Metadata["METADATA_DISCOVERY"] == "true" && slices.Contains(s.Statistics.Prefixes, discoveryPrefix)
}

func times(flush, eviction time.Duration) func(Settings) bool {
	return func(s Settings) bool { return s.Statistics.Flush == flush && s.Statistics.Eviction == eviction }
}

// pilot-agent reads durations as Go writes them, anywhere in ProxyConfig.
func TestDurations(t *testing.T) {
	s := must(t, func(p *pod) {
		p.env["PROXY_CONFIG"] = "{drainDuration: 1m, terminationDrainDuration: 1500ms, privateKeyProvider: {cryptomb: {pollDelay: 1ms}}}"
		p.files["/etc/istio/config/mesh"] = "{connectTimeout: 1m, defaultConfig: {fileFlushInterval: 2m30s, binaryPath: 5m}}"
	})
	if s.ListenerDrain != time.Minute || s.DrainDelay != 1500*time.Millisecond || s.Envoy != "/5m" || !slices.Contains(s.EnvoyArgs, "150000") {
		t.Errorf("drain %v and %v, binary %s, arguments %q", s.ListenerDrain, s.DrainDelay, s.Envoy, s.EnvoyArgs)
	}
	message := (&meshv1alpha1.MeshConfig{}).ProtoReflect().Descriptor()
	for _, document := range []string{"", "null", "5", "[]", `"1m"`, `{"connectTimeout": 5, "x": "1m"}`, `{"connectTimeout": "1d", "defaultConfig": [1], "extensionProviders": {}}`} {
		var want, got meshv1alpha1.MeshConfig
		read := protojson.UnmarshalOptions{DiscardUnknown: true}
		before, after := read.Unmarshal([]byte(document), &want), read.Unmarshal(inSeconds(message, []byte(document)), &got)
		if (before == nil) != (after == nil) {
			t.Errorf("%s: %v before, %v after", document, before, after)
		}
	}
}

func TestWithHostIP(t *testing.T) {
	const text = `a: $(HOST_IP):1, b: "[$(HOST_IP)]:2"`
	for address, want := range map[string]string{
		"10.0.0.1": `a: 10.0.0.1:1, b: "[10.0.0.1]:2"`,
		"fd00::1":  `a: [fd00::1]:1, b: "[fd00::1]:2"`,
		"":         `a: :1, b: "[]:2"`,
	} {
		if got := string(WithHostIP([]byte(text), address)); got != want {
			t.Errorf("WithHostIP(%q) = %s, want %s", address, got, want)
		}
	}
}
