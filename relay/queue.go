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
	waiting []delivery
	bytes   int
}

func (q *queue) put(f frame) {
	d := delivery{frame: f, size: f.data.Len()}
	q.waiting = append(q.waiting, d)
	q.bytes += d.size
}

// turn keeps a place for a push.
func (q *queue) turn() { q.waiting = append(q.waiting, delivery{push: true}) }

// fill gives the first place its frame.
func (q *queue) fill(b []byte) {
	d := &q.waiting[0]
	d.frame, d.size = frameOf(b), len(b)
	q.bytes += d.size
}

func (q *queue) full() bool { return q.bytes >= q.limit }

func (q *queue) pop() {
	q.bytes -= q.waiting[0].size
	q.waiting[0] = delivery{}
	if q.waiting = q.waiting[1:]; len(q.waiting) == 0 {
		q.waiting = nil
	}
}
