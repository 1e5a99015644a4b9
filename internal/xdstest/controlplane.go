package xdstest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ControlPlane is a fake ADS server. It does nothing by itself: the test takes its streams and plays each of them. What a client may not
// do fails the test.
type ControlPlane struct {
	*Network
	t       testing.TB
	tr      *Transcript
	streams chan *Stream
	refuse  atomic.Pointer[error] // what every stream ends with, nil: they are served
	stop    func()
}

// NewControlPlane starts one; tr may be nil.
func NewControlPlane(t testing.TB, tr *Transcript) *ControlPlane {
	t.Helper()
	c := &ControlPlane{Network: NewNetwork(), t: t, tr: tr, streams: make(chan *Stream)}
	c.Start()
	return c
}

// Start serves (again).
func (c *ControlPlane) Start() {
	c.t.Helper()
	server := grpc.NewServer(grpc.KeepaliveEnforcementPolicy(istiodPings), grpc.ForceServerCodecV2(bytesCodec{}), grpc.MaxRecvMsgSize(maxSize), grpc.MaxSendMsgSize(maxSize))
	server.RegisterService(&grpc.ServiceDesc{ServiceName: service, HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{
		{StreamName: method(false), ServerStreams: true, ClientStreams: true, Handler: func(_ any, s grpc.ServerStream) error { return c.serve(s, false) }},
		{StreamName: method(true), ServerStreams: true, ClientStreams: true, Handler: func(_ any, s grpc.ServerStream) error { return c.serve(s, true) }},
	}}, nil)
	c.stop = c.Serve(c.t, server)
}

// Stop takes the server away and cuts its connections.
func (c *ControlPlane) Stop() { c.stop() }

// Refuse makes every stream end at once with err, until Refuse(nil).
func (c *ControlPlane) Refuse(err error) {
	if err == nil {
		c.refuse.Store(nil)
		return
	}
	c.refuse.Store(&err)
}

