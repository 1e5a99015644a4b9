package bootstrap

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	metricsv3 "github.com/envoyproxy/go-control-plane/envoy/config/metrics/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Statistics choose what Envoy counts. Without a prefix, suffix or expression everything is counted; with one, also what a drain needs.
type Statistics struct {
	NoDefaultTags bool  // without the labels that Envoy knows by itself
	Tags          []Tag // labels to take out of the names
	Prefixes      []string
	Suffixes      []string
	Expressions   []string // RE2, of the whole name
	Buckets       []Buckets

	Flush    time.Duration // how often gauges are taken and sinks get everything, from 1 ms; 0 = Envoy's 5 s
	Eviction time.Duration // what nothing has touched for this long is forgotten, a multiple of Flush; 0 = never
	Lazy     bool          // a cluster's statistics exist only once it is used, which saves memory
}

// Tag takes a label out of a statistic's name: the expression's first group is cut out, its second is the value.
type Tag struct {
	Name       string
	Expression string // ECMAScript
}

// Buckets are the upper bounds of the histograms whose names begin with Prefix, increasing.
type Buckets struct {
	Prefix string
	Bounds []float64
}

func (s Statistics) check() error {
	var errs []error
	for _, tag := range s.Tags {
		if tag.Name == "" || tag.Expression == "" {
			errs = append(errs, fmt.Errorf("statistics tag %q with expression %q (--stats-tag): want NAME=EXPRESSION", tag.Name, tag.Expression))
		}
	}
	for _, text := range s.Expressions {
		if _, err := regexp.Compile(text); err != nil {
			errs = append(errs, fmt.Errorf("statistics expression (--stats-regexp): %w", err))
		}
	}
	for _, b := range s.Buckets {
		for i := range b.Bounds {
			if b.Bounds[i] <= 0 || i > 0 && b.Bounds[i] <= b.Bounds[i-1] {
				errs = append(errs, fmt.Errorf("histogram buckets of %q: the bounds %v do not increase from above 0", b.Prefix, b.Bounds))
				break
			}
		}
	}
	return errors.Join(append(errs, s.checkTimes())...)
}

const defaultFlush = 5 * time.Second

func (s Statistics) checkTimes() error {
	flush := cmp.Or(s.Flush, defaultFlush)
	switch {
	case s.Flush != 0 && (s.Flush < time.Millisecond || s.Flush >= 5*time.Minute):
		return fmt.Errorf("statistics are flushed every %v (--stats-flush-interval): want 1ms or more, and less than 5m", s.Flush)
	case s.Eviction != 0 && (s.Eviction < flush || s.Eviction%flush != 0):
		return fmt.Errorf("statistics are evicted after %v (--stats-eviction-interval): want a multiple of the flush interval %v", s.Eviction, flush)
	}
	return nil
}

// when puts into b how often statistics are taken, made and forgotten.
func (s Statistics) when(b *bootstrapv3.Bootstrap) {
	if s.Flush != 0 {
		b.StatsFlushInterval = durationpb.New(s.Flush)
	}
	if s.Eviction != 0 {
		b.StatsEviction = &bootstrapv3.Bootstrap_StatsEvictionInterval{StatsEvictionInterval: durationpb.New(s.Eviction)}
	}
	if s.Lazy {
		b.DeferredStatOptions = &bootstrapv3.Bootstrap_DeferredStatOptions{EnableDeferredCreationStats: true}
	}
}

// message is nil where Envoy's own choice is wanted.
func (s Statistics) message() *metricsv3.StatsConfig {
	config := &metricsv3.StatsConfig{}
	if s.NoDefaultTags {
		config.UseAllDefaultTags = wrapperspb.Bool(false)
	}
	for _, tag := range s.Tags {
		config.StatsTags = append(config.StatsTags, &metricsv3.TagSpecifier{
			TagName: tag.Name, TagValue: &metricsv3.TagSpecifier_Regex{Regex: tag.Expression},
		})
	}
	if patterns := s.patterns(); len(patterns) > 0 {
		config.StatsMatcher = &metricsv3.StatsMatcher{StatsMatcher: &metricsv3.StatsMatcher_InclusionList{
			InclusionList: &matcherv3.ListStringMatcher{Patterns: patterns},
		}}
	}
	for _, b := range s.Buckets {
		config.HistogramBucketSettings = append(config.HistogramBucketSettings, &metricsv3.HistogramBucketSettings{
			Match:   &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: b.Prefix}},
			Buckets: b.Bounds,
		})
	}
	if config.UseAllDefaultTags == nil && config.StatsMatcher == nil && len(config.StatsTags)+len(config.HistogramBucketSettings) == 0 {
		return nil
	}
	return config
}

// inFlight are the gauges by which a drain sees what is still going on: without them it would cut requests.
var inFlight = []string{"downstream_rq_active", "downstream_cx_active", "downstream_cx_upgrades_active", "downstream_cx_tx_bytes_buffered"}

func (s Statistics) patterns() []*matcherv3.StringMatcher {
	var all []*matcherv3.StringMatcher
	if len(s.Prefixes)+len(s.Suffixes)+len(s.Expressions) == 0 {
		return nil
	}
	s.Suffixes = slices.Concat(s.Suffixes, inFlight)
	for _, prefix := range s.Prefixes {
		all = append(all, &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: prefix}})
	}
	for _, suffix := range s.Suffixes {
		all = append(all, &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Suffix{Suffix: suffix}})
	}
	for _, text := range s.Expressions {
		all = append(all, &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{
			SafeRegex: &matcherv3.RegexMatcher{Regex: text},
		}})
	}
	return all
}

// layers are a static runtime layer and, over it, the one that the admin API changes.
func layers(values map[string]any) (*bootstrapv3.LayeredRuntime, error) {
	if len(values) == 0 {
		return nil, nil
	}
	static, err := structpb.NewStruct(values)
	if err != nil {
		return nil, fmt.Errorf("runtime values (--runtime): %w", err)
	}
	return &bootstrapv3.LayeredRuntime{Layers: []*bootstrapv3.RuntimeLayer{
		{Name: "static", LayerSpecifier: &bootstrapv3.RuntimeLayer_StaticLayer{StaticLayer: static}},
		{Name: "admin", LayerSpecifier: &bootstrapv3.RuntimeLayer_AdminLayer_{AdminLayer: &bootstrapv3.RuntimeLayer_AdminLayer{}}},
	}}, nil
}
