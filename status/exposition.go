package status

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/klauspost/compress/gzip"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// errCut means that a part of a family is already on its way and the rest will not come.
var errCut = errors.New("a family is incomplete")

// exposition is one answer to a scraper. Each family name is in it once: a family of Envoy's that the agent has too is merged
// with it, and of two families of one name in Envoy's metrics the second is left out.
type exposition struct {
	text    bool // the format is text: what is text already goes through as it is
	out     *bufio.Writer
	encoder expfmt.Encoder
	closers []io.Closer                  // after out, in this order
	ours    map[string]*dto.MetricFamily // not written yet
	seen    map[string]bool              // names written
	skip    bool                         // the family whose pieces are coming is left out
	dropped int
}

// newExposition negotiates format and compression as promhttp does, without OpenMetrics: its counters need names that Envoy's do not have.
func newExposition(w http.ResponseWriter, r *http.Request, ours []*dto.MetricFamily) *exposition {
	format := expfmt.Negotiate(r.Header)
	h := w.Header()
	h.Set("Content-Type", string(format))
	h.Set("Cache-Control", "no-store")
	h.Set("Vary", "Accept, Accept-Encoding")
	e := &exposition{text: format.FormatType() == expfmt.TypeTextPlain, ours: map[string]*dto.MetricFamily{}, seen: map[string]bool{}}
	for _, f := range ours {
		e.ours[f.GetName()] = f
	}
	var sink io.Writer = w
	if acceptsGzip(r) {
		h.Set("Content-Encoding", "gzip")
		zip, _ := gzip.NewWriterLevel(w, gzip.BestSpeed) // fails for unknown levels only
		sink, e.closers = zip, append(e.closers, zip)
	}
	e.out = bufio.NewWriterSize(sink, 64<<10)
	e.encoder = expfmt.NewEncoder(e.out, format)
	return e
}

func acceptsGzip(r *http.Request) bool {
	for part := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, params, _ := strings.Cut(strings.TrimSpace(part), ";")
		if strings.TrimSpace(name) != "gzip" {
			continue
		}
		q, found := strings.CutPrefix(strings.ReplaceAll(params, " ", ""), "q=")
		weight, err := strconv.ParseFloat(q, 64)
		return !found || err == nil && weight > 0
	}
	return false
}

// envoy takes one piece of a family of Envoy's.
func (e *exposition) envoy(p piece) error {
	if p.first {
		ours, whole := e.ours[p.name], p.last
		if ours != nil && whole && !e.seen[p.name] {
			return e.merge(ours, p)
		}
		e.skip = ours != nil || e.seen[p.name] || isReserved(p.name) || !whole && !e.text
		if e.skip {
			e.dropped++
			return nil
		}
		e.seen[p.name] = true
	}
	switch {
	case e.skip:
		return nil
	case e.text:
		_, err := e.out.Write(p.text)
		return err
	}
	families, err := parse(p.text)
	if err != nil {
		return err
	}
	for _, f := range families {
		if err := e.encoder.Encode(f); err != nil {
			return err
		}
	}
	return nil
}

// isReserved says whether a name is kept for what the agent adds at the end.
func isReserved(name string) bool { return name == envoyScrapeOK || name == envoyScrapeDropped }

// most is how much of a family is collected before it is passed on: other formats than text need all of it.
func (e *exposition) most() int {
	if e.text {
		return maxPiece
	}
	return maxWhole
}

// merge writes a family of the agent's together with Envoy's of the same name. Of the same metric in both, the agent's stays.
func (e *exposition) merge(ours *dto.MetricFamily, p piece) error {
	families, err := parse(p.text)
	if err != nil {
		return err
	}
	theirs := families[p.name]
	if theirs.GetType() != ours.GetType() {
		e.dropped++
		return e.write(ours)
	}
	both := &dto.MetricFamily{Name: ours.Name, Help: ours.Help, Type: ours.Type, Unit: ours.Unit}
	have := map[string]bool{}
	for _, m := range slices.Concat(ours.GetMetric(), theirs.GetMetric()) {
		if key := labelsOf(m); !have[key] {
			have[key] = true
			both.Metric = append(both.Metric, m)
		}
	}
	return e.write(both)
}

func labelsOf(m *dto.Metric) string {
	labels := slices.Clone(m.GetLabel())
	slices.SortFunc(labels, func(a, b *dto.LabelPair) int { return cmp.Compare(a.GetName(), b.GetName()) })
	var key strings.Builder
	for _, l := range labels {
		fmt.Fprintf(&key, "%s=%q,", l.GetName(), l.GetValue())
	}
	return key.String()
}

func parse(text []byte) (map[string]*dto.MetricFamily, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("parse envoy's metrics: %w", err)
	}
	return families, nil
}

// write writes one of the agent's families.
func (e *exposition) write(f *dto.MetricFamily) error {
	name := f.GetName()
	delete(e.ours, name)
	if e.seen[name] {
		return nil
	}
	e.seen[name] = true
	return e.encoder.Encode(f)
}

// finish writes what is left of the agent's families and the given ones.
func (e *exposition) finish(more []*dto.MetricFamily) error {
	for _, f := range more {
		e.ours[f.GetName()] = f
	}
	names := make([]string, 0, len(e.ours))
	for name := range e.ours {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := e.write(e.ours[name]); err != nil {
			return err
		}
	}
	if err := e.out.Flush(); err != nil {
		return err
	}
	for _, c := range e.closers {
		if err := c.Close(); err != nil {
			return err
		}
	}
	return nil
}
