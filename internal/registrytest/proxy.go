package registrytest

import (
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Fault is what happens to a request instead of the truth. The zero Fault passes it on.
type Fault struct {
	// Status answers with this code and the Header.
	Status int
	Header http.Header
	// Delay comes first.
	Delay time.Duration
	// Body replaces what the registry says, with status 200.
	Body []byte
	// Flip changes one bit of the registry's answer at this offset, when it is above zero.
	Flip int64
	// Cut closes the connection after that many bytes of the registry's answer, when it is above zero.
	Cut int64
	// Hang sends the headers and Cut bytes, then nothing more until the client goes.
	Hang bool
	// Times is how often it happens; 0: always.
	Times int
}

// Request is one request that the proxy saw.
type Request struct {
	Method, Path  string
	Authorization string
}

// Proxy stands in front of a registry and fails on demand. Without faults it is invisible.
type Proxy struct {
	// Addr is its host:port on loopback.
	Addr string

	target *httputil.ReverseProxy
	mu     sync.Mutex
	faults []rule
	seen   []Request
}

type rule struct {
	part  string
	fault Fault
	used  int
}

// NewProxy starts a proxy to the plain HTTP server at addr; it ends with the test.
func NewProxy(t testing.TB, addr string) *Proxy {
	t.Helper()
	target := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: addr})
	target.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	target.FlushInterval = -1
	p := &Proxy{target: target}
	server := httptest.NewServer(p)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	p.Addr = server.Listener.Addr().(*net.TCPAddr).String()
	return p
}

// Ref returns the agent's URL for repository:tag or repository@digest through this proxy.
func (p *Proxy) Ref(repository string) string { return "oci://" + p.Addr + "/" + repository }

// Fail makes requests whose path contains part fail; a later rule for the same part replaces the earlier one.
func (p *Proxy) Fail(part string, fault Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = slices.DeleteFunc(p.faults, func(r rule) bool { return r.part == part })
	p.faults = append(p.faults, rule{part: part, fault: fault})
}

// Repair forgets all faults.
func (p *Proxy) Repair() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = nil
}

// Requests returns what came whose path contains part, since the last Forget.
func (p *Proxy) Requests(part string) []Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(p.seen), func(r Request) bool { return !strings.Contains(r.Path, part) })
}

// Forget empties the list of requests.
func (p *Proxy) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = nil
}

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	fault := p.note(r)
	if fault.Delay > 0 {
		select {
		case <-time.After(fault.Delay):
		case <-r.Context().Done():
			return
		}
	}
	switch {
	case fault.Status != 0:
		maps.Copy(w.Header(), fault.Header)
		w.WriteHeader(fault.Status)
		_, _ = w.Write(fault.Body)
	case fault.Body != nil:
		w.Header().Set("Content-Length", strconv.Itoa(len(fault.Body)))
		_, _ = w.Write(fault.Body)
	case fault.Flip > 0 || fault.Cut > 0 || fault.Hang:
		p.target.ServeHTTP(&spoiler{ResponseWriter: w, fault: fault, gone: r.Context().Done()}, r)
	default:
		p.target.ServeHTTP(w, r)
	}
}

func (p *Proxy) note(r *http.Request) Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = append(p.seen, Request{Method: r.Method, Path: r.URL.Path, Authorization: r.Header.Get("Authorization")})
	for i := range p.faults {
		f := &p.faults[i]
		if strings.Contains(r.URL.Path, f.part) && (f.fault.Times == 0 || f.used < f.fault.Times) {
			f.used++
			return f.fault
		}
	}
	return Fault{}
}

// spoiler damages an answer on its way.
type spoiler struct {
	http.ResponseWriter
	fault Fault
	gone  <-chan struct{}
	sent  int64
}

func (s *spoiler) Write(b []byte) (int, error) {
	n := int64(len(b))
	if at := s.fault.Flip; at > 0 && s.sent <= at && at < s.sent+n {
		b = slices.Clone(b)
		b[at-s.sent] ^= 1
	}
	if (s.fault.Cut > 0 || s.fault.Hang) && s.sent+n > s.fault.Cut {
		_, _ = s.ResponseWriter.Write(b[:max(0, s.fault.Cut-s.sent)])
		s.Flush()
		if s.fault.Hang {
			<-s.gone
		}
		panic(http.ErrAbortHandler)
	}
	s.sent += n
	return s.ResponseWriter.Write(b)
}

// Flush implements http.Flusher.
func (s *spoiler) Flush() {
	if f, ok := s.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

var _ io.Writer = (*spoiler)(nil)
