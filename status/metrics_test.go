package status

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// withEnvoy is a configuration whose Envoy has these metrics, followed by an error if there is one.
func withEnvoy(text string, broken error) Config {
	c := testConfig("")
	c.EnvoyMetrics = func(context.Context, url.Values) (io.ReadCloser, error) {
		var body io.Reader = strings.NewReader(text)
		if broken != nil {
			body = io.MultiReader(body, failing{broken})
		}
		return io.NopCloser(body), nil
	}
	return c
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// scrape gets the metrics and reads them as Prometheus would.
func scrape(t *testing.T, c Config) map[string]*dto.MetricFamily {
	t.Helper()
	code, body, _ := do(t, newServer(t, c).Public(), "GET", "/metrics", "")
	if code != http.StatusOK {
		t.Fatalf("GET /metrics = %d %s", code, body)
	}
	families, err := parse([]byte(body))
	if err != nil {
		t.Fatalf("not a valid exposition: %v\n%s", err, body)
	}
	return families
}

// values are the values of a family by labels.
func values(f *dto.MetricFamily) map[string]float64 {
	out := map[string]float64{}
	for _, m := range f.GetMetric() {
		out[labelsOf(m)] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + m.GetUntyped().GetValue() + float64(m.GetHistogram().GetSampleCount())
	}
	return out
}

func TestMergedMetrics(t *testing.T) {
	const histogram = "# TYPE h histogram\nh_bucket{le=\"1\"} 1\nh_bucket{le=\"+Inf\"} 2\nh_sum{} 3\nh_count{} 2\n"
	for name, tc := range map[string]struct {
		envoy string
		want  map[string]map[string]float64 // family → labels → value; nil: not there
	}{
		"families one after the other": {
			"# TYPE a counter\na{x=\"1\"} 3\na{x=\"2\"} 4\n# HELP b text\n# TYPE b gauge\nb 1\n\n" + histogram,
			map[string]map[string]float64{"a": {`x="1",`: 3, `x="2",`: 4}, "b": {"": 1}, "h": {"": 2}, "gateway_agent_up": {"": 1}, envoyScrapeOK: {"": 1}, envoyScrapeDropped: {"": 0}},
		},
		"no newline at the end, carriage returns, other comments": {
			"# TYPE a counter\r\n# nothing\r\na 1\r\n#\n# EOF\n# TYPE b gauge\nb 2",
			map[string]map[string]float64{"a": {"": 1}, "b": {"": 2}, envoyScrapeOK: {"": 1}},
		},
		"the second of two families of one name is left out": {
			"# TYPE a counter\na{x=\"1\"} 3\n# TYPE b gauge\nb 1\n# TYPE a gauge\na{x=\"2\"} 4\n",
			map[string]map[string]float64{"a": {`x="1",`: 3}, "b": {"": 1}, envoyScrapeOK: {"": 1}, envoyScrapeDropped: {"": 1}},
		},
		"two types": {
			"# TYPE a counter\n# TYPE a counter\na 3\n# TYPE a counter\n",
			map[string]map[string]float64{"a": {"": 3}, envoyScrapeOK: {"": 1}},
		},
		"a family that the agent has too is merged, the agent's values first": {
			"# TYPE gateway_agent_up gauge\ngateway_agent_up{zone=\"b\"} 5\ngateway_agent_up 7\ngateway_agent_up{zone=\"b\"} 6\n# TYPE b gauge\nb 1\n",
			map[string]map[string]float64{"gateway_agent_up": {"": 1, `zone="b",`: 5}, "b": {"": 1}, envoyScrapeOK: {"": 1}, envoyScrapeDropped: {"": 0}},
		},
		"of another type: the agent's": {
			"# TYPE gateway_agent_up counter\ngateway_agent_up{zone=\"b\"} 5\n",
			map[string]map[string]float64{"gateway_agent_up": {"": 1}, envoyScrapeOK: {"": 1}, envoyScrapeDropped: {"": 1}},
		},
		"an agent behind an agent": {
			"# TYPE gateway_agent_envoy_scrape_ok gauge\ngateway_agent_envoy_scrape_ok 0\n",
			map[string]map[string]float64{envoyScrapeOK: {"": 1}, envoyScrapeDropped: {"": 1}},
		},
		"without types": {
			"a 1\nb{x=\"}\"} 2\nb{x=\"y\"} 3\n",
			map[string]map[string]float64{"a": {"": 1}, "b": {`x="}",`: 2, `x="y",`: 3}, envoyScrapeOK: {"": 1}},
		},
		"names that only look like a part of a family": {
			"# TYPE a gauge\na 1\na_count 2\n# TYPE c counter\nc 1\n",
			map[string]map[string]float64{"a": {"": 1}, "a_count": {"": 2}, "c": {"": 1}, envoyScrapeOK: {"": 1}},
		},
		"bytes that are no text": {
			"# TYPE a gauge\na{x=\"\xff\"} 1\n",
			map[string]map[string]float64{"a": {"x=\"\ufffd\",": 1}, envoyScrapeOK: {"": 1}},
		},
		"nothing": {"", map[string]map[string]float64{"gateway_agent_up": {"": 1}, envoyScrapeOK: {"": 1}}},
		"a page of HTML": {
			"<html><body>502</body></html>",
			map[string]map[string]float64{"gateway_agent_up": {"": 1}, envoyScrapeOK: {"": 0}},
		},
		"garbage after good families": {
			"# TYPE a gauge\na 1\n# TYPE b gauge\nb 1\n\x00\x01\n",
			map[string]map[string]float64{"a": {"": 1}, "b": nil, "gateway_agent_up": {"": 1}, envoyScrapeOK: {"": 0}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			families := scrape(t, withEnvoy(tc.envoy, nil))
			for family, want := range tc.want {
				if got := values(families[family]); fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%s: %v, want %v", family, got, want)
				}
			}
		})
	}
}

