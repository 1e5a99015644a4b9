// Package status answers over HTTP how the gateway is: readiness and liveness for load balancers and orchestrators, one exposition
// of the agent's and Envoy's metrics, and, on the control socket, the views that a person on call needs.
package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/pprof"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Check is one condition of being ready or alive.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Reason string `json:"reason,omitempty"` // why not, when it is not OK
}

// Config is what the pages show. The functions are called for every request, from several goroutines, and must answer from memory.
type Config struct {
	Ready       func(ctx context.Context) []Check             // required
	Live        func(ctx context.Context) []Check             // required
	Status      func(ctx context.Context) any                 // GET /status on the control socket, as JSON; required
	Debug       map[string]func() any                         // GET /debug/<name> on the control socket, as JSON
	Gatherer    prometheus.Gatherer                           // the agent's own metrics; required
	LogLevel    func() string                                 // GET /loglevel; required
	SetLogLevel func(ctx context.Context, level string) error // PUT /loglevel; required

	// Notes are what is not as it should be and does not make the gateway unready: lines of GET /readyz?verbose. nil: none.
	Notes func() []string

	// EnvoyMetrics are Envoy's metrics as Prometheus text; the query is the scraper's, nil without one. nil: none.
	EnvoyMetrics func(ctx context.Context, query url.Values) (io.ReadCloser, error)
	MetricsLocal bool // metrics are for loopback only, on Public

	// Quit asks the agent to stop, Drain to tell clients and load balancers that it soon will: POST /quitquitquit and POST /drain on
	// Public, from loopback only. nil: no such page.
	Quit  func()
	Drain func(ctx context.Context) error

	// NameTable is what a DNS server of the agent knows, as JSON at GET /debug/ndsz, for loopback only. nil, or a nil answer: there is none.
	NameTable func() any

	Log *slog.Logger // default: discards
}

// Server makes the pages. It is safe for concurrent use.
type Server struct {
	config  Config
	scrapes chan struct{} // its capacity is how many scrapes may run at the same time
	scraped prometheus.Counter
	failed  prometheus.Counter
}

