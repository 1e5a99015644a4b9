package ecds

import "sync"

// inbox is a queue whose senders never wait.
//
// It has no bound of its own. The one receiver does nothing that blocks (pulls, saves and decoding listeners run beside
// it), so the queue is as long as what the relay hands over in one turn of that loop: at most one response and a few
// requests per stream, all of which the relay held in memory anyway.
type inbox[T any] struct {
	wake chan struct{} // capacity 1: "there is something" needs saying once

	mu     sync.Mutex
	items  []T
	closed bool
}

func newInbox[T any]() *inbox[T] { return &inbox[T]{wake: make(chan struct{}, 1)} }

// put adds an item; replaces says which waiting item it makes superfluous, if any.
func (b *inbox[T]) put(item T, replaces func(T) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	if replaces != nil {
		for i := range b.items {
			if replaces(b.items[i]) {
				b.items = append(b.items[:i], b.items[i+1:]...)
				break
			}
		}
	}
	b.items = append(b.items, item)
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// take returns what waits, oldest first.
func (b *inbox[T]) take() []T {
	b.mu.Lock()
	defer b.mu.Unlock()
	items := b.items
	b.items = nil
	return items
}

// close drops what waits and all that comes.
func (b *inbox[T]) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.items, b.closed = nil, true
}
