package envoy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/url"
	"strconv"
	"strings"
)

// Load is what Envoy is doing for others than the agent.
type Load struct {
	Requests    int `json:"requests"`     // HTTP requests in flight, without upgraded ones
	Upgrades    int `json:"upgrades"`     // WebSockets, CONNECT tunnels and the like
	TCP         int `json:"tcp"`          // connections of TCP listeners; an estimate where listeners are chained inside Envoy
	Unsent      int `json:"unsent_bytes"` // bytes of finished HTTP responses that slow clients have not taken yet
	Connections int `json:"connections"`  // all downstream connections, idle ones too
}

// Idle says that nothing is in flight. Idle connections do not count: Envoy never tells them that it is about to end.
func (l Load) Idle() bool { return l.Requests+l.Upgrades+l.TCP+l.Unsent == 0 }

// loadGauges are the gauges that Load is made from.
const loadGauges = `^(http|listener)\..*\.downstream_(rq_active|cx_active|cx_upgrades_active|cx_tx_bytes_buffered)$`

// Gauges returns Envoy's gauges with a name that matches a regular expression.
func (a *Admin) Gauges(ctx context.Context, filter string) (map[string]uint64, error) {
	body, err := a.do(ctx, "GET", "/stats?type=Gauges&filter="+url.QueryEscape(filter), adminTimeout)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	gauges := map[string]uint64{}
	for line, err := range lines(body) {
		if err != nil {
			return nil, fmt.Errorf("envoy admin GET /stats: %w", err)
		}
		if name, value, ok := parseStat(line); ok {
			gauges[name] = value
		}
	}
	return gauges, nil
}

// lines yields the lines of r, and at last the error that is not io.EOF.
func lines(r io.Reader) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		s := bufio.NewScanner(r)
		for s.Scan() {
			if !yield(s.Text(), nil) {
				return
			}
		}
		if err := s.Err(); err != nil {
			yield("", err)
		}
	}
}

// parseStat reads "name: 12". A name may hold colons.
func parseStat(line string) (name string, value uint64, ok bool) {
	i := strings.LastIndex(line, ": ")
	if i < 0 {
		return "", 0, false
	}
	value, err := strconv.ParseUint(strings.TrimSpace(line[i+2:]), 10, 64)
	return line[:i], value, err == nil
}

// load asks Envoy for its Load, without that of listeners with a statistics prefix that begins with own.
func (a *Admin) load(ctx context.Context, own string) (Load, error) {
	gauges, err := a.Gauges(ctx, loadGauges)
	if err != nil {
		return Load{}, err
	}
	if len(gauges) == 0 { // the admin has some of its own at least
		return Load{}, errors.New("envoy counts nothing that tells what is in flight: its statistics are switched off (stats_matcher)")
	}
	return loadOf(gauges, own), nil
}

func loadOf(gauges map[string]uint64, own string) Load {
	var sum struct{ requests, upgrades, unsent, http, all int }
	for name, v := range gauges {
		kind, rest, _ := strings.Cut(name, ".")
		if strings.HasPrefix(rest, own) || strings.HasPrefix(rest, "admin.") {
			continue
		}
		_, gauge, _ := cutLast(rest, ".")
		n := int(v)
		switch kind + "." + gauge {
		case "http.downstream_rq_active":
			sum.requests += n
		case "http.downstream_cx_upgrades_active":
			sum.upgrades += n
		case "http.downstream_cx_tx_bytes_buffered":
			sum.unsent += n
		case "http.downstream_cx_active":
			sum.http += n
		case "listener.downstream_cx_active":
			if !perWorkerOrInternal(rest) {
				sum.all += n
			}
		}
	}
	return Load{
		Requests: max(0, sum.requests-sum.upgrades), Upgrades: sum.upgrades, Unsent: sum.unsent,
		TCP: max(0, sum.all-sum.http), Connections: sum.all,
	}
}

// perWorkerOrInternal: the same connections counted once more per worker, and those that never leave Envoy.
func perWorkerOrInternal(rest string) bool {
	return strings.Contains(rest, ".worker_") || strings.HasPrefix(rest, "envoy_internal_")
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return "", s, false
}