func TestEnvoyUnreachable(t *testing.T) {
	c := testConfig("")
	c.EnvoyMetrics = func(context.Context, url.Values) (io.ReadCloser, error) { return nil, errors.New("connection refused") }
	families := scrape(t, c)
	if values(families["gateway_agent_up"])[""] != 1 || values(families[envoyScrapeOK])[""] != 0 {
		t.Errorf("families %v, want the agent's own", families)
	}
	if got := scrape(t, testConfig("")); got[envoyScrapeOK] != nil || got["gateway_agent_up"] == nil {
		t.Error("an agent without an Envoy says that Envoy cannot be scraped")
	}
}

// A family of which only a part came is left out, and the exposition is valid and says so.
func TestEnvoyBreaksOff(t *testing.T) {
	families := scrape(t, withEnvoy("# TYPE a gauge\na 1\n# TYPE h histogram\nh_bucket{le=\"1\"} 1\n", errors.New("reset")))
	if families["a"] == nil || families["h"] != nil || values(families[envoyScrapeOK])[""] != 0 || families["gateway_agent_up"] == nil {
		t.Errorf("families %v, want a, the agent's and no h", families)
	}
}

// big is a family of more than most bytes.
func big(most int) string {
	var text strings.Builder
	text.WriteString("# TYPE big gauge\n")
	for i := 0; text.Len() < most+1000; i++ {
		fmt.Fprintf(&text, "big{cluster=\"%0100d\"} %d\n", i, i)
	}
	return text.String()
}

