package istio

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	"sigs.k8s.io/yaml"
)

type proxyConfig = meshv1alpha1.ProxyConfig

// Annotations of the pod; the last two win over all of ProxyConfig's sources.
const (
	proxyConfigAnnotation = "proxy.istio.io/config"
	discoveryAnnotation   = "sidecar.istio.io/discoveryAddress"
	statusPortAnnotation  = "status.sidecar.istio.io/port"
)

// defaultProxyConfig has pilot-agent's defaults.
func defaultProxyConfig() *proxyConfig {
	return &proxyConfig{
		ConfigPath:               configDir,
		BinaryPath:               "/usr/local/bin/envoy",
		ClusterName:              &meshv1alpha1.ProxyConfig_ServiceCluster{ServiceCluster: defaultServiceCluster},
		DrainDuration:            durationpb.New(45 * time.Second),
		TerminationDrainDuration: durationpb.New(5 * time.Second),
		DiscoveryAddress:         "istiod.istio-system.svc:15012",
		ProxyAdminPort:           15000,
		StatusPort:               15020,
		StatNameLength:           189,
		ControlPlaneAuthPolicy:   meshv1alpha1.AuthenticationPolicy_MUTUAL_TLS,
	}
}

// mapProxyConfig lays the sources over each other: defaults, mesh file, PROXY_CONFIG, the pod's annotation.
func (m *mapping) mapProxyConfig() {
	m.proxy = defaultProxyConfig()
	if cluster := m.in.Args.ServiceCluster; cluster != "" {
		m.proxy.ClusterName = &meshv1alpha1.ProxyConfig_ServiceCluster{ServiceCluster: cluster}
	}
	if text, ok := m.file("--meshConfig", m.in.Args.MeshConfig); ok {
		m.mesh("--meshConfig "+m.in.Args.MeshConfig, text)
	}
	m.layer("the environment variable PROXY_CONFIG", m.in.Env["PROXY_CONFIG"])
	m.layer("the pod's annotation "+proxyConfigAnnotation, m.annotations[proxyConfigAnnotation])
	m.finishProxyConfig()
	m.checkProxyConfig()
}

// finishProxyConfig fills in what other places say, so that istiod is told what holds.
func (m *mapping) finishProxyConfig() {
	if name, ok := m.proxy.GetClusterName().(*meshv1alpha1.ProxyConfig_ServiceCluster); ok && name.ServiceCluster == "" {
		name.ServiceCluster = cmp.Or(m.in.Args.ServiceCluster, defaultServiceCluster)
	}
	if n := m.in.Args.Concurrency; n != 0 {
		m.proxy.Concurrency = wrapperspb.Int32(int32(max(-1, min(n, math.MaxInt32))))
	} else if limit := m.number("ISTIO_CPU_LIMIT", 0, 0, 1<<16); m.proxy.GetConcurrency() == nil && limit > 0 {
		m.proxy.Concurrency = wrapperspb.Int32(int32(limit))
	}
	if address, ok := m.annotations[discoveryAnnotation]; ok {
		m.proxy.DiscoveryAddress = address
	}
	if text, ok := m.annotations[statusPortAnnotation]; ok {
		port, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			m.warn("the pod's annotation %s=%q is not a port: %d is used", statusPortAnnotation, text, m.proxy.GetStatusPort())
		} else {
			m.proxy.StatusPort = int32(port)
		}
	}
	m.proxy.DiscoveryAddress = strings.TrimSpace(m.proxy.GetDiscoveryAddress())
}

// checkProxyConfig refuses what cannot be, under the name that it has for who wrote it.
func (m *mapping) checkProxyConfig() {
	if port := m.proxy.GetProxyAdminPort(); port < 0 || port > 65535 {
		m.fail("ProxyConfig proxyAdminPort %d: want a port from 1 to 65535, or 0 for a unix socket", port)
	}
	if port := m.proxy.GetStatusPort(); port < 1 || port > 65535 {
		m.fail("ProxyConfig statusPort %d: want a port from 1 to 65535, the readiness listener asks there", port)
	}
	if d := m.proxy.GetDrainDuration().AsDuration(); d >= 0 && d < time.Second {
		m.warn("ProxyConfig drainDuration %v is less than a second: 1s is used", d)
	}
	for field, d := range map[string]*durationpb.Duration{
		"drainDuration": m.proxy.GetDrainDuration(), "terminationDrainDuration": m.proxy.GetTerminationDrainDuration(),
	} {
		if d.AsDuration() < 0 {
			m.fail("ProxyConfig %s %v: it cannot be negative", field, d.AsDuration())
		}
	}
}

// mesh takes defaultConfig out of a mesh configuration; the rest is istiod's.
func (m *mapping) mesh(what, text string) {
	mesh := &meshv1alpha1.MeshConfig{}
	document, ok := m.parse(what, text, mesh)
	if !ok {
		return
	}
	for _, name := range []string{"defaultConfig", "default_config"} {
		if raw, ok := document[name]; ok {
			overlay(m.proxy, mesh.GetDefaultConfig(), members(raw))
		}
	}
}

