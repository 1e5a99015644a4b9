package istio

import (
	"cmp"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Annotations that choose statistics.
const (
	extraTagsAnnotation = "sidecar.istio.io/extraStatTags"
	prefixesAnnotation  = "sidecar.istio.io/statsInclusionPrefixes"
	suffixesAnnotation  = "sidecar.istio.io/statsInclusionSuffixes"
	regexpsAnnotation   = "sidecar.istio.io/statsInclusionRegexps"
	bucketsAnnotation   = "sidecar.istio.io/statsHistogramBuckets"
	flushAnnotation     = "sidecar.istio.io/statsFlushInterval"
	evictionAnnotation  = "sidecar.istio.io/statsEvictionInterval"
)

// Statistics that are kept whatever users choose: Istio's own metrics and what its dashboards show.
var (
	neededPrefixes = []string{
		"reporter=", "component", "istio", "cluster_manager", "listener_manager", "server", "cluster.xds-grpc", "wasm", "gateway_agent_",
	}
	neededSuffixes    = []string{"rbac.allowed", "rbac.denied", "shadow_allowed", "shadow_denied"}
	neededExpressions = []string{`vhost\..*\.route\..*`}
)

const discoveryPrefix = "workload_discovery"

// mapStatistics chooses and labels Envoy's statistics as istiod's configuration and Istio's dashboards want them.
func (m *mapping) mapStatistics() {
	matcher := m.proxy.GetProxyStatsMatcher()
	prefixes := neededPrefixes
	if m.out.Discovery {
		prefixes = append(slices.Clone(prefixes), discoveryPrefix)
	}
	m.out.Statistics = Statistics{
		Tags:        m.tags(),
		Prefixes:    m.chosen(prefixesAnnotation, matcher.GetInclusionPrefixes(), prefixes),
		Suffixes:    m.chosen(suffixesAnnotation, matcher.GetInclusionSuffixes(), neededSuffixes),
		Expressions: m.chosen(regexpsAnnotation, matcher.GetInclusionRegexps(), neededExpressions),
		Buckets:     m.buckets(),
	}
	m.statisticsTimes()
	m.out.Runtime = m.runtime()
}

// Envoy's own interval, and what it accepts.
const (
	defaultFlush = 5 * time.Second
	leastFlush   = time.Millisecond
	mostFlush    = 5 * time.Minute // less than this
)

func (m *mapping) statisticsTimes() {
	s := &m.out.Statistics
	s.Flush = m.annotatedTime(flushAnnotation)
	if s.Flush != 0 && (s.Flush < leastFlush || s.Flush >= mostFlush) {
		m.warn("the annotation %s is %v, Envoy wants 1ms or more, and less than 5m: ignored", flushAnnotation, s.Flush)
		s.Flush = 0
	}
	flush := cmp.Or(s.Flush, defaultFlush)
	if s.Eviction = m.annotatedTime(evictionAnnotation); s.Eviction%flush != 0 {
		m.warn("the annotation %s is %v, which is no multiple of the flush interval %v: ignored", evictionAnnotation, s.Eviction, flush)
		s.Eviction = 0
	}
}

func (m *mapping) annotatedTime(annotation string) time.Duration {
	text := m.annotations[annotation]
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		m.warn("the annotation %s is %q, which is not a duration such as 10s: ignored", annotation, text)
		return 0
	}
	return d
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
		{"thread_name", `^server(\.(.+))\.watchdog`},
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

// CoalesceGuard is a runtime value that Envoy has since 1.38; an older one takes it for a bug of its own.
const CoalesceGuard = "envoy.reloadable_features.coalesce_lb_rebuilds_on_batch_update"

// runtime is Envoy's static runtime layer: pilot-agent's, with ProxyConfig's values over it. An empty value takes a default away.
func (m *mapping) runtime() map[string]any {
	all := map[string]any{
		"re2.max_program_size.error_level":                         "32768",
		"envoy.reloadable_features.http_reject_path_with_fragment": false,
		"envoy.reloadable_features.fixed_heap_use_allocated":       true,
		CoalesceGuard: false, // https://github.com/envoyproxy/envoy/issues/45212
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
