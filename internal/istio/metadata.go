package istio

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

const (
	metaPrefix     = "ISTIO_META_"
	metaJSONPrefix = "ISTIO_METAJSON_"
	staticLabels   = metaJSONPrefix + "LABELS"
)

// booleanKeys are node metadata that istiod reads as a boolean in a string. One bad value makes it drop the whole node.
var booleanKeys = []string{
	"DNS_CAPTURE", "DNS_AUTO_ALLOCATE", "ENABLE_HBONE", "DISABLE_HBONE_SEND", "INBOUND_LISTENER_EXACT_BALANCE",
	"OUTBOUND_LISTENER_EXACT_BALANCE", "METADATA_DISCOVERY", "ENVOY_SKIP_DEPRECATED_LOGS", "EXIT_ON_ZERO_ACTIVE_CONNECTIONS",
	"ENABLE_SELF_DISCOVERY",
}

// ownKeys are set from better knowledge than an ISTIO_META_ variable, or have a type that a variable cannot have.
var ownKeys = []string{
	"PROXY_CONFIG", "ANNOTATIONS", "STATIC_LABELS", "PLATFORM_METADATA", "INSTANCE_IPS", "PILOT_SAN",
	"ENVOY_STATUS_PORT", "ENVOY_PROMETHEUS_PORT", "EXIT_ON_ZERO_ACTIVE_CONNECTIONS", "METADATA_DISCOVERY",
}

// metadata is what istiod is told of this node. Its keys and their types are Istio's: booleans and lists are strings, maps and
// ports are not.
func (m *mapping) metadata(addresses []string) map[string]any {
	meta := m.rawMetadata()
	m.repairMetadata(meta)
	maps.Copy(meta, m.ownMetadata(addresses))
	m.addLabels(meta)
	return meta
}

// rawMetadata collects what users set. The order is Istio's: ProxyConfig, then plain variables, then those with JSON.
func (m *mapping) rawMetadata() map[string]any {
	meta := map[string]any{}
	for key, value := range m.proxy.GetProxyMetadata() {
		if name, ok := strings.CutPrefix(key, metaPrefix); ok {
			meta[name] = value
		}
	}
	for key, value := range m.in.Env {
		if name, ok := strings.CutPrefix(key, metaPrefix); ok && name != "" {
			meta[name] = value
		}
	}
	for _, key := range slices.Sorted(maps.Keys(m.in.Env)) {
		if !strings.HasPrefix(key, metaJSONPrefix) {
			continue
		}
		var members map[string]any
		if err := json.Unmarshal([]byte(m.in.Env[key]), &members); err != nil {
			m.warn("%s is not a JSON object: ignored", key)
			continue
		}
		maps.Copy(meta, members)
	}
	return meta
}

// repairMetadata brings what users set into the types that istiod expects, and leaves out what cannot be: istiod would drop it all.
func (m *mapping) repairMetadata(meta map[string]any) {
	for _, key := range ownKeys {
		delete(meta, key)
	}
	for _, key := range booleanKeys {
		text, isText := meta[key].(string)
		if meta[key] == nil || text == "" && isText {
			delete(meta, key)
			continue
		}
		on, err := strconv.ParseBool(text)
		if err != nil {
			m.warn("node metadata %s is not a boolean in a string: ignored", key)
			delete(meta, key)
			continue
		}
		meta[key] = strconv.FormatBool(on)
	}
	for _, key := range []string{"POD_PORTS", "APP_CONTAINERS", "REQUESTED_NETWORK_VIEW"} {
		if _, isText := meta[key].(string); meta[key] != nil && !isText {
			m.warn("node metadata %s is not a string: ignored", key)
			delete(meta, key)
		}
	}
	m.repairPorts(meta)
}

func (m *mapping) repairPorts(meta map[string]any) {
	text, ok := meta["POD_PORTS"].(string)
	if !ok {
		return
	}
	var ports []struct {
		Name          string `json:"name,omitempty"`
		ContainerPort int    `json:"containerPort"`
		Protocol      string `json:"protocol"`
	}
	delete(meta, "POD_PORTS")
	if strings.TrimSpace(text) == "" {
		return
	}
	if err := json.Unmarshal([]byte(text), &ports); err != nil {
		m.warn("ISTIO_META_POD_PORTS is not a list of ports in JSON: ignored")
		return
	}
	data, _ := json.Marshal(ports) // strings and numbers only
	meta["POD_PORTS"] = string(data)
}