func (m *mapping) layer(what, text string) {
	if strings.TrimSpace(text) == "" {
		return
	}
	layer := &proxyConfig{}
	if document, ok := m.parse(what, text, layer); ok {
		overlay(m.proxy, layer, document)
	}
}

// parse reads a YAML or JSON object into a message. Fields that this Istio does not know are told and left out.
func (m *mapping) parse(what, text string, into proto.Message) (map[string]json.RawMessage, bool) {
	document, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		m.fail("%s is not YAML: %w", what, err)
		return nil, false
	}
	if string(document) == "null" {
		return nil, true // an empty file, only comments
	}
	document = inSeconds(into.ProtoReflect().Descriptor(), document)
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(document, into); err != nil {
		m.fail("%s cannot be read: %w", what, err)
		return nil, false
	}
	odd := findOddities(into.ProtoReflect().Descriptor(), document)
	for _, name := range odd.fields {
		m.warn("%s has a field that Istio %s does not know, it is ignored: %s", what, Version, name)
	}
	for _, value := range odd.values {
		m.fail("%s has a value that Istio %s does not know: %s", what, Version, value)
	}
	return members(document), true
}

// members are the fields of a JSON object, by name; none of anything else.
func members(document []byte) map[string]json.RawMessage {
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(document, &fields)
	return fields
}

// overlay replaces in base each field that the document names, zero values too, as pilot-agent does; only proxyMetadata and
// proxyHeaders are merged member by member.
func overlay(base, layer *proxyConfig, document map[string]json.RawMessage) {
	metadata, headers := maps.Clone(base.GetProxyMetadata()), base.GetProxyHeaders()
	to, from := base.ProtoReflect(), layer.ProtoReflect()
	for name, raw := range document {
		field := fieldNamed(to.Descriptor(), name)
		switch {
		case field == nil || string(raw) == "null":
		case from.Has(field):
			to.Set(field, from.Get(field))
		default:
			to.Clear(field)
		}
	}
	if len(metadata) > 0 && len(layer.GetProxyMetadata()) > 0 {
		maps.Copy(metadata, layer.GetProxyMetadata())
		base.ProxyMetadata = metadata
	}
	if headers != nil && base.GetProxyHeaders() != nil && base.GetProxyHeaders() != headers {
		keepHeaders(base.GetProxyHeaders(), headers)
	}
}

// fieldNamed is the field that a member of a JSON object is; nil: none.
func fieldNamed(message protoreflect.MessageDescriptor, name string) protoreflect.FieldDescriptor {
	return cmp.Or(message.Fields().ByJSONName(name), message.Fields().ByTextName(name))
}

// keepHeaders fills in those of an earlier layer. pilot-agent does so for these and for no other members.
func keepHeaders(to, from *meshv1alpha1.ProxyConfig_ProxyHeaders) {
	to.ForwardedClientCert = cmp.Or(to.GetForwardedClientCert(), from.GetForwardedClientCert())
	to.RequestId = cmp.Or(to.GetRequestId(), from.GetRequestId())
	to.AttemptCount = cmp.Or(to.GetAttemptCount(), from.GetAttemptCount())
	to.Server = cmp.Or(to.GetServer(), from.GetServer())
	to.EnvoyDebugHeaders = cmp.Or(to.GetEnvoyDebugHeaders(), from.GetEnvoyDebugHeaders())
}

// file reads a file that may be absent.
func (m *mapping) file(what, path string) (string, bool) {
	if path == "" {
		return "", false
	}
	data, err := m.in.ReadFile(m.abs(path))
	if errors.Is(err, fs.ErrNotExist) {
		return "", false
	}
	if err != nil {
		m.warn("%s cannot be read and is left out: %v", what, err)
		return "", false
	}
	return string(data), true
}

// mapFiles reads what the downward API mounts.
func (m *mapping) mapFiles() {
	for path, into := range map[string]*map[string]string{podLabels: &m.labels, podAnnotations: &m.annotations} {
		text, ok := m.file(path, path)
		if !ok {
			continue
		}
		values, err := parseDownward(text)
		if err != nil {
			m.warn("%s: %v: the rest of the file is left out", path, err)
		}
		*into = values
	}
}

// parseDownward reads the downward API's lines, key="value" with Go's escapes. What came before a bad line is returned with the error.
func parseDownward(text string) (map[string]string, error) {
	values := map[string]string{}
	number := 0
	for line := range strings.Lines(text) {
		number++
		key, quoted, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok {
			continue
		}
		value, err := strconv.Unquote(quoted)
		if err != nil {
			return values, fmt.Errorf("line %d: %s has no quoted value", number, key)
		}
		values[key] = value
	}
	return values, nil
}