var debugName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]*$`)

// New checks the configuration.
func New(c Config) (*Server, error) {
	if c.Ready == nil || c.Live == nil || c.Status == nil || c.Gatherer == nil || c.LogLevel == nil || c.SetLogLevel == nil {
		return nil, errors.New("status: Ready, Live, Status, Gatherer, LogLevel and SetLogLevel are required")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	for name := range c.Debug {
		if !debugName.MatchString(name) || name == "pprof" {
			return nil, fmt.Errorf("status: %q cannot be the name of a debug view", name)
		}
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	return &Server{
		config: c, scrapes: make(chan struct{}, maxScrapes),
		scraped: counter("gateway_agent_scrapes_total", "Requests for metrics."),
		failed:  counter("gateway_agent_envoy_scrape_failures_total", "Requests for metrics that were answered without all of Envoy's."),
	}, nil
}

// Describe implements prometheus.Collector.
func (s *Server) Describe(ch chan<- *prometheus.Desc) {
	s.scraped.Describe(ch)
	s.failed.Describe(ch)
}

// Collect implements prometheus.Collector.
func (s *Server) Collect(ch chan<- prometheus.Metric) {
	s.scraped.Collect(ch)
	s.failed.Collect(ch)
}

// Public has the pages that may be asked from outside: health and metrics, nothing that tells of the configuration. What changes
// something is for processes of this host alone.
func (s *Server) Public() http.Handler {
	metrics := s.metrics
	if s.config.MetricsLocal {
		metrics = local(s.metrics)
	}
	mux := s.mux(publicIndex, metrics)
	if s.config.Quit != nil {
		mux.HandleFunc("/quitquitquit", local(post(s.quit)))
	}
	if s.config.Drain != nil {
		mux.HandleFunc("/drain", local(post(s.drain)))
	}
	mux.HandleFunc("/debug/ndsz", local(s.nameTable)) // where istioctl asks pilot-agent for it
	return mux
}

// Control has the pages for the control socket: those of Public and everything else.
func (s *Server) Control() http.Handler {
	mux := s.mux(append(slices.Clone(publicIndex), s.controlIndex()...), s.metrics)
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) { writeJSON(w, s.config.Status(r.Context())) })
	for name, view := range s.config.Debug {
		mux.HandleFunc("GET /debug/"+name, func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, view()) })
	}
	mux.HandleFunc("GET /debug/{$}", func(w http.ResponseWriter, _ *http.Request) { index(w, s.controlIndex()) })
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /loglevel", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, map[string]string{"level": s.config.LogLevel()})
	})
	mux.HandleFunc("PUT /loglevel", s.setLogLevel)
	return mux
}

var publicIndex = []string{"/healthz/ready", "/healthz/live", "/readyz?verbose", "/metrics", "/stats/prometheus"}

func (s *Server) controlIndex() []string {
	var paths []string
	for _, name := range slices.Sorted(maps.Keys(s.config.Debug)) {
		paths = append(paths, "/debug/"+name)
	}
	return append(paths, "/debug/pprof/", "/loglevel", "/status")
}

func index(w http.ResponseWriter, paths []string) {
	plain(w, http.StatusOK, strings.Join(paths, "\n"))
}

func (s *Server) mux(paths []string, metrics http.HandlerFunc) *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz/ready", func(w http.ResponseWriter, r *http.Request) { brief(w, s.config.Ready(r.Context())) })
	mux.HandleFunc("GET /healthz/live", func(w http.ResponseWriter, r *http.Request) { brief(w, s.config.Live(r.Context())) })
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.HandleFunc("GET /metrics", metrics)
	mux.HandleFunc("GET /stats/prometheus", metrics)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { index(w, append([]string{"gateway-agent"}, paths...)) })
	return mux
}

// Serve answers on the listener until ctx ends, then lets requests in flight finish for a short time.
func (s *Server) Serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      2 * time.Minute, // a CPU profile takes 30 s, a large scrape longer than most
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(s.config.Log.Handler(), slog.LevelDebug),
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		defer close(ended)
		if server.Shutdown(grace) != nil {
			_ = server.Close()
		}
	})
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		stop()
		return fmt.Errorf("serve %s: %w", listener.Addr(), err)
	}
	<-ended
	return nil
}

// brief answers 200, or 503 with the reasons.
func brief(w http.ResponseWriter, checks []Check) {
	if failed := failures(checks); len(failed) > 0 {
		plain(w, http.StatusServiceUnavailable, strings.Join(failed, "; "))
		return
	}
	plain(w, http.StatusOK, "ok")
}

func failures(checks []Check) []string {
	var failed []string
	for _, c := range checks {
		if !c.OK {
			failed = append(failed, c.Name+": "+c.why())
		}
	}
	return failed
}

// why is the reason on one line.
func (c Check) why() string {
	if c.Reason == "" {
		return "no reason given"
	}
	return oneLine(c.Reason)
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// readyz is the long form of /healthz/ready: with ?verbose a line per check and note.
func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	checks := s.config.Ready(r.Context())
	if !r.URL.Query().Has("verbose") {
		brief(w, checks)
		return
	}
	var lines []string
	for _, c := range checks {
		if c.OK {
			lines = append(lines, "[+] "+c.Name+" ok")
		} else {
			lines = append(lines, "[-] "+c.Name+" failed: "+c.why())
		}
	}
	if s.config.Notes != nil {
		for _, note := range s.config.Notes() {
			lines = append(lines, "[!] "+oneLine(note))
		}
	}
	if len(failures(checks)) > 0 {
		plain(w, http.StatusServiceUnavailable, strings.Join(append(lines, "readyz check failed"), "\n"))
		return
	}
	plain(w, http.StatusOK, strings.Join(append(lines, "readyz check passed"), "\n"))
}

// plain answers with text that is true now only.
func plain(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	fmt.Fprintln(w, text)
}

const maxLevelBody = 1 << 10 // bytes

// setLogLevel takes `debug` or `{"level":"debug"}`.
func (s *Server) setLogLevel(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxLevelBody))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	level := strings.TrimSpace(string(body))
	var document struct{ Level string }
	if json.Unmarshal(body, &document) == nil {
		level = document.Level
	}
	if err := s.config.SetLogLevel(r.Context(), level); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	writeJSON(w, map[string]string{"level": s.config.LogLevel()})
}

func writeJSON(w http.ResponseWriter, value any) {
	data, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(data, '\n'))
}
