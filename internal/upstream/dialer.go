package upstream

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

const minAddressTimeout = 2 * time.Second // for one of several addresses

// alive finds a path that is broken within 40 s, whatever the server thinks of gRPC's pings.
var alive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 5}

// dialer connects to one of a host's addresses, and to another one the next time.
type dialer struct {
	host, port string
	lookup     func(ctx context.Context, host string) ([]string, error)
	open       func(ctx context.Context, address string) (net.Conn, error)

	mu    sync.Mutex
	last  string // address of the newest connection
	conns map[*tracked]struct{}
}

// newDialer makes one. When open is given, it alone knows what the name means.
func newDialer(host, port string, open func(ctx context.Context, address string) (net.Conn, error)) *dialer {
	d := &dialer{host: host, port: port, lookup: net.DefaultResolver.LookupHost, open: open, conns: make(map[*tracked]struct{})}
	if open == nil {
		tcp := &net.Dialer{KeepAliveConfig: alive}
		d.open = func(ctx context.Context, address string) (net.Conn, error) {
			return tcp.DialContext(ctx, "tcp", address)
		}
	} else {
		d.lookup = func(context.Context, string) ([]string, error) { return []string{host}, nil }
	}
	return d
}

// dial implements gRPC's context dialer; the address is the one it was made with.
func (d *dialer) dial(ctx context.Context, _ string) (net.Conn, error) {
	hosts, err := d.lookup(ctx, d.host)
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", d.host, err)
	}
	hosts = d.order(hosts)
	var problems []error
	for i, host := range hosts {
		conn, err := d.try(ctx, host, len(hosts)-i)
		if err == nil {
			return conn, nil
		}
		problems = append(problems, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(problems...)
}

// order puts addresses of one family in random order, so that not every agent takes the first, and the one used last behind all others.
func (d *dialer) order(hosts []string) []string {
	if len(hosts) == 0 {
		return []string{d.host}
	}
	family := func(host string) bool { return strings.Contains(host, ":") }
	first := family(hosts[0]) // the resolver knows which family works here
	hosts = slices.Clone(hosts)
	rand.Shuffle(len(hosts), func(i, j int) { hosts[i], hosts[j] = hosts[j], hosts[i] })
	d.mu.Lock()
	defer d.mu.Unlock()
	rank := func(host string) int {
		switch {
		case host == d.last:
			return 2
		case family(host) != first:
			return 1
		}
		return 0
	}
	slices.SortStableFunc(hosts, func(a, b string) int { return rank(a) - rank(b) })
	return hosts
}

// try connects to one address, in its share of the time that is left.
func (d *dialer) try(ctx context.Context, host string, left int) (net.Conn, error) {
	if deadline, ok := ctx.Deadline(); ok && left > 1 {
		limit := max(time.Until(deadline)/time.Duration(left), minAddressTimeout)
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	conn, err := d.open(ctx, net.JoinHostPort(host, d.port))
	if err != nil {
		return nil, err
	}
	t := &tracked{Conn: conn, from: d}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last = host
	d.conns[t] = struct{}{}
	return t, nil
}

// cut closes every connection that is open.
func (d *dialer) cut() {
	d.mu.Lock()
	open := d.conns
	d.conns = make(map[*tracked]struct{})
	d.mu.Unlock()
	for conn := range open {
		_ = conn.Conn.Close()
	}
}

// tracked is a connection that is forgotten when it is closed.
type tracked struct {
	net.Conn
	from *dialer
}

// Close implements net.Conn.
func (t *tracked) Close() error {
	t.from.mu.Lock()
	delete(t.from.conns, t)
	t.from.mu.Unlock()
	return t.Conn.Close()
}
