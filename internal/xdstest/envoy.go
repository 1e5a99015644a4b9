package xdstest

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
)

// Envoy is a fake Envoy: an ADS client that keeps the state Envoy keeps, over all its streams. The test tells it what to say.
type Envoy struct {
	Delta bool
	Node  *corev3.Node // default: id "gw"

	t      testing.TB
	tr     *Transcript
	conn   grpc.ClientConnInterface
	cancel context.CancelFunc
	stream grpc.ClientStream
	in     <-chan received
	begun  bool
	types  map[string]*envoyState
}

// envoyState is what Envoy knows of one type.
type envoyState struct {
	names    []string
	nonce    string
	accepted string            // state-of-the-world
	versions map[string]string // delta: accepted, by name
}

// NewEnvoy makes one that connects through conn; tr may be nil.
func NewEnvoy(t testing.TB, tr *Transcript, conn grpc.ClientConnInterface, delta bool) *Envoy {
	return &Envoy{Delta: delta, Node: &corev3.Node{Id: "gw"}, t: t, tr: tr, conn: conn, types: make(map[string]*envoyState)}
}

func (e *Envoy) state(typeURL string) *envoyState {
	st := e.types[typeURL]
	if st == nil {
		st = &envoyState{versions: make(map[string]string)}
		e.types[typeURL] = st
	}
	return st
}

// Open opens a stream; nonces of an older one are forgotten, versions are not.
func (e *Envoy) Open() {
	e.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	desc := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	stream, err := e.conn.NewStream(ctx, desc, "/"+service+"/"+method(e.Delta), grpc.ForceCodecV2(bytesCodec{}), grpc.WaitForReady(true))
	if err != nil {
		cancel()
		e.t.Fatalf("envoy: open a stream: %v", err)
	}
	e.tr.Notef("envoy", "opens a stream")
	e.stream, e.cancel, e.begun = stream, cancel, false
	e.in = pump(ctx, stream.RecvMsg)
	for _, st := range e.types {
		st.nonce = ""
	}
	e.t.Cleanup(cancel)
}

// Restarted is a new process in its place, which knows nothing.
func (e *Envoy) Restarted() *Envoy { return NewEnvoy(e.t, e.tr, e.conn, e.Delta) }

// Close resets the stream, as an Envoy that exits does.
func (e *Envoy) Close() {
	e.tr.Notef("envoy", "resets the stream")
	e.cancel()
	e.tr.settle()
}

// Want makes names the ones Envoy wants of a type, and says so in one request. No names: all.
func (e *Envoy) Want(typeURL string, names ...string) {
	e.t.Helper()
	st := e.state(typeURL)
	r := Request{Type: typeURL, Version: st.accepted, Nonce: st.nonce, Names: names}
	if e.Delta {
		r = Request{Type: typeURL, Names: missing(names, st.names), Unnames: missing(st.names, names)}
	}
	st.names = names
	e.request(r)
}

// Again asks again for what Envoy wants already; on a new stream that is how it starts.
func (e *Envoy) Again(typeURL string) {
	e.t.Helper()
	st := e.state(typeURL)
	r := Request{Type: typeURL, Version: st.accepted, Nonce: st.nonce, Names: st.names}
	if e.Delta {
		r = Request{Type: typeURL, Names: st.names, Initial: maps.Clone(st.versions)}
	}
	e.request(r)
}

// Recv waits for the next response.
func (e *Envoy) Recv() Response {
	e.t.Helper()
	r, ok := e.RecvWithin(patience)
	if !ok {
		e.t.Fatal("envoy: no response came")
	}
	return r
}

// RecvWithin waits for the next response for d at most; false: none came.
func (e *Envoy) RecvWithin(d time.Duration) (Response, bool) {
	e.t.Helper()
	raw, err := take(e.in, d)
	if errors.Is(err, errIdle) {
		return Response{}, false
	}
	if err != nil {
		e.t.Fatalf("envoy: receive a response: %v", err)
	}
	r, err := decodeResponse(raw, e.Delta)
	if err != nil {
		e.t.Fatalf("envoy: a response cannot be read: %v", err)
	}
	e.tr.Notef("envoy", "gets  %v", r)
	return r, true
}

// Quiet fails the test when a response comes within d.
func (e *Envoy) Quiet(d time.Duration) {
	e.t.Helper()
	raw, err := take(e.in, d)
	if errors.Is(err, errIdle) {
		return
	}
	r, _ := decodeResponse(raw, e.Delta)
	e.t.Errorf("envoy: want nothing within %v, got %v (%v)", d, r, err)
}

// End waits for the end of the stream and returns its error.
func (e *Envoy) End() error {
	e.t.Helper()
	for {
		_, err := take(e.in, patience)
		if errors.Is(err, errIdle) {
			e.t.Fatal("envoy: the stream has not ended")
		}
		if err != nil {
			e.tr.Notef("envoy", "sees the end: %v", err)
			return err
		}
	}
}

// ACK accepts a response.
func (e *Envoy) ACK(r Response) {
	e.t.Helper()
	st := e.state(r.Type)
	st.nonce, st.accepted = r.Nonce, r.Version
	for _, one := range r.Resources {
		st.versions[one.Name] = one.Version
	}
	for _, name := range r.Removed {
		delete(st.versions, name)
	}
	e.answer(r, "")
}

// NACK rejects a response.
func (e *Envoy) NACK(r Response, text string) {
	e.t.Helper()
	e.state(r.Type).nonce = r.Nonce
	e.answer(r, text)
}

// Ignore takes note of the nonce and answers nothing, as for a type of which nothing is wanted.
func (e *Envoy) Ignore(r Response) { e.state(r.Type).nonce = r.Nonce }

func (e *Envoy) answer(r Response, text string) {
	e.t.Helper()
	st := e.state(r.Type)
	if e.Delta {
		e.request(Request{Type: r.Type, Nonce: r.Nonce, Error: text})
		return
	}
	e.request(Request{Type: r.Type, Version: st.accepted, Nonce: r.Nonce, Error: text, Names: st.names})
}

func (e *Envoy) request(r Request) {
	e.t.Helper()
	if !e.begun {
		r.Node = e.Node
	}
	e.begun = true
	e.tr.Notef("envoy", "sends %v", r)
	e.SendRaw(r.encode(e.Delta))
}

// SendRaw sends bytes as they are. That the stream has ended is for Recv and End to find.
func (e *Envoy) SendRaw(raw []byte) {
	e.t.Helper()
	if err := e.stream.SendMsg(&raw); err != nil && !errors.Is(err, io.EOF) {
		e.t.Errorf("envoy: send a request: %v", err)
	}
	e.tr.settle()
}

func missing(from, in []string) []string {
	return slices.DeleteFunc(slices.Clone(from), func(name string) bool { return slices.Contains(in, name) })
}
