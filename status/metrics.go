package status

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	dto "github.com/prometheus/client_model/go"
)

const (
	scrapeTimeout  = 10 * time.Second
	scrapeHeadroom = 200 * time.Millisecond // of the scraper's own timeout, for the way back
	maxScrapes     = 4                      // at the same time; each keeps Envoy's main thread busy
	maxEnvoyText   = 1 << 30                // bytes of Envoy's metrics; 15 000 clusters make 182 MiB
)

const (
	envoyScrapeOK      = "gateway_agent_envoy_scrape_ok"
	envoyScrapeDropped = "gateway_agent_envoy_scrape_dropped_families"
)

// metrics writes one exposition: Envoy's families as they stream in, then the agent's. When Envoy cannot be reached, or breaks off,
// the rest is still served and gateway_agent_envoy_scrape_ok is 0; a family of which only a part came is left out.
func (s *Server) metrics(w http.ResponseWriter, r *http.Request) {
	select {
	case s.scrapes <- struct{}{}:
		defer func() { <-s.scrapes }()
	default:
		http.Error(w, "too many scrapes at the same time, try again later", http.StatusServiceUnavailable)
		return
	}
	s.scraped.Inc()
	ctx, cancel := context.WithTimeout(r.Context(), timeoutOf(r))
	defer cancel()
	families, err := s.config.Gatherer.Gather()
	if err != nil {
		s.config.Log.Warn("some of the agent's metrics cannot be gathered", "err", err)
		if len(families) == 0 {
			http.Error(w, "the agent's metrics cannot be gathered: "+err.Error(), http.StatusInternalServerError)
			return
		}
	}
	out := newExposition(w, r, families)
	if r.Method == http.MethodHead {
		return
	}
	scrapes, err := s.envoyFamilies(ctx, out, queryOf(r))
	if errors.Is(err, errCut) {
		s.config.Log.Warn("envoy's metrics broke off within a large family, the scrape is given up", "err", err)
		panic(http.ErrAbortHandler) // the scraper must not take a part of a family for the whole
	}
	_ = out.finish(scrapes) // fails only when the scraper has gone
}

// envoyFamilies writes Envoy's families and returns the agent's metrics about that.
func (s *Server) envoyFamilies(ctx context.Context, out *exposition, query url.Values) ([]*dto.MetricFamily, error) {
	if s.config.EnvoyMetrics == nil {
		return nil, nil
	}
	err := s.copyEnvoy(ctx, out, query)
	ok := 1.0
	if err != nil {
		ok = 0
		s.failed.Inc()
		s.config.Log.Debug("envoy's metrics cannot be read", "err", err)
	}
	if out.dropped > 0 {
		s.config.Log.Debug("families of envoy's metrics were left out, their names were there before", "count", out.dropped)
	}
	return []*dto.MetricFamily{
		gauge(envoyScrapeOK, "Whether all of Envoy's metrics are part of this exposition.", ok),
		gauge(envoyScrapeDropped, "Families of Envoy's that are not part of this exposition, because another one has their name.", float64(out.dropped)),
	}, err
}

func (s *Server) copyEnvoy(ctx context.Context, out *exposition, query url.Values) error {
	body, err := s.config.EnvoyMetrics(ctx, query)
	if err != nil {
		return err
	}
	defer body.Close()
	stop := context.AfterFunc(ctx, func() { body.Close() }) // a body that does not know ctx must not hold us
	defer stop()
	err = splitFamilies(&limited{r: body, left: maxEnvoyText}, out.most(), out.envoy)
	return errors.Join(err, context.Cause(ctx))
}

// queryOf is the scraper's query, for Envoy; nil without one. Pairs that cannot be read are left out.
func queryOf(r *http.Request) url.Values {
	if r.URL.RawQuery == "" {
		return nil
	}
	return r.URL.Query()
}

// limited ends with an error, unlike io.LimitedReader: a part must not pass for the whole.
type limited struct {
	r    io.Reader
	left int64
}

func (l *limited) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, errors.New("more metrics than this agent passes on")
	}
	n, err := l.r.Read(p[:min(int64(len(p)), l.left)])
	l.left -= int64(n)
	return n, err
}

func gauge(name, help string, value float64) *dto.MetricFamily {
	return &dto.MetricFamily{
		Name: &name, Help: &help, Type: dto.MetricType_GAUGE.Enum(), Metric: []*dto.Metric{{Gauge: &dto.Gauge{Value: &value}}},
	}
}

// timeoutOf honours the header with which Prometheus says how long it waits.
func timeoutOf(r *http.Request) time.Duration {
	seconds, err := strconv.ParseFloat(r.Header.Get("X-Prometheus-Scrape-Timeout-Seconds"), 64)
	if err != nil || !(seconds > 0 && seconds <= time.Hour.Seconds()) {
		return scrapeTimeout
	}
	d := time.Duration(seconds * float64(time.Second))
	return max(d-scrapeHeadroom, d/2)
}
