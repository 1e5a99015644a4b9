package safehttp

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
)

// redirector sends everything to a place.
func redirector(t *testing.T, to string, status int) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to, status) }))
	t.Cleanup(s.Close)
	return s.URL
}

func do(t *testing.T, c *Client, rt http.RoundTripper, method, url, body string) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer secret")
	resp, err := c.Do(t.Context(), rt, req)
	if resp != nil {
		resp.Body.Close()
	}
	return resp, err
}

func TestRedirectsToForbiddenPlaces(t *testing.T) {
	c := New(Config{})
	defer c.CloseIdleConnections()
	for to, text := range map[string]string{
		"http://169.254.169.254/latest/meta-data/": "connection to 169.254.169.254, a link-local address",
		"http://[fe80::1]/":                        "link-local",
		"http://[fd00:ec2::254]/":                  "cloud metadata",
		"http://0.0.0.0:80/":                       "unspecified",
		"http://[::ffff:169.254.169.254]/":         "link-local",
		"file:///etc/passwd":                       "scheme file",
		"gopher://x/":                              "scheme gopher",
		"https://" + strings.Repeat("a", 100_000):  "a host name longer than any: aaa",
		strings.Repeat("s", 100_000) + "://x/":     "scheme sss",
	} {
		from := redirector(t, to, http.StatusFound)
		u, _ := url.Parse(from)
		for _, plain := range []bool{true, false} { // the worst that can be said of a place is said first
			_, err := do(t, c, c.Transport(u.Host, plain), http.MethodGet, from, "")
			if _, ok := errors.AsType[*RefusedError](err); !ok || !strings.Contains(err.Error(), text) || len(err.Error()) > 500 {
				t.Errorf("redirect to %.100s (plain %v) = %.1000v, want a refusal that says %q", to, plain, err, text)
			}
		}
	}
}

// A server that is not on loopback must not lead there. The name of the home host decides, so the test dials loopback itself.
func TestRemoteServerCannotLeadToLoopback(t *testing.T) {
	reached := atomic.Bool{}
	inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Store(true) }))
	defer inside.Close()
	c := New(Config{})
	defer c.CloseIdleConnections()
	rt := c.Transport("registry.example.test", true)
	_, err := do(t, c, rt, http.MethodGet, inside.URL, "")
	if _, ok := errors.AsType[*RefusedError](err); !ok || !strings.Contains(err.Error(), "a loopback address that a remote server led to") || reached.Load() {
		t.Errorf("request = %v, reached %v, want a refusal", err, reached.Load())
	}
	_, err = do(t, c, rt, http.MethodGet, strings.Replace(inside.URL, "127.0.0.1", "localhost", 1), "")
	if err == nil || reached.Load() {
		t.Errorf("request by name = %v, reached %v, want a refusal", err, reached.Load())
	}
	u, _ := url.Parse(inside.URL)
	if _, err := do(t, c, c.Transport(u.Host, true), http.MethodGet, inside.URL, ""); err != nil || !reached.Load() {
		t.Errorf("request to a loopback host that was configured = %v, reached %v, want success", err, reached.Load())
	}
}

func TestRedirectsCarryNoCredentials(t *testing.T) {
	var seen atomic.Value
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		seen.Store(r.Header.Get("Authorization") + r.Header.Get("Referer"))
	}))
	defer other.Close()
	// Another name for loopback: another host for credentials.
	from := redirector(t, strings.Replace(other.URL, "127.0.0.1", "localhost", 1), http.StatusTemporaryRedirect)
	c := New(Config{})
	defer c.CloseIdleConnections()
	u, _ := url.Parse(from)
	if _, err := do(t, c, c.Transport(u.Host, true), http.MethodGet, from+"/x?token=secret", ""); err != nil || seen.Load() != "" {
		t.Errorf("GET = %v, the other host saw %q, want no credentials", err, seen.Load())
	}
	_, err := do(t, c, c.Transport(u.Host, true), http.MethodPost, from, "refresh_token=secret")
	if err == nil || !strings.Contains(err.Error(), "credentials in its body") {
		t.Errorf("POST = %v, want a refusal", err)
	}
}

func TestNoDowngradeAndNoEndlessRedirects(t *testing.T) {
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, plain.URL, http.StatusFound) }))
	defer secure.Close()
	c := New(Config{RootCAs: secure.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs})
	defer c.CloseIdleConnections()
	u, _ := url.Parse(secure.URL)
	_, err := do(t, c, c.Transport(u.Host, false), http.MethodGet, secure.URL, "")
	if err == nil || !strings.Contains(err.Error(), "redirect from https to plain HTTP") {
		t.Errorf("downgrade = %v, want a refusal", err)
	}
	loop := httptest.NewServer(nil)
	defer loop.Close()
	loop.Config.Handler = http.RedirectHandler(loop.URL, http.StatusFound)
	u, _ = url.Parse(loop.URL)
	_, err = do(t, c, c.Transport(u.Host, true), http.MethodGet, loop.URL, "")
	if err == nil || !strings.Contains(err.Error(), "more than 10 redirects (check where the server redirects)") {
		t.Errorf("loop = %v, want it cut", err)
	}
}
