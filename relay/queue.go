package relay

// delivery is one response on its way to Envoy.
type delivery struct {
	frame frame
	size  int  // of the frame, which its writer may free any time after it was taken
	push  bool // of the terminated type; empty until its turn
}

// queue holds the responses for Envoy, in order. It is full when its bytes reach the limit; then no more is read from upstream.
type queue struct {
	limit   int
	waiting []delivery // from first on
	first   int
	bytes   int
}

func (q *queue) put(f frame) {
	d := delivery{frame: f, size: f.data.Len()}
	q.waiting = append(q.waiting, d)
	q.bytes += d.size
}

// turn keeps a place for a push.
func (q *queue) turn() { q.waiting = append(q.waiting, delivery{push: true}) }

// head is the next one, nil when there is none.
func (q *queue) head() *delivery {
	if q.first == len(q.waiting) {
		return nil
	}
	return &q.waiting[q.first]
}

// fill gives the next one its frame.
func (q *queue) fill(b []byte) {
	d := q.head()
	d.frame, d.size = frameOf(b), len(b)
	q.bytes += d.size
}

func (q *queue) full() bool { return q.bytes >= q.limit }

// pop takes the next one.
func (q *queue) pop() {
	q.bytes -= q.waiting[q.first].size
	q.waiting[q.first] = delivery{}
	q.first++
	switch {
	case q.first == len(q.waiting):
		q.waiting, q.first = q.waiting[:0], 0
	case q.first > 1024:
		q.waiting, q.first = append(q.waiting[:0], q.waiting[q.first:]...), 0
	}
}