func (c *ControlPlane) serve(server grpc.ServerStream, delta bool) error {
	if err := c.refuse.Load(); err != nil {
		c.tr.Notef("server", "refuses a stream")
		return *err
	}
	ctx, cancel := context.WithCancel(server.Context())
	defer cancel()
	s := &Stream{
		t: c.t, tr: c.tr, Delta: delta, send: server.SendMsg, ctx: ctx, end: make(chan error, 1),
		in: pump(ctx, server.RecvMsg), types: make(map[string]*clientState),
	}
	select {
	case c.streams <- s:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-s.end:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Accept waits for the next stream.
func (c *ControlPlane) Accept() *Stream {
	c.t.Helper()
	select {
	case s := <-c.streams:
		return s
	case <-time.After(patience):
		c.t.Fatal("no stream came to the control plane")
		return nil
	}
}

// Stream is one stream of a client, as the control plane sees it. One goroutine may send while another receives.
type Stream struct {
	Delta  bool
	Merged bool // delta: requests may carry an ACK and names at once, and take back what was never asked for, as merged ones do

	t    testing.TB
	tr   *Transcript
	ctx  context.Context
	send func(any) error
	in   <-chan received
	end  chan error

	mu    sync.Mutex
	begun bool
	nonce int
	types map[string]*clientState
}

// clientState is what the rules need to know of one type.
type clientState struct {
	names    []string
	versions map[string]string // nonce → version sent
	rejected map[string]bool   // nonces
	claimed  map[string]bool   // state-of-the-world: nonces rejected under the version that they came with
	begun    bool
}

func (s *Stream) state(typeURL string) *clientState {
	st := s.types[typeURL]
	if st == nil {
		st = &clientState{versions: make(map[string]string), rejected: make(map[string]bool), claimed: make(map[string]bool)}
		s.types[typeURL] = st
	}
	return st
}

// Recv waits for the next request and checks it.
func (s *Stream) Recv() Request {
	s.t.Helper()
	raw, err := take(s.in, patience)
	if err != nil {
		s.t.Fatalf("control plane: receive a request: %v", err)
	}
	r, err := decodeRequest(raw, s.Delta)
	if err != nil {
		s.t.Fatalf("control plane: a request cannot be read: %v", err)
	}
	s.tr.Notef("server", "gets  %v", r)
	s.check(r)
	return r
}

// Names are the names that the client has told, sorted.
func (s *Stream) Names(typeURL string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(slices.Values(s.state(typeURL).names))
}

// Drain receives all requests until none comes for d, and returns them.
func (s *Stream) Drain(d time.Duration) []Request {
	s.t.Helper()
	var all []Request
	for {
		raw, err := take(s.in, d)
		if errors.Is(err, errIdle) {
			return all
		}
		if err != nil {
			s.t.Fatalf("control plane: receive a request: %v", err)
		}
		r, err := decodeRequest(raw, s.Delta)
		if err != nil {
			s.t.Fatalf("control plane: a request cannot be read: %v", err)
		}
		s.check(r)
		all = append(all, r)
	}
}

// Quiet fails the test when a request comes within d.
func (s *Stream) Quiet(d time.Duration) {
	s.t.Helper()
	raw, err := take(s.in, d)
	if errors.Is(err, errIdle) {
		return
	}
	r, _ := decodeRequest(raw, s.Delta)
	s.t.Errorf("control plane: want no request within %v, got %v (%v)", d, r, err)
}

// Gone waits until the client has left.
func (s *Stream) Gone() {
	s.t.Helper()
	for {
		if _, err := take(s.in, patience); errors.Is(err, errIdle) {
			s.t.Fatal("control plane: the client is still there")
		} else if err != nil {
			s.tr.Notef("server", "sees the client leave")
			return
		}
	}
}

// Send sends a response with the next nonce and returns it as sent.
func (s *Stream) Send(r Response) Response {
	s.t.Helper()
	if r.Nonce == "" {
		s.mu.Lock()
		s.nonce++
		r.Nonce = "s" + strconv.Itoa(s.nonce)
		s.mu.Unlock()
	}
	s.tr.Notef("server", "sends %v", r)
	r.Raw = r.encode(s.Delta)
	s.SendRaw(r.Type, r.Version, r.Nonce, r.Raw)
	return r
}

// SendRaw sends bytes as they are, which are a response of that type, version and nonce.
func (s *Stream) SendRaw(typeURL, version, nonce string, raw []byte) {
	s.t.Helper()
	s.mu.Lock()
	s.state(typeURL).versions[nonce] = version
	s.mu.Unlock()
	if err := s.send(&raw); err != nil {
		s.t.Errorf("control plane: send a response: %v", err)
	}
	s.tr.settle()
}

// End ends the stream from the control plane's side.
func (s *Stream) End(code codes.Code, text string) {
	s.tr.Notef("server", "ends the stream: %v %s", code, text)
	if code == codes.OK {
		s.end <- nil
		return
	}
	s.end <- status.Error(code, text)
}

// check fails the test when a client breaks the rules of the protocol.
func (s *Stream) check(r Request) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.state(r.Type)
	broken := func(format string, args ...any) {
		s.t.Helper()
		s.t.Errorf("control plane: %s: request %v", fmt.Sprintf(format, args...), r)
	}
	if s.begun == (r.Node != nil) {
		broken("the node belongs into the first request and no other")
	}
	version, known := st.versions[r.Nonce]
	if r.Type == Health { // it is only told
		if r.Nonce != "" || len(r.Names) > 0 {
			broken("health has neither nonce nor names")
		}
		return
	}
	if r.Nonce != "" && !known {
		broken("this nonce was never sent for the type")
	}
	if r.Error != "" {
		if r.Nonce == "" {
			broken("it rejects nothing")
		}
		s.checkNACK(r, st, version, broken)
	}
	if s.Delta {
		s.checkDelta(r, st, broken)
	} else {
		s.checkSotw(r, st, version, broken)
	}
	s.begun, st.begun = true, true
}

// checkNACK: a response is rejected once. One that repeats another may in state-of-the-world be rejected under its own version first: that
// keeps a control plane that compares versions from repeating it again.
func (s *Stream) checkNACK(r Request, st *clientState, version string, broken func(string, ...any)) {
	claims := !s.Delta && r.Version == version && version != ""
	switch {
	case claims && !s.sentTwice(st, version):
		broken("a NACK claims the version it rejects")
	case claims && st.claimed[r.Nonce], !claims && st.rejected[r.Nonce], claims && st.rejected[r.Nonce]:
		broken("it rejects the same response twice")
	}
	if claims {
		st.claimed[r.Nonce] = true
	} else {
		st.rejected[r.Nonce] = true
	}
}

func (s *Stream) checkDelta(r Request, st *clientState, broken func(string, ...any)) {
	if r.Nonce != "" && len(r.Names)+len(r.Unnames) > 0 && !s.Merged {
		broken("an answer changes names")
	}
	if st.begun && len(r.Initial) > 0 {
		broken("initial versions belong into the first request of a type")
	}
	if r.Type == ECDS && len(r.Initial) > 0 {
		broken("a terminated type asks for everything")
	}
	for _, name := range r.Unnames {
		i := slices.Index(st.names, name)
		if i < 0 {
			if s.Merged {
				continue
			}
			broken("%s was not subscribed", name)
			continue
		}
		st.names = slices.Delete(st.names, i, i+1)
	}
	for _, name := range r.Names {
		if !slices.Contains(st.names, name) {
			st.names = append(st.names, name)
		}
	}
}

func (s *Stream) checkSotw(r Request, st *clientState, version string, broken func(string, ...any)) {
	names := slices.Sorted(slices.Values(r.Names))
	if r.Error != "" && st.begun && !slices.Equal(names, st.names) {
		broken("a NACK changes the names %v", st.names)
	}
	if r.Type == ECDS && !st.begun && (r.Version != "" || len(names) == 0) {
		broken("the first request of a terminated type has names and no version")
	}
	st.names = names
}

func (s *Stream) sentTwice(st *clientState, version string) bool {
	n := 0
	for _, v := range st.versions {
		if v == version {
			n++
		}
	}
	return n > 1
}