// A family too large for memory goes through in pieces. When it breaks off, the whole scrape fails: a part must not pass for the whole.
func TestLargeFamily(t *testing.T) {
	text := big(2 * maxPiece)
	families := scrape(t, withEnvoy(text+"# TYPE z gauge\nz 1\n", nil))
	if got, want := len(families["big"].GetMetric()), strings.Count(text, "\n")-1; got != want || families["z"] == nil {
		t.Errorf("%d metrics of the large family, want %d", got, want)
	}
	server := httptest.NewServer(newServer(t, withEnvoy(text, errors.New("reset"))).Public())
	defer server.Close()
	response, err := server.Client().Get(server.URL + "/metrics")
	if err == nil {
		_, err = io.ReadAll(response.Body)
		response.Body.Close()
	}
	if err == nil {
		t.Error("a scrape that broke off within the large family succeeded")
	}
}

// endless never stops and never blocks.
type endless string

func (e endless) Read(p []byte) (int, error) {
	return copy(p, strings.Repeat(string(e), len(p)/len(e)+1)), nil
}

func TestEndlessLine(t *testing.T) {
	c := testConfig("")
	c.EnvoyMetrics = func(context.Context, url.Values) (io.ReadCloser, error) { return io.NopCloser(endless("x")), nil }
	if families := scrape(t, c); values(families[envoyScrapeOK])[""] != 0 {
		t.Error("scrape_ok = 1 with a line that never ends")
	}
}

func TestLimited(t *testing.T) {
	if n, err := io.Copy(io.Discard, &limited{r: endless("x"), left: 1000}); n != 1000 || err == nil {
		t.Errorf("copied %d bytes, %v, want 1000 and an error", n, err)
	}
	if n, err := io.Copy(io.Discard, &limited{r: strings.NewReader("abc"), left: 1000}); n != 3 || err != nil {
		t.Errorf("copied %d bytes, %v, want all 3", n, err)
	}
}

func TestFormats(t *testing.T) {
	const envoy = "# TYPE a counter\na{x=\"1\"} 3\n# TYPE gateway_agent_up gauge\ngateway_agent_up{y=\"1\"} 3\n# TYPE h histogram\nh_bucket{le=\"+Inf\"} 2\nh_sum 3\nh_count 2\n"
	get := func(t *testing.T, accept, encoding string) (http.Header, []byte) {
		r := httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil)
		r.Header.Set("Accept", accept)
		r.Header.Set("Accept-Encoding", encoding)
		w := httptest.NewRecorder()
		newServer(t, withEnvoy(envoy, nil)).Public().ServeHTTP(w, r)
		return w.Header(), w.Body.Bytes()
	}
	for encoding, zipped := range map[string]bool{"": false, "gzip": true, "deflate, gzip;q=1.0": true, "gzip; q=0": false, "identity": false, "br;q=1, gzip ; q=0.5": true} {
		header, body := get(t, "text/plain", encoding)
		if got := header.Get("Content-Encoding") == "gzip"; got != zipped {
			t.Errorf("Accept-Encoding %q: gzip %v, want %v", encoding, got, zipped)
			continue
		}
		if zipped {
			zip, err := gzip.NewReader(bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			if body, err = io.ReadAll(zip); err != nil {
				t.Fatal(err)
			}
		}
		if families, err := parse(body); err != nil || families["a"] == nil || families["gateway_agent_up"] == nil {
			t.Errorf("Accept-Encoding %q: %v", encoding, err)
		}
	}
	for accept, want := range map[string]string{
		"":    "text/plain; version=0.0.4",
		"*/*": "text/plain; version=0.0.4",
		"application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5":                                   "text/plain; version=0.0.4",
		"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,text/plain;q=0.5": "application/vnd.google.protobuf",
	} {
		header, body := get(t, accept, "")
		if got := header.Get("Content-Type"); !strings.HasPrefix(got, want) {
			t.Errorf("Accept %q: Content-Type %q, want %q", accept, got, want)
		}
		found := map[string]int{}
		decoder := expfmt.NewDecoder(bytes.NewReader(body), expfmt.ResponseFormat(header))
		for {
			var f dto.MetricFamily
			if err := decoder.Decode(&f); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("Accept %q: %v", accept, err)
			}
			found[f.GetName()] += len(f.GetMetric())
		}
		if found["a"] != 1 || found["gateway_agent_up"] != 2 || found["h"] != 1 || found[envoyScrapeOK] != 1 {
			t.Errorf("Accept %q: metrics by family %v", accept, found)
		}
	}
}