// ownMetadata is what the agent knows itself.
func (m *mapping) ownMetadata(addresses []string) map[string]any {
	meta := map[string]any{
		"INSTANCE_IPS":          strings.Join(addresses, ","),
		"PROXY_CONFIG":          m.proxyConfigJSON(),
		"ENVOY_STATUS_PORT":     m.readyPort(),
		"ENVOY_PROMETHEUS_PORT": m.prometheusPort(),
		"CLUSTER_ID":            m.clusterID(),
		"METADATA_DISCOVERY":    strconv.FormatBool(m.discovery()),
		"ISTIO_VERSION":         m.metaText("ISTIO_VERSION", Version),
	}
	set := func(key, value string) {
		if value != "" {
			meta[key] = value
		}
	}
	if m.proxy.GetControlPlaneAuthPolicy() == meshv1alpha1.AuthenticationPolicy_MUTUAL_TLS {
		meta["PILOT_SAN"] = []any{hostOf(m.proxy.GetDiscoveryAddress())}
	}
	set("NAME", m.in.Env["POD_NAME"])
	set("NAMESPACE", m.in.Env["POD_NAMESPACE"])
	set("SERVICE_ACCOUNT", m.in.Env["SERVICE_ACCOUNT"])
	set("OUTLIER_LOG_PATH", m.in.Args.OutlierLogPath)
	if port := m.in.Args.STSPort; port != 0 {
		set("STS_PORT", strconv.Itoa(port))
	}
	set("WORKLOAD_IDENTITY_SOCKET_FILE", m.workloadSocket())
	for key, on := range map[string]bool{
		"EXIT_ON_ZERO_ACTIVE_CONNECTIONS": m.flag("EXIT_ON_ZERO_ACTIVE_CONNECTIONS"),
		"ENVOY_SKIP_DEPRECATED_LOGS":      m.skipDeprecated(),
		"credential":                      m.out.CredentialSocket != "",
	} {
		if on {
			meta[key] = "true"
		}
	}
	return meta
}

func (m *mapping) metaText(key, without string) string {
	if value := m.in.Env[metaPrefix+key]; value != "" {
		return value
	}
	if value := m.proxy.GetProxyMetadata()[metaPrefix+key]; value != "" {
		return value
	}
	return without
}

func (m *mapping) clusterID() string { return m.metaText("CLUSTER_ID", defaultClusterID) }

// proxyConfigJSON is the effective ProxyConfig; istiod reads tracing, topology and key providers from it.
func (m *mapping) proxyConfigJSON() any {
	data, err := protojson.Marshal(m.proxy)
	if err != nil {
		m.fail("ProxyConfig cannot be written as JSON: %w", err)
		return nil
	}
	var value any
	decoder := json.NewDecoder(bytes.NewReader(data))
	if err := decoder.Decode(&value); err != nil {
		m.fail("ProxyConfig cannot be written as JSON: %w", err)
	}
	return value
}

// addLabels adds labels and annotations. The files of the downward API win over the static labels.
func (m *mapping) addLabels(meta map[string]any) {
	labels := map[string]any{}
	if text := m.in.Env[staticLabels]; json.Valid([]byte(text)) { // else it was told: it is metadata too
		static := map[string]string{}
		if err := json.Unmarshal([]byte(text), &static); err != nil {
			m.warn("%s is not a JSON object of strings: ignored", staticLabels)
		} else if len(static) > 0 {
			meta["STATIC_LABELS"] = anyMap(static)
			labels = anyMap(static)
		}
	}
	maps.Copy(labels, anyMap(m.labels))
	delete(labels, templateHashLabel)
	if len(labels) > 0 {
		meta["LABELS"] = labels
	}
	if len(m.annotations) > 0 {
		meta["ANNOTATIONS"] = anyMap(m.annotations)
	}
}

func anyMap(values map[string]string) map[string]any {
	all := make(map[string]any, len(values))
	for key, value := range values {
		all[key] = value
	}
	return all
}
