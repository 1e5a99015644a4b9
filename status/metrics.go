package status

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
)

const (
	scrapeTimeout    = 10 * time.Second
	scrapeHeadroom   = 200 * time.Millisecond // of the scraper's own timeout, for the way back
	maxMetricsLine   = 1 << 20                // bytes; Envoy's longest lines are a few KiB
	contentType      = "text/plain; version=0.0.4; charset=utf-8"
	envoyScrapeOK    = "gateway_agent_envoy_scrape_ok"
	envoyScrapeGauge = "# HELP " + envoyScrapeOK + " Whether Envoy's metrics are part of this exposition.\n# TYPE " + envoyScrapeOK + " gauge\n" + envoyScrapeOK + " %d\n"
)

// metrics writes the agent's metrics, then Envoy's as they stream in, as one exposition. Without Envoy the agent's come alone.
func (s *Server) metrics(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), timeoutOf(r))
	defer cancel()
	families, err := s.config.Gatherer.Gather()
	if err != nil && len(families) == 0 {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	envoy, err := s.openEnvoy(ctx)
	w.Header().Set("Content-Type", contentType)
	out := bufio.NewWriterSize(w, 64<<10)
	encoder := expfmt.NewEncoder(out, expfmt.NewFormat(expfmt.TypeTextPlain))
	ours := map[string]bool{envoyScrapeOK: true}
	for _, family := range families {
		ours[family.GetName()] = true
		if err := encoder.Encode(family); err != nil {
			return // the scraper has gone
		}
	}
	if s.config.EnvoyMetrics != nil {
		fmt.Fprintf(out, envoyScrapeGauge, boolValue(err == nil))
	}
	if envoy != nil {
		defer envoy.Close()
		if err := appendFamilies(out, envoy, ours); err != nil {
			s.config.Log.Warn("envoy's metrics broke off", "err", err)
			panic(http.ErrAbortHandler) // the scraper must not take a part for the whole
		}
	}
	_ = out.Flush()
}

func (s *Server) openEnvoy(ctx context.Context) (io.ReadCloser, error) {
	if s.config.EnvoyMetrics == nil {
		return nil, errors.New("no envoy")
	}
	body, err := s.config.EnvoyMetrics(ctx)
	if err != nil {
		s.config.Log.Debug("envoy's metrics cannot be read", "err", err)
		return nil, err
	}
	return body, nil
}

func boolValue(b bool) int {
	if b {
		return 1
	}
	return 0
}

// timeoutOf honours the header with which Prometheus says how long it waits.
func timeoutOf(r *http.Request) time.Duration {
	seconds, err := strconv.ParseFloat(r.Header.Get("X-Prometheus-Scrape-Timeout-Seconds"), 64)
	if err != nil || seconds <= 0 || seconds > time.Hour.Seconds() {
		return scrapeTimeout
	}
	d := time.Duration(seconds * float64(time.Second))
	return max(d-scrapeHeadroom, d/2)
}

// appendFamilies copies an exposition line by line and leaves out each family whose name was there before: two families of one
// name make the whole exposition invalid. seen grows by the names copied.
func appendFamilies(w *bufio.Writer, exposition io.Reader, seen map[string]bool) error {
	lines := bufio.NewReaderSize(exposition, 64<<10)
	current, skip := "", false
	for {
		line, err := readLine(lines)
		if errors.Is(err, io.EOF) && line == "" {
			return nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if name := familyOf(line); name != "" && name != current {
			current, skip = name, seen[name]
			seen[name] = true
		}
		if skip || line == "" || line == "\n" {
			continue
		}
		if _, err := w.WriteString(strings.TrimSuffix(line, "\n") + "\n"); err != nil {
			return err
		}
	}
}

func readLine(r *bufio.Reader) (string, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > maxMetricsLine {
			return "", fmt.Errorf("a line of over %d bytes", maxMetricsLine)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return string(line), err
		}
	}
}

// familyOf is the family that a comment line begins, "" for every other line.
func familyOf(line string) string {
	for _, prefix := range []string{"# TYPE ", "# HELP "} {
		if rest, ok := strings.CutPrefix(line, prefix); ok {
			name, _, _ := strings.Cut(strings.TrimSuffix(rest, "\n"), " ")
			return name
		}
	}
	return ""
}