// While Envoy's admin stalls, a scrape ends within the scraper's time with the agent's metrics, and readiness is as quick as ever.
func TestStalledEnvoy(t *testing.T) {
	for name, stalled := range map[string]func(context.Context, url.Values) (io.ReadCloser, error){
		"before it answers": func(ctx context.Context, _ url.Values) (io.ReadCloser, error) { <-ctx.Done(); return nil, ctx.Err() },
		"within its answer": func(context.Context, url.Values) (io.ReadCloser, error) {
			r, w := io.Pipe()
			go w.Write([]byte("# TYPE a gauge\na 1\n# TYPE b gauge\nb 1\n"))
			return r, nil // ends only when it is closed
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := testConfig("")
				c.EnvoyMetrics = stalled
				s := newServer(t, c)
				scraped := make(chan string)
				start := time.Now()
				go func() {
					r := httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil)
					r.Header.Set("X-Prometheus-Scrape-Timeout-Seconds", "5")
					w := httptest.NewRecorder()
					s.Public().ServeHTTP(w, r)
					scraped <- w.Body.String()
				}()
				synctest.Wait()
				if code, _, _ := do(t, s.Public(), "GET", "/healthz/ready", ""); code != 200 || time.Since(start) != 0 {
					t.Errorf("readiness during the stall: %d after %v", code, time.Since(start))
				}
				body := <-scraped
				if took := time.Since(start); took != 4800*time.Millisecond {
					t.Errorf("scrape took %v, want 4.8 s", took)
				}
				families, err := parse([]byte(body))
				if err != nil || families["gateway_agent_up"] == nil || values(families[envoyScrapeOK])[""] != 0 || families["b"] != nil {
					t.Errorf("scraped %v %q", err, body)
				}
			})
		})
	}
}

func TestTooManyScrapes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testConfig("")
		c.EnvoyMetrics = func(ctx context.Context, _ url.Values) (io.ReadCloser, error) { <-ctx.Done(); return nil, ctx.Err() }
		h := newServer(t, c).Public()
		codes := make(chan int)
		for range maxScrapes + 2 {
			go func() {
				code, _, _ := do(t, h, "GET", "/metrics", "")
				codes <- code
			}()
		}
		got := map[int]int{}
		for range maxScrapes + 2 {
			got[<-codes]++
		}
		if got[200] != maxScrapes || got[503] != 2 {
			t.Errorf("answers %v, want %d × 200 and 2 × 503", got, maxScrapes)
		}
	})
}

func FuzzSplitFamilies(f *testing.F) {
	for _, seed := range []string{"# TYPE a gauge\na 1\n# HELP b x\nb{c=\"d\"} 2", "a_sum 1\na 2\r\n", "# TYPE h histogram\nh_bucket{le=\"1\"} 1\nh_sum 1\n", "<html>", "# TYPE  \n"} {
		f.Add(seed, 10)
	}
	f.Fuzz(func(t *testing.T, text string, most int) {
		open, last := "", ""
		err := splitFamilies(strings.NewReader(text), most, func(p piece) error {
			if p.first != (open == "") || !isName(p.name) || len(p.text) == 0 || open != "" && p.name != open {
				t.Errorf("piece %+v while %q is open", p, open)
			}
			if p.first && p.name == last {
				t.Errorf("family %s is handed out twice in a row", p.name)
			}
			if open, last = p.name, p.name; p.last {
				open = ""
			}
			return nil
		})
		if open != "" && !errors.Is(err, errCut) {
			t.Errorf("%s is incomplete and the error is %v, want errCut", open, err)
		}
	})
}
