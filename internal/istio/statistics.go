package istio

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Annotations that choose statistics.
const (
	extraTagsAnnotation  = "sidecar.istio.io/extraStatTags"
	prefixesAnnotation   = "sidecar.istio.io/statsInclusionPrefixes"
	suffixesAnnotation   = "sidecar.istio.io/statsInclusionSuffixes"
	regexpsAnnotation    = "sidecar.istio.io/statsInclusionRegexps"
	bucketsAnnotation    = "sidecar.istio.io/statsHistogramBuckets"
	compressedAnnotation = "sidecar.istio.io/statsCompression"
)

// Statistics that are kept whatever users choose: Istio's own metrics and what its dashboards show.
var (
	neededPrefixes = []string{
		"reporter=", "component", "istio", "cluster_manager", "listener_manager", "server", "cluster.xds-grpc", "wasm", "gateway_agent_",
	}
	neededSuffixes    = []string{"rbac.allowed", "rbac.denied", "shadow_allowed", "shadow_denied"}
	neededExpressions = []string{`vhost\..*\.route\..*`}
)

// mapStatistics chooses and labels Envoy's statistics as istiod's configuration and Istio's dashboards want them.
func (m *mapping) mapStatistics() {
	matcher := m.proxy.GetProxyStatsMatcher()
	m.out.Statistics = Statistics{
		Tags:        m.tags(),
		Prefixes:    m.chosen(prefixesAnnotation, matcher.GetInclusionPrefixes(), neededPrefixes),
		Suffixes:    m.chosen(suffixesAnnotation, matcher.GetInclusionSuffixes(), neededSuffixes),
		Expressions: m.chosen(regexpsAnnotation, matcher.GetInclusionRegexps(), neededExpressions),
		Buckets:     m.buckets(),
	}
	m.out.Runtime = m.runtime()
	if m.annotations[compressedAnnotation] != "" {
		m.warn("the annotation %s is ignored: the agent compresses what it serves on /stats/prometheus by itself", compressedAnnotation)
	}
}

// chosen: the annotation replaces ProxyConfig; what is needed comes on top.
func (m *mapping) chosen(annotation string, configured, needed []string) []string {
	if value := m.annotations[annotation]; value != "" {
		configured = list(value)
	}
	var all []string
	for _, pattern := range slices.Concat(configured, needed) {
		if !strings.Contains(pattern, "{pod_ip}") {
			all = append(all, pattern)
			continue
		}
		for _, address := range m.addresses() {
			all = append(all, strings.ReplaceAll(pattern, "{pod_ip}", address))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// address is what stands for one in a statistic's name: dotted, or with Envoy's underscores for colons. Newer istiods end their
// names with a semicolon, which says exactly where one ends.
const addressName = `[_.\d]+|[_\[\]a-fA-F\d]+|[^;]+?(?=;\.)`

// tags are the labels that Istio's dashboards know.
func (m *mapping) tags() []Tag {
	domain := regexp.QuoteMeta(m.clusterDomain())
	tags := []Tag{
		{"cluster_name", `^cluster\.(([^;]+(?=;\.)|[^;]+?(?:\.[^;]+?\.svc\.` + domain + `)?);?\.)`},
		{"tcp_prefix", `^tcp\.((.+?);?\.)\w+$`},
		{"response_code", `_rq(_(\d{3}))$`},
		{"response_code_class", `_rq(_(\dxx))$`},
		{"http_conn_manager_listener_prefix", `^listener\.(?:.*?\.)?http\.((` + addressName + `);?\.)`},
		{"http_conn_manager_prefix", `^http\.((` + addressName + `);?\.)`},
		{"listener_address", `^listener\.((` + addressName + `);?\.)`},
		{"mongo_prefix", `^mongo\.((.+?)\.)(?:collection|cmd|cx_|op_|delays_|decoding_)`},
		{"cache", `(cache\.(.+?)\.)`},
		{"component", `(component\.(.+?)\.)`},
		{"tag", `(tag\.(.+?);\.)`},
		{"wasm_filter", `(wasm_filter\.(.+?)\.)`},
		{"authz_enforce_result", `rbac(\.(allowed|denied))`},
		{"authz_dry_run_action", `(\.istio_dry_run_(allow|deny)_)`},
		{"authz_dry_run_result", `(\.shadow_(allowed|denied))`},
	}
	for _, name := range m.extraTags() {
		tags = append(tags, Tag{name, `(` + regexp.QuoteMeta(name) + `=\.=(.*?);\.;)`})
	}
	return tags
}

func (m *mapping) extraTags() []string {
	var names []string
	for _, name := range slices.Concat(m.proxy.GetExtraStatTags(), list(m.annotations[extraTagsAnnotation])) {
		if name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// clusterDomain is the domain of the cluster's services, the end of --domain.
func (m *mapping) clusterDomain() string {
	if _, domain, ok := strings.Cut(m.in.Args.Domain, ".svc."); ok && domain != "" {
		return domain
	}
	return clusterDomain
}

func (m *mapping) buckets() []Buckets {
	text := m.annotations[bucketsAnnotation]
	if text == "" {
		return nil
	}
	var byPrefix map[string][]float64
	if err := json.Unmarshal([]byte(text), &byPrefix); err != nil {
		m.warn("the annotation %s is not a JSON object of lists of numbers: ignored", bucketsAnnotation)
		return nil
	}
	var all []Buckets
	for _, prefix := range slices.Sorted(maps.Keys(byPrefix)) {
		if bounds := byPrefix[prefix]; len(bounds) > 0 {
			all = append(all, Buckets{Prefix: prefix, Bounds: bounds})
		}
	}
	return all
}

// runtime is Envoy's static runtime layer: pilot-agent's, with ProxyConfig's values over it. An empty value takes a default away.
func (m *mapping) runtime() map[string]any {
	all := map[string]any{
		"overload.global_downstream_max_connections":               "2147483647",
		"re2.max_program_size.error_level":                         "32768",
		"envoy.reloadable_features.http_reject_path_with_fragment": false,
	}
	for name, value := range m.proxy.GetRuntimeValues() {
		switch value {
		case "":
			delete(all, name)
		case "true", "false":
			all[name] = value == "true"
		default:
			all[name] = value
		}
	}
	return all
}
