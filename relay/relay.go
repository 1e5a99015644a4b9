// Package relay stands between Envoy and its control plane: one session for each ADS stream that Envoy opens, in either protocol.
//
// Frames are bytes. A passed type is forwarded as it came; only the few fields that the relay keeps account of are read from the wire.
// A terminated type (extension configs, when a Terminator is given) ends in the relay: upstream the relay is an xDS client of its own,
// towards Envoy an xDS server, with own nonces and answers on either side.
//
// Each session has one goroutine that owns its state; readers and writers of the two streams only hand frames to and from it, so that
// receiving never waits for sending.
package relay

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

const (
	defaultMaxMessage = 256 << 20
	defaultMaxWaiting = 64 << 20
)

// A Terminator decides what Envoy gets for each extension config. Its methods return at once. The relay calls them for one session in
// order, from one goroutine: Open first, Close last; for several sessions at the same time.
type Terminator interface {
	// Open tells that Envoy opened a stream. push hands the relay one resource for Envoy (Resource nil: removed); settle answers the
	// upstream's response offer (nil: ACK, else the NACK's text). Both may be called from any goroutine, never block, and do
	// nothing after Close. The relay does not change what it is given, and the caller must not either.
	Open(session uint64, node *corev3.Node, push func(*discoveryv3.Resource), settle func(offer uint64, err error))
	// Subscribe tells what Envoy asks for and no longer asks for. A name that is subscribed again wants an answer again.
	Subscribe(session uint64, subscribed, unsubscribed []string)
	// Offer hands over one response of the upstream. Every resource has its name and version, in state-of-the-world too.
	Offer(session, offer uint64, resources []*discoveryv3.Resource, removed []string)
	// Answer tells what Envoy said to what was pushed as name and version; nil: ACK.
	Answer(session uint64, name, version string, err error)
	// Observe shows a listener response before Envoy gets it: the bytes of a DiscoveryResponse or, with delta, of a DeltaDiscoveryResponse.
	Observe(session uint64, delta bool, response []byte)
	// Close tells that the stream has ended.
	Close(session uint64)
}

// Config is what a Server needs.
type Config struct {
	Upstream   grpc.ClientConnInterface // the control plane; required
	Terminator Terminator               // for extension configs; nil: they pass like any other type
	MaxMessage int                      // bytes of a message, both ways; default 256 MiB
	MaxWaiting int                      // bytes of responses that wait for an Envoy which does not read, one more message on top; default 64 MiB
	Own        []Own                    // what the agent asks for itself, right after Envoy has asked for listeners
	Redial     func()                   // makes the next stream use another connection, because this one is stuck; must not wait; nil: it is not called
	StuckAfter time.Duration            // a stream on which the control plane reads nothing, or says nothing when it must, for that long is cut; default 45 s, negative: never
	Answers    bool                     // the control plane answers the first request for clusters or listeners even when Envoy names the version it has, as istiod does
	MaxAge     time.Duration            // of a stream to the control plane, less up to a tenth; default: no limit
	Log        *slog.Logger             // default: discarded
}

// Server relays ADS streams. Its methods may be called from any goroutine.
type Server struct {
	config  Config
	codec   codec
	seed    maphash.Seed
	sotw    *protocol
	delta   *protocol
	backoff backoff
	metrics *metrics
	lastID  atomic.Uint64
	health  atomic.Pointer[health]
	mute    atomic.Int32 // streams in a row that were cut because the control plane said nothing

	mu       sync.Mutex
	sessions map[uint64]*session
	live     map[uint64]bool // sessions with an upstream stream
	procs    map[int]*process
	failure  failure
}

// New checks the configuration.
func New(config Config) (*Server, error) {
	if config.Upstream == nil {
		return nil, errors.New("relay: no upstream connection is given")
	}
	if config.MaxMessage < 0 || config.MaxWaiting < 0 || config.MaxAge < 0 {
		return nil, errors.New("relay: a limit is negative")
	}
	if err := checkOwn(config.Own); err != nil {
		return nil, err
	}
	config.StuckAfter = cmp.Or(config.StuckAfter, defaultStuckAfter)
	config.MaxMessage = cmp.Or(config.MaxMessage, defaultMaxMessage)
	config.MaxWaiting = cmp.Or(config.MaxWaiting, defaultMaxWaiting)
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	return &Server{
		config: config, codec: newCodec(), seed: maphash.MakeSeed(),
		sotw: sotwProtocol(), delta: deltaProtocol(), metrics: newMetrics(),
		sessions: make(map[uint64]*session), live: make(map[uint64]bool), procs: make(map[int]*process),
	}, nil
}

// ServerOptions are what a gRPC server needs to carry the relay: its codec, which leaves other services alone, and the limits.
func (s *Server) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(s.codec),
		grpc.MaxRecvMsgSize(s.config.MaxMessage),
		grpc.MaxSendMsgSize(s.config.MaxMessage),
	}
}

// callOptions are those of an upstream stream.
func (s *Server) callOptions() []grpc.CallOption {
	return []grpc.CallOption{
		grpc.ForceCodecV2(s.codec),
		grpc.MaxCallRecvMsgSize(s.config.MaxMessage),
		grpc.MaxCallSendMsgSize(s.config.MaxMessage),
		grpc.WaitForReady(true),
	}
}

// Register adds the aggregated discovery service, in both protocols.
func (s *Server) Register(registrar grpc.ServiceRegistrar) {
	stream := func(p *protocol) grpc.StreamDesc {
		return grpc.StreamDesc{
			StreamName: p.method, ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error { return s.serve(p, stream) },
		}
	}
	registrar.RegisterService(&grpc.ServiceDesc{
		ServiceName: serviceName,
		HandlerType: (*any)(nil),
		Streams:     []grpc.StreamDesc{stream(s.sotw), stream(s.delta)},
		Metadata:    "envoy/service/discovery/v3/ads.proto",
	}, s)
}

// serve is the life of one stream of Envoy's.
func (s *Server) serve(p *protocol, stream grpc.ServerStream) error {
	ctx, cancel := context.WithCancel(stream.Context())
	session := s.newSession(ctx, p)
	s.add(session)
	defer s.remove(session)
	err := session.run(ctx, cancel, stream)
	session.log.InfoContext(ctx, "envoy's stream ended", "code", status.Code(err))
	return err
}
