package xdstest

import (
	"net"
	"sync"
	"sync/atomic"
)

// Hole wraps connections and can swallow all packets on them, both ways, without closing any: a path that is broken in the middle.
// The zero value lets everything pass.
type Hole struct{ open atomic.Bool }

// Swallow starts it, for all connections that there are; those made later pass when Heal was called before.
func (h *Hole) Swallow() { h.open.Store(true) }

// Heal ends it.
func (h *Hole) Heal() { h.open.Store(false) }

// Wrap puts a connection behind the hole.
func (h *Hole) Wrap(conn net.Conn) net.Conn {
	return &holeConn{Conn: conn, hole: h, closed: make(chan struct{})}
}

type holeConn struct {
	net.Conn
	hole   *Hole
	once   sync.Once
	closed chan struct{}
}

// Read gives nothing of what comes while the hole is open, not even an end.
func (c *holeConn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if !c.hole.open.Load() {
			return n, err
		}
		if err != nil {
			<-c.closed
			return 0, net.ErrClosed
		}
	}
}

// Write loses what is written while the hole is open.
func (c *holeConn) Write(p []byte) (int, error) {
	if c.hole.open.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// Close closes this end.
func (c *holeConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
