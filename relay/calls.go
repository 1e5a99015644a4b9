package relay

import (
	"sync"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// calls is how a Terminator reaches a session, from any goroutine.
type calls struct {
	wake chan struct{}

	mu      sync.Mutex
	closed  bool
	pushes  []*discoveryv3.Resource
	settled []settlement
}

type settlement struct {
	offer uint64
	err   error
}

func (c *calls) push(r *discoveryv3.Resource) {
	if r == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.pushes = append(c.pushes, r)
		c.signal()
	}
}

func (c *calls) settle(offer uint64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.settled = append(c.settled, settlement{offer, err})
		c.signal()
	}
}

func (c *calls) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *calls) take() ([]*discoveryv3.Resource, []settlement) {
	c.mu.Lock()
	defer c.mu.Unlock()
	pushes, settled := c.pushes, c.settled
	c.pushes, c.settled = nil, nil
	return pushes, settled
}

func (c *calls) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed, c.pushes, c.settled = true, nil, nil
}
