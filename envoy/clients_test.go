package envoy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func upgrader() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			hello().ServeHTTP(w, r)
			return
		}
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "websocket")
		w.WriteHeader(http.StatusSwitchingProtocols)
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		io.Copy(io.Discard, c)
	})
}

// client is a connection without hidden retries.
type client struct {
	c net.Conn
	r *bufio.Reader
}

func dial(t *testing.T, address string) client {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return client{c, bufio.NewReader(c)}
}

func (c client) send(t *testing.T, path string) {
	t.Helper()
	if _, err := fmt.Fprintf(c.c, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path); err != nil {
		t.Fatal(err)
	}
}

func (c client) request(t *testing.T, path string) {
	t.Helper()
	c.send(t, path)
	if _, err := c.exchange(); err != nil {
		t.Fatal(err)
	}
}

// exchange reads a response; closing: no other one will come.
func (c client) exchange() (closing bool, err error) {
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return false, err
	}
	if resp.StatusCode != http.StatusOK {
		return false, errors.New(resp.Status)
	}
	return resp.Close, nil
}

func refused(address string) bool {
	c, err := net.Dial("tcp", address)
	if err == nil {
		c.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// clients make requests on keep-alive connections and open new ones, until they are stopped.
type clients struct {
	requests, failed, closed atomic.Int64
	noMore                   atomic.Bool // open no more connections
	first                    atomic.Value
	quit                     chan struct{}
	wg                       sync.WaitGroup
}

func startLoad(address string) *clients {
	l := &clients{quit: make(chan struct{})}
	for n := range 6 {
		perConnection := 1
		if n%2 == 0 {
			perConnection = 1 << 30
		}
		l.wg.Go(func() {
			for l.connection(address, perConnection) {
			}
		})
	}
	return l
}

func (l *clients) stop() {
	close(l.quit)
	l.wg.Wait()
}

// connection makes up to n requests on one connection, and says whether to open another.
func (l *clients) connection(address string, n int) bool {
	if l.noMore.Load() {
		return false
	}
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return l.fail(err)
	}
	defer conn.Close()
	c := client{conn, bufio.NewReader(conn)}
	for range n {
		select {
		case <-l.quit:
			return false
		case <-time.After(2 * time.Millisecond):
		}
		if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			return l.fail(err)
		}
		closing, err := c.exchange()
		l.requests.Add(1)
		if err != nil {
			return l.fail(err)
		}
		if closing {
			l.closed.Add(1)
			return true
		}
	}
	return true
}

func (l *clients) fail(err error) bool {
	l.failed.Add(1)
	l.first.CompareAndSwap(nil, err.Error())
	return true
}
